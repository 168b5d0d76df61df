"""One decision: a pass over the wait queue with a working copy of the machine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from scheduler.core.attempts import mps_policy
from scheduler.core.model import (
    HOST,
    Decision,
    DeviceBudget,
    EstimateSource,
    Machine,
    Placement,
    Profiling,
    Purpose,
    Terms,
    UnmanagedUse,
    WaitTicket,
)
from scheduler.core.placement import fit
from scheduler.core.placement.capacity import FreeIndex, ScratchCapacity, is_open
from scheduler.core.placement.device_capacity import ENOUGH, DeviceCapacity, is_called
from scheduler.core.placement.refusal import Reason, Refusal, too_many_jobs
from scheduler.core.placement.request import ResourceRequest, gpus_of
from scheduler.core.placement.stagger import Stagger, is_at_its_beginning
from scheduler.core.profiling.estimator import is_watched
from scheduler.core.queue.fair_share import Contenders
from scheduler.core.queue.quota import NO_END, QuotaUse
from scheduler.core.queue.wait_queue import TOGETHER, Rank
from scheduler.units import size

if TYPE_CHECKING:
    from scheduler.core.lifecycle import TaskState
    from scheduler.core.placement.scheduling_state import SchedulingState

MOST_REFUSALS = 5
"""A pass names so many waiting tasks at most; the rest wait for the same numbers."""
FEW = 4
"""With more GPUs than this, only the most hopeful are asked for the number that a task misses."""
ASKED = 2
"""How many of the GPUs with the most bytes left are asked, and of those with the most load left."""
MANY = 32
"""With more GPUs than this, they are asked for one task only."""


def unmanaged(never: Refusal, budgets: Iterable[DeviceBudget]) -> Refusal | None:
    """Return the refusal of a task that would not fit if all leases ended, with the owners of the rest where they are
    known.

    None if it lacks something else than memory then.
    """
    if not never.reason.is_for_memory:
        return None
    unmanaged = [one for budget in budgets if budget.device.label == never.device for one in budget.unmanaged]
    some = sorted(unmanaged, key=lambda one: -one.bytes)[:MOST_REFUSALS]
    who = ", ".join(_owner(one) for one in some if one.user or one.pid)
    return replace(never, reason=Reason.UNMANAGED, text=who)


def _owner(one: UnmanagedUse) -> str:
    process = f"process {one.pid}" if one.pid else ""
    return f"{size(one.bytes)} of {' of '.join(part for part in (process, one.user) if part)}"


class SchedulingPass:
    """One pass over the wait queue with a working copy of the machine.

    A task that cannot fit anywhere is passed over without a look: its least known request is above the most that is
    left on any device. A task that could start is never passed over, so the result equals that of looking at each
    task.
    """

    _kept: dict[int, Terms]
    _asks: dict[int, ResourceRequest]
    _kinds: dict[int, int]
    _counts: dict[int, int]
    _met: dict[int, int]
    """The terms of the tasks that were in front, by number."""
    probed: dict[int, int]
    """Task classes that are being probed, each with its task."""
    checked: dict[int, int]
    """Task classes that one attempt has shown, each with the task that is to confirm it."""
    watched: dict[Hashable, int]
    """Groups of task classes that are being learned from a real run on GPUs, each with its task."""
    ranks: list[Rank]
    placements: list[Placement]
    refusals: list[Refusal]
    impossible: list[Refusal]
    met: dict[int, Refusal]
    """The refusals of the named tasks and of those that were bypassed too often: after devices are kept for a task,
    it would seem to wait for itself."""
    _kept_least: float
    """The least bytes for which devices are kept: a task on one GPU that requests more keeps nothing more."""
    _unknown_least: float | None = None
    """The result of `_least_unknown`, once it was computed."""
    _unmanaged: int
    """The number of named tasks that wait for unmanaged memory."""

    def __init__(self, brain: SchedulingState, machine: Machine) -> None:
        self.brain, self.rules = brain, brain.rules
        self._machine = machine
        self.capacity = brain.capacity.look(machine)
        self.rooms = ScratchCapacity(self.capacity.rooms)
        self.host = self.rooms[HOST] if HOST in self.capacity.rooms else None
        self.gpus, self.ends = self.capacity.gpus, self.capacity.ends
        self._kept, self._asks, self._kinds, self._counts, self._met = {}, {}, {}, {}, {}
        self.walk, self.lightest = brain.wait_queue.walk(), brain.wait_queue.lightest
        self.allowed = QuotaUse(machine, brain.placements()) if machine.caps.some else None
        """The rest of the user's quota; None: unlimited."""
        self.left = self._jobs_left()
        self.starts = brain.backoff.starts(machine.now, brain.rules)
        """The limit on starts after some have failed; None: no limit."""
        self.turn = machine.turn
        self.probed, self.checked, self.watched, self.stagger = {}, {}, {}, Stagger(self.rooms)
        self._note_learning(brain.learning())
        self.back: list[int] = []
        """Tasks that were held back because one of their group is being learned."""
        self.patience: dict[int, list[tuple[int, Refusal]]] = {}
        """The tasks that will have been bypassed too often after a number of placements, with their refusals."""
        self._overdue, self.shut = -1, ""
        """The number of heads that may have been bypassed too often, below 0 before it is computed; the task that
        all GPUs are kept for, so that none of them need be marked."""
        self.met, self._kept_least, self._unmanaged = {}, inf, 0
        self.ranks, self.placements, self.refusals, self.impossible = [], [], [], []
        self.queue = Contenders(machine, brain.placements(), brain.rules) if machine.waiters else None
        """The other schedulers that wait; None: none."""
        self.wait: WaitTicket | None = None
        self._parked: WaitTicket | None = None
        """The ticket of the first task that unmanaged memory keeps from starting: shown where no other task waits."""

    def _note_learning(self, tasks: Iterable[TaskState]) -> None:
        for task in tasks:
            placement, kind = task.placement, self._kind(task.id)
            if placement is None:
                continue
            if placement.purpose is Purpose.PROBE:
                self.probed[kind] = task.id
            if placement.gpus and is_watched(placement, task.settled):
                self.watched[self.brain.profiles.group(kind)] = task.id
                if is_at_its_beginning(task, placement, self.rules):
                    self.stagger.count(placement)
            if placement.gpus and not task.settled and self.brain.is_unsure(task.id):
                self.checked[kind] = task.id

    def _most_named(self) -> int:
        return 1 if len(self.gpus) > MANY else MOST_REFUSALS

    def _jobs_left(self) -> int:
        own = NO_END if self.rules.jobs is None else self.rules.jobs - self.brain.task_table.living
        return own if self.allowed is None else min(own, self.allowed.tasks_left)

    def one_too_many(self, task: int) -> Refusal:
        """Return the refusal of a task that waits because as many tasks run as may."""
        if self.allowed is not None and self.allowed.tasks_left <= 0:
            return self.allowed.too_many(task)
        return too_many_jobs(task, self.rules.jobs)

    def decide(self) -> Decision:
        """Go through the queue by rank until it or the machine is exhausted."""
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
        self._try_postponed()
        self._use_idle_gpus()
        wait = self.wait or self._parked
        found = Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible), wait)
        return found if self.queue is None else self.queue.named(found)

    def ask(self, task: int) -> Placement | Refusal:
        """Return the placement or refusal of a task that comes after everything this pass has decided."""
        return self._held_back(task) or self._fit(task, self._candidates(task))

    def _front(self) -> int | None:
        """Return the best-ranked task that may fit, or the next of all until one that does not fit is named.

        Where others wait each task is looked at, because capacity is kept for those whose turn is before its own.
        """
        if not self.refusals or self.queue is not None or self._names_more():
            return self.walk.front()
        if self._overdue < 0:
            self._overdue = self.brain.wait_queue.before(self.rules.bypass_limit - len(self.placements))
        bytes_ = self._most()
        some = self.brain.wait_queue.some_unknown
        unknown_fits = not some or bytes_ >= self.capacity.smallest or bytes_ >= self._least_unknown()
        return self.walk.front(bytes_, self.capacity.smallest, self._overdue, unknown_fits=unknown_fits)

    def _names_more(self) -> bool:
        """Tell whether more waiting tasks are named: none of those so far waits for what other schedulers hold."""
        return self.wait is None and len(self.refusals) < self._most_named() + min(self._unmanaged, MOST_REFUSALS)

    def _least_unknown(self) -> float:
        """Return the fewest bytes that a GPU on which tasks run must have left for one more of unknown memory."""
        if self._unknown_least is None:
            usual = self.brain.profiles.usual(self.rules.usual_share, self.rules.usual_kinds)
            expected, rooms = self.brain.enough_to_start, [self.capacity.rooms[key] for key in self.gpus]
            self._unknown_least = min(
                (
                    min(expected, room.most - self.rules.buffer)
                    if expected
                    else fit.least_unknown(usual, room, self.rules)
                    for room in rooms
                ),
                default=0.0,
            )
        return self._unknown_least

    def _most(self) -> float:
        """Return the bytes above which no request fits beside what is there."""
        if not self.gpus:
            return inf
        if self.ends.most_load + ENOUGH < self.lightest and self.lightest > 0:
            return -1.0
        bytes_ = max(0.0, self.ends.most_bytes)
        return bytes_ if bytes_ < self.capacity.smallest - self.rules.buffer else inf

    def _is_full(self) -> bool:
        """Tell whether no waiting task could start anywhere, however little it needs."""
        if not self.gpus:
            return self.host is None or not is_open(self.host, self.rules)
        if self.ends.bytes:
            return False
        return not self.brain.some_without_gpus or self.host is None or not is_open(self.host, self.rules)

    def _try_postponed(self) -> None:
        """Try the tasks whose starts failed again and again, after all others."""
        for task in self.starts.in_order(self.starts.postponed) if self.starts is not None else ():
            if self.left <= 0:
                return
            tried = self._held_back(task) or self._fit(task, self._candidates(task))
            if isinstance(tried, Placement):
                self.ranks.append(self.brain.wait_queue.rank(task))
                self._take(tried)
            else:
                self._refuse(tried)

    def _use_idle_gpus(self) -> None:
        """Start further tasks of groups that are being learned on GPUs that would stay empty."""
        for task in self.back:
            if self.left <= 0 or not self._idle():
                return
            idle = self._idle()
            tried = self._fit(task, [room for room in self._candidates(task) if room.device.key in idle])
            if isinstance(tried, Placement):
                self._take(tried)

    def _idle(self) -> set[str]:
        """Return the GPUs on which nothing runs and a task could start."""
        last = bisect_left(self.ends.bytes, (inf, -1))
        numbers = (number for _, number in self.ends.bytes[last:])
        return {self.gpus[number] for number in numbers if self.rooms.now(self.gpus[number]).residents == 0}

    def _terms(self, task: int) -> Terms:
        known = self._kept.get(task)
        if known is None:
            known = self._kept[task] = self.brain.terms_of(task)
        return known

    def _kind(self, task: int) -> int:
        known = self._kinds.get(task)
        if known is None:
            known = self._kinds[task] = self.brain.kind_of(task)
        return known

    def _count(self, task: int) -> int:
        """Return the number of GPUs of a task."""
        known = self._counts.get(task)
        if known is None:
            known = self._counts[task] = gpus_of(self._terms(task), bool(self.gpus))
        return known

    def _need(self, task: int) -> ResourceRequest:
        known = self._asks.get(task)
        if known is None:
            known = self._asks[task] = self._look_up(task)
        return known

    def _look_up(self, task: int) -> ResourceRequest:
        terms = self._met.get(task)
        if terms is None or self.brain.task(task) is not None:
            return self.brain.need(task, self._count(task))
        return self.brain.need_of(terms, self._kinds[task], self._count(task))

    def _fit(self, task: int, gpus: Sequence[DeviceCapacity]) -> Placement | Refusal:
        touched = self.brain.task(task)
        attempt = (touched.attempts if touched else 0) + 1
        need = self._need(task)
        if touched is not None and touched.apart and self._only_mps():
            need = replace(need, alone=True)
        wanted = self._terms(task).device
        if (not need.gpus and self.host is None) or (wanted and not self._is_there(wanted, need)):
            return Refusal(task, Reason.DEVICE, wanted or HOST)
        if need.gpus and self.shut:
            return Refusal(task, Reason.KEPT, self.capacity.rooms[self.gpus[0]].device.label, text=self.shut)
        if self.allowed is not None:
            fitted = self._within_caps(self.allowed, task, attempt, need, gpus if need.gpus else ())
        else:
            reservation = fit.room_for(task, need, gpus, self.host, self.rules)
            if isinstance(reservation, Refusal):
                return reservation
            fitted = fit.placed(task, attempt, need, reservation, self.host, self._expected(task))
        if need.visible and isinstance(fitted, Placement):
            fitted = replace(fitted, visible=self._visible(task, need.visible))
        return self._under_mps(fitted) if self.rules.mps and isinstance(fitted, Placement) else fitted

    def _visible(self, task: int, number: int) -> tuple[str, ...]:
        """Return the GPUs that a task sees which is known to use none: those with the most bytes left."""
        rooms = sorted(self._candidates(task), key=lambda room: (room.shut is not None, -room.bytes))
        return tuple([room.device.key for room in rooms[:number]])

    def _expected(self, task: int) -> float:
        return self.brain.profiles.expected(self._kind(task), self._terms(task).epochs)

    def _within_caps(
        self, allowed: QuotaUse, task: int, attempt: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity]
    ) -> Placement | Refusal:
        """Return the placement of a task within its user's quota, or a refusal."""
        refusal = allowed.refuses(task, need)
        if refusal is not None:
            return refusal
        among = allowed.among(task, len(need.gpus), gpus)
        if isinstance(among, Refusal):
            return among
        fitted = fit.fit(task, attempt, need, among, self.host, self.rules, self._expected(task))
        return fitted if isinstance(fitted, Refusal) else allowed.cut(fitted, need)

    def _only_mps(self) -> bool:
        """Tell whether nothing can run outside of MPS."""
        rooms = self.capacity.rooms
        return self.rules.mps and (self.rules.mps_alone or any(rooms[key].device.single for key in self.gpus))

    def _under_mps(self, placement: Placement) -> Placement:
        """Add the share of threads to a placement. A task on several GPUs stays outside of MPS, where its faults
        reach no other.
        """
        touched = self.brain.task(placement.task)
        apart = touched is not None and touched.apart and not placement.alone
        if len(placement.sees) != 1 or apart:
            return placement
        beside = self.rooms.now(placement.sees[0]).residents
        percentage = mps_policy.percentage(self._terms(placement.task), beside)
        return replace(placement, percentage=percentage, fence=mps_policy.fence(placement, self.rules))

    def _is_there(self, wanted: str, need: ResourceRequest) -> bool:
        """Tell whether the device that a row names is one that the task can run on."""
        if need.gpus:
            return bool(self.capacity.called(wanted))
        return self.host is not None and is_called(self.host.device, wanted)

    def _away(self, task: int) -> Refusal | None:
        """Return the refusal of a task whose directory could not be entered."""
        return self.starts.refuses(task) if self.starts is not None else None

    def _held_back(self, task: int) -> Refusal | None:
        """Return why a task is not even tried: its directory is away, its class is being learned, or nothing is left
        to learn.
        """
        if (away := self._away(task)) is not None:
            return away
        kind = self._kind(task)
        if kind == 0 and self.rules.profile is not Profiling.OFF:
            return Refusal(task, Reason.UNLOOKED)
        if kind in self.probed and not self._is_out_of_patience(task):
            return Refusal(task, Reason.PROBING, wanted=self.probed[kind])
        if self.rules.learn_only and self._need(task).purpose is not Purpose.PROBE:
            return Refusal(task, Reason.LEARNED)
        return self._watched_by_another(task, kind) if kind and self._count(task) else None

    def _watched_by_another(self, task: int, kind: int) -> Refusal | None:
        """Return the refusal of a task whose need another one is showing: a second one teaches no more and locks a
        GPU.
        """
        if self.rules.slots is not None:
            return None
        by = self.checked.get(kind)
        if by is None and self._need(task).unknown:
            by = self.watched.get(self.brain.profiles.group(kind))
        if by is None or self._is_out_of_patience(task):
            return None
        self.back.append(task)
        return Refusal(task, Reason.WATCHED, wanted=by)

    def _is_out_of_patience(self, task: int) -> bool:
        """Tell whether a task was bypassed too often to wait for what another one shows."""
        return self.brain.wait_queue.bypassed(task) >= self.rules.bypass_limit

    def _refuse_full(self, task: int) -> None:
        """Name what the best-ranked remaining task misses; nothing more fits anywhere."""
        tried = self._fit(task, () if self.shut else self._named(task, self._need(task)))
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _give_way(self, queue: Contenders, task: int) -> None:
        """Keep capacity for the other schedulers whose turn is before this task's."""
        if queue.give_way(task, self.rooms, self.host):
            self.ends = FreeIndex([], [])
            for number, key in enumerate(self.gpus):
                self.ends.add(number, self.rooms.now(key), self.rules)

    def _try(self, task: int) -> None:
        if self.starts is not None and self.starts.postpones(task):
            self.walk.take()
            return
        if self.queue is not None:
            self._give_way(self.queue, task)
        tried = self._held_back(task) or self._start(task)
        if isinstance(tried, Placement):
            self.ranks.append(self.walk.rank)
            self.walk.take()
            self._take(tried)
            return
        rank = self.walk.rank
        if tried.reason.is_of_one_task(together=self.walk.asked[2] == TOGETHER):
            self.walk.take()
        else:
            self.walk.skip()
        self._waits(task, tried, rank)

    def _start(self, task: int) -> Placement | Refusal:
        """Place a task on GPUs that may have the capacity; else return the refusal with the missing number."""
        need = self._need(task)
        if self.shut or not need.gpus:
            return self._fit(task, ())
        self._remember(task, need)
        few = self.stagger.open_to(self._hopeful(task, need), self.walk.rank)
        if len(few) >= len(need.gpus):
            tried = self._fit(task, self._sorted(task, few))
            if isinstance(tried, Placement) or tried.device == HOST:
                return tried
            self.stagger.wait(need, few, self.walk.rank)
        if not self._is_told(need):
            return Refusal(task, Reason.MEMORY)
        named = self._named(task, need)
        rest = self.stagger.open_to(named, self.walk.rank)
        return self.stagger.refuses(task, named, len(rest), len(need.gpus)) or self._fit(task, rest)

    def _is_told(self, need: ResourceRequest) -> bool:
        """Tell whether the missing number matters: it will be shown, or the task may never fit."""
        if len(self.gpus) <= MANY or not self.refusals or len(need.gpus) > 1:
            return True
        return self._may_never_fit(need)

    def _may_never_fit(self, need: ResourceRequest) -> bool:
        smallest = self.capacity.smallest
        for ask in need.gpus:  # noqa: SIM110 - a generator takes three times as long, and most have one GPU
            if (ask.bytes or 0) > smallest or ask.bare > smallest or ask.wanted > smallest:
                return True
        return False

    def _named(self, task: int, need: ResourceRequest) -> list[DeviceCapacity]:
        """Return the GPUs that are asked for the missing number: all of few, the most hopeful of many."""
        if len(self.gpus) <= FEW or self._terms(task).device or len(need.gpus) > 1:
            return self._candidates(task)
        if self._may_never_fit(need):
            return self._candidates(task)
        last = {at for _, at in (*self.ends.bytes[-ASKED:], *self.ends.load[-ASKED:])} or set(range(ASKED))
        return self._sorted(task, [self.rooms.now(self.gpus[at]) for at in last])

    def _remember(self, task: int, need: ResourceRequest) -> None:
        """Remember the least request of a task, so that it can be passed over without a look."""
        touched = self.brain.task(task)
        if self.walk.is_known or self.rules.slots is not None or (touched is not None and touched.floors):
            return
        if need.unknown or need.source is EstimateSource.MEASURED:
            self._remember_unknown(task, need)
            return
        firm = self.brain.knows(task, len(need.gpus))
        if not firm and need.source is not EstimateSource.DECLARED:
            return  # similar tasks may show that it needs less
        busy = fit.load_asked(need.busy, self.rules) if firm else 0.0
        self.brain.wait_queue.keep(task, min(ask.bytes or 0 for ask in need.gpus), busy)

    def _remember_unknown(self, task: int, need: ResourceRequest) -> None:
        """Remember that a task has unknown memory: where one such task does not fit, none does."""
        if need.source is EstimateSource.MEASURED and need.purpose is Purpose.RUN:
            busy = fit.load_asked(need.busy, self.rules)
            self.brain.wait_queue.keep_unknown(task, self.brain.profiles.script(self._kind(task)), busy)

    def _hopeful(self, task: int, need: ResourceRequest) -> list[DeviceCapacity]:
        """Return the GPUs on which a task may fit: all but those that surely have too few bytes or too little load
        left.
        """
        if need.alone:
            least, busy = inf, 0.0
        else:
            limit = self.capacity.smallest - self.rules.buffer
            least = limit
            for ask in need.gpus:
                least = min(least, ask.starts_with)
            busy = fit.load_asked(need.busy, self.rules)
        word = self._terms(task).device
        rooms = [self.rooms.now(self.gpus[number]) for number in self.ends.with_both(least, busy)]
        return [room for room in rooms if is_called(room.device, word)] if word else rooms

    def _take(self, placement: Placement) -> None:
        if self.ends is self.capacity.ends:
            self.ends = self.ends.copy()
        gpus = placement.gpus
        numbers = [(self.capacity.numbers[key], self.rooms[key]) for key in gpus]
        for number, room in numbers:
            self.ends.remove(number, room, self.rules)
        fit.take(self.rooms, placement)
        for number, room in numbers:
            self.ends.add(number, room, self.rules)
        self.placements.append(placement)
        self.left -= 1
        if self.starts is not None:
            self.starts.take(placement.task)
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
            self.watched[self.brain.profiles.group(kind)] = placement.task
            self.stagger.count(placement)
        self._lose_patience()

    def _lose_patience(self) -> None:
        """Keep the devices of tasks that are bypassed too often by now, including those that were passed over."""
        number = len(self.placements)
        self._overdue = self.brain.wait_queue.before(self.rules.bypass_limit - number)
        for task in self.walk.passed_before(self._overdue):
            held = self._held_back(task)
            if held is None or held.reason.keeps_devices:
                rank = self.brain.wait_queue.rank(task)
                self._be_patient(task, Refusal(task, Reason.MEMORY), bisect_left(self.ranks, rank), rank)
        for task, refusal in self.patience.pop(number, ()):
            self._close_behind(task, refusal)

    def _waits(self, task: int, refusal: Refusal, rank: Rank) -> None:
        """Name a task that found no capacity; after too many bypasses its devices are kept for it."""
        if refusal.reason.is_final:
            self.impossible.append(refusal)
            return
        self._refuse(refusal)
        if refusal.reason.keeps_devices:
            self._be_patient(task, refusal, len(self.placements), rank)

    def _be_patient(self, task: int, refusal: Refusal, started: int, rank: Rank) -> None:
        """Note a task that found no capacity after this pass had started so many."""
        left = self.rules.bypass_limit - self.brain.wait_queue.bypassed(task, rank)
        if self.turn.closed and task == self.turn.task:
            left = 0  # other schedulers keep its devices for it, so this run does, too
        if left > 0 and started + left >= len(self.placements):
            self.patience.setdefault(started + left, []).append((task, refusal))
        else:
            self._close_behind(task, refusal)

    def _close_behind(self, task: int, refusal: Refusal) -> None:
        """Keep every device on which leases could make capacity for a task; the host's RAM only if the task lacks
        that.
        """
        self.met.setdefault(task, refusal)
        if self._closes_nothing_more(task):
            return
        need, who = self._need(task), f"task {task} of this run"
        count = len(need.gpus)
        candidates: Sequence[DeviceCapacity] = ()
        if not self._surely_fits_after_leases(task, need):
            candidates, never = fit.never_now(task, need, self._candidates(task), self.host, self.rules)
            if never is not None:
                return
        elif self._terms(task).device:
            candidates = self._candidates(task)
        else:
            self.ends, self.shut = (FreeIndex([], []), self.shut or who) if count else (self.ends, self.shut)
        for room in candidates if not self.shut else ():
            self._close(room, who)
        if self.host is not None and (not count or refusal.device == self.host.device.label):
            self.host.closed, self.host.kept_for = True, self.host.kept_for or who

    def _closes_nothing_more(self, task: int) -> bool:
        """Tell whether everything that could be kept for a task on one GPU is kept already, for one that requests
        less.
        """
        need = self._need(task)
        if len(need.gpus) != 1 or not need.gpus[0].is_plain or need.host.bytes or self._terms(task).device:
            return False
        least = need.gpus[0].bare
        if least >= self._kept_least:
            return True
        self._kept_least = least
        return False

    def _surely_fits_after_leases(self, task: int, need: ResourceRequest) -> bool:
        """Tell whether each device that a task may run on would surely have all that it requests."""
        if self.rules.slots is not None:
            return True
        if need.gpus and (need.host.bytes or len(need.gpus) > len(self.gpus) or self._terms(task).device):
            return False
        for ask in need.gpus or (need.host,):
            bytes_ = ask.bytes or 0
            if not ask.is_plain or not (self.capacity.releases(bytes_) if need.gpus else self._host_releases(bytes_)):
                return False
        return True

    def _host_releases(self, bytes_: int) -> bool:
        return self.host is not None and self.host.shut is None and bytes_ <= self.host.released

    def _close(self, room: DeviceCapacity, who: str) -> None:
        if room.closed:
            return
        if self.ends is self.capacity.ends:
            self.ends = self.ends.copy()
        key = room.device.key
        self.ends.remove(self.capacity.numbers[key], self.rooms.now(key), self.rules)
        mine = self.rooms[key]
        mine.closed, mine.kept_for = True, who

    def _candidates(self, task: int) -> list[DeviceCapacity]:
        """Return the GPUs a task may run on, best first."""
        word = self._terms(task).device
        if not self._count(task):
            return []
        rooms = [self.rooms.now(key) for key in self.gpus]
        return self._sorted(task, [room for room in rooms if not word or is_called(room.device, word)])

    def _sorted(self, task: int, rooms: list[DeviceCapacity]) -> list[DeviceCapacity]:
        """Sort GPUs: as the task prefers, without unmanaged processes, most load left, most bytes left."""
        if len(rooms) < 2:
            return rooms
        prefer, numbers = self._terms(task).prefer, self.capacity.numbers
        best = sorted(
            rooms, key=lambda room: (room.unmanaged_bytes > 0, -room.load, -room.bytes, numbers[room.device.key])
        )
        return sorted(best, key=lambda room: not is_called(room.device, prefer)) if prefer else best

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.reason.takes_turns and (self.wait is None or len(self.refusals) < self._most_named()):
            refusal = self._unless_unmanaged(refusal)
        if self.wait is None and refusal.reason.takes_turns:
            self.wait = self._ticket(refusal.task)
        if len(self.refusals) < self._most_named():
            self.refusals.append(refusal)
            self.met[refusal.task] = refusal

    def _unless_unmanaged(self, refusal: Refusal) -> Refusal:
        """Name the unmanaged memory instead, where that keeps a task from starting whatever leases end."""
        if not refusal.reason.is_for_memory:
            return refusal
        task, need = refusal.task, self._need(refusal.task)
        if self._surely_fits_after_leases(task, need):
            return refusal
        _, never = fit.never_now(task, need, self._candidates(task), self.host, self.rules)
        if never is None:
            return refusal
        self._unmanaged += 1
        if self._parked is None:
            self._parked = self._ticket(task)
        return unmanaged(never, self._machine.budgets) or refusal

    def _ticket(self, task: int) -> WaitTicket:
        """Return the ticket by which other schedulers see a task that waits for what they hold."""
        need, word = self._need(task), self._terms(task).device
        gpus = self.capacity.everywhere if not word else tuple(device.key for device in self.capacity.called(word))
        bytes_ = tuple([ask.bytes for ask in need.gpus])
        bare: tuple[int, ...] = ()
        asks = need.gpus or (need.host,)
        for ask in asks:
            if ask.bare != (ask.bytes or 0):
                bare = tuple([ask.bare for ask in asks])
                break
        keys = gpus if bytes_ else (HOST,)
        return WaitTicket(task, keys, bytes_, need.host.bytes, need.cores, need.busy, need.alone, bare=bare)
