"""Who comes next: waiting ids grouped by what they ask for, ranked by batch, priority and id."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heappop, heapreplace

from scheduler.core.model import Order, Terms
from scheduler.core.roll import Roll

Rank = tuple[int, int, int, int]


class Group:
    """The waiting ids that ask for the same; inside it rank is the order of ids."""

    __slots__ = ("back", "gone", "ids", "next")

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.next = 0
        self.back: list[int] = []
        """Ids that came back (a retry, a release), sorted."""
        self.gone: set[int] = set()
        """Ids of `ids[next:]` that wait no more (cancelled, held); skipped when their turn comes."""

    def peek(self, skip: int = 0) -> int | None:
        """The id at the given place of this group's line, without taking it."""
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

    def remove(self, task: int) -> None:
        """Take an id out of the line, wherever it stands."""
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


class Line:
    """All waiting ids; keeps the groups' heads ranked so that a pass never sorts the queue.

    A group is named by the number of its terms; a task that asks for more than its terms say (an out-of-memory taught
    it) is a group of its own, named by its negative id, so that its equals do not wait for what only it needs.
    """

    def __init__(self, roll: Roll, terms: Sequence[Terms], order: Order) -> None:
        self._roll = roll
        self._terms = terms
        self._order = order
        self._groups: dict[int, Group] = {}
        self._heads: list[tuple[Rank, int]] = []
        self._ranked: dict[int, Rank] = {}
        self._passed: list[Rank] = []
        self._before: dict[int, int] = {}

    def rank(self, task: int) -> Rank:
        """Smaller comes first."""
        batch, priority = self._roll.batch(task), self._terms[self._roll.terms(task)].priority
        if self._order is Order.GLOBAL:
            return (priority, batch, 0, task)
        return (batch, priority, 0, task)

    def extend(self, first: int, terms: Sequence[int]) -> None:
        """A whole batch joins the line."""
        for offset, number in enumerate(terms):
            group = self._groups.get(number)
            if group is None:
                group = self._groups[number] = Group()
            group.ids.append(first + offset)
        for number in set(terms):
            if number not in self._ranked:
                self._rerank(number)

    def put_back(self, task: int, *, apart: bool = False) -> None:
        """A task waits again, where its rank says; what passed it while it did not wait is not counted."""
        number = -task if apart else self._roll.terms(task)
        group = self._groups.setdefault(number, Group())
        if task in group.gone:
            group.gone.discard(task)
        else:
            insort(group.back, task)
        self._before[task] = self._passes(self.rank(task))
        self._rerank(number)

    def remove(self, task: int, *, started: bool) -> None:
        """A task waits no more; if it was started, it may have passed others."""
        number = -task if -task in self._groups else self._roll.terms(task)
        self._groups[number].remove(task)
        self._before.pop(task, None)
        self._rerank(number)
        if started:
            self._pass(self.rank(task))

    def _rerank(self, number: int) -> None:
        old = self._ranked.pop(number, None)
        if old is not None:
            del self._heads[bisect_left(self._heads, (old, number))]
        head = self._groups[number].peek()
        if head is None:
            del self._groups[number]
            return
        rank = self.rank(head)
        self._ranked[number] = rank
        insort(self._heads, (rank, number))

    def _pass(self, rank: Rank) -> None:
        if not self._heads:
            self._passed.clear()
            return
        best = self._heads[0][0]
        del self._passed[: bisect_left(self._passed, best)]
        if rank > best:
            insort(self._passed, rank)

    def _passes(self, rank: Rank) -> int:
        return len(self._passed) - bisect_right(self._passed, rank)

    def overtaken(self, task: int) -> int:
        """How many tasks ranked behind this one were started while it waited."""
        return self._passes(self.rank(task)) - self._before.get(task, 0)

    def walk(self) -> Walk:
        """Go through the line by rank without changing it."""
        return Walk(self, list(self._heads), self._groups)


class Walk:
    """One pass over the heads (sorted, so a heap already): take or skip the group in front, as if it were done."""

    def __init__(self, line: Line, heads: list[tuple[Rank, int]], groups: dict[int, Group]) -> None:
        self._line = line
        self._heads = heads
        self._groups = groups
        self._taken: dict[int, int] = {}

    def front(self) -> int | None:
        """The best-ranked task still in the walk."""
        return self._heads[0][0][3] if self._heads else None

    def take(self) -> None:
        """The task in front is placed: the next of its group comes in at its own rank."""
        _, number = self._heads[0]
        taken = self._taken.get(number, 0) + 1
        self._taken[number] = taken
        follower = self._groups[number].peek(taken)
        if follower is None:
            heappop(self._heads)
        else:
            heapreplace(self._heads, (self._line.rank(follower), number))

    def skip(self) -> None:
        """Nothing of the group in front fits: the others follow."""
        heappop(self._heads)
