"""The tasks of a run by a metric: the best ones, the groups that share a parameter, and the order of a column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.metrics.goal import Goal, goal_of, loose, ranked
from scheduler.core.metrics.record import MetricRecord
from scheduler.errors import UsageError
from scheduler.values import dataclass

PREFIX = "result."


@dataclass(frozen=True, slots=True)
class Ranking:
    """The tasks of a run, ranked by one metric."""

    metric: str
    goal: Goal
    rows: Sequence[Mapping[str, Any]]
    """The rows of all tasks, the best first; `best` and `best_step` are added, None where a task has no value."""

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The row of the best task; None if no task has a value."""
        return next((row for row in self.rows if row["best"] is not None), None)


def metrics_of(rows: Iterable[Mapping[str, Any]], first: Sequence[str] = ()) -> list[str]:
    """Return the metrics that rows have as numbers, the most important ones first."""
    metrics: dict[tuple[str, ...], list[str]] = {}
    """For rows with equal columns, the columns that are metrics. They are found once, because most rows of a list have
    equal columns."""
    names: dict[str, None] = {}
    for row in rows:
        columns = tuple(row)
        if columns not in metrics:
            metrics[columns] = [name for name in columns if name.startswith(PREFIX)]
        for name in metrics[columns]:
            if isinstance(row[name], int | float) and not isinstance(row[name], bool):
                names[name.removeprefix(PREFIX)] = None
    return ranked(names, first)


def rank(
    found: Iterable[tuple[Mapping[str, Any], MetricRecord | None]], metric: str, goal: Goal | None = None
) -> Ranking:
    """Return the tasks, ranked by the best value of a metric that each has reached; raise UsageError for an unknown
    metric.
    """
    tasks = list(found)
    known = metrics_of(row for row, _ in tasks)
    name = next((one for one in known if one == metric), None) or next(
        (one for one in known if loose(one) == loose(metric)), None
    )
    if name is None:
        there = f"there are {', '.join(known)}" if known else "its tasks have reported none so far"
        raise UsageError(f"there is no metric {metric!r}: {there}")
    goal = goal or goal_of(name)
    rows = [_with_best(row, record, name, goal) for row, record in tasks]
    return Ranking(name, goal, sorted(rows, key=lambda row: _rank(row, goal)))


def _with_best(row: Mapping[str, Any], record: MetricRecord | None, name: str, goal: Goal) -> dict[str, Any]:
    curve = record.curves.get(name) if record is not None else None
    low = goal is Goal.MIN
    best = (curve.lowest if low else curve.highest) if curve is not None else None
    last = row.get(f"{PREFIX}{name}")
    value = float(last) if isinstance(last, int | float) and not isinstance(last, bool) else math.nan
    if math.isfinite(value) and (best is None or (value < best[0] if low else value > best[0])):
        return {**row, "best": value, "best_step": None}
    return {**row, "best": None if best is None else best[0], "best_step": None if best is None else best[1]}


def _rank(row: Mapping[str, Any], goal: Goal) -> tuple[bool, float, int]:
    best = row["best"]
    if best is None:
        return True, 0.0, row["id"]
    return False, best if goal is Goal.MIN else -best, row["id"]


@dataclass(frozen=True, slots=True)
class Group:
    """The tasks that share the value of a column."""

    value: str
    tasks: int
    best: float | None
    mean: float | None
    median: float | None
    task: int | None
    """The task with the best value."""

    def to_dict(self, column: str) -> dict[str, Any]:
        """Return the group as JSON values."""
        return {
            column: self.value, "tasks": self.tasks, "best": self.best, "mean": self.mean, "median": self.median,
            "task": self.task,
        }  # fmt: skip


def groups(ranking: Ranking, column: str) -> list[Group]:
    """Return the groups of tasks with equal values of a column, the best first."""
    by_value: dict[str, list[Mapping[str, Any]]] = {}
    for row in ranking.rows:
        by_value.setdefault(str(row.get(column, "")), []).append(row)
    return [_group(value, rows) for value, rows in by_value.items()]


def _group(value: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    with_value = [row for row in rows if row["best"] is not None]
    values = [float(row["best"]) for row in with_value]
    if not values:
        return Group(value, len(rows), None, None, None, None)
    mean = math.fsum(values) / len(values)
    return Group(value, len(rows), values[0], mean, _median(values), with_value[0]["id"])


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def known_column(word: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the column that a user's word means: its name, or the name of a metric without `result.`. Raise UsageError
    for an unknown one.
    """
    names = dict.fromkeys(name for row in rows for name in row if name not in ("best", "best_step"))
    name = word if word in names or f"{PREFIX}{word}" not in names else f"{PREFIX}{word}"
    if names and name not in names:
        raise UsageError(f"there is no column {name!r}; there are {', '.join(names)}")
    return name


def sorted_by(rows: Iterable[Mapping[str, Any]], column: str, *, down: bool = False) -> list[Mapping[str, Any]]:
    """Sort rows by a column, numbers before strings; empty cells are last in both directions."""
    found = list(rows)
    name = known_column(column, found)
    keys = [(sort_key(row.get(name)), row) for row in found]
    full = [(key, row) for key, row in keys if key is not None]
    full.sort(key=lambda pair: pair[0], reverse=down)
    return [row for _, row in full] + [row for key, row in keys if key is None]


def sort_key(value: Any) -> tuple[bool, float, str] | None:
    """Return the sort key of a cell: numbers come before strings. None for an empty cell and for NaN."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return True, 0.0, str(value)
    return None if math.isnan(number) else (False, number, "")
