"""The wait queue: waiting tasks, grouped by what they request, ranked by batch, priority and id."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf

from scheduler.core.model import RankOrder, State, Terms
from scheduler.core.queue.head_requests import HeadRequests
from scheduler.core.queue.queue_cursor import QueueCursor
from scheduler.core.queue.task_group import TOGETHER, Asked, Rank, TaskGroup
from scheduler.core.queue.task_table import TaskTable

FRONT = -(10**15)
"""The first number in the rank of a lifted task; it is below all batch numbers and priorities."""


def out_of_turn(roll: TaskTable, terms: Sequence[Terms]) -> Counter[int]:
    """Return, for each priority, how many waiting tasks are in a later batch than some task with a worse priority."""
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


class WaitQueue:
    """All waiting tasks, in groups. The groups are kept ranked by their first tasks (heads), so that a pass never sorts
    the queue.

    The tasks of a group have equal terms and one class. A task that requests more than its equals after an
    out-of-memory has a group of its own, so that the others do not wait for memory that only this task needs. Tasks of
    a directory that could not be entered also have a group of their own, so that a pass leaves all of them out at once.
    """

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
        """For each task class, its groups."""
        self._heads: list[tuple[Rank, Asked]] = []
        self._unlooked: list[tuple[Rank, Asked]] = []
        """The groups whose class is not determined, with the ranks of their first tasks."""
        self.requests = HeadRequests()
        """The least requests of the groups: a cache that decisions fill."""
        self._ranked: dict[Asked, Rank] = {}
        self._places: dict[int, int] = {}
        """For each task in a directory that could not be entered, the number that stands for that directory in the key
        of a group."""
        self._passed: list[Rank] = []
        self._before: dict[int, int] = {}
        self._moved: dict[Asked, dict[tuple[int, int], int]] = {}
        """A correction of the bypass counts of each group, by batch and priority. It is the number of tasks that seem
        to have bypassed the group only because its rank changed with a learned duration; it is negative if bypasses are
        missing for that reason."""
        self._unseen = 0
        """The largest difference between the bypass count of a task and the number of started tasks that rank behind
        it."""
        self.lifted: set[int] = set()
        """Waiting tasks for which other tasks make room. They start next, whatever their batch and priority."""
        self.most_bypassed = 0
        """The highest bypass count of a task when it started."""

    def rank(self, task: int) -> Rank:
        """Return the rank of a task; a smaller rank is better. Among tasks of equal priority, the longest known
        duration comes first.
        """
        batch, terms = self._roll.batch(task), self._terms[self._roll.terms(task)]
        kind = self._roll.kind(task)
        longest = -self._duration(kind, terms.epochs) if kind else 0.0
        if task in self.lifted:
            return (FRONT, terms.priority, longest, task)
        if self._order is RankOrder.GLOBAL:
            return (terms.priority, batch, longest, task)
        return (batch, terms.priority, longest, task)

    def rank_behind(self, rank: Rank, task: int) -> Rank:
        """Return the rank of `task`, computed from `rank`, which is the rank of another task in the same group."""
        batch = self._roll.batch(task)
        if task in self.lifted:
            return rank
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
        """Return at most `most` waiting tasks whose class is not determined, from the best-ranked groups first."""
        found: list[int] = []
        for _, asked in self._unlooked if most > 0 else ():
            found += self._groups[asked].waiting(most - len(found))
            if len(found) >= most:
                break
        return found

    def assign(self, task: int, kind: int) -> None:
        """Set the class of a waiting task."""
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
        """Put a task into the group of its directory, at once or when it waits again; `directory` is the number of the
        directory.
        """
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

    def lift(self, task: int) -> None:
        """Put a waiting task before all others until it starts or leaves the queue."""
        if task in self.lifted:
            return
        old, bypassed = self._where(task), self.bypassed(task)
        self._groups[old].remove(task)
        self._rerank(old)
        self.lifted.add(task)
        new = (old[0], old[1], task)
        self._groups.setdefault(new, TaskGroup()).put_back(task)
        self._rerank(new)
        self._forgive(task, bypassed)

    def first_together(self, most: int) -> list[int]:
        """Return the best-ranked waiting tasks, group by group, from groups of equal tasks only."""
        found: list[int] = []
        for _, asked in self._heads:
            if asked[2] == TOGETHER:
                found += self._groups[asked].waiting(most - len(found))
            if len(found) >= most:
                break
        return found

    def forget_unknown(self, script: str) -> None:
        """Remove the mark for unknown memory from groups of a script, because more is known about one of its
        classes.
        """
        for kind in self.requests.unknown(script):
            self.forget(kind)

    def forget_all_unknown(self) -> None:
        """Remove the mark for unknown memory from all groups."""
        for script in self.requests.scripts:
            self.forget_unknown(script)

    def forget(self, kind: int) -> None:
        """Drop the cached requests of a class's groups, because its profile has changed."""
        for asked in self._of_kind.get(kind, ()):
            self.requests.forget(bisect_left(self._heads, (self._ranked[asked], asked)))

    def before(self, times: int) -> int:
        """Return how many groups, from the front of the queue, have a first task that may have been bypassed this
        often.
        """
        times -= self._unseen
        if times <= 0:
            return len(self._heads)
        if times > len(self._passed):
            return 0
        return bisect_left(self._heads, (self._passed[-times],))

    def refresh(self, kind: int) -> None:
        """Rank the groups of a class again, because the duration of the class was learned."""
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
        """Correct the bypass counts of a group whose rank has changed, so that the counts themselves stay as they
        were.
        """
        moved = self._moved.setdefault(asked, {})
        for first, second in {passed[:2] for passed in self._passed}:
            place = (first, second)
            more = self._passes((*place, *now[2:])) - self._passes((*place, *before[2:]))
            moved[place] = moved.get(place, 0) + more

    def put_back(self, task: int, *, apart: bool = False) -> None:
        """Add a task that waits again. Tasks that started while it did not wait do not count as bypasses."""
        place = task if apart else self._places.get(task, TOGETHER)
        asked = (self._roll.terms(task), self._roll.kind(task), place)
        self._groups.setdefault(asked, TaskGroup()).put_back(task)
        self.looked += bool(asked[1])
        self._forgive(task, 0)
        self._rerank(asked)

    def remove(self, task: int, *, started: bool) -> None:
        """Remove a task that no longer waits; if it has started, it may have bypassed other tasks."""
        asked, rank = self._where(task), self.rank(task)
        if started:
            self.most_bypassed = max(self.most_bypassed, self.bypassed(task, rank))
        self._groups[asked].remove(task)
        self.looked -= bool(asked[1])
        self._before.pop(task, None)
        self._places.pop(task, None)
        self._rerank(asked)
        self.lifted.discard(task)
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
            least, busy = self.requests.pop(place)  # the next task of a group requests the same
            del self._heads[place]
            if not asked[1]:
                del self._unlooked[bisect_left(self._unlooked, (old, asked))]
        head = self._groups[asked].peek()
        if head is None:
            del self._groups[asked]
            self._of_kind[asked[1]].discard(asked)
            if not self._of_kind[asked[1]]:
                del self._of_kind[asked[1]]
            self._moved.pop(asked, None)
            return
        rank = self.rank(head)
        self._ranked[asked] = rank
        self._of_kind.setdefault(asked[1], set()).add(asked)
        place = bisect_left(self._heads, (rank, asked))
        self._heads.insert(place, (rank, asked))
        self.requests.insert(place, least, busy)
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
        """Set the bypass count of a task. Tasks that started before the task got its present place in the queue do not
        count.
        """
        before = self._passes(self.rank(task)) - self._seeming(task) - bypassed
        if before:
            self._before[task] = before
            if before < 0:
                self._unseen = self._most_unseen()
        else:
            self._before.pop(task, None)

    def bypassed(self, task: int, rank: Rank | None = None) -> int:
        """Return how many tasks with a later rank started while this one waited. `rank` is the rank of `task`, if the
        caller knows it.
        """
        passes = self._passes(self.rank(task) if rank is None else rank)
        return max(0, passes - self._seeming(task) - self._before.get(task, 0))

    def _seeming(self, task: int) -> int:
        """Return how many tasks seem to have bypassed a task only because its rank changed."""
        if not self._moved:
            return 0
        moved = self._moved.get(self._where(task))
        return moved.get(self.rank(task)[:2], 0) if moved else 0

    @property
    def kinds(self) -> Iterable[int]:
        """The task classes of all waiting tasks, by their numbers."""
        return self._of_kind

    def groups(self) -> Iterable[TaskGroup]:
        """Return all groups in arbitrary order."""
        return self._groups.values()

    def grouped(self) -> Iterable[tuple[Asked, TaskGroup]]:
        """Return all groups with their keys in arbitrary order."""
        return self._groups.items()

    def walk(self) -> QueueCursor:
        """Return a cursor that goes through the queue by rank and does not change it."""
        return QueueCursor(self, self._heads, self.requests, self._groups)
