"""The header of a CSV file: its delimiter, its columns, and columns whose names look misspelt."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Collection, Mapping, Sequence

from scheduler.core.tasks.fields import BY_COLUMN, FIVE, REQUIRED
from scheduler.errors import InputError

_OTHER_NAMES = {
    "timelimit": "Timeout", "walltime": "Timeout", "vram": "Memory", "gpumemory": "Memory", "ram": "HostMemory",
    "depends": "After", "dependson": "After", "dependency": "After", "dependencies": "After", "afterok": "After",
}  # fmt: skip
"""Names that other tools use for task fields, each with the name that this project uses."""


def known_names(line: str, delimiter: str) -> set[str]:
    """Return the task fields that a line names, in lower case."""
    cells = next(csv.reader([line], delimiter=delimiter), [])
    return {cell.strip().lower() for cell in cells} & BY_COLUMN.keys()


def delimiter_of(line: str) -> str:
    """Return the delimiter of a header: the comma, unless the header contains task fields only if it is split at
    another delimiter.
    """
    if known_names(line, ","):
        return ","
    return max((",", "\t", ";"), key=lambda delimiter: len(known_names(line, delimiter)))


def checked_columns(
    path: str,
    row: int,
    cells: list[str],
    given: set[str],
    parameters: set[str] | None = None,
    mine: Collection[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return the columns of a header, and the columns that look like misspelt task fields, with the names of these
    fields.

    `given` are the columns for which flags give a default. `parameters` are the columns of a table that its command
    uses; None: every row has a command of its own. `mine` are names, in lower case, that the user has declared as
    correct. Raise InputError if the header is invalid.
    """
    columns = [cell.strip() or f"column_{number}" for number, cell in enumerate(cells, 1)]
    for number, name in enumerate(columns):
        if name.lower() in (other.lower() for other in columns[:number]):
            raise InputError(path, f"two columns have the name {name!r}", row)
    known = {BY_COLUMN[name.lower()].column for name in columns if name.lower() in BY_COLUMN}
    slips = {
        name: meant
        for name, meant in _slips(columns, known).items()
        if name not in (parameters or ()) and name.lower() not in mine
    }
    missing = [name for name in REQUIRED if name not in known | given]
    if parameters is None and missing and "Command" not in known | given:
        raise InputError(path, _missing(columns, missing, slips if slips or known & {*FIVE} else None), row)
    return columns, slips


def refuse_slips(path: str, row: int, slips: Mapping[str, str]) -> None:
    """Raise InputError if there are columns that look like misspelt task fields."""
    if not slips:
        return
    (name, meant), *more = slips.items()
    others = "".join(f"; {other!r}: did you mean {field}?" for other, field in more)
    raise InputError(
        path,
        f"it is not a task field: did you mean {meant}?{others} Rename it, or keep it as a column of your own: "
        f"--my-columns {','.join(slips)}",
        row,
        name,
    )


def _missing(columns: list[str], missing: list[str], slips: dict[str, str] | None) -> str:
    """Return a sentence about missing columns; `slips` is None if the header contains no task field at all."""
    if slips is None:
        shown = ", ".join(repr(name) for name in columns[:5])
        return (
            f"the header has none of the columns {', '.join(FIVE)}; it has {shown}:"
            f" name the columns, give a command that takes them (-- python train.py {{{columns[0]}}}),"
            " or use --header None if the file has no header"
        )
    wrong = [f"{name!r} for {meant}" for name, meant in slips.items() if meant in missing]
    hint = f"; did you mean {' and '.join(wrong)}?" if wrong else ""
    named = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
    return f"the {named} missing{hint}"


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _slips(columns: Sequence[str], known: set[str]) -> dict[str, str]:
    """Return the columns whose names look like misspelt task fields, if the file does not have these fields."""
    absent = {name: field.column for name, field in BY_COLUMN.items() if field.column not in known}
    slips = {}
    for column in columns:
        plain = _plain(column)
        begun = [name for name in absent if len(plain) > 2 and name.startswith(plain)]
        near = difflib.get_close_matches(plain, absent, 1, 0.8) or begun[:1]
        meant = absent[near[0]] if near else _OTHER_NAMES.get(plain, "")
        if meant and meant not in known and column.lower() not in BY_COLUMN:
            slips[column] = meant
    return slips
