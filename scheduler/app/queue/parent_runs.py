"""Parents in other runs: tasks and whole runs on which tasks of a run depend, found once and then observed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from scheduler.app.control import targets
from scheduler.app.observe.run_facts import places
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.run.task_list import QUEUE
from scheduler.core.events import Observed
from scheduler.core.model import NO_TASK, RETRIABLE, UNFINISHED, UNSUCCESSFUL, State
from scheduler.core.ports import Happening
from scheduler.core.queue.dependencies import DependencyTracker
from scheduler.core.tasks.after import parent_name, parent_word, run_of, whole_run
from scheduler.errors import NoSuchRun, StateError, UsageError
from scheduler.patterns import lazy_pattern
from scheduler.runtime.settings import Settings
from scheduler.store.earlier_tasks import OtherRuns, TaskNames
from scheduler.store.queue.queue_link import USUAL, find_queue
from scheduler.store.run.catalog import DIGITS, RunCatalog
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.task_texts import TaskTexts

LOOK = 1.0
"""Seconds between two looks at the other runs."""
_RUN = lazy_pattern(r"r(\d+)\Z", re.ASCII)
_TASKS = lazy_pattern(r"(r\d+\.)?\d+(-\d+)?\Z", re.ASCII)


class ParentRuns(OtherRuns):
    """The other runs of this user on which tasks of one run depend."""

    def __init__(self, settings: Settings, own: int = 0) -> None:
        """Prepare for the run `own`; pass the dependencies of its tasks to `follow` afterwards."""
        self._settings = settings
        self._catalog = RunCatalog(places(settings))
        self._own = own
        self._tracker: DependencyTracker | None = None
        self._runs: dict[int, int] = {}
        """The runs of the parents that were found."""
        self._readers: dict[int, RunReader] = {}
        self._due = 0.0

    def follow(self, tracker: DependencyTracker) -> None:
        """Begin to observe the parents outside of the run, for as long as tasks of the run wait for them."""
        self._tracker = tracker

    # ---- when a list is accepted ----

    def find(self, word: str) -> Sequence[int]:
        """Return the parents for which an id, a run or a name in the queue stands; empty if there are none."""
        if whole := _RUN.match(word):
            return self._whole(word, int(whole[1][:DIGITS]))
        if not _TASKS.match(word):
            return self._in_queue(word)
        if word.isdecimal() and not self._exists(word):
            return ()
        found = targets.tasks(self._settings, [word])
        for target in found:
            self._note(target.tasks, target.info.number)
        return [task for target in found for task in target.tasks]

    def _exists(self, word: str) -> bool:
        try:
            return bool(targets.tasks(self._settings, [word]))
        except NoSuchRun:
            return False

    def _whole(self, word: str, run: int) -> Sequence[int]:
        if run == self._own:
            raise UsageError(f"{word} is the run of this task, which would wait for itself")
        self._catalog.info(run)
        self._note([whole_run(run)], run)
        return [whole_run(run)]

    def _in_queue(self, name: str) -> Sequence[int]:
        """Return the tasks of the standing queue that have a name."""
        queue = find_queue(places(self._settings), USUAL)
        if queue is None or queue.number == self._own:
            return ()
        journal = JournalReader.read(queue.journal)
        try:
            tasks = TaskNames(TaskTexts(journal)).before(name)
        finally:
            journal.close()
        self._note(tasks, queue.number)
        return tasks

    def _note(self, parents: Iterable[int], run: int) -> None:
        if run != self._own:
            self._runs.update(dict.fromkeys(parents, run))

    def spoilt(self, parent: int) -> str:
        """Return why a parent, of this run or another, can no longer succeed unless a user acts; empty if it may still
        succeed.
        """
        if parent in self._runs:
            state, cause = self._state(parent), parent
        elif self._tracker is not None:
            state, cause = self._tracker.state(parent), self._tracker.cause(parent)
        else:
            return ""
        if state is State.SKIPPED and cause not in (NO_TASK, parent):
            return f"{parent_name(parent)} was skipped because of {parent_name(cause)}: {_retry(cause)} first"
        if state in UNSUCCESSFUL or (state is State.SKIPPED and cause == parent):
            return f"{parent_name(parent)} ended without success ({state}): {_retry(parent)} first"
        return ""

    def seen(self, parents: Sequence[int]) -> Sequence[Observed]:
        """Return the states of the given parents that belong to other runs."""
        return _gathered({parent: self._state(parent) for parent in parents if parent in self._runs})

    def parents(self, task: int) -> Sequence[int]:
        """Return the parents of a task of the run."""
        return tuple(self._tracker.parents(task)) if self._tracker is not None else ()

    def journal_of(self, parent: int) -> JournalReader | None:
        """Return the journal of the other run that a parent belongs to; None if the parent belongs to this run."""
        if self._tracker is None or not self._tracker.is_outside(parent):
            return None
        return JournalReader.read(self._catalog.places.run(self._run(parent)).journal)

    def run_of(self, parent: int) -> int:
        """Return the run of a parent that was found outside of this run."""
        return self._runs[parent]

    # ---- while the run goes on ----

    def collect(self) -> Sequence[Happening]:
        """Return the states of parents in other runs that have changed since the last look."""
        if self._tracker is None or time.monotonic() < self._due:
            return ()
        self._due = time.monotonic() + LOOK
        awaited = self._tracker.awaited()
        if not awaited:
            self._close()
            return ()
        now = {parent: self._state(parent) for parent in awaited}
        return _gathered({p: state for p, state in now.items() if state is not self._tracker.state(p)})

    def _close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    # ---- states ----

    def _state(self, parent: int) -> State:
        """Return the present state of a parent; a parent that was removed with its run counts as one that will never
        succeed.
        """
        try:
            run = self._run(parent)
            return self._of_run(run) if run_of(parent) is not None else _of_task(self._read(run), parent)
        except NoSuchRun:
            return State.CANCELLED
        except StateError:  # the run cannot be read now, but maybe at a later look
            return State.WAITING

    def _run(self, parent: int) -> int:
        run = run_of(parent)
        if run is None and (run := self._runs.get(parent)) is None:
            run = targets.tasks(self._settings, [str(parent)])[0].info.number
            self._runs[parent] = run
        return run

    def _read(self, run: int) -> RunReader:
        """Return the reader of a run, after it has read everything that was recorded until now."""
        info = self._catalog.info(run)
        reader = self._readers.get(run)
        if reader is None:
            reader = self._readers[run] = RunReader(info, only_states=True)
        else:
            reader.info = info
            reader.catch_up()
        return reader

    def _of_run(self, run: int) -> State:
        """Return the state of a run as if it were one task."""
        reader = self._read(run)
        table = reader.brain.task_table
        goes_on = reader.info.alive and reader.info.meta.get("door") != QUEUE
        if goes_on or any(table.counts[state] for state in UNFINISHED):
            return State.RUNNING if reader.info.alive else State.WAITING
        good = all(_of_task(reader, task) is State.SUCCEEDED for task in table.in_state(State.SKIPPED))
        return State.SUCCEEDED if good and not any(table.counts[state] for state in RETRIABLE) else State.FAILED


def _of_task(reader: RunReader, task: int) -> State:
    """Return the state of a task; a row that succeeded in an earlier run counts as succeeded."""
    state = reader.brain.state(task)
    return State.SUCCEEDED if state is State.SKIPPED and task in reader.history.done_by else state


def _gathered(states: dict[int, State]) -> list[Observed]:
    """Return one event for each state, with all parents in that state."""
    by_state: dict[State, list[int]] = {}
    for parent, state in states.items():
        by_state.setdefault(state, []).append(parent)
    return [Observed(tuple(parents), state) for state, parents in by_state.items()]


def _retry(parent: int) -> str:
    return f"scheduler retry {parent_word(parent)}"
