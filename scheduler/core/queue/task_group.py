"""A group of waiting tasks with equal requests, which has one place in the queue."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

Rank = tuple[int, int, float, int]
Asked = tuple[int, int, int]
"""The key of a group: the number of its terms, the number of its task class, and its only task if that task requests
more than equal ones. Other groups have a marker in place of the task."""
UNKNOWN = -1.0
"""The marker for unknown memory in place of the bytes that a group requests."""
TOGETHER = -1
"""The marker in place of a task for a group of equal tasks. Numbers below it are for the tasks of one directory."""


class TaskGroup:
    """Waiting tasks with equal requests, ranked by id."""

    __slots__ = ("back", "gone", "ids", "next")

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.next = 0
        self.back: list[int] = []
        """Ids of tasks that came back, by a retry or a release, in sorted order."""
        self.gone: set[int] = set()
        """Ids in `ids[next:]` of tasks that no longer wait, because they were cancelled or held. They are dropped when
        they reach the front."""

    def __len__(self) -> int:
        return len(self.ids) - self.next + len(self.back) - len(self.gone)

    def peek(self, skip: int = 0) -> int | None:
        """Return the id at a position of this group without removing it; None if the group is shorter."""
        if not self.back and not self.gone:
            place = self.next + skip
            return self.ids[place] if place < len(self.ids) else None
        return self._peek_slowly(skip)

    def _peek_slowly(self, skip: int) -> int | None:
        back, place = list(self.back), self.next
        while True:
            while place < len(self.ids) and self.ids[place] in self.gone:
                place += 1
            fresh = self.ids[place] if place < len(self.ids) else None
            if fresh is None and not back:
                return None
            if back and (fresh is None or back[0] < fresh):
                task = back.pop(0)
            else:
                assert fresh is not None
                task, place = fresh, place + 1
            if skip == 0:
                return task
            skip -= 1

    def waiting(self, most: int) -> list[int]:
        """Return the first `most` ids of this group."""
        if not self.back and not self.gone:
            return self.ids[self.next : self.next + most].tolist()
        fresh = [task for task in self.ids[self.next : self.next + most + len(self.gone)] if task not in self.gone]
        return sorted([*self.back, *fresh])[:most]

    def add(self, task: int) -> None:
        """Add an id that was never in this group."""
        if not self.ids or task > self.ids[-1]:
            self.ids.append(task)
        else:
            insort(self.back, task)

    def put_back(self, task: int) -> None:
        """Add the id of a task that came back, or that gets a group of its own."""
        if task in self.gone:
            self.gone.discard(task)
        else:
            insort(self.back, task)

    def remove(self, task: int) -> None:
        """Remove an id from the group, wherever it is."""
        place = bisect_left(self.back, task)
        if place < len(self.back) and self.back[place] == task:
            del self.back[place]
        elif self.next < len(self.ids) and self.ids[self.next] == task:
            self.next += 1
        else:
            self.gone.add(task)
        while self.next < len(self.ids) and self.ids[self.next] in self.gone:
            self.gone.discard(self.ids[self.next])
            self.next += 1
        if self.next > 4096 and self.next * 2 > len(self.ids):
            del self.ids[: self.next]
            self.next = 0
