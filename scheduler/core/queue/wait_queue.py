"""The wait queue: waiting tasks, grouped by what they request, ranked by batch, priority and id."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf

from scheduler.core.model import RankOrder, State, Terms
from scheduler.core.queue.task_table import TaskTable

Rank = tuple[int, int, float, int]
Asked = tuple[int, int, int]
"""The key of a group: the number of its terms, the number of its task class, and its only task if that one requests
more than equal tasks."""
UNKNOWN = -1.0
"""The marker, in place of a head's bytes, for unknown memory."""
TOGETHER = -1
"""The marker, in place of that task, for a group of equal tasks. Numbers below it stand for the tasks of one
directory."""


def out_of_turn(roll: TaskTable, terms: Sequence[Terms]) -> Counter[int]:
    """Return, by priority, the number of waiting tasks in a later batch than a task with a worse priority."""
    found: Counter[int] = Counter()
    batch, before, worst = 0, -inf, -inf
    for task in roll.in_state(State.WAITING):
        priority = terms[roll.terms(task)].priority
        if roll.batch(task) != batch:
            batch, before = roll.batch(task), worst
        if priority < before:
            found[priority] += 1
        worst = max(worst, priority)
    return found


class TaskGroup:
    """Waiting tasks with equal requests; within a group they rank by id."""

    __slots__ = ("back", "gone", "ids", "next")

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.next = 0
        self.back: list[int] = []
        """Ids that returned (by a retry or a release), sorted."""
        self.gone: set[int] = set()
        """Ids of `ids[next:]` that no longer wait (cancelled, held); they are skipped when they reach the front."""

    def __len__(self) -> int:
        return len(self.ids) - self.next + len(self.back) - len(self.gone)

    def peek(self, skip: int = 0) -> int | None:
        """Return the id at the given position of this group, without taking it."""
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
        """Return the first ids of this group."""
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
        """Add an id that returned, or that moves into a group of its own."""
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


class WaitQueue:
    """All waiting tasks; the groups' heads are kept ranked, so that a pass never sorts the queue.

    The tasks of a group have the same terms and the same class. A task that requests more than its equals (after an
    out-of-memory) is a group of its own, so that they do not wait for what only it needs. Tasks of a directory that
    could not be entered are a group of their own as well, so that a pass leaves all of them out at once.
    """

    some_unknown = False
    """True once any head was noted as one of unknown memory."""

    def __init__(
        self,
        roll: TaskTable,
        terms: Sequence[Terms],
        order: RankOrder,
        duration: Callable[[int, int | None], float] | None = None,
    ) -> None:
        self._roll = roll
        self._terms = terms
        self._order = order
        self._duration = duration or (lambda kind, epochs: 0.0)
        self.looked = 0
        """The number of waiting tasks whose class is determined."""
        self._groups: dict[Asked, TaskGroup] = {}
        self._of_kind: dict[int, set[Asked]] = {}
        """The groups of each task class."""
        self._heads: list[tuple[Rank, Asked]] = []
        self._unlooked: list[tuple[Rank, Asked]] = []
        """The heads whose class is not determined."""
        self._least: list[float] = []
        """For each head the bytes on one GPU without which it does not fit beside others; 0: not computed."""
        self._busy, self._loads = list[float](), list[float]()
        """For each head the load without which it does not fit beside others (0: not computed), and these values
        sorted."""
        self._unknown: dict[str, set[int]] = {}
        """The task classes whose heads may be noted as UNKNOWN, by script."""
        self._ranked: dict[Asked, Rank] = {}
        self._places: dict[int, int] = {}
        """The groups of waiting tasks whose directory could not be entered, by the number in their key."""
        self._passed: list[Rank] = []
        self._before: dict[int, int] = {}
        self._moved: dict[Asked, dict[tuple[int, int], int]] = {}
        """The number of tasks that seem to have bypassed a group, batch and priority only because their rank changed
        when their duration was learned; below 0 if some bypasses are missing for that reason."""
        self._unseen = 0
        """The largest excess of a bypass count over the number of started tasks that rank behind."""
        self.most_bypassed = 0
        """The highest bypass count of a task when it started."""

    def rank(self, task: int) -> Rank:
        """Return the rank of a task; smaller comes first. Within a priority the longest known duration comes first."""
        batch, terms = self._roll.batch(task), self._terms[self._roll.terms(task)]
        kind = self._roll.kind(task)
        longest = -self._duration(kind, terms.epochs) if kind else 0.0
        if self._order is RankOrder.GLOBAL:
            return (terms.priority, batch, longest, task)
        return (batch, terms.priority, longest, task)

    def rank_behind(self, rank: Rank, task: int) -> Rank:
        """Return the rank of a task that is in the group of the task with this rank."""
        batch = self._roll.batch(task)
        if self._order is RankOrder.GLOBAL:
            return (rank[0], batch, rank[2], task)
        return (batch, rank[1], rank[2], task)

    def extend(self, first: int, terms: Sequence[int]) -> None:
        """Add a whole batch, whose classes are not determined yet."""
        for offset, number in enumerate(terms):
            asked = (number, 0, TOGETHER)
            group = self._groups.get(asked)
            if group is None:
                group = self._groups[asked] = TaskGroup()
            group.ids.append(first + offset)
        for number in set(terms):
            if (number, 0, TOGETHER) not in self._ranked:
                self._rerank((number, 0, TOGETHER))
        if self._order is RankOrder.GLOBAL and self._passed:
            for task in range(first, first + len(terms)):
                self._forgive(task, 0)

    def unlooked(self, most: int) -> list[int]:
        """Return waiting tasks whose class is not determined, from the best-ranked groups first."""
        found: list[int] = []
        for _, asked in self._unlooked if most > 0 else ():
            found += self._groups[asked].waiting(most - len(found))
            if len(found) >= most:
                break
        return found

    def assign(self, task: int, kind: int) -> None:
        """Note the class of a waiting task."""
        old, bypassed = self._where(task), self.bypassed(task)
        new = (old[0], kind, old[2])
        self._groups[old].remove(task)
        self._groups.setdefault(new, TaskGroup()).add(task)
        self.looked += bool(kind) - bool(old[1])
        self._roll.assign(task, kind)
        self._rerank(old)
        if old != new:
            self._rerank(new)
        self._forgive(task, bypassed)

    def change(self, task: int, terms: int) -> None:
        """Give a waiting task other terms; its class must be determined again."""
        old, bypassed = self._where(task), self.bypassed(task)
        self._groups[old].remove(task)
        self.looked -= bool(old[1])
        self._roll.change(task, terms)
        self._rerank(old)
        new = (terms, 0, old[2])
        self._groups.setdefault(new, TaskGroup()).put_back(task)
        self._rerank(new)
        self._forgive(task, bypassed)

    def set_apart(self, task: int, directory: int) -> None:
        """Put a task, now or when it waits again, into the group of its directory, given by number."""
        place = TOGETHER - 1 - directory
        if self._roll.state(task) is not State.WAITING:
            self._places[task] = place
            return
        old, bypassed = self._where(task), self.bypassed(task)
        if old[2] != TOGETHER:
            return
        self._groups[old].remove(task)
        self._places[task] = place
        new = (old[0], old[1], place)
        self._groups.setdefault(new, TaskGroup()).put_back(task)
        self._rerank(old)
        self._rerank(new)
        self._forgive(task, bypassed)

    def first_together(self, most: int) -> list[int]:
        """Return the best-ranked waiting tasks of groups without a task or directory of their own, group by group."""
        found: list[int] = []
        for _, asked in self._heads:
            if asked[2] == TOGETHER:
                found += self._groups[asked].waiting(most - len(found))
            if len(found) >= most:
                break
        return found

    def keep(self, task: int, least: float, busy: float) -> None:
        """Note the least bytes and load of a task's request. They stay noted for a head until more is known about
        its class.
        """
        asked = self._where(task)
        place = bisect_left(self._heads, (self._ranked[asked], asked))
        if self._heads[place][0][3] == task:
            self._least[place] = least
            self._set_busy(place, busy)

    def keep_unknown(self, task: int, script: str, busy: float) -> None:
        """Note a head as one of unknown memory with this load, until more is known about any class of its script."""
        self.keep(task, UNKNOWN, busy)
        self.some_unknown = True
        if script:
            self._unknown.setdefault(script, set()).add(self._roll.kind(task))

    def forget_unknown(self, script: str) -> None:
        """Forget that heads of a script have unknown memory, because more is known about one of its classes."""
        for kind in self._unknown.pop(script, ()):
            self.forget(kind)

    def forget_all_unknown(self) -> None:
        """Forget for all heads that they have unknown memory."""
        for script in list(self._unknown):
            self.forget_unknown(script)

    @property
    def lightest(self) -> float:
        """The least known load of all heads."""
        return self._loads[0] if self._loads else 0.0

    def forget(self, kind: int) -> None:
        """Forget what was noted for a class's groups, because its profile has changed."""
        for asked in self._of_kind.get(kind, ()):
            place = bisect_left(self._heads, (self._ranked[asked], asked))
            self._least[place] = 0
            self._set_busy(place, 0.0)

    def _set_busy(self, place: int, busy: float) -> None:
        """Note the load of the head at this position."""
        old = self._busy[place]
        if busy != old:
            del self._loads[bisect_left(self._loads, old)]
            insort(self._loads, busy)
            self._busy[place] = busy

    def before(self, times: int) -> int:
        """Return the number of heads that may have been bypassed this often."""
        times -= self._unseen
        if times <= 0:
            return len(self._heads)
        if times > len(self._passed):
            return 0
        return bisect_left(self._heads, (self._passed[-times],))

    def refresh(self, kind: int) -> None:
        """Rank the groups of a class again, because its duration was learned."""
        for asked in sorted(self._of_kind.get(kind, ())):
            before = self._ranked[asked]
            self._rerank(asked)
            if asked in self._ranked:
                self._keep_counts(asked, before, self._ranked[asked])
        self._unseen = self._most_unseen()

    def _most_unseen(self) -> int:
        moved = min((least for its in self._moved.values() if (least := min(its.values(), default=0)) < 0), default=0)
        return -moved - min(0, min(self._before.values(), default=0))

    def _keep_counts(self, asked: Asked, before: Rank, now: Rank) -> None:
        """Keep the bypass counts of a group whose rank changed."""
        moved = self._moved.setdefault(asked, {})
        for first, second in {passed[:2] for passed in self._passed}:
            place = (first, second)
            more = self._passes((*place, *now[2:])) - self._passes((*place, *before[2:]))
            moved[place] = moved.get(place, 0) + more

    def put_back(self, task: int, *, apart: bool = False) -> None:
        """Add a task that waits again; tasks that started while it did not wait have not bypassed it."""
        place = task if apart else self._places.get(task, TOGETHER)
        asked = (self._roll.terms(task), self._roll.kind(task), place)
        self._groups.setdefault(asked, TaskGroup()).put_back(task)
        self.looked += bool(asked[1])
        self._forgive(task, 0)
        self._rerank(asked)

    def remove(self, task: int, *, started: bool) -> None:
        """Remove a task that no longer waits; if it started, it may have bypassed others."""
        asked, rank = self._where(task), self.rank(task)
        if started:
            self.most_bypassed = max(self.most_bypassed, self.bypassed(task, rank))
        self._groups[asked].remove(task)
        self.looked -= bool(asked[1])
        self._before.pop(task, None)
        self._places.pop(task, None)
        self._rerank(asked)
        if started:
            self._pass(rank)

    def _where(self, task: int) -> Asked:
        terms, kind = self._roll.terms(task), self._roll.kind(task)
        apart = (terms, kind, task)
        return apart if apart in self._groups else (terms, kind, self._places.get(task, TOGETHER))

    def _rerank(self, asked: Asked) -> None:
        old, least, busy = self._ranked.pop(asked, None), 0.0, 0.0
        if old is not None:
            place = bisect_left(self._heads, (old, asked))
            least, busy = self._least[place], self._busy[place]  # the next task of a group requests the same
            del self._heads[place], self._least[place], self._busy[place]
            if not asked[1]:
                del self._unlooked[bisect_left(self._unlooked, (old, asked))]
        head = self._groups[asked].peek()
        if head is None:
            del self._groups[asked]
            self._of_kind[asked[1]].discard(asked)
            if not self._of_kind[asked[1]]:
                del self._of_kind[asked[1]]
            self._moved.pop(asked, None)
            if old is not None:
                del self._loads[bisect_left(self._loads, busy)]
            return
        if old is None:
            insort(self._loads, busy)
        rank = self.rank(head)
        self._ranked[asked] = rank
        self._of_kind.setdefault(asked[1], set()).add(asked)
        place = bisect_left(self._heads, (rank, asked))
        self._heads.insert(place, (rank, asked))
        self._least.insert(place, least)
        self._busy.insert(place, busy)
        if not asked[1]:
            insort(self._unlooked, (rank, asked))

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

    def _forgive(self, task: int, bypassed: int) -> None:
        """Set the bypass count of a task, whatever started before it got its place in the queue."""
        before = self._passes(self.rank(task)) - self._seeming(task) - bypassed
        if before:
            self._before[task] = before
            if before < 0:
                self._unseen = self._most_unseen()
        else:
            self._before.pop(task, None)

    def bypassed(self, task: int, rank: Rank | None = None) -> int:
        """Return how many tasks with a later rank started while this one waited; `rank` saves computing its rank."""
        passes = self._passes(self.rank(task) if rank is None else rank)
        return max(0, passes - self._seeming(task) - self._before.get(task, 0))

    def _seeming(self, task: int) -> int:
        """Return how many tasks seem to have bypassed this one only because its rank changed."""
        if not self._moved:
            return 0
        moved = self._moved.get(self._where(task))
        return moved.get(self.rank(task)[:2], 0) if moved else 0

    @property
    def kinds(self) -> Iterable[int]:
        """Return the numbers of the task classes of all waiting tasks."""
        return self._of_kind

    def groups(self) -> Iterable[TaskGroup]:
        """Return all groups in arbitrary order."""
        return self._groups.values()

    def grouped(self) -> Iterable[tuple[Asked, TaskGroup]]:
        """Return all groups with their keys in arbitrary order."""
        return self._groups.items()

    def walk(self) -> QueueCursor:
        """Start going through the queue by rank without changing it."""
        return QueueCursor(self, self._heads, self._least, self._groups)


def _first_to_look_at(chunk: Sequence[float], bytes_: float, except_above: float, unknown_fits: bool) -> int:
    """Return the position of the first head that may fit, or may never fit; the length if there is none."""
    for number, least in enumerate(chunk):
        if (least <= bytes_ and (unknown_fits or least != UNKNOWN)) or least > except_above:
            return number
    return len(chunk)


CHUNK = 256
"""The number of heads that are passed over at once if none of them can fit."""


class QueueCursor:
    """One pass over the groups by rank: each group in front is taken from or skipped, without changing the queue."""

    def __init__(
        self, line: WaitQueue, heads: list[tuple[Rank, Asked]], least: list[float], groups: dict[Asked, TaskGroup]
    ) -> None:
        self._line = line
        self._heads = heads
        self._least = least
        self._groups = groups
        self._at = 0
        self._followers: list[tuple[Rank, Asked]] = []
        """The next tasks of groups from which one was taken."""
        self._unknown_fits = True
        """True if a task of unknown memory may fit on some GPU."""
        self._same: dict[Asked, float] = {}
        """The groups after a task was taken whose next task requests as much, with the least bytes."""
        self._taken: dict[Asked, int] = {}
        self.passed_over: list[int] = []
        """Heads that were passed over without a closer look, because nothing left could hold them."""
        self._passed_followers: list[tuple[Rank, Asked]] = []
        self.first: tuple[Rank, Asked]
        """The rank and the group of the task in front, once `front` has returned one."""

    def front(
        self, bytes_: float = inf, except_above: float = inf, forced: int = 0, *, unknown_fits: bool = True
    ) -> int | None:
        """Return the best-ranked task that was neither taken nor skipped.

        Pass over heads that request more than `bytes_`, but not those that request more than `except_above`, and not
        the first `forced` ones. Pass over heads of unknown memory unless `unknown_fits`.
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
        """True if the least request of the group in front is known."""
        is_head = self._at < len(self._heads) and self.first is self._heads[self._at]
        return not is_head or self._least[self._at] != 0

    def _pass_over(self, bytes_: float, except_above: float, forced: int) -> None:
        """Advance to the first group to be examined, among heads and followers by rank."""
        while self._followers:
            first = self._followers[0]
            if not self._pass_heads(bisect_left(self._heads, first, self._at), bytes_, except_above, forced):
                return
            if self._at < forced or not _first_to_look_at(
                [self._same[first[1]]], bytes_, except_above, self._unknown_fits
            ):
                return
            self._passed_followers.append(heappop(self._followers))
        self._pass_heads(len(self._heads), bytes_, except_above, forced)

    def _pass_heads(self, end: int, bytes_: float, except_above: float, forced: int) -> bool:
        """Advance to the first head before `end` that must be examined; return whether there is none."""
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
        """Return the tasks that were passed over before this position among the heads, each only once."""
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
        """Take the task in front, which is placed or left out by itself: the next task of its group follows at its
        own rank.
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
        """Skip the group in front, because none of its tasks fits."""
        self._leave()

    def _leave(self) -> Asked:
        first = self.first
        if self._followers and first is self._followers[0]:
            heappop(self._followers)
        else:
            self._at += 1
        return first[1]
