"""Parameters on a command line, and grids of parameters as rows or as a list in a file."""

from __future__ import annotations

import contextlib
import csv
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from scheduler.core.tasks.command import SHELL
from scheduler.core.tasks.fields import BY_COLUMN, RowForm
from scheduler.core.tasks.param_grid import needs_no_shell
from scheduler.core.tasks.placeholders import literal
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import UsageError
from scheduler.inputs.lines import COLUMN, form_of_lines

PARAMETER = ("-p", "--parameter")
Chosen = tuple[str, Mapping[str, str]]
"""A command, and the parameter values from which it was made."""


def split_parameters(argv: Sequence[str], is_flag: Callable[[str], bool]) -> tuple[list[str], dict[str, list[str]]]:
    """Split a command line into the words outside of `-p NAME VALUE ...`, and the parameters with their values, which
    may begin with a minus.

    If two parameters have one name, the later one counts. Raise UsageError if no name follows `-p`.
    """
    rest, found = list[str](), dict[str, list[str]]()
    words = list(argv)
    while words:
        word = words.pop(0)
        if word not in PARAMETER:
            rest.append(word)
            continue
        if not words or is_flag(words[0]):
            raise UsageError("-p: write a name and its values after it, as in -p lr 0.1 0.01")
        name, values = words.pop(0), list[str]()
        while words and not is_flag(words[0]) and words[0] not in PARAMETER:
            values.append(words.pop(0))
        found[name] = values
    return rest, found


def own_columns(names: Iterable[str]) -> list[str]:
    """Return the parameters that can become columns: their names are neither task fields nor reserved."""
    return [name for name in names if name.lower() not in {*BY_COLUMN, COLUMN}]


def grid_form(defaults: Mapping[str, str], names: Iterable[str]) -> RowForm:
    """Return the form of a grid's rows, with the parameters as columns for the results."""
    return form_of_lines(defaults, own_columns(names))


def grid_rows(form: RowForm, chosen: Iterable[Chosen]) -> Iterator[InputRow]:
    """Yield the commands of a grid as validated rows."""
    seen: Counter[int] = Counter()
    terms = form.terms([""] * len(form.columns))
    for number, (line, values) in enumerate(chosen, 1):
        nth = seen[hash(line)]
        seen[hash(line)] += 1
        yield number, [line, *(values[name] for name in form.columns[1:])], terms, nth


def write_csv(path: str, names: Sequence[str], chosen: Iterable[Chosen]) -> int:
    """Write a grid as a CSV list with a Command in each row; return the number of rows. Raise UsageError if the file
    cannot be written.
    """
    kept, part = own_columns(names), f"{path}.{os.getpid()}.part"
    if os.path.lexists(path):
        raise UsageError(f"--out {path}: it exists already and is left as it is: move it away, or give another file")
    rows = 0
    try:
        with open(part, "x", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["Command", *kept])
            for line, values in chosen:
                writer.writerow([_listed(line), *(values[name] for name in kept)])
                rows += 1
        os.rename(part, path)
    except OSError as exc:
        raise UsageError(f"--out {path}: cannot be written ({(exc.strerror or str(exc)).lower()})") from exc
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    return rows


def _listed(line: str) -> str:
    """Return a command as the text of a cell: it starts a shell only if the command needs one, and contains no
    placeholder to fill in.
    """
    return line if needs_no_shell(line) else literal(shlex.join([*SHELL, line]))
