"""One command that is given on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from scheduler.core.tasks.fields import BY_COLUMN, BadCell, RowForm, joined, words
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import UsageError
from scheduler.inputs.row_checks import RowChecker, place_of_command
from scheduler.runtime.python_envs import Programs

EXAMPLE = "scheduler exec -- python train.py --lr 0.1"


def command(said: Sequence[str]) -> list[str]:
    """Return the words of a command that was given as words or as one quoted string; raise UsageError if it is empty or
    malformed.
    """
    try:
        split = words(said[0]) if len(said) == 1 else list(said)
    except ValueError as exc:
        raise UsageError(f"the command {exc}: close the quote, or give the words after --") from exc
    if not split or not split[0]:
        raise UsageError(f"no command was given: write it like  {EXAMPLE}")
    for word in split:
        _check(word)
    return split


def _check(word: str) -> None:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{word!a} of the command is not UTF-8: rename the file") from None


def shown(said: Sequence[str]) -> str:
    """Return the command in the form in which lists of runs show it."""
    return joined(command(said))


def rows(
    said: Sequence[str], defaults: Mapping[str, str], python: str, append: str
) -> tuple[RowForm, Iterator[InputRow]]:
    """Return the form of a command and an iterator of its only row; raise UsageError if the command cannot be
    run here.
    """
    try:
        form = RowForm(("Directory", "Command"), defaults, append)
        split = started(command(said), python)
        place_of_command(RowChecker("", python, "").__getitem__, os.getcwd(), split)
        cells = [os.getcwd(), joined(split)]
        form.spec(cells, 1)
        return form, iter([(1, cells, form.terms(cells), 0)])
    except BadCell as exc:
        raise UsageError(f"{_where(exc.column)}{exc}") from exc


def cells(said: Sequence[str], fields: Mapping[str, str], python: str, append: str) -> tuple[RowForm, list[InputRow]]:
    """Return the form and the row of a command; its fields become cells, so that commands with different values share
    one form.
    """
    form, found = rows(said, fields, python, append)
    made = [(row, [*own, *form.defaults.values()], terms, nth) for row, own, terms, nth in found]
    return RowForm((*form.columns, *form.defaults), {}, append), made


def started(said: list[str], python: str) -> list[str]:
    """Return the words that start a command: a script of this directory gets an interpreter or a path, unless a program
    on PATH has its name.
    """
    first, here = said[0], os.path.join(os.curdir, said[0])
    if "/" in first or not os.path.isfile(here) or Programs(os.environ).which(first) is not None:
        return said
    if os.access(here, os.X_OK):
        return [here, *said[1:]]
    return [python, *said] if first.endswith(".py") else said


def _where(column: str) -> str:
    field = BY_COLUMN.get(column.lower())
    return f"{field.flag}: " if field is not None and field.flag else ""
