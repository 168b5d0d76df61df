"""The tasks of a run for the live view: names and parameters from its journal, recent ends from its history."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from scheduler.app.live.details import TaskReader
from scheduler.app.live.requests import RequestSender
from scheduler.app.observe.metric_files import AttemptMetrics
from scheduler.core.brain import Brain
from scheduler.core.metrics.goal import Goal, goal_of, ranked
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.reporting.run_history import AttemptHistory, RunSummary
from scheduler.core.tasks import command
from scheduler.core.tasks.parameters import told
from scheduler.core.tasks.redaction import masked
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.task_texts import TaskTexts
from scheduler.ui.live.ports import BestTask, TaskWords
from scheduler.ui.live.run_screen import RunScreen
from scheduler.ui.live.task_list import TaskRows

MOST_COMPARED = 64
"""The most metrics whose best values are kept."""
MOST_KEPT = 10_000
"""The most tasks whose names or metrics are kept."""
READING, COMPARING = 0.010, 0.004
"""Limits on the processor seconds in each PERIOD for reading metrics of ended attempts: one for the tasks that are
shown, the other for finding the best of all tasks. The rest is read in later periods."""
PERIOD = 0.5


class BestValues:
    """The best value of each metric among all records that were passed to `take`."""

    def __init__(self, first: Sequence[str]) -> None:
        self._first = first
        self._found: dict[str, tuple[float, int]] = {}
        self._tasks: dict[str, int] = {}
        """The number of tasks with a value of each metric."""

    def take(self, task: int, record: MetricRecord) -> None:
        """Compare the metrics of a task with those of earlier tasks."""
        for name, curve in record.curves.items():
            low = goal_of(name) is Goal.MIN
            point = curve.lowest if low else curve.highest
            if point is None or (name not in self._found and len(self._found) >= MOST_COMPARED):
                continue
            self._tasks[name] = self._tasks.get(name, 0) + 1
            value, before = point[0], self._found.get(name)
            if before is None or (value < before[0] if low else value > before[0]):
                self._found[name] = value, task

    def best(self, varies: Sequence[str]) -> BestTask | None:
        """Return the best value of the most important metric that is not a parameter."""
        name = next((one for one in ranked(self._found, self._first) if one not in varies), None)
        if name is None:
            return None
        value, task = self._found[name]
        return BestTask(name, value, task, self._tasks[name])


class JournalTasks:
    """The tasks of one run; their names and parameters are read when they are shown for the first time."""

    def __init__(self, info: RunInfo, history: RunSummary) -> None:
        self._journal = JournalReader.read(info.places.journal)
        self._texts = TaskTexts(self._journal)
        self._metrics = AttemptMetrics(info)
        self._recent = history.recent
        self._words: dict[int, TaskWords] = {}
        self._values: dict[tuple[int, int], Mapping[str, Sequence[float | None]]] = {}
        self._compared: set[tuple[int, int]] = set()
        """The attempts whose metrics were compared."""
        self._best = BestValues(self._metrics.names.split(",") if self._metrics.names else ())
        self._spent, self._period_ends = 0.0, 0.0

    def words(self, task: int) -> TaskWords:
        """Return the name, the script and the varying parameters of a task."""
        found = self._words.get(task)
        if found is None:
            if len(self._words) >= MOST_KEPT:
                self._words.clear()
            found = self._words[task] = self._read(task)
        return found

    def _read(self, task: int) -> TaskWords:
        row = self._journal.row(task)
        form, spec = self._texts.form(row), self._texts.spec(row)
        name = command.name(spec, varies=form.varies)
        values = command.row_parameters(spec)
        shown = masked({one: values[one] for one in form.varies if values.get(one)}, frozenset(), ())
        told_name = told("", values, form.varies)
        script = name.removesuffix(told_name).strip() if told_name and name.endswith(told_name) else name
        return TaskWords(name, script or name, {one: str(value) for one, value in shown.items()})

    def varies(self) -> Sequence[str]:
        """Return the names of the parameters that vary in the lists whose tasks were shown."""
        return tuple(dict.fromkeys(name for form in self._texts.known_forms() for name in form.varies))

    def ended(self) -> Sequence[int]:
        """Return tasks that have ended, the last one first."""
        return list(reversed(self._recent))

    def last_attempt(self, task: int) -> AttemptHistory | None:
        """Return the last attempt of an ended task, if it is known."""
        return self._recent.get(task)

    def metrics(self, task: int) -> Mapping[str, Sequence[float | None]]:
        """Return the last values of an ended task's metrics, as far as they were read."""
        attempt = self._recent.get(task)
        if attempt is None:
            return {}
        found = self._values.get((task, attempt.number))
        return (self._read_metrics(task, attempt) if self._may_read(READING) else {}) if found is None else found

    def _read_metrics(self, task: int, attempt: AttemptHistory) -> Mapping[str, Sequence[float | None]]:
        if len(self._values) >= MOST_KEPT:
            self._values.clear()
        began, key = time.thread_time(), (task, attempt.number)
        record = self._metrics.record(task, attempt)
        found = self._values[key] = record.last_values()
        if key not in self._compared:
            self._compared.add(key)
            self._best.take(task, record)
        self._spent += time.thread_time() - began
        return found

    def best(self) -> BestTask | None:
        """Read the metrics of a few more ended tasks; return the best of all tasks whose metrics were read."""
        for task, attempt in reversed(self._recent.items()):
            if (task, attempt.number) not in self._compared:
                if not self._may_read(COMPARING):
                    break
                self._read_metrics(task, attempt)
        return self._best.best(self.varies())

    def _may_read(self, most: float) -> bool:
        now = time.monotonic()
        if now >= self._period_ends:
            self._spent, self._period_ends = 0.0, now + PERIOD
        return self._spent < most

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()


def screen_of(info: RunInfo, brain: Brain, history: RunSummary, stack: ExitStack, signals: str = "") -> RunScreen:
    """Return the interactive screen of a run; `signals` names the keys that the terminal turns into signals. `stack`
    closes what the screen opens.
    """
    tasks = JournalTasks(info, history)
    stack.callback(tasks.close)
    reader = TaskReader(info, brain.state)
    stack.callback(reader.want, None)
    return RunScreen(TaskRows(brain, tasks), RequestSender(info), reader, signals)
