"""A cache of the least requests of the heads of the wait queue. A head is the first task of a group."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from scheduler.core.queue.task_group import UNKNOWN


class HeadRequests:
    """The least request of each head (first task of a group), in the order of the heads.

    Decisions fill this cache from the requests that they compute anyway; events only drop entries that may be wrong.
    Without an entry a pass examines the head itself, so which tasks start never depends on what is cached.
    """

    def __init__(self) -> None:
        self.bytes: list[float] = []
        """For each head, the bytes on one GPU that it needs at least beside other tasks; 0: not computed."""
        self._loads, self._sorted = list[float](), list[float]()
        """For each head, the load on one GPU that it needs at least beside other tasks (0: not computed), and these
        loads in sorted order."""
        self._unknown: dict[str, set[int]] = {}
        """For each script, the task classes whose heads may be marked as UNKNOWN."""
        self.some_unknown = False
        """True once any head was marked as a task of unknown memory."""

    @property
    def lightest(self) -> float:
        """The smallest load of all heads; 0 if one is not computed."""
        return self._sorted[0] if self._sorted else 0.0

    def insert(self, place: int, bytes_: float, load: float) -> None:
        """Insert the entry of a head that comes to this position; `bytes_` and `load` are what is known about its
        group.
        """
        self.bytes.insert(place, bytes_)
        self._loads.insert(place, load)
        insort(self._sorted, load)

    def pop(self, place: int) -> tuple[float, float]:
        """Remove the entry of the head at this position; return its bytes and load."""
        load = self._loads.pop(place)
        del self._sorted[bisect_left(self._sorted, load)]
        return self.bytes.pop(place), load

    def keep(self, place: int, bytes_: float, load: float) -> None:
        """Set the entry of the head at this position."""
        self.bytes[place] = bytes_
        old = self._loads[place]
        if load != old:
            del self._sorted[bisect_left(self._sorted, old)]
            insort(self._sorted, load)
            self._loads[place] = load

    def keep_unknown(self, place: int, load: float, script: str, kind: int) -> None:
        """Mark the head at this position, of this class, as a task of unknown memory. The mark is valid until more is
        known about a class of its script.
        """
        self.keep(place, UNKNOWN, load)
        self.some_unknown = True
        if script:
            self._unknown.setdefault(script, set()).add(kind)

    def forget(self, place: int) -> None:
        """Drop the entry of the head at this position."""
        self.keep(place, 0, 0.0)

    def unknown(self, script: str) -> Iterable[int]:
        """Return the classes of a script whose heads may be marked as UNKNOWN; the caller removes these marks."""
        return self._unknown.pop(script, ())

    @property
    def scripts(self) -> Iterable[str]:
        """The scripts whose heads may be marked as UNKNOWN."""
        return tuple(self._unknown)
