"""Python classes and functions as a run: each with what it is given in a file of the run's directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.doors import calls, python_tasks
from scheduler.doors.python_tasks import Task
from scheduler.launcher import write_own
from scheduler.paths import RunPlaces, make_private
from scheduler.store.rundir import Cells
from scheduler.wiring.listing import Listing


@dataclass(frozen=True, slots=True)
class Call:
    """One task: what is called, with what, and what people are told of it."""

    name: str
    said: Mapping[str, Any]
    """What the launcher reads."""
    pickled: bytes
    varied: Mapping[str, Any] = field(default_factory=dict)
    rest: object = None


@dataclass
class Calls:
    """All calls of one target, as a list to be run; `terms` are keywords of each Task."""

    target: calls.Target
    each: Sequence[Call]
    terms: Mapping[str, Any] = field(default_factory=dict)
    run: RunPlaces | None = None

    def listing(self, what: str) -> Listing:
        """They become rows once their run has a directory."""
        form, _ = python_tasks.rows(self._tasks(), {}, sys.executable)
        return Listing(what, form, self._rows(), prepare=self._prepare)

    def _prepare(self, run: RunPlaces) -> None:
        self.run = run
        make_private(run.given)
        for row, call in enumerate(self.each, 1):
            write_own(str(run.given_to(row)), {**self.target.said(), **call.said}, call.pickled)

    def _rows(self) -> Iterator[Cells]:
        yield from python_tasks.rows(self._tasks(), {}, sys.executable)[1]

    def _tasks(self) -> list[Task]:
        return [self._task(row, call) for row, call in enumerate(self.each, 1)]

    def _task(self, row: int, call: Call) -> Task:
        launcher, given = (str(self.run.launcher), str(self.run.given_to(row))) if self.run else ("", "")
        words = calls.words(sys.executable, launcher, given, self.target, call.varied, call.rest)
        columns = {f"config.{key}": value for key, value in call.varied.items()}
        return Task(command=words, name=calls.plain(call.name), columns=columns, **self.terms)
