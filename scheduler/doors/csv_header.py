"""What a CSV header says: its delimiter, its columns, and the slips in their names."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence

from scheduler.core.fields import BY_COLUMN, FIVE, REQUIRED, RESERVED
from scheduler.errors import InputError


def known_names(line: str, delimiter: str) -> set[str]:
    cells = next(csv.reader([line], delimiter=delimiter), [])
    return {cell.strip().lower() for cell in cells} & BY_COLUMN.keys()


def delimiter_of(line: str) -> str:
    """The comma, unless the header has our names only where it is split at another delimiter."""
    if known_names(line, ","):
        return ","
    return max((",", "\t", ";"), key=lambda delimiter: len(known_names(line, delimiter)))


def checked_columns(
    path: str, row: int, cells: list[str], given: set[str], parameters: set[str] | None = None
) -> tuple[list[str], list[str]]:
    """The columns that a header names, and what is doubtful about them; `given` are the ones flags stand in for.

    `parameters` are columns of a table that its command asks for; None: every row says its own command.
    """
    columns = [cell.strip() or f"column_{number}" for number, cell in enumerate(cells, 1)]
    for number, name in enumerate(columns):
        if name.lower() in (other.lower() for other in columns[:number]):
            raise InputError(path, f"two columns have the name {name!r}", row)
        if _plain(name) in RESERVED:
            raise InputError(path, f"{RESERVED[_plain(name)]}: leave the column out or rename it", row, name)
    known = {BY_COLUMN[name.lower()].column for name in columns if name.lower() in BY_COLUMN}
    slips = {name: meant for name, meant in _slips(columns, known).items() if name not in (parameters or ())}
    missing = [name for name in REQUIRED if name not in known | given]
    if parameters is None and missing and "Command" not in known | given:
        raise InputError(path, _missing(columns, missing, slips if slips or known & {*FIVE} else None), row)
    doubt = f"{path}: column {{!r}} is taken as one of your own: did you mean {{}}?"
    return columns, [doubt.format(name, meant) for name, meant in slips.items()]


def _missing(columns: list[str], missing: list[str], slips: dict[str, str] | None) -> str:
    """What to say where required columns are missing; `slips` is None where the header is none of ours at all."""
    if slips is None:
        shown = ", ".join(repr(name) for name in columns[:5])
        return (
            f"the header has none of the names {', '.join(FIVE)}, it is {shown}:"
            f" name the columns, give a command that takes them (-- python train.py {{{columns[0]}}}),"
            " or say --header None where the file has no header"
        )
    wrong = [f"{name!r} for {meant}" for name, meant in slips.items() if meant in missing]
    hint = f"; did you mean {' and '.join(wrong)}?" if wrong else ""
    named = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
    return f"the {named} missing{hint}"


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _slips(columns: Sequence[str], known: set[str]) -> dict[str, str]:
    """The columns of the user's own whose names look like slips of known ones that the file has not."""
    absent = {name: field.column for name, field in BY_COLUMN.items() if field.column not in known}
    slips = {}
    for column in columns:
        plain = _plain(column)
        begun = [name for name in absent if len(plain) > 2 and name.startswith(plain)]
        near = difflib.get_close_matches(plain, absent, 1, 0.8) or begun[:1]
        if near and column.lower() not in BY_COLUMN:
            slips[column] = absent[near[0]]
    return slips
