"""One decision: a pass over the wait queue that packs tasks by their memory and load."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

from scheduler.core.attempts import mps_policy
from scheduler.core.model import HOST, EstimateSource, Machine, Placement, Purpose, Terms, WaitTicket
from scheduler.core.placement import fit, node_choice
from scheduler.core.placement.device_capacity import DeviceCapacity, blocked_by_unmanaged
from scheduler.core.placement.queue_pass import MOST_REFUSALS, QueuePass
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import ResourceRequest, gpus_of
from scheduler.core.placement.scratch_machine import ScratchMachine
from scheduler.core.placement.stagger import Stagger
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.profiling.estimator import is_watched
from scheduler.core.queue import node_end
from scheduler.core.queue.fair_share import Contenders, ticket_of
from scheduler.core.queue.task_group import Rank
from scheduler.core.run_state import RunState
from scheduler.values import replace

MANY = 32
"""With more GPUs than this, a pass computes what is missing for one waiting task only."""


class SchedulingPass(QueuePass):
    """One pass over the wait queue with a working copy of the machine.

    A task is passed over without a closer look if its least known request exceeds what any device has left, so that it
    cannot fit. A task that could start is never passed over, so the result equals that of examining every task.
    """

    def __init__(self, brain: RunState, machine: Machine) -> None:
        self._machine = machine
        self.capacity = brain.capacity.look(machine)
        self.scratch = self._scratch(brain, machine)
        super().__init__(brain, machine)
        self._head_requests = brain.wait_queue.requests
        self.lightest = self._head_requests.lightest
        self._most_named = 1 if len(self.scratch.gpus) > MANY else MOST_REFUSALS
        """The most waiting tasks whose refusals this pass returns, not counting tasks that wait for unmanaged
        memory."""
        self.stagger = Stagger(self.scratch.rooms, self.rules)
        self.wait: WaitTicket | None = None
        """The ticket of the first task that waits for capacity which other schedulers hold."""
        self._parked: WaitTicket | None = None
        """The ticket of the first task that cannot start only because of unmanaged memory; published if no task waits
        for capacity of other schedulers."""
        self._unmanaged = 0
        """The number of refusals so far that unmanaged memory has caused."""
        self._overdue: int | None = None
        """The number of groups at the front of the queue whose first task may have been bypassed too often; None: not
        computed."""
        self._kept_least = inf
        """The smallest request for which devices are kept already. For a task on one GPU with a larger request, nothing
        more has to be kept."""
        self._unknown_least: float | None = None
        """The cached result of `_least_unknown`; None: not computed yet."""

    def _scratch(self, brain: RunState, machine: Machine) -> ScratchMachine:
        return ScratchMachine(self.capacity, brain.rules)

    # ---- tasks ----

    def _count(self, terms: Terms) -> int:
        return gpus_of(terms, bool(self.scratch.gpus))

    def _held_back(self, task: WaitingTask) -> Refusal | None:
        return self._too_long(task) or super()._held_back(task)

    def _too_long(self, task: WaitingTask) -> Refusal | None:
        """Return the refusal of a task that would end too late on every node on which it may run; None if there is a
        node for it.
        """
        if not self.capacity.nodes.ends or self._in_time(task.terms, task.kind) is not None:
            return None
        return node_end.too_long(self.brain, task.number, task.terms, task.kind, self._machine.now)

    def _in_time(self, terms: Terms, kind: int) -> Terms | None:
        """Return the terms of a task, limited to the nodes that do not end before the task; None if there are none."""
        nodes, seconds = self.capacity.nodes, node_end.seconds_of(self.brain, terms, kind)
        return node_end.confined(terms, seconds, self._machine.now, nodes.names, nodes.ends)

    def _look_up(self, number: int, rank: Rank, terms: int, kind: int) -> WaitingTask:
        task = super()._look_up(number, rank, terms, kind)
        if not self.capacity.nodes.ends:
            return task
        return replace(task, terms=self._in_time(task.terms, kind) or task.terms)

    def _candidates(self, task: WaitingTask) -> list[DeviceCapacity]:
        """Return the GPUs on which a task may run, best first."""
        return self.scratch.candidates(task.terms, task.gpus)

    def _front(self) -> int | None:
        """Return the best-ranked task that may fit. While more refusals are to be returned, return the next task even
        if it cannot fit.

        If other schedulers wait, every task is examined, because capacity is kept for those whose turn comes first.
        """
        if not self.refusals or self.queue is not None or self._names_more():
            return self.walk.front()
        if self._overdue is None:
            self._overdue = self.brain.wait_queue.before(self.rules.bypass_limit - len(self.placements))
        bytes_, smallest = self.scratch.most_bytes(self.lightest), self.scratch.smallest
        unknown_fits = bytes_ >= smallest or not self._head_requests.some_unknown or bytes_ >= self._least_unknown()
        known = self.scratch.most_bytes(self.lightest, known=True)
        return self.walk.front(known, smallest, self._overdue, unknown_fits=unknown_fits)

    def _names_more(self) -> bool:
        """Tell whether more refusals are to be returned, because no task so far waits for leases of other
        schedulers.
        """
        return self.wait is None and len(self.refusals) < self._most_named + min(self._unmanaged, MOST_REFUSALS)

    def _least_unknown(self) -> float:
        """Return the bytes that a GPU with running tasks must have left for one more task of unknown memory."""
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
        return not self.scratch.free.bytes and self.scratch.is_full(some_without_gpus=self.brain.some_without_gpus)

    def _give_way(self, queue: Contenders, task: int) -> None:
        if queue.give_way(task, self.scratch.rooms):
            self.scratch.refresh()

    # ---- fitting ----

    def _fit_now(self, task: WaitingTask) -> Placement | Refusal:
        return self._fit(task, self._candidates(task))

    def _fit(self, task: WaitingTask, gpus: Sequence[DeviceCapacity]) -> Placement | Refusal:
        """Return the placement of a task on the first of these GPUs on which it fits, or a refusal."""
        scratch, need, terms, number = self.scratch, task.need, task.terms, task.number
        if task.tried is not None and task.tried.apart and self._only_mps():
            need = replace(need, alone=True)
        on_gpus = bool(need.gpus)
        is_there = not terms.is_bound or scratch.is_there(terms, for_gpus=on_gpus)
        if not is_there or (not on_gpus and not scratch.host_labels):
            return Refusal(number, Reason.DEVICE, terms.device or terms.node or terms.features or HOST)
        if on_gpus and scratch.kept_for:
            label = scratch.rooms.now(scratch.gpus[0]).device.label
            return Refusal(number, Reason.KEPT, label, text=scratch.kept_for)
        among = scratch.large_enough(terms, need, gpus) if on_gpus else ()
        if gpus and on_gpus and not among:
            return self._too_small(task)
        fitted = self._fit_carefully(task, need, among)
        if isinstance(fitted, Refusal):
            return fitted
        if need.visible:
            fitted = replace(fitted, visible=self._visible(task))
        return self._under_mps(fitted, task) if self.rules.mps else fitted

    def _too_small(self, task: WaitingTask) -> Refusal:
        """Return the refusal of a task if no free GPU is as large as the need that the task has shown."""
        large = self.scratch.large_enough(task.terms, task.need, self._candidates(task))
        room = max(large, key=lambda room: room.bytes)
        wanted = max(ask.shown for ask in task.need.gpus)
        return Refusal(task.number, Reason.MEMORY, room.device.label, wanted, max(room.bytes, 0), room.most)

    def _fit_carefully(
        self, task: WaitingTask, need: ResourceRequest, gpus: Sequence[DeviceCapacity]
    ) -> Placement | Refusal:
        """Place a task of unknown memory; prefer the GPUs that are not smaller than most.

        Place it on a smaller GPU only if none of the preferred GPUs takes it and no task is being measured on them.
        While a task is being measured there, wait: afterwards a preferred GPU will have free memory, and the measured
        need shows what similar tasks may need.
        """
        usual = self.scratch.without_small(need, gpus) if self.rules.slots is None else gpus
        if len(usual) == len(gpus):  # as everywhere but on a machine with a GPU that is smaller than most
            return self._fit_on(task, need, gpus)
        tried = self._fit_on(task, need, usual) if usual else None
        if isinstance(tried, Placement):
            return tried
        for room in self.scratch.without_small(need, self._candidates(task)):
            if measured := self.learning.measured_on.get(room.device.key):
                return Refusal(task.number, Reason.LARGER, room.device.label, measured)
        return self._fit_on(task, need, gpus)

    def _fit_on(self, task: WaitingTask, need: ResourceRequest, gpus: Sequence[DeviceCapacity]) -> Placement | Refusal:
        """Return the placement of a task on some of these GPUs, within the quota of its user if there is one."""
        return self._reserve(task, need, gpus) if self.allowed is None else self._within_quota(task, need, gpus)

    def _visible(self, task: WaitingTask) -> tuple[str, ...]:
        """Return the GPUs that a task may see though it is known to use none: those with the most bytes left."""
        rooms = sorted(self._candidates(task), key=lambda room: (room.shut is not None, -room.bytes))
        return tuple([room.device.key for room in rooms[: task.need.visible]])

    def _within_quota(
        self, task: WaitingTask, need: ResourceRequest, gpus: Sequence[DeviceCapacity]
    ) -> Placement | Refusal:
        """Return the placement of a task within the quota of its user, or a refusal."""
        allowed, number = self.allowed, task.number
        assert allowed is not None
        refusal = allowed.refuses(number, need)
        among = allowed.among(number, len(need.gpus), gpus) if refusal is None else refusal
        if isinstance(among, Refusal):
            return among
        fitted = self._reserve(task, need, among)
        if not isinstance(fitted, Refusal):
            return allowed.cut(fitted, need)
        elsewhere = self._may_fit_elsewhere(task, fitted, among, gpus)
        return allowed.too_many_gpus(number, len(need.gpus)) if elsewhere else fitted

    def _reserve(self, task: WaitingTask, need: ResourceRequest, gpus: Sequence[DeviceCapacity]) -> Placement | Refusal:
        """Return the placement of a task on some of these GPUs and on the host, or a refusal."""
        hosts = self.scratch.hosts_for(task.terms, len(need.gpus))
        found = node_choice.room_on_a_node(task.number, need, gpus, hosts, self.rules)
        if isinstance(found, Refusal):
            return found
        attempt = 1 if task.tried is None else task.tried.attempts + 1
        expected = self.brain.profiles.expected(task.kind, task.terms.epochs)
        return fit.placed(task.number, attempt, need, found.reservation, found.host, expected, found.node)

    def _may_fit_elsewhere(
        self, task: WaitingTask, refusal: Refusal, some: Sequence[DeviceCapacity], all_: Sequence[DeviceCapacity]
    ) -> bool:
        """Tell whether a task that can never fit on `some` of its GPUs may fit on others among all of them."""
        if not refusal.reason.is_final or len(some) >= len(all_):
            return False
        hosts = self.scratch.hosts_for(task.terms, len(task.need.gpus))
        tried = node_choice.room_on_a_node(task.number, task.need, all_, hosts, self.rules)
        return not (isinstance(tried, Refusal) and tried.reason.is_final)

    def _only_mps(self) -> bool:
        """Tell whether no task can run outside of MPS."""
        single = any(self.capacity.rooms[key].device.single for key in self.scratch.gpus)
        return self.rules.mps and (self.rules.mps_alone or single)

    def _under_mps(self, placement: Placement, task: WaitingTask) -> Placement:
        """Return a placement with its share of threads under MPS. A task on several GPUs stays outside of MPS, where
        its faults end no other task.
        """
        apart = task.tried is not None and task.tried.apart and not placement.alone
        if len(placement.sees) != 1 or apart:
            return placement
        beside = self.scratch.rooms.now(placement.sees[0]).residents
        return mps_policy.client(placement, task.terms, beside, self.rules)

    def _start(self, task: WaitingTask) -> Placement | Refusal:
        """Return the placement of a task on GPUs that may have enough capacity, or a refusal that says what is
        missing.
        """
        if self.scratch.kept_for or not task.need.gpus:
            return self._fit(task, ())
        self._remember(task)
        return self._on_best(task) or self._on_any(task)

    def _on_best(self, task: WaitingTask) -> Placement | None:
        """Return the placement of a task on the best-ranked of many GPUs; None if it does not fit there. A search among
        all GPUs would give an equal result.
        """
        best = self.scratch.best(task.terms, task.need) if self.allowed is None else []
        best = self.stagger.open_to(best, task.rank)
        if not best or len(best) < len(task.need.gpus):
            return None
        tried = self._fit(task, best)
        return tried if isinstance(tried, Placement) else None

    def _on_any(self, task: WaitingTask) -> Placement | Refusal:
        """Return the placement of a task on any GPUs that may have enough capacity, or a refusal."""
        need, terms, scratch, rank = task.need, task.terms, self.scratch, task.rank
        few = self.stagger.open_to(scratch.hopeful(terms, need), rank)
        if len(few) >= len(need.gpus):
            tried = self._fit(task, scratch.sorted_for(terms, few))
            if isinstance(tried, Placement) or self._is_for_host(tried):
                return tried
            self.stagger.wait(need, few, rank)
        if not self._is_told(need):
            return Refusal(task.number, Reason.MEMORY)
        named = scratch.most_hopeful(terms, need)
        rest = self.stagger.open_to(named, rank)
        if rest is named:
            return self._fit(task, named)
        tried = self.stagger.refuses(task.number, named, len(rest), len(need.gpus)) or self._fit(task, rest)
        if isinstance(tried, Refusal) and self._may_fit_elsewhere(task, tried, rest, named):
            return self.stagger.refuses(task.number, named, 0, 1) or tried
        return tried

    def _is_for_host(self, refusal: Refusal) -> bool:
        """Tell whether a task was refused because the only node lacks RAM or cores, so that other GPUs cannot help."""
        return len(self.scratch.hosts) == 1 and refusal.device in self.scratch.host_labels

    def _is_told(self, need: ResourceRequest) -> bool:
        """Tell whether the missing amount must be computed, because it will be shown, or because the task may never
        fit.
        """
        few = len(self.scratch.gpus) <= MANY or not self.refusals or len(need.gpus) > 1
        return few or self.scratch.may_never_fit(need)

    def _try_full(self, task: WaitingTask) -> Placement | Refusal:
        few = () if self.scratch.kept_for else self.scratch.most_hopeful(task.terms, task.need)
        return self._fit(task, few)

    def _remember(self, task: WaitingTask) -> None:
        """Cache the least request of the task in front, so that later passes can pass it over without a closer look."""
        if self.walk.is_known or self.rules.slots is not None or (task.tried is not None and task.tried.floors):
            return
        need = task.need
        busy = fit.load_asked(need.busy, self.rules)
        if need.unknown or need.source is EstimateSource.MEASURED:  # where one such task does not fit, none does
            if need.source is EstimateSource.MEASURED and need.purpose is Purpose.RUN:
                self.walk.keep_unknown(busy, self.brain.profiles.script(task.kind))
            return
        firm = self.brain.knows(task.number, len(need.gpus))
        if firm or need.source is EstimateSource.DECLARED:  # similar tasks may show that any other needs less
            self.walk.keep(min(ask.starts_with for ask in need.gpus), busy if firm else 0.0)

    def _use(self, placement: Placement) -> None:
        self.scratch.take(placement, self.brain.known_peaks(placement))
        if not placement.source.is_watched:
            self.stagger.arrive(placement)
        elif is_watched(placement, settled=False) and placement.gpus:
            self.stagger.count(placement)

    def _finish(self) -> None:
        """Start more tasks of classes that are being learned, on GPUs that would otherwise stay empty."""
        super()._finish()
        for task in self.learning.held:
            idle = self.scratch.idle_gpus() if self.left > 0 else ()
            if not idle:
                return
            tried = self._fit(task, [room for room in self._candidates(task) if room.device.key in idle])
            if isinstance(tried, Placement):
                self._take(tried, task)

    # ---- tasks that were bypassed too often ----

    def _lose_patience(self) -> None:
        """Keep devices for the tasks that have been bypassed too often, also for tasks that were passed over."""
        self._overdue = self.brain.wait_queue.before(self.rules.bypass_limit - len(self.placements))
        for number in self.walk.passed_before(self._overdue):
            task = self._find(number)
            held = self._held_back(task)
            if held is None or held.reason.keeps_devices:
                self._be_patient(task, Refusal(number, Reason.MEMORY), bisect_left(self.ranks, task.rank))
        super()._lose_patience()

    def _keep_devices(self, task: WaitingTask, refusal: Refusal) -> None:
        """Keep for a task every device on which ending leases could free capacity. The RAM of a host is kept only if
        the task lacks it.
        """
        self.met.setdefault(task.number, refusal)
        if self._keeps_nothing_more(task):
            return
        hosts, who = self.scratch.hosts_for(task.terms, task.gpus), f"task {task.number} of this run"
        candidates: Sequence[DeviceCapacity] = ()
        if not self._surely_fits_after_leases(task):
            candidates, never = node_choice.never_now(task.number, task.need, self._candidates(task), hosts, self.rules)
            if never is not None:
                return
        elif task.terms.is_bound:
            candidates = self._candidates(task)
        elif task.need.gpus:
            self.scratch.close_all(who)
        for room in candidates if not self.scratch.kept_for else ():
            self.scratch.close(room, who)
        for node in self._hosts_that_lack(task, refusal):
            self.scratch.close_host(node, who)

    def _hosts_that_lack(self, task: WaitingTask, refusal: Refusal) -> Iterable[str]:
        """Return the nodes on whose hosts a task lacks RAM or cores. On a single machine the refusal of the task shows
        whether its host does.
        """
        if len(self.scratch.hosts) == 1 and task.need.gpus and not self._is_for_host(refusal):
            return ()
        every = not task.need.gpus or self._is_for_host(refusal)
        if not every and self._all_have_ram(task):
            changed = dict.fromkeys([room.device.node for room in self.scratch.rooms.values()])
            there = {node: self.scratch.hosts[node] for node in changed}
        else:
            there = {**self.scratch.hosts_for(task.terms, len(task.need.gpus))}
        return [node for node, host in there.items() if host and (every or self._lacks_ram(task, host))]

    def _all_have_ram(self, task: WaitingTask) -> bool:
        """Tell whether each host, before this pass placed anything, had what a task on GPUs needs there."""
        host = task.need.host
        if host.bytes is None or not host.is_plain or task.terms.node:
            return False
        return self.capacity.hosts.all_have(host.bytes, task.need.cores)

    def _lacks_ram(self, task: WaitingTask, host: DeviceCapacity) -> bool:
        return isinstance(fit.beside(task.number, task.need, task.need.host, host, self.rules), Refusal)

    def _keeps_nothing_more(self, task: WaitingTask) -> bool:
        """Tell whether keeping devices for a task on one GPU is needless, because devices are kept for a smaller
        request already.
        """
        need = task.need
        if len(need.gpus) != 1 or not need.gpus[0].is_plain or need.host.bytes or task.terms.is_bound:
            return False
        least = need.gpus[0].bare
        if least >= self._kept_least:
            return True
        self._kept_least = least
        return False

    def _surely_fits_after_leases(self, task: WaitingTask) -> bool:
        """Tell whether a task would certainly fit on each device on which it may run, once all leases there have
        ended.
        """
        if self.rules.slots is not None:
            return True
        need, gpus = task.need, len(task.need.gpus)
        if gpus and (gpus > self.capacity.nodes.fewest_gpus or task.terms.is_bound):
            return False
        if gpus and need.host.bytes and not self._hosts_surely_fit(need):
            return False
        releases = self.capacity.releases if gpus else self.capacity.hosts_release
        for ask in need.gpus or (need.host,):  # noqa: SIM110 - a generator takes three times as long
            if not ask.is_plain or not releases(ask.bytes or 0):
                return False
        return True

    def _hosts_surely_fit(self, need: ResourceRequest) -> bool:
        """Tell whether each of several hosts would have the RAM for a task on GPUs once all leases there have ended."""
        return len(self.scratch.hosts) > 1 and need.host.is_plain and self.capacity.hosts_release(need.host.bytes or 0)

    # ---- what is named ----

    def _refuse(self, refusal: Refusal, task: WaitingTask) -> None:
        named = len(self.refusals) < self._most_named
        if refusal.reason.takes_turns:
            if self.wait is None or named:
                refusal = self._unless_unmanaged(refusal, task)
            if self.wait is None and refusal.reason.takes_turns:
                self.wait = self._ticket(task)
        if named:
            super()._refuse(refusal, task)

    def _unless_unmanaged(self, refusal: Refusal, task: WaitingTask) -> Refusal:
        """Return the refusal of a task. If the task could not start even after all leases have ended, return a refusal
        that names the unmanaged memory instead.
        """
        if not refusal.reason.is_for_memory or self._surely_fits_after_leases(task):
            return refusal
        never = self._never_after_leases(task)
        if never is None:
            return refusal
        self._unmanaged += 1
        self._parked = self._parked or self._ticket(task)
        return blocked_by_unmanaged(never, self._machine.budgets) or refusal

    def _never_after_leases(self, task: WaitingTask) -> Refusal | None:
        """Return why a task would fit on no node even after all leases have ended; None if it would fit on one."""
        never: Refusal | None = None
        for node, host in self.scratch.hosts_for(task.terms, task.gpus).items():
            gpus = self.scratch.candidates(task.terms, task.gpus, node)
            _, there = node_choice.never_now(task.number, task.need, gpus, {node: host}, self.rules)
            if there is None:
                return None
            never = there if never is None else fit.better(never, there)
        return never

    def _ticket(self, task: WaitingTask) -> WaitTicket:
        """Return the wait ticket for a task that waits for capacity which other schedulers hold."""
        nodes, terms = self.capacity.nodes, task.terms
        gpus = self.capacity.open_to(terms) if terms.is_bound else nodes.gpus
        there = self.scratch.hosts_for(terms, task.gpus) if terms.is_bound else nodes.hosts
        hosts = tuple([nodes.hosts[node] for node in there if node in nodes.hosts])
        return ticket_of(task.number, task.need, gpus, hosts or (HOST,))

    def _ticket_shown(self) -> WaitTicket | None:
        return self.wait or self._parked
