"""The list of tasks of the live view: its selection, its order and its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from scheduler.core.brain import Brain
from scheduler.core.model import LIVING, UNFINISHED, RankOrder, State
from scheduler.core.reporting.live_status import LiveTask
from scheduler.core.reporting.run_history import AttemptHistory
from scheduler.core.tasks.redaction import without_secrets
from scheduler.ui.live.ports import BestTask, RunTasks, TaskWords
from scheduler.ui.text import clean
from scheduler.values import dataclass

MOST = 2000
"""The most waiting tasks, and the most ended tasks, in the list."""
MANY = 5000
"""The number of tasks above which the list is no longer rebuilt at every event."""
REST = 2.0
"""Seconds between two rebuilds of a list with more than MANY tasks."""
LEAST_COMPARED = 2
"""The least number of tasks that must have been compared before the best one is shown."""
PARAMETER, METRIC = "parameter ", "metric "
"""The prefixes of the names of columns for the user's parameters and metrics."""
_WAITS = tuple(UNFINISHED - LIVING)
_NO_FAULT = (State.SUCCEEDED, State.PRUNED, State.CANCELLED)
_ENDED = tuple(frozenset(State) - UNFINISHED)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task of the list."""

    task: int
    state: State
    words: TaskWords
    priority: int
    live: LiveTask | None
    """The samples of a running task; None for any other task."""
    attempt: AttemptHistory | None
    """The last attempt of an ended task; None if it is not known."""
    metrics: Mapping[str, Sequence[float | None]]


def live_row(one: LiveTask, varies: Sequence[str] = ()) -> TaskRow:
    """Return the row of a running task from its samples alone; the values of the parameters in `varies` are read from
    the task's name.
    """
    state = State.PROBING if one.probe else State.RUNNING
    found = sorted((at, name) for name in varies if (at := one.name.find(f" {name}=")) > 0)
    ends = [at for at, _ in found[1:]] + [len(one.name)]
    parameters = {name: one.name[at + len(name) + 2 : end] for (at, name), end in zip(found, ends, strict=False)}
    script = one.name[: found[0][0]] if found else one.name
    return TaskRow(one.task, state, TaskWords(one.name, script, parameters), 0, one, None, one.metrics)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tasks that the user wants to see, and their order."""

    words: tuple[str, ...] = ()
    """The words that the texts of a task must contain, in lower case."""
    sort: str = ""
    """The column by which tasks are sorted; empty: running, waiting and ended tasks, each group in its own order."""
    down: bool = False


class TaskRows:
    """The tasks of a run in the order that the user wants. The last order is kept, because a new one takes time for
    every task.
    """

    def __init__(self, brain: Brain, tasks: RunTasks) -> None:
        self._brain = brain
        self._tasks = tasks
        self._made: tuple[object, float, list[int]] = ((), 0.0, [])
        self._texts: dict[int, str] = {}
        self.left_out = 0
        """The number of tasks that are left out of the list because it is full."""

    def ids(self, living: Mapping[int, LiveTask], wanted: Wanted) -> Sequence[int]:
        """Return the ids of the tasks of the list, in its order."""
        key, now = (self._brain.changes, tuple(living), wanted), time.monotonic()
        before, at, found = self._made
        many = len(self._brain.task_table) > MANY and isinstance(before, tuple) and before[2:] == key[2:]
        ticks = wanted.sort and now >= at + REST  # what is sorted by may change without an event
        if (before == key and not ticks) or (many and now < at + REST):
            return found
        found = self._sorted(self._matching(self._all(living), wanted.words), living, wanted)
        self._made = (key, now, found)
        return found

    def _all(self, living: Mapping[int, LiveTask]) -> list[int]:
        table, states = self._brain.task_table, self._brain.state_counts
        waiting = self._by_rank(list(islice(table.in_state(*_WAITS), MOST)))
        ended = [task for task in islice(self._tasks.ended(), MOST) if self._brain.state(task) not in UNFINISHED]
        known = set(ended)
        if len(ended) < MOST:
            rest = (task for task in table.in_state(*_ENDED) if task not in known)
            ended += islice(rest, MOST - len(ended))
        now_running = [task for task in living if task in table and self._brain.state(task) in LIVING]
        found = [*now_running, *waiting, *ended]
        self.left_out = max(0, sum(states.values()) - len(found))
        return found

    def _by_rank(self, found: list[int]) -> list[int]:
        """Return waiting tasks in the order in which batches and priorities let them start; held and blocked tasks come
        last.
        """
        brain = self._brain
        roll, priorities = brain.task_table, [terms.priority for terms in brain.terms]
        is_global = brain.rules.order is RankOrder.GLOBAL

        def rank(task: int) -> tuple[bool, int, int, int]:
            batch, priority = roll.batch(task), priorities[roll.terms(task)]
            first = (priority, batch) if is_global else (batch, priority)
            return roll.state(task) is not State.WAITING, *first, task

        return sorted(found, key=rank)

    def _matching(self, found: list[int], words: Sequence[str]) -> list[int]:
        if not words:
            return found
        return [task for task in found if all(word in self._text(task) for word in words)]

    def _text(self, task: int) -> str:
        """Return the text of a task in which the user's words are searched, in lower case."""
        text = self._texts.get(task)
        if text is None:
            words = self._tasks.words(task)
            pairs = " ".join(f"{name}={value}" for name, value in words.parameters.items())
            text = self._texts[task] = f"{words.name} {pairs}".lower()
        return f"{task} {self._brain.state(task)} {text}"

    def _sorted(self, found: list[int], living: Mapping[int, LiveTask], wanted: Wanted) -> list[int]:
        if not wanted.sort:
            return found[::-1] if wanted.down else found
        value = sort_value(wanted.sort)
        rows = {task: value(self.row(task, living.get(task))) for task in found}
        known = [task for task in found if rows[task] is not None]
        known.sort(key=lambda task: _natural(rows[task]), reverse=wanted.down)
        return known + [task for task in found if rows[task] is None]

    def row(self, task: int, live: LiveTask | None) -> TaskRow:
        """Return the row of a task."""
        brain = self._brain
        state = brain.state(task)
        ended = state not in UNFINISHED
        metrics = live.metrics if live is not None else self._tasks.metrics(task) if ended else {}
        attempt = self._tasks.last_attempt(task) if ended else None
        return TaskRow(task, state, self._tasks.words(task), brain.terms_of(task).priority, live, attempt, metrics)

    def __contains__(self, task: int) -> bool:
        return task in self._brain.task_table

    def state(self, task: int) -> State:
        """Return a task's state."""
        return self._brain.state(task)

    def priority(self, task: int) -> int:
        """Return a task's priority."""
        return self._brain.terms_of(task).priority

    def best(self) -> tuple[BestTask, TaskWords] | None:
        """Return the best task so far with its texts; None until enough tasks can be compared."""
        found = self._tasks.best()
        return None if found is None or found.of < LEAST_COMPARED else (found, self._tasks.words(found.task))

    @property
    def jobs(self) -> int | None:
        """The most tasks of the run that may run at once; None: unlimited."""
        return self._brain.rules.jobs

    @property
    def running(self) -> int:
        """The number of tasks that run now."""
        return self._brain.task_table.living

    @property
    def varies(self) -> Sequence[str]:
        """The parameters that vary in the run's lists."""
        return self._tasks.varies()


def sort_value(column: str) -> Callable[[TaskRow], Any]:
    """Return the function that returns a row's value in a column; the value is None if the row has none."""
    if column.startswith(PARAMETER):
        name = column.removeprefix(PARAMETER)
        return lambda row: row.words.parameters.get(name)
    if column.startswith(METRIC):
        metric = column.removeprefix(METRIC)
        return lambda row: next(iter(row.metrics.get(metric, ())[-1:]), None)
    return _VALUES[column]


def seconds_of(row: TaskRow) -> float | None:
    """Return for how many seconds a task has run, or ran; None before its start."""
    if row.live is not None:
        return row.live.seconds
    return row.attempt.seconds if row.attempt is not None else None


def exit_of(row: TaskRow) -> int:
    """Return the exit code of a failed task, or its signal as a negative number; 0 if it has neither."""
    one = row.attempt
    return 0 if one is None or row.state in _NO_FAULT else one.code or -(one.signal or 0)


def reason_of(row: TaskRow) -> str:
    """Return why a task failed, in one line without secrets; empty for any other task, or if the reason is unknown."""
    if row.attempt is None or row.state in _NO_FAULT:
        return ""
    one = row.attempt
    ended = f"killed by signal {one.signal}" if one.signal else ""
    return " ".join(clean(without_secrets(one.reason)).split()) or ended


def memory_of(row: TaskRow) -> tuple[int, int] | None:
    """Return the peak and the reservation, in bytes, of a task's last attempt on its main devices; None before the
    first attempt.
    """
    if row.live is not None:
        return row.live.peak, row.live.reserved
    if row.attempt is None:
        return None
    main = row.attempt.devices
    peak, reserved = (
        max((by.get(key, 0) for key in main), default=0) for by in (row.attempt.peak, row.attempt.reserved)
    )
    return peak, reserved


_VALUES: Mapping[str, Callable[[TaskRow], Any]] = {
    "task": lambda row: row.task,
    "state": lambda row: str(row.state),
    "name": lambda row: row.words.name,
    "prio": lambda row: row.priority,
    "time": seconds_of,
    "memory": lambda row: (memory_of(row) or (None,))[0],
    "left": lambda row: row.live.left if row.live is not None else None,
    "device": lambda row: ", ".join(row.live.devices) if row.live is not None else None,
    "reason": lambda row: reason_of(row) or None,
    "exit": lambda row: exit_of(row) or None,
    "ended": lambda row: row.attempt.ended if row.attempt is not None else None,
    "epochs": lambda row: row.live.epochs if row.live is not None else None,
}
"""The functions that return the values of the columns that every list may have."""


def _natural(value: Any) -> tuple[bool, float, str]:
    """Return a sort key that puts numbers before strings."""
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, str(value)
