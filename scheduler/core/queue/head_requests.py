"""A cache of the least requests of the heads of the wait queue, which lets a pass over the queue leave tasks out."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from scheduler.core.queue.task_group import UNKNOWN


class HeadRequests:
    """The least request of each head, in the order of the heads.

    Decisions fill this cache from the requests that they compute anyway; events only drop entries that no longer hold.
    Without an entry a pass looks at the head itself, so which tasks start never depends on what is cached.
    """

    def __init__(self) -> None:
        self.bytes: list[float] = []
        """For each head the bytes on one GPU without which it does not fit beside others; 0: not computed."""
        self._loads, self._sorted = list[float](), list[float]()
        """For each head the load without which it does not fit beside others (0: not computed), and these values
        sorted."""
        self._unknown: dict[str, set[int]] = {}
        """The task classes whose heads may be noted as UNKNOWN, by script."""
        self.some_unknown = False
        """True once any head was noted as one of unknown memory."""

    @property
    def lightest(self) -> float:
        """The least known load of all heads."""
        return self._sorted[0] if self._sorted else 0.0

    def insert(self, place: int, bytes_: float, load: float) -> None:
        """Make room for a head that comes to this position, with what is known about its group."""
        self.bytes.insert(place, bytes_)
        self._loads.insert(place, load)
        insort(self._sorted, load)

    def pop(self, place: int) -> tuple[float, float]:
        """Take out the head at this position; return its bytes and load."""
        load = self._loads.pop(place)
        del self._sorted[bisect_left(self._sorted, load)]
        return self.bytes.pop(place), load

    def keep(self, place: int, bytes_: float, load: float) -> None:
        """Note the least bytes and load of the head at this position."""
        self.bytes[place] = bytes_
        old = self._loads[place]
        if load != old:
            del self._sorted[bisect_left(self._sorted, old)]
            insort(self._sorted, load)
            self._loads[place] = load

    def keep_unknown(self, place: int, load: float, script: str, kind: int) -> None:
        """Note a head of this class as one of unknown memory, until more is known about any class of its script."""
        self.keep(place, UNKNOWN, load)
        self.some_unknown = True
        if script:
            self._unknown.setdefault(script, set()).add(kind)

    def forget(self, place: int) -> None:
        """Forget what was noted for the head at this position."""
        self.keep(place, 0, 0.0)

    def unknown(self, script: str) -> Iterable[int]:
        """Return the classes of a script whose heads may be noted as UNKNOWN, and note none any more."""
        return self._unknown.pop(script, ())

    @property
    def scripts(self) -> Iterable[str]:
        """The scripts of heads that may be noted as UNKNOWN."""
        return tuple(self._unknown)
