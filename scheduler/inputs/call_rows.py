"""Calls of Python code, turned into rows one by one: a million calls need no more memory than one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import BY_COLUMN, BadCell, RowForm
from scheduler.core.tasks.placeholders import literal
from scheduler.core.tasks.row_source import InputRow
from scheduler.inputs import python_calls, python_tasks
from scheduler.inputs.python_calls import PythonCall
from scheduler.inputs.python_tasks import Task
from scheduler.inputs.row_checks import BadRows, RowChecker
from scheduler.runtime import clock

_FIRST = ("Command", "Name")


class CallRows:
    """The rows of calls that vary the arguments `varied`; `terms` are keywords of a Task, equal for all of
    these calls.
    """

    def __init__(self, varied: Iterable[str], terms: Mapping[str, Any], python: str) -> None:
        self._names = list(dict.fromkeys(varied))
        self._python = python
        task = Task(command="", **terms)
        fixed = [column for column in python_tasks.COLUMNS if BY_COLUMN[column.lower()].attribute in terms]
        self._fixed = [python_tasks.cell(task, column) for column in fixed]
        own = [f"config.{name}" for name in self._names]
        self.form = RowForm([*_FIRST, *fixed, *own], {}, append="none", now=clock.wall())
        self._terms: Terms | None = None
        self._head = ""
        self._rest: tuple[Mapping[Any, str], str] = ({}, "")
        """The constant values of the last call, and the word that shows them; they are kept because most calls have
        equal constant values.
        """
        self._bad = BadRows("tasks")

    def row(self, number: int, call: PythonCall, launcher: str, given: str) -> InputRow:
        """Return a call as a row. The first call is checked like any task; of a later call, only the parts that differ
        from the first call are checked.
        """
        said = {key: str(value) for key, value in call.varied.items()}
        tail = " ".join([_word(key, text) for key, text in said.items()])
        end = f"{python_calls.target_words(call.target)} {tail}{self._rest_word(call.rest)}".rstrip()
        command = f"{self._start(launcher)} {shlex.quote(literal(given))} {end}"
        cells = [command, literal(call.name), *self._fixed, *(said.get(each, "") for each in self._names)]
        try:
            self._check(cells, number)
        except BadCell as exc:
            self._bad.add(number, str(exc), exc.column)
        return number, cells, self._terms or self.form.terms(cells), 0

    def _start(self, launcher: str) -> str:
        if not self._head:
            self._head = shlex.join(literal(word) for word in (self._python, launcher))
        return self._head

    def _rest_word(self, rest: Mapping[Any, str]) -> str:
        if rest is not self._rest[0]:
            self._rest = (rest, python_calls.rest_word(rest))
        return self._rest[1]

    def _check(self, cells: list[str], number: int) -> None:
        if self._terms is None:
            self._terms = python_tasks.checked(self.form, cells, number, RowChecker("", self._python, ""))
        elif any("\0" in cell for cell in cells):
            python_tasks.refuse_nul(self.form, cells)

    def check_terms(self) -> None:
        """Raise BadCell for a term with an invalid value, even before there is a row."""
        cells = ["", "", *self._fixed, *("" for _ in self._names)]
        python_tasks.refuse_nul(self.form, cells)
        self.form.terms(cells)
        self.form.spec(cells, 1)

    def refuse(self) -> None:
        """Raise InputError if rows were invalid."""
        self._bad.refuse()


@lru_cache(10_000)
def _word(key: str, text: str) -> str:
    return shlex.quote(python_calls.varied_word(key, text))
