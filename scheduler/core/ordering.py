"""Who comes next: waiting ids grouped by what they ask for, ranked by batch, priority and id."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf

from scheduler.core.model import Order, State, Terms
from scheduler.core.roll import Roll

Rank = tuple[int, int, float, int]
Asked = tuple[int, int, int]
"""What a group asks for: the number of its terms, of its kind, and its one task where that asks for more."""
TOGETHER = -1
"""In place of that one task: all that ask for no more than their equals."""


def out_of_turn(roll: Roll, terms: Sequence[Terms]) -> Counter[int]:
    """The priorities of waiting tasks that stand in a later batch than one of a worse priority."""
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

    def __len__(self) -> int:
        return len(self.ids) - self.next + len(self.back) - len(self.gone)

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

    def waiting(self, most: int) -> list[int]:
        """The first ids of this group's line."""
        if not self.back and not self.gone:
            return self.ids[self.next : self.next + most].tolist()
        fresh = [task for task in self.ids[self.next : self.next + most + len(self.gone)] if task not in self.gone]
        return sorted([*self.back, *fresh])[:most]

    def add(self, task: int) -> None:
        """An id joins that was never here."""
        if not self.ids or task > self.ids[-1]:
            self.ids.append(task)
        else:
            insort(self.back, task)

    def put_back(self, task: int) -> None:
        """An id comes back, or joins a group of its own."""
        if task in self.gone:
            self.gone.discard(task)
        else:
            insort(self.back, task)

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

    A group has the same terms and the same kind. A task that asks for more than its equals (an out-of-memory taught
    it) is a group of its own, so that they do not wait for what only it needs.
    """

    def __init__(
        self,
        roll: Roll,
        terms: Sequence[Terms],
        order: Order,
        duration: Callable[[int, int | None], float] | None = None,
    ) -> None:
        self._roll = roll
        self._terms = terms
        self._order = order
        self._duration = duration or (lambda kind, epochs: 0.0)
        self.looked = 0
        """How many waiting tasks have a kind."""
        self._groups: dict[Asked, Group] = {}
        self._of_kind: dict[int, set[Asked]] = {}
        """The groups of each kind."""
        self._heads: list[tuple[Rank, Asked]] = []
        self._unlooked: list[tuple[Rank, Asked]] = []
        """Those of the heads whose kind nobody has looked at."""
        self._least: list[float] = []
        """Of each head the bytes on one GPU without which it does not fit beside others; 0: not worked out."""
        self._busy: list[float] = []
        """The same of the load."""
        self._ranked: dict[Asked, Rank] = {}
        self._passed: list[Rank] = []
        self._before: dict[int, int] = {}
        self._moved: dict[Asked, dict[tuple[int, int], int]] = {}
        """How many more seem to have passed those of a group in one batch and priority than did, because they rank
        elsewhere since their time was learned; fewer where it is below 0."""
        self._unseen = 0
        """So much more often, at most, was anybody overtaken than what passed its place in the line says."""
        self.most_overtaken = 0
        """The most often that a task had been overtaken when it was started."""

    def rank(self, task: int) -> Rank:
        """Smaller comes first; within a priority the longest, where that is known."""
        batch, terms = self._roll.batch(task), self._terms[self._roll.terms(task)]
        kind = self._roll.kind(task)
        longest = -self._duration(kind, terms.epochs) if kind else 0.0
        if self._order is Order.GLOBAL:
            return (terms.priority, batch, longest, task)
        return (batch, terms.priority, longest, task)

    def rank_behind(self, rank: Rank, task: int) -> Rank:
        """The rank of a task of the same group as one of that rank."""
        batch = self._roll.batch(task)
        if self._order is Order.GLOBAL:
            return (rank[0], batch, rank[2], task)
        return (batch, rank[1], rank[2], task)

    def extend(self, first: int, terms: Sequence[int]) -> None:
        """A whole batch joins the line; nobody has looked at its kinds yet."""
        for offset, number in enumerate(terms):
            asked = (number, 0, TOGETHER)
            group = self._groups.get(asked)
            if group is None:
                group = self._groups[asked] = Group()
            group.ids.append(first + offset)
        for number in set(terms):
            if (number, 0, TOGETHER) not in self._ranked:
                self._rerank((number, 0, TOGETHER))
        if self._order is Order.GLOBAL and self._passed:
            for task in range(first, first + len(terms)):
                self._forgive(task, 0)

    def unlooked(self, most: int) -> list[int]:
        """Waiting tasks whose kind nobody has looked at, best-ranked groups first."""
        found: list[int] = []
        for _, asked in self._unlooked if most > 0 else ():
            found += self._groups[asked].waiting(most - len(found))
            if len(found) >= most:
                break
        return found

    def assign(self, task: int, kind: int) -> None:
        """The kind of a waiting task is known now."""
        old, overtaken = self._where(task), self.overtaken(task)
        new = (old[0], kind, old[2])
        self._groups[old].remove(task)
        self._groups.setdefault(new, Group()).add(task)
        self.looked += bool(kind) - bool(old[1])
        self._roll.assign(task, kind)
        self._rerank(old)
        if old != new:
            self._rerank(new)
        self._forgive(task, overtaken)

    def change(self, task: int, terms: int) -> None:
        """A waiting task asks for something else now, and nobody has looked at its kind since."""
        old, overtaken = self._where(task), self.overtaken(task)
        self._groups[old].remove(task)
        self.looked -= bool(old[1])
        self._roll.change(task, terms)
        self._rerank(old)
        new = (terms, 0, old[2])
        self._groups.setdefault(new, Group()).put_back(task)
        self._rerank(new)
        self._forgive(task, overtaken)

    def keep(self, task: int, least: float, busy: float) -> None:
        """A task asks for at least so much; where it is a head, that is kept until more is known of its kind."""
        asked = self._where(task)
        place = bisect_left(self._heads, (self._ranked[asked], asked))
        if self._heads[place][0][3] == task:
            self._least[place], self._busy[place] = least, busy

    @property
    def lightest(self) -> float:
        """The least load that any head is known to ask for."""
        return min(self._busy, default=0.0)

    def forget(self, kind: int) -> None:
        """More is known of a kind: what its groups ask for is to be worked out again."""
        for asked in self._of_kind.get(kind, ()):
            place = bisect_left(self._heads, (self._ranked[asked], asked))
            self._least[place] = self._busy[place] = 0

    def before(self, times: int) -> int:
        """How many heads may have been overtaken so often."""
        times -= self._unseen
        if times <= 0:
            return len(self._heads)
        if times > len(self._passed):
            return 0
        return bisect_left(self._heads, (self._passed[-times],))

    def refresh(self, kind: int) -> None:
        """Something was learned of a kind: its groups may rank elsewhere now."""
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
        """Who ranks elsewhere was overtaken as often as before."""
        moved = self._moved.setdefault(asked, {})
        for first, second in {passed[:2] for passed in self._passed}:
            place = (first, second)
            more = self._passes((*place, *now[2:])) - self._passes((*place, *before[2:]))
            moved[place] = moved.get(place, 0) + more

    def put_back(self, task: int, *, apart: bool = False) -> None:
        """A task waits again, where its rank says; what passed it while it did not wait is not counted."""
        asked = (self._roll.terms(task), self._roll.kind(task), task if apart else TOGETHER)
        self._groups.setdefault(asked, Group()).put_back(task)
        self.looked += bool(asked[1])
        self._forgive(task, 0)
        self._rerank(asked)

    def remove(self, task: int, *, started: bool) -> None:
        """A task waits no more; if it was started, it may have passed others."""
        asked, rank = self._where(task), self.rank(task)
        if started:
            self.most_overtaken = max(self.most_overtaken, self.overtaken(task, rank))
        self._groups[asked].remove(task)
        self.looked -= bool(asked[1])
        self._before.pop(task, None)
        self._rerank(asked)
        if started:
            self._pass(rank)

    def _where(self, task: int) -> Asked:
        terms, kind = self._roll.terms(task), self._roll.kind(task)
        apart = (terms, kind, task)
        return apart if apart in self._groups else (terms, kind, TOGETHER)

    def _rerank(self, asked: Asked) -> None:
        old, least, busy = self._ranked.pop(asked, None), 0.0, 0.0
        if old is not None:
            place = bisect_left(self._heads, (old, asked))
            least, busy = self._least[place], self._busy[place]  # whoever comes next in a group asks for the same
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
            return
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

    def _forgive(self, task: int, overtaken: int) -> None:
        """It was overtaken so often, whatever passed its place in the line before it stood there."""
        before = self._passes(self.rank(task)) - self._seeming(task) - overtaken
        if before:
            self._before[task] = before
            if before < 0:
                self._unseen = self._most_unseen()
        else:
            self._before.pop(task, None)

    def overtaken(self, task: int, rank: Rank | None = None) -> int:
        """How many tasks ranked behind this one, which has that rank, were started while it waited."""
        passes = self._passes(self.rank(task) if rank is None else rank)
        return max(0, passes - self._seeming(task) - self._before.get(task, 0))

    def _seeming(self, task: int) -> int:
        """What seems to have passed it only because it ranks elsewhere."""
        if not self._moved:
            return 0
        moved = self._moved.get(self._where(task))
        return moved.get(self.rank(task)[:2], 0) if moved else 0

    def groups(self) -> Iterable[Group]:
        """All groups of equals that wait, in no order."""
        return self._groups.values()

    def grouped(self) -> Iterable[tuple[Asked, Group]]:
        """The same, each with the number of its terms and that of its kind."""
        return self._groups.items()

    def walk(self) -> Walk:
        """Go through the line by rank without changing it."""
        return Walk(self, self._heads, self._least, self._groups)


def _first_to_look_at(chunk: Sequence[float], bytes_: float, except_above: float) -> int:
    for number, least in enumerate(chunk):
        if least <= bytes_ or least > except_above:
            return number
    return len(chunk)


CHUNK = 256
"""So many heads are passed over at a time where none of them can fit."""


class Walk:
    """One pass over the heads by rank: take or skip the group in front, as if it were done."""

    def __init__(
        self, line: Line, heads: list[tuple[Rank, Asked]], least: list[float], groups: dict[Asked, Group]
    ) -> None:
        self._line = line
        self._heads = heads
        self._least = least
        self._groups = groups
        self._at = 0
        self._followers: list[tuple[Rank, Asked]] = []
        """The next of groups of which one was taken."""
        self._same: dict[Asked, float] = {}
        """What these ask for at least: as much as the one before."""
        self._taken: dict[Asked, int] = {}
        self.passed_over: list[int] = []
        """Heads that were not even looked at since nothing left could hold them."""
        self._passed_followers: list[tuple[Rank, Asked]] = []
        self._first: tuple[Rank, Asked] | None = None
        """Who is in front, and the group."""

    def front(self, bytes_: float = inf, except_above: float = inf, forced: int = 0) -> int | None:
        """The best-ranked task still in the walk.

        Heads that ask for more than so many bytes are passed over, but for those that ask for more than
        `except_above`, and the `forced` first ones.
        """
        if bytes_ < except_above:
            self._pass_over(bytes_, except_above, forced)
        at, heads = self._at, self._heads
        first = heads[at] if at < len(heads) else None
        if self._followers and (first is None or self._followers[0] < first):
            first = self._followers[0]
        self._first = first
        return first[0][3] if first is not None else None

    @property
    def rank(self) -> Rank:
        """That of the task in front."""
        assert self._first is not None
        return self._first[0]

    @property
    def asked(self) -> Asked:
        """The group of the task in front."""
        assert self._first is not None
        return self._first[1]

    @property
    def is_known(self) -> bool:
        """Whether it is known what the group in front asks for at least."""
        is_head = self._at < len(self._heads) and self._first is self._heads[self._at]
        return not is_head or self._least[self._at] > 0

    def _pass_over(self, bytes_: float, except_above: float, forced: int) -> None:
        """Go on to the first that is to be looked at, among heads and followers as they come."""
        while self._followers:
            first = self._followers[0]
            if not self._pass_heads(bisect_left(self._heads, first, self._at), bytes_, except_above, forced):
                return
            if self._at < forced or not bytes_ < self._same[first[1]] <= except_above:
                return
            self._passed_followers.append(heappop(self._followers))
        self._pass_heads(len(self._heads), bytes_, except_above, forced)

    def _pass_heads(self, end: int, bytes_: float, except_above: float, forced: int) -> bool:
        """Whether none of the heads up to this place is to be looked at; else it goes on to the first that is."""
        while self._at < end:
            if self._at < forced:
                return False
            chunk = self._least[self._at : min(self._at + CHUNK, end)]
            if min(chunk) <= bytes_ or max(chunk) > except_above:
                self._go(_first_to_look_at(chunk, bytes_, except_above))
                return False
            self._go(len(chunk))
        return True

    def _go(self, number: int) -> None:
        if number:
            self.passed_over += range(self._at, self._at + number)
            self._at += number

    def passed_before(self, place: int) -> list[int]:
        """Tasks that were passed over, of the heads before that place and what ranks there, each told once."""
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
        """The task in front is placed: the next of its group comes in at its own rank."""
        at, rank = self._at, self.rank
        asked = self._leave()
        if self._at > at:
            self._same[asked] = self._least[at]
        taken = self._taken.get(asked, 0) + 1
        self._taken[asked] = taken
        follower = self._groups[asked].peek(taken)
        if follower is not None:
            heappush(self._followers, (self._line.rank_behind(rank, follower), asked))

    def skip(self) -> None:
        """Nothing of the group in front fits: the others follow."""
        self._leave()

    def _leave(self) -> Asked:
        first = self._first
        assert first is not None
        if self._followers and first is self._followers[0]:
            heappop(self._followers)
        else:
            self._at += 1
        return first[1]
