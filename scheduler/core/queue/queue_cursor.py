"""A cursor for one pass over the wait queue by rank. It does not change the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from scheduler.core.queue.head_requests import HeadRequests
from scheduler.core.queue.task_group import UNKNOWN, Asked, Rank, TaskGroup


def _first_to_look_at(chunk: Sequence[float], bytes_: float, except_above: float, unknown_fits: bool) -> int:
    """Return the position of the first group in `chunk` that must be examined, because its task may fit or may never
    fit. If there is none, return the length of `chunk`.
    """
    for number, least in enumerate(chunk):
        if (least <= bytes_ and (unknown_fits or least != UNKNOWN)) or least > except_above:
            return number
    return len(chunk)


CHUNK = 256
"""The number of groups that are compared at once, and passed over if none of their tasks can fit."""


class _Queue(Protocol):
    def rank_behind(self, rank: Rank, task: int) -> Rank:
        """Return the rank of `task`, whose group has another task with the rank `rank`."""


class QueueCursor:
    """A cursor over the groups of waiting tasks by rank. The task in front is taken, or its group is skipped; the queue
    itself does not change.
    """

    def __init__(
        self, line: _Queue, heads: list[tuple[Rank, Asked]], requests: HeadRequests, groups: dict[Asked, TaskGroup]
    ) -> None:
        self._line = line
        self._heads = heads
        self._requests = requests
        self._least = requests.bytes
        self._groups = groups
        self._at = 0
        self._followers: list[tuple[Rank, Asked]] = []
        """For each group from which a task was taken, the next task."""
        self._unknown_fits = True
        """True if a task of unknown memory may fit on some GPU."""
        self._same: dict[Asked, float] = {}
        """For each group whose first task was taken, the least bytes of that task, which are also those of the next
        one."""
        self._taken: dict[Asked, int] = {}
        self.passed_over: list[int] = []
        """The positions of groups that were passed over without a closer look, because no device has enough left for
        them."""
        self._passed_followers: list[tuple[Rank, Asked]] = []
        self.first: tuple[Rank, Asked]
        """The rank and the group of the task in front; set once `front` has returned a task."""

    def front(
        self, bytes_: float = inf, except_above: float = inf, forced: int = 0, *, unknown_fits: bool = True
    ) -> int | None:
        """Return the best-ranked task that was neither taken nor skipped; None if there is none.

        Pass over groups whose first task requests more than `bytes_`, but not over those that request more than
        `except_above`, nor over the first `forced` groups. Pass over groups of unknown memory unless `unknown_fits`.
        """
        if bytes_ < except_above:
            self._unknown_fits = unknown_fits
            self._pass_over(bytes_, except_above, forced)
        at, heads = self._at, self._heads
        first = heads[at] if at < len(heads) else None
        if self._followers and (first is None or self._followers[0] < first):
            first = self._followers[0]
        if first is None:
            return None
        self.first = first
        return first[0][3]

    @property
    def is_known(self) -> bool:
        """True if the least request of the group in front is cached."""
        is_head = self._at < len(self._heads) and self.first is self._heads[self._at]
        return not is_head or self._least[self._at] != 0

    def keep(self, least: float, load: float) -> None:
        """Cache the least request of the group in front."""
        self._requests.keep(self._at, least, load)

    def keep_unknown(self, load: float, script: str) -> None:
        """Mark the group in front in the cache as one of unknown memory."""
        self._requests.keep_unknown(self._at, load, script, self.first[1][1])

    def _pass_over(self, bytes_: float, except_above: float, forced: int) -> None:
        """Advance to the first task that must be examined. It is the first task of a group, or the next one of a group
        from which tasks were taken.
        """
        while self._followers:
            first = self._followers[0]
            if not self._pass_heads(bisect_left(self._heads, first, self._at), bytes_, except_above, forced):
                return
            if self._at <= forced or not _first_to_look_at(
                [self._same[first[1]]], bytes_, except_above, self._unknown_fits
            ):
                return
            self._passed_followers.append(heappop(self._followers))
        self._pass_heads(len(self._heads), bytes_, except_above, forced)

    def _pass_heads(self, end: int, bytes_: float, except_above: float, forced: int) -> bool:
        """Advance to the first group before the position `end` that must be examined; return True if there is none."""
        while self._at < end:
            if self._at < forced:
                return False
            chunk = self._least[self._at : min(self._at + CHUNK, end)]
            passed = len(chunk)
            if min(chunk) <= bytes_ or max(chunk) > except_above:
                passed = _first_to_look_at(chunk, bytes_, except_above, self._unknown_fits)
            self._go(passed)
            if passed < len(chunk):
                return False
        return True

    def _go(self, number: int) -> None:
        if number:
            self.passed_over += range(self._at, self._at + number)
            self._at += number

    def passed_before(self, place: int) -> list[int]:
        """Return the first tasks of the groups that were passed over before this position. Each task is returned only
        once.
        """
        if not place:
            return []
        number = bisect_left(self.passed_over, place)
        found, self.passed_over = self.passed_over[:number], self.passed_over[number:]
        tasks = [self._heads[place][0][3] for place in found]
        if self._passed_followers:
            last = self._heads[place] if place < len(self._heads) else None
            tasks += [one[0][3] for one in self._passed_followers if last is None or one < last]
            self._passed_followers = [one for one in self._passed_followers if last is not None and one > last]
        return tasks

    def take(self) -> None:
        """Take the task in front out of the pass, because it is placed or left out. The next task of its group stays in
        the pass, at its own rank.
        """
        at, rank = self._at, self.first[0]
        asked = self._leave()
        if self._at > at:
            self._same[asked] = self._least[at]
        taken = self._taken.get(asked, 0) + 1
        self._taken[asked] = taken
        follower = self._groups[asked].peek(taken)
        if follower is not None:
            heappush(self._followers, (self._line.rank_behind(rank, follower), asked))

    def skip(self) -> None:
        """Take the whole group in front out of the pass, because none of its tasks fits."""
        self._leave()

    def _leave(self) -> Asked:
        first = self.first
        if self._followers and first is self._followers[0]:
            heappop(self._followers)
        else:
            self._at += 1
        return first[1]
