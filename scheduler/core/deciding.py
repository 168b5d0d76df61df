"""One decision: a walk over the waiting line with a working copy of the machine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from scheduler.core import mps, packing
from scheduler.core.allowance import NO_END, Allowance
from scheduler.core.estimate import is_watched
from scheduler.core.model import HOST, Decision, KnownBy, Machine, Placement, Profiling, Purpose, Refusal, Terms, Ticket
from scheduler.core.ordering import Rank
from scheduler.core.turns import FOR_ROOM, Queue
from scheduler.core.yard import Ends, Working, is_open

if TYPE_CHECKING:
    from scheduler.core.brain import Brain
    from scheduler.core.lifecycle import Task

MOST_REFUSALS = 5
"""A pass names so many waiting tasks at most; the rest wait for the same numbers."""
FEW = 4
"""Of more GPUs than this only the most hopeful are asked for the number by which a task misses."""
ASKED = 2
"""Of those with the most bytes left, and of those with the most load."""
MANY = 32
"""Of more GPUs than this they are asked for one task only."""
NOT_FOR_ROOM = ("unlooked", "learned", "gpus", "device", "disabled")
"""Whoever waits for one of these waits for no room, so that no device closes behind him."""


class Pass:
    """One walk over the waiting line with a working copy of the machine.

    Whatever cannot fit anywhere is passed over without a look: by the bytes it is known to ask for at least, beside the
    most that is left on any device. Nobody who could start is, so that it comes to the same as a look at each.
    """

    _kept: dict[int, Terms]
    _asks: dict[int, packing.Need]
    _kinds: dict[int, int]
    _counts: dict[int, int]
    _met: dict[int, int]
    """The numbers of the terms of those that were in front."""
    probed: dict[int, int]
    """Kinds that are being learned from a short run, and by whom."""
    checked: dict[int, int]
    """Kinds that one attempt has shown, and who is to show them once more."""
    watched: dict[Hashable, int]
    """Groups of kinds that are being learned from a real run on GPUs, and by whom."""
    ranks: list[Rank]
    placements: list[Placement]
    refusals: list[Refusal]
    impossible: list[Refusal]

    def __init__(self, brain: Brain, machine: Machine) -> None:
        self.brain, self.rules = brain, brain.rules
        self.yard = brain.yard.look(machine)
        self.rooms = Working(self.yard.rooms)
        self.host = self.rooms[HOST] if HOST in self.yard.rooms else None
        self.gpus, self.ends = self.yard.gpus, self.yard.ends
        self._kept, self._asks, self._kinds, self._counts, self._met = {}, {}, {}, {}, {}
        self.walk, self.lightest = brain.line.walk(), brain.line.lightest
        self.allowed = Allowance(machine, brain.placements()) if machine.caps.some else None
        """What is left of the user's caps; None: there are none."""
        self.left = self._jobs_left()
        self.turn = machine.turn
        self.probed, self.checked, self.watched = {}, {}, {}
        self._note_learning(brain.learning())
        self.back: list[int] = []
        """Tasks that were held back because one of their group is being learned."""
        self.patience: dict[int, list[tuple[int, Refusal]]] = {}
        """Who will have been overtaken too often once this pass has made so many placements."""
        self._overdue, self.shut = -1, False
        """So many heads may have been overtaken too often by now, below 0: nobody has asked yet; whether all GPUs are
        closed, so that none of them need be marked."""
        self.ranks, self.placements, self.refusals, self.impossible = [], [], [], []
        self.queue = Queue(machine, brain.placements(), brain.rules) if machine.waiters else None
        """Others who wait; None: nobody does."""
        self.wait: Ticket | None = None

    def _note_learning(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            placement, kind = task.placement, self._kind(task.id)
            if placement is None:
                continue
            if placement.purpose is Purpose.PROBE:
                self.probed[kind] = task.id
            if placement.gpus and is_watched(placement, task.settled):
                self.watched[self.brain.knowledge.group(kind)] = task.id
            if placement.gpus and not task.settled and self.brain.is_unsure(task.id):
                self.checked[kind] = task.id

    def _most_named(self) -> int:
        return 1 if len(self.gpus) > MANY else MOST_REFUSALS

    def _jobs_left(self) -> int:
        own = NO_END if self.rules.jobs is None else self.rules.jobs - self.brain.roll.living
        return own if self.allowed is None else min(own, self.allowed.tasks_left)

    def one_too_many(self, task: int) -> Refusal:
        """What a task waits for where as many run as may."""
        if self.allowed is not None and self.allowed.tasks_left <= 0:
            return self.allowed.too_many(task)
        return Refusal(task, "jobs", total=self.rules.jobs or 0)

    def decide(self) -> Decision:
        """Walk by rank until the line or the machine is exhausted."""
        while (task := self._front()) is not None:
            terms, self._kinds[task], _ = self.walk.asked
            self._met[task], self._kept[task] = terms, self.brain.terms[terms]
            if self.left <= 0:
                self._refuse(self.one_too_many(task))
                break
            if self._is_full():
                self._refuse_full(task)
                break
            self._try(task)
        self._use_idle_gpus()
        fitting = tuple(self.queue.fitting) if self.queue is not None else ()
        return Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible), self.wait, fitting)

    def ask(self, task: int) -> Placement | Refusal:
        """What becomes of a task that comes behind everything this pass has decided."""
        return self._held_back(task) or self._fit(task, self._candidates(task))

    def _front(self) -> int | None:
        """The best-ranked task that may fit; until one is found that does not, so that it is named, the next of all.

        Where others wait each is looked at, because room is kept for those whose turn is before its own.
        """
        unnamed = not self.refusals or (self.wait is None and len(self.refusals) < self._most_named())
        if unnamed or self.queue is not None:
            return self.walk.front()
        if self._overdue < 0:
            self._overdue = self.brain.line.before(self.rules.overtakes - len(self.placements))
        return self.walk.front(self._most(), self.yard.smallest, self._overdue)

    def _most(self) -> float:
        """Nothing that asks for more bytes than this fits anywhere beside what is there."""
        if not self.gpus:
            return inf
        if self.ends.most_load + packing.ENOUGH < self.lightest and self.lightest > 0:
            return -1.0
        bytes_ = max(0.0, self.ends.most_bytes)
        return bytes_ if bytes_ < self.yard.smallest - self.rules.buffer else inf

    def _is_full(self) -> bool:
        """Whether nothing that waits could start anywhere, however little it needs."""
        if not self.gpus:
            return self.host is None or not is_open(self.host, self.rules)
        if self.ends.bytes:
            return False
        return not self.brain.some_without_gpus or self.host is None or not is_open(self.host, self.rules)

    def _use_idle_gpus(self) -> None:
        """Better than leaving a GPU empty: one more of a group that is being learned, which may be done by then."""
        for task in self.back:
            if self.left <= 0 or not self._idle():
                return
            idle = self._idle()
            tried = self._fit(task, [room for room in self._candidates(task) if room.device.key in idle])
            if isinstance(tried, Placement):
                self._take(tried)

    def _idle(self) -> set[str]:
        """GPUs on which nothing runs, and anything could."""
        last = bisect_left(self.ends.bytes, (inf, -1))
        numbers = (number for _, number in self.ends.bytes[last:])
        return {self.gpus[number] for number in numbers if self.rooms.now(self.gpus[number]).residents == 0}

    def _terms(self, task: int) -> Terms:
        known = self._kept.get(task)
        if known is None:
            known = self._kept[task] = self.brain.terms[self.brain.roll.terms(task)]
        return known

    def _kind(self, task: int) -> int:
        known = self._kinds.get(task)
        if known is None:
            known = self._kinds[task] = self.brain.roll.kind(task)
        return known

    def _count(self, task: int) -> int:
        """How many GPUs a task gets."""
        known = self._counts.get(task)
        if known is None:
            known = self._counts[task] = packing.gpus_of(self._terms(task), bool(self.gpus))
        return known

    def _need(self, task: int) -> packing.Need:
        known = self._asks.get(task)
        if known is None:
            known = self._asks[task] = self._look_up(task)
        return known

    def _look_up(self, task: int) -> packing.Need:
        terms = self._met.get(task)
        if terms is None or self.brain.task(task) is not None:
            return self.brain.need(task, self._count(task))
        return self.brain.need_of(terms, self._kinds[task], self._count(task))

    def _fit(self, task: int, gpus: Sequence[packing.Room]) -> Placement | Refusal:
        touched = self.brain.task(task)
        attempt = (touched.attempts if touched else 0) + 1
        need = self._need(task)
        if touched is not None and touched.apart and self._only_mps():
            need = replace(need, alone=True)
        wanted = self._terms(task).device
        if (not need.gpus and self.host is None) or (wanted and not self._is_there(wanted, need)):
            return Refusal(task, "device", wanted or HOST)
        if need.gpus and self.shut:
            return Refusal(task, "closed", self.yard.rooms[self.gpus[0]].device.label)
        if self.allowed is not None:
            fitted = self._within_caps(self.allowed, task, attempt, need, gpus if need.gpus else ())
        else:
            promise = packing.room_for(task, need, gpus, self.host, self.rules)
            if isinstance(promise, Refusal):
                return promise
            fitted = packing.placed(task, attempt, need, promise, self.host, self._expected(task))
        return self._under_mps(fitted) if self.rules.mps and isinstance(fitted, Placement) else fitted

    def _expected(self, task: int) -> float:
        return self.brain.knowledge.expected(self._kind(task), self._terms(task).epochs)

    def _within_caps(
        self, allowed: Allowance, task: int, attempt: int, need: packing.Need, gpus: Sequence[packing.Room]
    ) -> Placement | Refusal:
        """Room for a task, and no more than its user may hold."""
        refusal = allowed.refuses(task, need)
        if refusal is not None:
            return refusal
        among = allowed.among(task, len(need.gpus), gpus)
        if isinstance(among, Refusal):
            return among
        fitted = packing.fit(task, attempt, need, among, self.host, self.rules, self._expected(task))
        return fitted if isinstance(fitted, Refusal) else allowed.cut(fitted, need)

    def _only_mps(self) -> bool:
        """Whether nothing can run outside of MPS."""
        rooms = self.yard.rooms
        return self.rules.mps and (self.rules.mps_alone or any(rooms[key].device.single for key in self.gpus))

    def _under_mps(self, placement: Placement) -> Placement:
        """With its share of the threads; one on several GPUs stays outside, where its faults reach nobody."""
        touched = self.brain.task(placement.task)
        apart = touched is not None and touched.apart and not placement.alone
        if len(placement.gpus) != 1 or apart:
            return placement
        beside = self.rooms.now(placement.gpus[0]).residents
        percentage = mps.percentage(self._terms(placement.task), beside)
        return replace(placement, percentage=percentage, fence=mps.fence(placement, self.rules))

    def _is_there(self, wanted: str, need: packing.Need) -> bool:
        """Whether the device that a row names is one that it can run on."""
        if need.gpus:
            return bool(self.yard.called(wanted))
        return self.host is not None and packing.is_called(self.host.device, wanted)

    def _held_back(self, task: int) -> Refusal | None:
        """Why a task is not even tried: its kind is being learned, or there is nothing left to learn from it."""
        kind = self._kind(task)
        if kind == 0 and self.rules.profile is not Profiling.OFF:
            return Refusal(task, "unlooked")
        if kind in self.probed and not self._is_out_of_patience(task):
            return Refusal(task, "probing", wanted=self.probed[kind])
        if self.rules.learn_only and self._need(task).purpose is not Purpose.PROBE:
            return Refusal(task, "learned")
        return self._watched_by_another(task, kind) if kind and self._count(task) else None

    def _watched_by_another(self, task: int, kind: int) -> Refusal | None:
        """Learning one thing twice at once teaches nothing more, and locks a second GPU."""
        if self.rules.slots is not None:
            return None
        by = self.checked.get(kind)
        if by is None and self._need(task).unknown:
            by = self.watched.get(self.brain.knowledge.group(kind))
        if by is None or self._is_out_of_patience(task):
            return None
        self.back.append(task)
        return Refusal(task, "watched", wanted=by)

    def _is_out_of_patience(self, task: int) -> bool:
        """Whether it was overtaken too often to wait for what another one teaches."""
        return self.brain.line.overtaken(task) >= self.rules.overtakes

    def _refuse_full(self, task: int) -> None:
        """Nothing more fits anywhere: name what the best-ranked of the rest misses."""
        tried = self._fit(task, () if self.shut else self._named(task, self._need(task)))
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _give_way(self, queue: Queue, task: int) -> None:
        """Keep room for those of the others whose turn is before this task's."""
        if queue.give_way(task, self.rooms, self.host):
            self.ends = Ends([], [])
            for number, key in enumerate(self.gpus):
                self.ends.add(number, self.rooms.now(key), self.rules)

    def _try(self, task: int) -> None:
        if self.queue is not None:
            self._give_way(self.queue, task)
        tried = self._held_back(task) or self._start(task)
        if isinstance(tried, Placement):
            self.ranks.append(self.walk.rank)
            self.walk.take()
            self._take(tried)
            return
        rank = self.walk.rank
        self.walk.skip()
        self._waits(task, tried, rank)

    def _start(self, task: int) -> Placement | Refusal:
        """Room among the GPUs that may have it; where there is none, the number by which it misses."""
        need = self._need(task)
        if self.shut or not need.gpus:
            return self._fit(task, ())
        self._remember(task, need)
        few = self._hopeful(task, need)
        if len(few) >= len(need.gpus):
            tried = self._fit(task, self._sorted(task, few))
            if isinstance(tried, Placement) or tried.device == HOST:
                return tried
        if not self._is_told(need):
            return Refusal(task, "memory")
        return self._fit(task, self._named(task, need))

    def _is_told(self, need: packing.Need) -> bool:
        """Whether it matters by what number it misses: somebody will read it, or it may never fit."""
        if len(self.gpus) <= MANY or not self.refusals or len(need.gpus) > 1:
            return True
        return self._may_never_fit(need)

    def _may_never_fit(self, need: packing.Need) -> bool:
        smallest = self.yard.smallest
        for ask in need.gpus:  # noqa: SIM110 - a generator takes three times as long, and most have one GPU
            if (ask.bytes or 0) > smallest or ask.bare > smallest or ask.wanted > smallest:
                return True
        return False

    def _named(self, task: int, need: packing.Need) -> list[packing.Room]:
        """The GPUs that are asked by what number it misses: all of few, the most hopeful of many."""
        if len(self.gpus) <= FEW or self._terms(task).device or len(need.gpus) > 1:
            return self._candidates(task)
        if self._may_never_fit(need):
            return self._candidates(task)
        last = {at for _, at in (*self.ends.bytes[-ASKED:], *self.ends.load[-ASKED:])} or set(range(ASKED))
        return self._sorted(task, [self.rooms.now(self.gpus[at]) for at in last])

    def _remember(self, task: int, need: packing.Need) -> None:
        """What it asks for at least, so that next time it need not be looked at to be passed over."""
        touched = self.brain.task(task)
        if (
            self.walk.is_known
            or need.unknown
            or self.rules.slots is not None
            or (touched is not None and touched.floors)
        ):
            return
        firm = self.brain.knows(task, len(need.gpus))
        if not firm and need.known_by is not KnownBy.DECLARED:
            return  # others of its like may teach that it needs less
        busy = packing.load_asked(need.busy, self.rules) if firm else 0.0
        self.brain.line.keep(task, min(ask.bytes or 0 for ask in need.gpus), busy)

    def _hopeful(self, task: int, need: packing.Need) -> list[packing.Room]:
        """The GPUs on which it may fit: all but those that surely have too few bytes or too much load."""
        if need.alone:
            least, busy = inf, 0.0
        else:
            limit = self.yard.smallest - self.rules.buffer
            least = limit
            for ask in need.gpus:
                least = min(least, ask.bytes or 0)
            busy = packing.load_asked(need.busy, self.rules)
        word = self._terms(task).device
        rooms = [self.rooms.now(self.gpus[number]) for number in self.ends.with_both(least, busy)]
        return [room for room in rooms if packing.is_called(room.device, word)] if word else rooms

    def _take(self, placement: Placement) -> None:
        if self.ends is self.yard.ends:
            self.ends = self.ends.copy()
        gpus = placement.gpus
        numbers = [(self.yard.numbers[key], self.rooms[key]) for key in gpus]
        for number, room in numbers:
            self.ends.remove(number, room, self.rules)
        packing.take(self.rooms, placement)
        for number, room in numbers:
            self.ends.add(number, room, self.rules)
        self.placements.append(placement)
        self.left -= 1
        if self.queue is not None:
            self.queue.take(placement)
        if self.allowed is not None:
            self.allowed.take(placement)
        kind = self._kind(placement.task)
        if placement.purpose is Purpose.PROBE:
            self.probed[kind] = placement.task
        elif kind and gpus and self.brain.is_unsure(placement.task):
            self.checked[kind] = placement.task
        elif gpus and is_watched(placement, settled=False):
            self.watched[self.brain.knowledge.group(kind)] = placement.task
        self._lose_patience()

    def _lose_patience(self) -> None:
        """Close the devices of whoever was overtaken too often by now, those that were passed over among them."""
        number = len(self.placements)
        self._overdue = self.brain.line.before(self.rules.overtakes - number)
        for task in self.walk.passed_before(self._overdue):
            held = self._held_back(task)
            if held is None or held.reason not in NOT_FOR_ROOM:
                rank = self.brain.line.rank(task)
                self._be_patient(task, Refusal(task, "memory"), bisect_left(self.ranks, rank), rank)
        for task, refusal in self.patience.pop(number, ()):
            self._close_behind(task, refusal)

    def _waits(self, task: int, refusal: Refusal, rank: Rank) -> None:
        """A task that found no room: it is named, and once it was overtaken too often its devices close behind it."""
        if refusal.reason == "never":
            self.impossible.append(refusal)
            return
        self._refuse(refusal)
        if refusal.reason not in NOT_FOR_ROOM:
            self._be_patient(task, refusal, len(self.placements), rank)

    def _be_patient(self, task: int, refusal: Refusal, started: int, rank: Rank) -> None:
        """It found no room when this pass had started so many."""
        left = self.rules.overtakes - self.brain.line.overtaken(task, rank)
        if self.turn.closed and task == self.turn.task:
            left = 0  # the others keep its devices for it, so this run does, too
        if left > 0 and started + left >= len(self.placements):
            self.patience.setdefault(started + left, []).append((task, refusal))
        else:
            self._close_behind(task, refusal)

    def _close_behind(self, task: int, refusal: Refusal) -> None:
        """Keep everything for it that it may run on; the host's RAM only where that is what it lacks."""
        if self._count(task) and not self._terms(task).device:
            self.ends, self.shut = Ends([], []), True
        elif not self.shut:
            for room in self._candidates(task):
                self._close(room)
        if self.host is not None and (not self._count(task) or refusal.device == self.host.device.label):
            self.host.closed = True

    def _close(self, room: packing.Room) -> None:
        if room.closed:
            return
        if self.ends is self.yard.ends:
            self.ends = self.ends.copy()
        key = room.device.key
        self.ends.remove(self.yard.numbers[key], self.rooms.now(key), self.rules)
        self.rooms[key].closed = True

    def _candidates(self, task: int) -> list[packing.Room]:
        """The GPUs a task may run on, the best first."""
        word = self._terms(task).device
        if not self._count(task):
            return []
        rooms = [self.rooms.now(key) for key in self.gpus]
        return self._sorted(task, [room for room in rooms if not word or packing.is_called(room.device, word)])

    def _sorted(self, task: int, rooms: list[packing.Room]) -> list[packing.Room]:
        """The best first: as it prefers, without strangers, least busy, most free."""
        if len(rooms) < 2:
            return rooms
        prefer, numbers = self._terms(task).prefer, self.yard.numbers
        best = sorted(rooms, key=lambda room: (room.strangers > 0, -room.load, -room.bytes, numbers[room.device.key]))
        return sorted(best, key=lambda room: not packing.is_called(room.device, prefer)) if prefer else best

    def _refuse(self, refusal: Refusal) -> None:
        if self.wait is None and refusal.reason in FOR_ROOM:
            self.wait = self._ticket(refusal.task)
        if len(self.refusals) < self._most_named():
            self.refusals.append(refusal)

    def _ticket(self, task: int) -> Ticket:
        """What the others are told of a task that waits for what they hold."""
        need, word = self._need(task), self._terms(task).device
        gpus = self.yard.everywhere if not word else tuple(device.key for device in self.yard.called(word))
        bytes_ = tuple([ask.bytes for ask in need.gpus])
        return Ticket(task, gpus if bytes_ else (HOST,), bytes_, need.host.bytes, need.cores, need.busy, need.alone)
