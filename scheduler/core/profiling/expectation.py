"""The peak that a task of unknown need will probably not exceed, derived from the peaks of known classes."""

from __future__ import annotations

from bisect import bisect_left, insort
from math import ceil


class Sizes:
    """The needs (sizes) of all task classes, in bytes and in sorted order."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._sorted: list[int] = []

    def put(self, number: int, now: int) -> bool:
        """Set the size of a class; a size of 0 removes the class. Return whether anything has changed."""
        if now == self._of.get(number, 0):
            return False
        self.drop(number)
        if now:
            self._of[number] = now
            insort(self._sorted, now)
        return True

    def drop(self, number: int) -> None:
        """Forget a class."""
        if before := self._of.pop(number, 0):
            del self._sorted[bisect_left(self._sorted, before)]

    def __len__(self) -> int:
        """Return the number of classes with a size."""
        return len(self._sorted)

    @property
    def least(self) -> int:
        """The smallest size; 0 if none is known."""
        return self._sorted[0] if self._sorted else 0

    def usual(self, share: float, least: int) -> int:
        """Return the size that this share of the known classes does not exceed; 0 while fewer than `least` classes are
        known.
        """
        return self._sorted[int(share * (len(self._sorted) - 1))] if len(self._sorted) >= least else 0

    def bound(self, share: float, least: int, hidden: int = 0) -> int:
        """Return the size that a new class will not exceed with the probability `share`; 0 while fewer than `least` are
        known.

        The sizes are assumed to be exchangeable: then a new one is below the k-th of n with probability k / (n + 1).
        But small classes show their sizes first. So `hidden` classes, whose sizes are not known yet, count as larger
        than all others. If n is too small for the share, the highest size is raised by its n-th part, once for each
        hidden class and once for the new one.
        """
        known = len(self._sorted)
        if known < least:
            return 0
        place = ceil(share * (known + hidden + 1))
        return (
            self._sorted[place - 1] if place <= known else self._sorted[-1] + self._sorted[-1] * (1 + hidden) // known
        )
