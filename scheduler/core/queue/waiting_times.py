"""The times since which tasks wait, for decisions about those that have waited for too long."""

from __future__ import annotations


class WaitingTimes:
    """The time at which each batch was accepted, and at which some tasks began to wait again.

    The Brain notes both; nothing else changes them.
    """

    def __init__(self) -> None:
        self._batches: dict[int, float] = {}
        self._again: dict[int, float] = {}

    def accepted(self, batch: int, at: float) -> None:
        """Note when a batch was accepted."""
        self._batches[batch] = at

    def arrived(self, batch: int, at: float) -> None:
        """Note that this batch and all later ones were accepted at this time, not with the first list."""
        self._batches.update({number: at for number in self._batches if number >= batch})

    def again(self, task: int, at: float) -> None:
        """Note when a task began to wait again."""
        self._again[task] = at

    def since(self, task: int, batch: int) -> float:
        """Return when a waiting task began to wait; `batch` is its batch."""
        return self._again.get(task, self._batches.get(batch, 0.0))
