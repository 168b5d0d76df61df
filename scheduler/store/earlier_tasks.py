"""The tasks that were accepted before a row, which the row can name as its parents: by id, by range and by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.core.events import Depended, Exited, Observed
from scheduler.core.ports import Happening
from scheduler.core.queue.dependencies import DependencyTracker
from scheduler.core.tasks.after import Earlier
from scheduler.core.tasks.list_dependencies import ListDependencies
from scheduler.core.tasks.placeholders import split_result
from scheduler.patterns import lazy_pattern
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.task_texts import TaskTexts
from scheduler.values import dataclass

_ROW = lazy_pattern(r"r\d+\.\d+\Z", re.ASCII)
_IDS = lazy_pattern(r"(\d{1,18})(?:-(\d{1,18}))?\Z", re.ASCII)

LAST = 2**63 - 1
"""An id above all others."""


class OtherRuns(Earlier):
    """The parents of a run's tasks that belong to other runs; a source of events about them while the run goes on.

    This base class has no parents: it is for a run that depends on no other run.
    """

    def follow(self, tracker: DependencyTracker) -> None:
        """Watch the parents in other runs from now on; `tracker` knows which of them the run's tasks wait for."""

    def parents(self, task: int) -> Sequence[int]:
        """Return the parents of a task of the run."""
        return ()

    def journal_of(self, parent: int) -> JournalReader | None:
        """Return the journal of the run to which a parent belongs; None if that is this run. The caller closes it."""
        return None

    def seen(self, parents: Sequence[int]) -> Sequence[Observed]:
        """Return the states of the given parents that belong to other runs."""
        return ()

    def fileno(self) -> int:
        """Return -1, because no descriptor signals changes of other runs; `collect` checks these runs from time to
        time.
        """
        return -1

    def collect(self) -> Sequence[Happening]:
        """Return the states of parents that have changed since the last call; never block for long."""
        return ()


class TaskNames:
    """The tasks of a run by name. Each row is read only once: at the first search for a name after the row was
    accepted.
    """

    def __init__(self, texts: TaskTexts) -> None:
        self._texts = texts
        self._tasks: dict[str, list[int]] = {}
        self._next = 0
        """The lowest id that has not been read yet."""

    def before(self, name: str, end: int = LAST) -> Sequence[int]:
        """Return the tasks with this name whose ids are below `end`: later rows do not count."""
        for task, row in self._texts.journal.rows_from(self._next, end):
            self._next = task + 1
            self._tasks.setdefault(self._texts.name(row), []).append(task)
        return tuple(self._tasks.get(name, ()))


class EarlierTasks:
    """The tasks of a run and of other runs that the rows of a new list can name as parents."""

    def __init__(self, texts: TaskTexts) -> None:
        self.others: OtherRuns = OtherRuns()
        self._texts = texts
        self._names = TaskNames(texts)

    def before(self, first: int) -> TasksBefore:
        """Return the tasks that a list can name as parents if its first row gets the id `first`."""
        return TasksBefore(self._texts.journal, self._names, self.others, first)

    def results_for(self, task: int) -> Callable[[str], str | None]:
        """Return the function that finds the values of a task's placeholders in the results of the task's parents."""
        return lambda placeholder: self._result(task, placeholder)

    def _result(self, task: int, placeholder: str) -> str | None:
        """Return the value for a placeholder such as `prep.result.path`; None for a task without parents.

        Raise LookupError with a sentence if no parent left a value with that name.
        """
        parents = self.others.parents(task)
        if not parents:
            return None
        said, key = split_result(placeholder)
        rows = self.others.find(said) if _ROW.match(said) else ()
        for parent in parents:
            name, values = self._left_by(parent)
            if said in ("", name, str(parent)) or parent in rows:
                if key in values:
                    return shown_value(values[key])
                left = f"it left: {', '.join(values)}" if values else "it wrote nothing to SCHEDULER_RESULT"
                raise LookupError(f"{{{placeholder}}}: the result of task {parent} ({name}) has no {key}; {left}")
        raise LookupError(f"{{{placeholder}}}: no parent of task {task} has the name {said}")

    def _left_by(self, parent: int) -> tuple[str, Mapping[str, Any]]:
        """Return the name of a parent and the result of its last attempt."""
        other = self.others.journal_of(parent)
        journal = other or self._texts.journal
        try:
            name = TaskTexts(journal).name(journal.row(parent))
            ends = [one.event for one in journal.task_events(parent) if isinstance(one.event, Exited)]
        finally:
            if other is not None:
                other.close()
        return name, ends[-1].result if ends else {}

    def events(self, dependencies: ListDependencies, first: int) -> list[Depended | Observed]:
        """Return the events that block rows of a list until their parents end, and the states of parents in
        other runs.
        """
        edges = dependencies.events(first)
        return [*self.others.seen(dependencies.known()), *edges] if edges else []


@dataclass(frozen=True, slots=True)
class TasksBefore(Earlier):
    """The tasks that the rows of one list can name as parents, apart from rows of the list itself."""

    journal: JournalReader
    names: TaskNames
    others: OtherRuns
    first: int
    """The id of the list's first row."""

    def find(self, word: str) -> Sequence[int]:
        """Return the tasks of this run that a word names; if there are none, the tasks of other runs that it names."""
        if ids := _IDS.match(word):
            own = self.journal.within(int(ids[1]), int(ids[2] or ids[1]))
            here: Sequence[int] = [task for task in own if task < self.first]
        else:
            here = self.names.before(word, self.first)
        return here or self.others.find(word)

    def spoilt(self, parent: int) -> str:
        """Return why a parent can no longer succeed unless a user acts; an empty string if it can."""
        return self.others.spoilt(parent)


def shown_value(value: object) -> str:
    """Return a value of a result in the form that it has in a command: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
