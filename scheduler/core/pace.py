"""How fast a living task gets on, and how busy it keeps its GPUs, from what was seen of it."""

from __future__ import annotations

from collections.abc import Mapping


def alone(share: float, beside: float) -> float:
    """How busy a task would keep a GPU by itself that has so much of its time beside others, which would keep it so busy.

    While all of them together leave it idle now and then, each has what it asks for; else they share in proportion.
    """
    if share + beside <= 1.0 or share >= 1.0:
        return min(share, 1.0)
    return min(1.0, share * beside / (1.0 - share))


class Mean:
    """How busy a task keeps its GPUs, from when it first did."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._number = 0
        self._looked = False

    def see(self, shares: Mapping[str, float]) -> None:
        """So busy it keeps each of them now; what it does while it still loads its data says nothing."""
        if not shares:
            return
        self._looked = True
        if self._sum or any(shares.values()):
            self._sum += sum(shares.values()) / len(shares)
            self._number += 1

    @property
    def value(self) -> float | None:
        """The mean; 0 where it was looked at and never did anything, None where nobody could look."""
        if not self._looked:
            return None
        return self._sum / self._number if self._number else 0.0


class Pace:
    """How long an epoch takes, from when which epoch was seen."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None

    def see(self, epochs: float, now: float) -> None:
        """So many epochs are done by now."""
        if self._last is None or epochs > self._last[0]:
            self._last = (epochs, now)
            self._first = self._first or self._last

    @property
    def seconds(self) -> float | None:
        """Seconds an epoch takes; None while fewer than two are known to be done."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
