"""The times at which tasks began to wait, for decisions about tasks that have waited too long."""

from __future__ import annotations

from bisect import bisect_right


class WaitingTimes:
    """The times at which batches were accepted, and at which some tasks began to wait again.

    The Brain notes both; nothing else changes them.
    """

    def __init__(self) -> None:
        self._batches: list[int] = []
        """The first batch of each series of batches that were accepted at one time, sorted. A queue may have 100,000
        batches."""
        self._times: list[float] = []
        """The time at which each series in `_batches` was accepted."""
        self._again: dict[int, float] = {}

    def accepted(self, batch: int, at: float) -> None:
        """Note that this batch, and all later ones, were accepted at this time.

        Batches come in order. When a journal is replayed, the first call is for all batches; later calls are for
        batches that joined the run afterwards.
        """
        while self._batches and self._batches[-1] >= batch:
            self._batches.pop()
            self._times.pop()
        self._batches.append(batch)
        self._times.append(at)

    def again(self, task: int, at: float) -> None:
        """Note when a task began to wait again."""
        self._again[task] = at

    def since(self, task: int, batch: int) -> float:
        """Return when a waiting task of this batch began to wait."""
        if task in self._again:
            return self._again[task]
        place = bisect_right(self._batches, batch) - 1
        return self._times[place] if place >= 0 else 0.0
