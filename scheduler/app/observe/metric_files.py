"""The metrics of a run's attempts, from the records in its directory and from output that no sampler has read."""

from __future__ import annotations

import json
from typing import Any

from scheduler.core.metrics.record import MetricRecord
from scheduler.core.reporting.run_history import AttemptHistory, TaskHistory
from scheduler.devices.metric_reader import MetricReader
from scheduler.store.run.catalog import RunInfo


class AttemptMetrics:
    """The reader of the metrics of one run; it writes nothing."""

    def __init__(self, info: RunInfo) -> None:
        self._places = info.places
        settings = json.loads(info.meta["settings"])
        self.names: str = settings.get("metrics", "")
        """The metrics that the user named, separated by commas; empty: the default metrics."""
        self._watched = _watched(settings.get("stop_when", ""), settings.get("keep_best", ""))

    def files(self, task: int, attempt: int, *, living: bool = False) -> MetricReader:
        """Return a reader that continues where the run's sampler last stopped reading."""
        places = self._places
        progress = places.progress(task, attempt) if living else ""
        kept, result = places.metrics(task, attempt), places.result(task, attempt)
        log = str(places.task_log(task, attempt))
        return MetricReader(log, progress, result, kept, self.names, self._watched, writes=False)

    def record(self, task: int, attempt: AttemptHistory) -> MetricRecord:
        """Return the metrics of an attempt so far, with the result that it wrote."""
        files = self.files(task, attempt.number)
        files.read_rest()
        files.record.complete(attempt.result)
        return files.record

    def of_task(self, task: int, history: TaskHistory | None) -> MetricRecord | None:
        """Return the metrics of a task's newest attempt that was not a probe; None if there is none."""
        last = history.last if history is not None else None
        return self.record(task, last) if last is not None else None


def columns(record: MetricRecord | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return a task's row with the last value of each metric as `result.NAME`, and its extremes.

    A value in the result that the task wrote at its end replaces the last value.
    """
    if record is None:
        return row
    more = {f"result.{name}": curve.last for name, curve in record.curves.items()}
    return {**row, **{name: value for name, value in more.items() if row.get(name) is None}}


def _watched(stop_when: str, keep_best: str) -> str:
    """Return the metrics by which the run stops tasks early, separated by commas."""
    if not stop_when and not keep_best:
        return ""
    from scheduler.core.metrics.stop_rules import wanted  # most runs have no such rules

    return wanted(stop_when, keep_best)
