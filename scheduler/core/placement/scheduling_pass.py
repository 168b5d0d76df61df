"""One decision: a pass over the wait queue that packs tasks by their memory and load."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from scheduler.core.attempts import mps_policy
from scheduler.core.model import HOST, EstimateSource, Machine, Placement, Purpose, WaitTicket
from scheduler.core.placement import fit
from scheduler.core.placement.device_capacity import DeviceCapacity, blocked_by_unmanaged
from scheduler.core.placement.queue_pass import MOST_REFUSALS, QueuePass
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import ResourceRequest, gpus_of
from scheduler.core.placement.scheduling_state import SchedulingState
from scheduler.core.placement.scratch_machine import ScratchMachine
from scheduler.core.placement.stagger import Stagger, is_at_its_beginning
from scheduler.core.profiling.estimator import is_watched
from scheduler.core.queue.fair_share import Contenders, ticket_of
from scheduler.core.queue.quota import QuotaUse

MANY = 32
"""On more GPUs than this, they are examined for a single task only."""


class SchedulingPass(QueuePass):
    """One pass over the wait queue with a working copy of the machine.

    A task that cannot fit anywhere is passed over without a closer look: its least known request exceeds what is left
    on any device. A task that could start is never passed over, so the result equals that of examining every task.
    """

    def __init__(self, brain: SchedulingState, machine: Machine) -> None:
        self._asks: dict[int, ResourceRequest] = {}
        self._machine = machine
        self.capacity = brain.capacity.look(machine)
        self.scratch = self._scratch(brain, machine)
        super().__init__(brain, machine)
        self.lightest = brain.wait_queue.lightest
        self.stagger = Stagger(self.scratch.rooms)
        for task in brain.learning():
            placement = task.placement
            if placement is None or not placement.gpus or not is_watched(placement, task.settled):
                continue
            if is_at_its_beginning(task, placement, self.rules):
                self.stagger.count(placement)
        self.wait: WaitTicket | None = None
        """The ticket of the first task that waits for capacity that other schedulers hold."""
        self._parked: WaitTicket | None = None
        """The ticket of the first task that only unmanaged memory prevents from starting; shown if no other task
        waits."""
        self._unmanaged = 0
        """The number of named tasks that wait because of unmanaged memory."""
        self._overdue: int | None = None
        """The number of heads that may have been bypassed too often; None: not computed yet."""
        self._kept_least = inf
        """The smallest request for which devices are kept already: a task on one GPU that requests more keeps no
        others."""
        self._unknown_least: float | None = None
        """The result of `_least_unknown`; None before it was computed."""

    def _scratch(self, brain: SchedulingState, machine: Machine) -> ScratchMachine:
        return ScratchMachine(self.capacity, brain.rules)

    # ---- tasks ----

    def _count(self, task: int) -> int:
        return gpus_of(self._terms(task), bool(self.scratch.gpus))

    def _need(self, task: int) -> ResourceRequest:
        known = self._asks.get(task)
        if known is None:
            known = self._asks[task] = self.brain.need(task, self._count(task))
        return known

    def _candidates(self, task: int) -> list[DeviceCapacity]:
        """Return the GPUs on which a task may run, best first."""
        return self.scratch.candidates(self._terms(task), self._count(task))

    def _most_named(self) -> int:
        return 1 if len(self.scratch.gpus) > MANY else MOST_REFUSALS

    def _front(self) -> int | None:
        """Return the best-ranked task that may fit; while a task without capacity may still be named, the next task of
        all.

        If other schedulers wait, every task is examined, because capacity is kept for those whose turn comes first.
        """
        if not self.refusals or self.queue is not None or self._names_more():
            return self.walk.front()
        if self._overdue is None:
            self._overdue = self.brain.wait_queue.before(self.rules.bypass_limit - len(self.placements))
        bytes_, smallest = self.scratch.most_bytes(self.lightest), self.scratch.smallest
        unknown_fits = bytes_ >= smallest or not self.brain.wait_queue.some_unknown or bytes_ >= self._least_unknown()
        return self.walk.front(bytes_, smallest, self._overdue, unknown_fits=unknown_fits)

    def _names_more(self) -> bool:
        """Tell whether more waiting tasks are named, because none of those named so far waits for other schedulers'
        leases.
        """
        return self.wait is None and len(self.refusals) < self._most_named() + min(self._unmanaged, MOST_REFUSALS)

    def _least_unknown(self) -> float:
        """Return the bytes that a GPU with running tasks must have left for another task of unknown memory."""
        if self._unknown_least is None:
            usual = self.brain.profiles.usual(self.rules.usual_share, self.rules.usual_kinds)
            expected, rooms = self.brain.enough_to_start, [self.capacity.rooms[key] for key in self.scratch.gpus]
            least = (
                min(expected, room.most - self.rules.buffer) if expected else fit.least_unknown(usual, room, self.rules)
                for room in rooms
            )
            self._unknown_least = min(least, default=0.0)
        return self._unknown_least

    def _is_full(self) -> bool:
        return self.scratch.is_full(some_without_gpus=self.brain.some_without_gpus)

    def _give_way(self, queue: Contenders, task: int) -> None:
        if queue.give_way(task, self.scratch.rooms, self.scratch.host):
            self.scratch.refresh()

    # ---- fitting ----

    def _fit_now(self, task: int) -> Placement | Refusal:
        return self._fit(task, self._candidates(task))

    def _fit(self, task: int, gpus: Sequence[DeviceCapacity]) -> Placement | Refusal:
        """Place a task on the first of these GPUs on which it fits."""
        touched, scratch = self.brain.task(task), self.scratch
        attempt = (touched.attempts if touched else 0) + 1
        need, wanted = self._need(task), self._terms(task).device
        if touched is not None and touched.apart and self._only_mps():
            need = replace(need, alone=True)
        on_gpus = bool(need.gpus)
        if (not on_gpus and scratch.host is None) or (wanted and not scratch.is_there(wanted, for_gpus=on_gpus)):
            return Refusal(task, Reason.DEVICE, wanted or HOST)
        if on_gpus and scratch.kept_for:
            return Refusal(task, Reason.KEPT, scratch.rooms.now(scratch.gpus[0]).device.label, text=scratch.kept_for)
        if self.allowed is not None:
            fitted = self._within_quota(self.allowed, task, attempt, need, gpus if on_gpus else ())
        else:
            fitted = fit.fit(task, attempt, need, gpus, scratch.host, self.rules, self._expected(task))
        if isinstance(fitted, Refusal):
            return fitted
        if need.visible:
            fitted = replace(fitted, visible=self._visible(task, need.visible))
        return self._under_mps(fitted) if self.rules.mps else fitted

    def _visible(self, task: int, number: int) -> tuple[str, ...]:
        """Return the GPUs that a task sees which is known to use none: those with the most bytes left."""
        rooms = sorted(self._candidates(task), key=lambda room: (room.shut is not None, -room.bytes))
        return tuple([room.device.key for room in rooms[:number]])

    def _expected(self, task: int) -> float:
        terms, kind = self._about(task)
        return self.brain.profiles.expected(kind, terms.epochs)

    def _within_quota(
        self, allowed: QuotaUse, task: int, attempt: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity]
    ) -> Placement | Refusal:
        """Return the placement of a task within the quota of its user, or a refusal."""
        refusal = allowed.refuses(task, need)
        if refusal is not None:
            return refusal
        among = allowed.among(task, len(need.gpus), gpus)
        if isinstance(among, Refusal):
            return among
        fitted = fit.fit(task, attempt, need, among, self.scratch.host, self.rules, self._expected(task))
        return fitted if isinstance(fitted, Refusal) else allowed.cut(fitted, need)

    def _only_mps(self) -> bool:
        """Tell whether no task can run outside of MPS."""
        single = any(self.capacity.rooms[key].device.single for key in self.scratch.gpus)
        return self.rules.mps and (self.rules.mps_alone or single)

    def _under_mps(self, placement: Placement) -> Placement:
        """Add the share of threads to a placement. A task on several GPUs stays outside of MPS, where its faults
        affect no other.
        """
        touched = self.brain.task(placement.task)
        apart = touched is not None and touched.apart and not placement.alone
        if len(placement.sees) != 1 or apart:
            return placement
        beside = self.scratch.rooms.now(placement.sees[0]).residents
        return mps_policy.client(placement, self._terms(placement.task), beside, self.rules)

    def _start(self, task: int) -> Placement | Refusal:
        """Place a task on GPUs that may have enough capacity; otherwise return a refusal that names what it lacks."""
        need, terms, scratch, rank = self._need(task), self._terms(task), self.scratch, self.walk.rank
        if scratch.kept_for or not need.gpus:
            return self._fit(task, ())
        self._remember(task, need)
        few = self.stagger.open_to(scratch.hopeful(terms, need), rank)
        if len(few) >= len(need.gpus):
            tried = self._fit(task, scratch.sorted_for(terms, few))
            if isinstance(tried, Placement) or tried.device == HOST:
                return tried
            self.stagger.wait(need, few, rank)
        if not self._is_told(need):
            return Refusal(task, Reason.MEMORY)
        named = scratch.most_hopeful(terms, need)
        rest = self.stagger.open_to(named, rank)
        return self.stagger.refuses(task, named, len(rest), len(need.gpus)) or self._fit(task, rest)

    def _is_told(self, need: ResourceRequest) -> bool:
        """Tell whether the missing amount is needed: it will be shown, or the task may never fit."""
        few = len(self.scratch.gpus) <= MANY or not self.refusals or len(need.gpus) > 1
        return few or self.scratch.may_never_fit(need)

    def _refuse_full(self, task: int) -> None:
        """Name what the best-ranked remaining task lacks, because nothing more fits anywhere."""
        few = () if self.scratch.kept_for else self.scratch.most_hopeful(self._terms(task), self._need(task))
        tried = self._fit(task, few)
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _remember(self, task: int, need: ResourceRequest) -> None:
        """Remember the least request of a task, so that it can be passed over without a closer look."""
        touched, queue = self.brain.task(task), self.brain.wait_queue
        if self.walk.is_known or self.rules.slots is not None or (touched is not None and touched.floors):
            return
        busy = fit.load_asked(need.busy, self.rules)
        if need.unknown or need.source is EstimateSource.MEASURED:  # where one such task does not fit, none does
            if need.source is EstimateSource.MEASURED and need.purpose is Purpose.RUN:
                queue.keep_unknown(task, self.brain.profiles.script(self._about(task)[1]), busy)
            return
        firm = self.brain.knows(task, len(need.gpus))
        if firm or need.source is EstimateSource.DECLARED:  # similar tasks may show that any other needs less
            queue.keep(task, min(ask.bytes or 0 for ask in need.gpus), busy if firm else 0.0)

    def _use(self, placement: Placement) -> None:
        self.scratch.take(placement)
        if placement.gpus and is_watched(placement, settled=False):
            self.stagger.count(placement)

    def _finish(self) -> None:
        """Start more tasks of groups that are being learned, on GPUs that would otherwise stay empty."""
        super()._finish()
        for task in self.learning.held:
            idle = self.scratch.idle_gpus() if self.left > 0 else ()
            if not idle:
                return
            tried = self._fit(task, [room for room in self._candidates(task) if room.device.key in idle])
            if isinstance(tried, Placement):
                self._take(tried)

    # ---- tasks that were bypassed too often ----

    def _lose_patience(self) -> None:
        """Keep devices for tasks that have been bypassed too often, including tasks that were passed over."""
        self._overdue = self.brain.wait_queue.before(self.rules.bypass_limit - len(self.placements))
        for task in self.walk.passed_before(self._overdue):
            held = self._held_back(task)
            if held is None or held.reason.keeps_devices:
                rank = self.brain.wait_queue.rank(task)
                self._be_patient(task, Refusal(task, Reason.MEMORY), rank, bisect_left(self.ranks, rank))
        super()._lose_patience()

    def _keep_devices(self, task: int, refusal: Refusal) -> None:
        """Keep for a task every device on which leases could free capacity; the host's RAM only if the task lacks
        it.
        """
        self.met.setdefault(task, refusal)
        if self._keeps_nothing_more(task):
            return
        need, count, host, who = self._need(task), self._count(task), self.scratch.host, f"task {task} of this run"
        candidates: Sequence[DeviceCapacity] = ()
        if not self._surely_fits_after_leases(task, need):
            candidates, never = fit.never_now(task, need, self._candidates(task), host, self.rules)
            if never is not None:
                return
        elif self._terms(task).device:
            candidates = self._candidates(task)
        elif count:
            self.scratch.close_all(who)
        for room in candidates if not self.scratch.kept_for else ():
            self.scratch.close(room, who)
        if host is not None and (not count or refusal.device == host.device.label):
            self.scratch.close_host(who)

    def _keeps_nothing_more(self, task: int) -> bool:
        """Tell whether everything that could be kept for a task on one GPU is already kept for one that requests
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
        """Tell whether each device on which a task may run would certainly have all that it requests after leases
        end.
        """
        if self.rules.slots is not None:
            return True
        if need.gpus and (need.host.bytes or len(need.gpus) > len(self.scratch.gpus) or self._terms(task).device):
            return False
        releases = self.capacity.releases if need.gpus else self._host_releases
        return all(ask.is_plain and releases(ask.bytes or 0) for ask in need.gpus or (need.host,))

    def _host_releases(self, bytes_: int) -> bool:
        host = self.scratch.host
        return host is not None and host.shut is None and bytes_ <= host.released

    # ---- what is named ----

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.reason.takes_turns and (self.wait is None or len(self.refusals) < self._most_named()):
            refusal = self._unless_unmanaged(refusal)
        if self.wait is None and refusal.reason.takes_turns:
            self.wait = self._ticket(refusal.task)
        if len(self.refusals) < self._most_named():
            super()._refuse(refusal)

    def _unless_unmanaged(self, refusal: Refusal) -> Refusal:
        """Return the refusal for unmanaged memory instead if the task could not start even after all leases end."""
        if not refusal.reason.is_for_memory:
            return refusal
        task, need = refusal.task, self._need(refusal.task)
        if self._surely_fits_after_leases(task, need):
            return refusal
        _, never = fit.never_now(task, need, self._candidates(task), self.scratch.host, self.rules)
        if never is None:
            return refusal
        self._unmanaged += 1
        self._parked = self._parked or self._ticket(task)
        return blocked_by_unmanaged(never, self._machine.budgets) or refusal

    def _ticket(self, task: int) -> WaitTicket:
        """Return the ticket by which other schedulers see a task that waits for capacity that they hold."""
        word = self._terms(task).device
        return ticket_of(task, self._need(task), self.capacity.keys_called(word) if word else self.capacity.everywhere)

    def _ticket_shown(self) -> WaitTicket | None:
        return self.wait or self._parked
