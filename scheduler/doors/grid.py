"""Parameters from a command line, and grids as rows or as a list in a file."""

from __future__ import annotations

import contextlib
import csv
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from scheduler.core.command import SHELL
from scheduler.core.fields import BY_COLUMN, RESERVED, Form
from scheduler.core.placeholders import literal
from scheduler.core.sweep import needs_no_shell
from scheduler.doors.lines import COLUMN, Row, form_of_lines
from scheduler.errors import UsageError

PARAMETER = ("-p", "--parameter")
Chosen = tuple[str, Mapping[str, str]]
"""A command, and the values that made it."""


def split_parameters(argv: Sequence[str], is_flag: Callable[[str], bool]) -> tuple[list[str], dict[str, list[str]]]:
    """What is left of a command line without `-p NAME VALUE ...`; a value may begin with a minus.

    Of two parameters of one name the later counts. Raises UsageError.
    """
    rest, found = list[str](), dict[str, list[str]]()
    words = list(argv)
    while words:
        word = words.pop(0)
        if word not in PARAMETER:
            rest.append(word)
            continue
        if not words or is_flag(words[0]):
            raise UsageError("-p: a name and its values belong behind it, as in -p lr 0.1 0.01")
        name, values = words.pop(0), list[str]()
        while words and not is_flag(words[0]) and words[0] not in PARAMETER:
            values.append(words.pop(0))
        found[name] = values
    return rest, found


def own_columns(names: Iterable[str]) -> list[str]:
    """The parameters that can be columns: those whose name means nothing else."""
    return [name for name in names if name.lower() not in {*BY_COLUMN, *RESERVED, COLUMN}]


def grid_form(defaults: Mapping[str, str], names: Iterable[str]) -> Form:
    """How commands of a grid become rows that come back with their parameters."""
    return form_of_lines(defaults, own_columns(names))


def grid_rows(form: Form, chosen: Iterable[Chosen]) -> Iterator[Row]:
    """The rows."""
    seen: Counter[int] = Counter()
    terms = form.terms([""] * len(form.columns))
    for number, (line, values) in enumerate(chosen, 1):
        nth = seen[hash(line)]
        seen[hash(line)] += 1
        yield number, [line, *(values[name] for name in form.columns[1:])], terms, nth


def write_csv(path: str, names: Sequence[str], chosen: Iterable[Chosen]) -> int:
    """A list that can be run: a Command in each row, and its parameters beside it; how many rows. Raises UsageError."""
    kept, part = own_columns(names), f"{path}.{os.getpid()}.part"
    if os.path.lexists(path):
        raise UsageError(f"--out {path}: it is there already, and is left as it is: move it away, or name another")
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
        raise UsageError(f"--out {path}: it cannot be written ({(exc.strerror or str(exc)).lower()})") from exc
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    return rows


def _listed(line: str) -> str:
    """A command as a list's own: read by a shell only where it takes one, and nothing of it filled any more."""
    return line if needs_no_shell(line) else literal(shlex.join([*SHELL, line]))
