"""A cache of the least requests of the groups in the wait queue, so that a pass can leave groups out.

The request of a group is the request of its first task, the head.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from scheduler.core.queue.task_group import UNKNOWN


class HeadRequests:
    """The least request of each group of waiting tasks, in the order of the queue.

    Decisions fill this cache from the requests that they compute anyway; events only drop entries that may be wrong.
    For a group without an entry, a pass examines the first task itself, so the choice of tasks that start never depends
    on the cache.
    """

    def __init__(self) -> None:
        self.bytes: list[float] = []
        """For each group, the bytes on one GPU that its first task needs at least beside other tasks; 0: not
        computed."""
        self._loads, self._sorted = list[float](), list[float]()
        """For each group, the load on one GPU that its first task needs at least beside other tasks (0: not computed),
        and these loads in sorted order."""
        self._unknown: dict[str, set[int]] = {}
        """For each script, the task classes whose groups may be marked as UNKNOWN."""
        self.some_unknown = False
        """True once any group was marked as one of unknown memory."""

    @property
    def lightest(self) -> float:
        """The smallest load that the first task of any group needs; 0 if one is not computed."""
        return self._sorted[0] if self._sorted else 0.0

    def insert(self, place: int, bytes_: float, load: float) -> None:
        """Insert the entry of a group that moves to this position; `bytes_` and `load` are the group's cached
        requests.
        """
        self.bytes.insert(place, bytes_)
        self._loads.insert(place, load)
        insort(self._sorted, load)

    def pop(self, place: int) -> tuple[float, float]:
        """Remove the entry of the group at this position; return its bytes and load."""
        load = self._loads.pop(place)
        del self._sorted[bisect_left(self._sorted, load)]
        return self.bytes.pop(place), load

    def keep(self, place: int, bytes_: float, load: float) -> None:
        """Set the entry of the group at this position."""
        self.bytes[place] = bytes_
        old = self._loads[place]
        if load != old:
            del self._sorted[bisect_left(self._sorted, old)]
            insort(self._sorted, load)
            self._loads[place] = load

    def keep_unknown(self, place: int, load: float, script: str, kind: int) -> None:
        """Mark the group at this position, of the class `kind`, as one of unknown memory. The mark is valid until more
        is known about a class of its script.
        """
        self.keep(place, UNKNOWN, load)
        self.some_unknown = True
        if script:
            self._unknown.setdefault(script, set()).add(kind)

    def forget(self, place: int) -> None:
        """Drop the entry of the group at this position."""
        self.keep(place, 0, 0.0)

    def unknown(self, script: str) -> Iterable[int]:
        """Return the classes of a script whose groups may be marked as UNKNOWN; the caller removes these marks."""
        return self._unknown.pop(script, ())

    @property
    def scripts(self) -> Iterable[str]:
        """The scripts whose groups may be marked as UNKNOWN."""
        return tuple(self._unknown)
