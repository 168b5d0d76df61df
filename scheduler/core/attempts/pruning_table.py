"""The table for the early stop of tasks: their values at the steps of `--keep-best`, and why tasks were stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.core.events import Pruned, Reached


class PruningTable:
    """The values that tasks had at the steps of `--keep-best`, and the tasks that must no longer be stopped early.

    Only events change it.
    """

    def __init__(self) -> None:
        self._values: dict[float, dict[int, float | None]] = {}
        """For each step, the values of the tasks that have reached it; None: the task had no numeric value."""
        self._spared: set[int] = set()
        self._reasons: dict[int, str] = {}

    def reached(self, event: Reached) -> None:
        """Note the value of a task at a step."""
        self._values.setdefault(event.rung, {})[event.task] = event.value

    def stopped(self, event: Pruned) -> None:
        """Note why a task is stopped."""
        self._reasons[event.task] = event.reason

    def why(self, task: int) -> str:
        """Return why a task was stopped; empty if it was not."""
        return self._reasons.get(task, "")

    def spare(self, task: int) -> None:
        """Note that a user wants a task to run although its metrics stopped it early."""
        self._spared.add(task)

    def is_spared(self, task: int) -> bool:
        """Tell whether a task may not be stopped early, because a user wants it to run."""
        return task in self._spared

    def at(self, step: float) -> Mapping[int, float | None]:
        """Return the value of each task that has reached a step."""
        return self._values.get(step, {})
