"""The lines of `results --best` and `results --group-by`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.core.metrics.goal import Goal
from scheduler.ui.export.tables import all_numbers, number, script_name
from scheduler.ui.text import short, table
from scheduler.units import count, duration

if TYPE_CHECKING:
    from scheduler.core.metrics.ranking import Group, Ranking

MOST_PARAMETERS, LONGEST_CELL = 6, 24
_WORDS = {Goal.MIN: "lowest", Goal.MAX: "highest"}


def lines(ranking: Ranking, varies: Sequence[str], run: int, most: int) -> list[str]:
    """Return a table of the best tasks, followed by a sentence about the best one with its parameters."""
    shown = tuple(varies[:MOST_PARAMETERS])
    header = ["id", *(("name",) if not shown else ()), *shown, f"best {ranking.metric}", "step", "last", "state", "ran"]
    cells = [_cells(row, ranking.metric, shown) for row in ranking.rows[:most]]
    right = frozenset({0, *range(len(header) - 5, len(header) - 2), len(header) - 1})
    right |= {at for at in range(1, len(shown) + 1) if shown and all_numbers(row[at] for row in cells)}
    result = table(header, cells, right)
    left = len(ranking.rows) - len(cells)
    more = f"--best {ranking.metric} --limit {len(ranking.rows)}"
    result += [f"and {count(left, 'task')} more: scheduler results r{run} {more}"] if left else []
    return [*result, "", answer(ranking, shown)]


def _cells(row: Mapping[str, Any], metric: str, shown: Sequence[str]) -> list[str]:
    values = [short(str(row.get(name, "")), LONGEST_CELL) for name in shown]
    return [
        str(row["id"]),
        *([] if shown else [short(row["name"], 40)]),
        *values,
        number(row["best"]),
        number(row["best_step"]),
        number(row.get(f"result.{metric}")),
        str(row["state"]),
        duration(row["ran_s"]) if row["ran_s"] is not None else "",
    ]


def answer(ranking: Ranking, shown: Sequence[str]) -> str:
    """Return a sentence about the best task."""
    best = ranking.best
    if best is None:
        return f"no task has a value of {ranking.metric} yet"
    values = " ".join(f"{name}={short(str(best[name]), LONGEST_CELL)}" for name in shown if best.get(name))
    at = "" if best["best_step"] is None else f" at step {number(best['best_step'])}"
    name = script_name(best["name"], shown) if values else short(best["name"], 60)
    what = f"{name} {values}".strip()
    return f"{_WORDS[ranking.goal]} {ranking.metric} {number(best['best'])}{at}: {what} (task {best['id']})"


def group_lines(ranking: Ranking, groups: Sequence[Group], column: str) -> list[str]:
    """Return a table with a line for each group of tasks."""
    header = [column, "tasks", f"best {ranking.metric}", "mean", "median", "best task"]
    cells = [
        [
            short(group.value, LONGEST_CELL), str(group.tasks), number(group.best), number(group.mean),
            number(group.median), "" if group.task is None else str(group.task),
        ]
        for group in groups
    ]  # fmt: skip
    return table(header, cells, frozenset(range(1, 6)))
