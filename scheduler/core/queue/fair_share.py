"""Turns: which waiting scheduler is next on a device, among those of all users of this machine.

Next is the waiting user who holds least on the device; among users who hold equally much, the one whose newest start
there is the oldest. The waiting time of a run comes after that, because a user with many runs always has one that has
waited long. Free capacity is kept for waiters whose turn comes before that of a task and whose tasks fit now. A waiter
that does not fit is passed over until it has been bypassed too often; then its devices are drained for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from scheduler.core.config import SchedulingConfig
from scheduler.core.leases import Lease
from scheduler.core.model import (
    HOST,
    NO_TASK,
    Decision,
    EstimateSource,
    Machine,
    Placement,
    Turn,
    Waiter,
    WaitTicket,
    host_of,
    on_node,
)
from scheduler.core.placement import fit
from scheduler.core.placement.device_capacity import DeviceCapacity
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.values import replace

STANDS_STILL = 5.0
"""Seconds after which a waiting scheduler that has not looked at the machine is ignored: it was stopped, or its disk is
full."""
CHANCE = 1.0
"""Seconds within which a waiting scheduler must use the capacity kept for it. If it looks at the machine and does not
use that capacity, something else prevents the start of its task."""
MOST_ENDS = 55
"""The bound on a wait: a task that others have bypassed starts before this many other tasks have ended, apart from a
few that ended before its wait was noticed. Tasks that run when its devices close also count when they end. So where
many tasks run, the devices close before the bypass limit is reached, but not before half of that limit."""
IN_VAIN = 3.0
"""The total time, in seconds, for which capacity is kept for the tickets of one user while the user uses none of it."""
LOSES_TURN, MOST_TIMES = 10.0, 64
"""A user who uses none of the capacity that was kept for them loses a turn: their tickets are ignored for at least
LOSES_TURN seconds, or for as long as devices were drained for them if that was longer. The time doubles with each lost
turn, up to MOST_TIMES times its first value."""
LONGEST_DRAIN = 1800.0
"""The total time, in seconds, for which devices are drained for the tickets of one user while the user starts nothing
of the requested size. The next drain may last four times as long, because tasks that take hours may run on these
devices."""
UsageRank = tuple[int, float]
"""The bytes that a user holds, and the time at which the user last started something, both on certain devices."""
Rank = tuple[int, int, float, float]
_OTHER_RUN = 0
"""The task number in the assumed placement of a task of another run."""


class Contenders:
    """The other waiting schedulers, and what one pass over this run's queue keeps for them."""

    def __init__(
        self, machine: Machine, own: Iterable[Placement], rules: SchedulingConfig, *, slots: bool = False
    ) -> None:
        """Prepare for one pass. `slots` is True if the run fills slots, for which memory does not count."""
        self.urgent: Collection[int] = ()
        """The tasks of this run for which other tasks make room."""
        self._fitting: list[str] = []
        self._draining: list[str] = []
        self._me = machine.uid
        self._turn = machine.turn
        self._rules = replace(rules, slots=None, max_per_device=None)
        self._slots = slots or rules.slots is not None
        self._waiters = [waiter for waiter in machine.waiters if waiter.idle <= STANDS_STILL]
        self._leases = machine.leases
        self._own = [placement.by_device for placement in own]
        self._now = machine.now
        self._last: dict[int, float] = {self._me: machine.turn.last}
        """For each user, the time at which one of its waiting runs last started something. The lease of that start may
        have ended."""
        for waiter in machine.waiters:
            self._last[waiter.uid] = max(self._last.get(waiter.uid, 0.0), min(waiter.ticket.last, machine.now))

    def named(self, decision: Decision) -> Decision:
        """Return the decision of a pass, completed with the names of the schedulers for which it kept capacity or
        drained devices.
        """
        return replace(decision, fitting=tuple(self._fitting), draining=tuple(self._draining))

    def take(self, placement: Placement) -> None:
        """Count a new placement of this run as memory that its user holds."""
        self._own.append(placement.by_device)
        self._last[self._me] = self._now

    def give_way(self, task: int, rooms: Mapping[str, DeviceCapacity]) -> bool:
        """Keep capacity for all schedulers whose turn comes before that of a task, for each of them only once in a
        pass. Return whether there were any such schedulers.
        """
        turn = self._turn if task == self._turn.task else Turn()
        if task in self.urgent:
            turn = replace(turn, closed=True)
        before = [waiter for waiter in self._waiters if self._is_before(waiter, turn)]
        for waiter in sorted(before, key=self._rank):
            self._waiters.remove(waiter)
            self._keep_room(waiter, rooms)
        return bool(before)

    def _is_before(self, waiter: Waiter, turn: Turn) -> bool:
        mine = _rank(turn.closed, self._usage(self._me, waiter), turn.waited)
        return self._rank(waiter) < mine

    def _rank(self, waiter: Waiter) -> Rank:
        return _rank(self._is_next(waiter), self._usage(waiter.uid, waiter), waiter.ticket.waited)

    def _is_next(self, waiter: Waiter) -> bool:
        """Tell whether a scheduler comes first because its task was bypassed too often. An urgent task of this run's
        user counts as one bypassed too often.
        """
        return waiter.ticket.closed or (waiter.ticket.urgent and waiter.uid == self._me)

    def _usage(self, uid: int, waiter: Waiter) -> UsageRank:
        """Return what a user holds on the devices for which a scheduler waits, and when it last started something
        there.
        """
        held, newest = _usage(uid, _devices(waiter), self._leases, self._own if uid == self._me else ())
        return held, max(newest, self._last.get(uid, 0.0))

    def _keep_room(self, waiter: Waiter, rooms: Mapping[str, DeviceCapacity]) -> None:
        ticket, key = waiter.ticket, host_of(waiter.node)
        hosts = [rooms[key]] if key in rooms else []
        host = hosts[0] if hosts else None
        here = [rooms[key] for key in _devices(waiter) if key in rooms]
        gpus = [room for room in here if room.device.is_gpu]
        if not here or len(gpus) < len(ticket.gpus):
            return  # it waits for devices that this run does not know
        need, best = _need(ticket), sorted(gpus, key=_best_first)
        tried = fit.fit(_OTHER_RUN, 1, need, best, host, self._rules)
        if not isinstance(tried, Refusal):
            self._fitting.append(waiter.name)
            if not waiter.passed_up:
                self._reserve(tried, rooms, _called(waiter))
        elif self._is_next(waiter):
            self._drain(waiter, need, here, host)

    def _drain(
        self, waiter: Waiter, need: ResourceRequest, here: Sequence[DeviceCapacity], host: DeviceCapacity | None
    ) -> None:
        """Close the devices on which the task of a scheduler would fit if all leases there ended.

        If the user has lost its turn, its own leases are assumed to stay: otherwise they could keep devices closed for
        ever.
        """
        then = {room.device.key: self._released_for(waiter, room) for room in here}
        gpus = sorted((room for room in then.values() if room.device.is_gpu), key=_best_first)
        host_then = None if host is None else self._released_for(waiter, host)
        fits, never = fit.never_now(_OTHER_RUN, need, gpus, host_then, self._rules)
        if never is not None:
            return
        keys = {room.device.key for room in fits} if gpus else then.keys()
        for room in here:
            if room.device.key in keys:
                room.closed, room.kept_for = True, room.kept_for or _called(waiter)
        self._draining += [waiter.name] if keys else []

    def _released_for(self, waiter: Waiter, room: DeviceCapacity) -> DeviceCapacity:
        """Return a device with the bytes that ending leases may release there for the task of a scheduler."""
        if waiter.uid == self._me or not waiter.lets_capacity_pass:
            return room
        key, left = room.device.key_there, room.copy()
        theirs = [lease for lease in self._leases if lease.uid == waiter.uid and lease.node == waiter.node]
        left.released -= sum(max(lease.reserved.get(key, 0), lease.used.get(key, 0)) for lease in theirs)
        return left

    def _reserve(self, placement: Placement, rooms: Mapping[str, DeviceCapacity], who: str) -> None:
        fit.take(rooms, placement)
        for key in placement.by_device:
            rooms[key].ours -= 1
            rooms[key].kept_for = who
        if self._slots:
            for key in placement.devices:
                rooms[key].closed = True  # slots ignore memory


def _called(waiter: Waiter) -> str:
    number = waiter.run.partition("-")[0]
    return f"task {waiter.ticket.task} of run {number} of {waiter.who or f'user {waiter.uid}'}"


def _best_first(room: DeviceCapacity) -> tuple[bool, float, int]:
    return room.unmanaged_bytes > 0, -room.load, -room.bytes


def _rank(closed: bool, usage: UsageRank, waited: float) -> Rank:  # of a ticket
    """Return the sort key of a waiting scheduler; the smallest is next. A task that was bypassed too often comes before
    all others.
    """
    return (0, 0, 0.0, -waited) if closed else (1, *usage, -waited)


def _by_device(lease: Lease) -> Mapping[str, int]:
    """Return the bytes that a lease reserves, by the keys of this run's devices."""
    reserved = lease.reserved
    return {on_node(key, lease.node): bytes_ for key, bytes_ in reserved.items()} if lease.node else reserved


def _devices(waiter: Waiter) -> Sequence[str]:
    """Return the devices for which a scheduler waits, by the keys of this run's devices."""
    said = waiter.ticket.devices
    return [on_node(key, waiter.node) for key in said] if waiter.node else said


def _usage(uid: int, keys: Sequence[str], leases: Iterable[Lease], own: Iterable[Mapping[str, int]]) -> UsageRank:
    """Return the bytes that a user holds on these devices, and the time at which its newest lease there began."""
    held, newest = sum(reserved.get(key, 0) for reserved in own for key in keys), 0.0
    for lease in leases:
        if lease.uid == uid and (bytes_ := sum(_by_device(lease).get(key, 0) for key in keys)):
            held, newest = held + bytes_, max(newest, lease.since)
    return held, newest


def users_with_more(machine: Machine, own: Iterable[Placement], decision: Decision) -> frozenset[int]:
    """Return the waiting users who hold more than the user of this run on the devices for which it waits. This run
    comes before them.
    """
    ticket = decision.wait
    if ticket is None:
        return frozenset()
    mine, keys = [placement.by_device for placement in (*own, *decision.placements)], ticket.devices
    held, _ = _usage(machine.uid, keys, machine.leases, mine)
    users = {waiter.uid for waiter in machine.waiters} - {machine.uid}
    return frozenset(uid for uid in users if _usage(uid, keys, machine.leases, ())[0] > held)


def ticket_of(task: int, need: ResourceRequest, gpus: tuple[str, ...], hosts: tuple[str, ...] = (HOST,)) -> WaitTicket:
    """Return the wait ticket of a task; `gpus` and `hosts` are the devices on which it may run."""
    asks = need.gpus or (need.host,)
    bare: tuple[int, ...] = tuple([ask.bare for ask in asks])
    if bare == tuple([ask.bytes or 0 for ask in asks]):
        bare = ()
    bytes_, keys = tuple([ask.bytes for ask in need.gpus]), gpus if need.gpus else hosts
    return WaitTicket(task, keys, bytes_, need.host.bytes, need.cores, need.busy, need.alone, bare=bare)


def _need(ticket: WaitTicket) -> ResourceRequest:
    asked = ticket.gpus or (ticket.host,)
    bare = ticket.bare if len(ticket.bare) == len(asked) else [bytes_ or 0 for bytes_ in asked]
    asks = tuple(
        MemoryRequest(bytes_, least if bytes_ is None else min(least, bytes_))
        for bytes_, least in zip(asked, bare, strict=True)
    )
    host = MemoryRequest(ticket.host, ticket.host or 0) if ticket.gpus else asks[0]
    return ResourceRequest(
        host, ticket.cores, EstimateSource.DECLARED, asks if ticket.gpus else (), ticket.busy, ticket.alone
    )


class Patience:
    """For each other user, the seconds for which capacity was kept, and devices were drained, in vain.

    The seconds are counted per user, so that a user gains nothing by a ticket under a new name.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._kept: dict[int, float] = {}
        """For each user, the seconds for which capacity was kept in vain."""
        self._drained: dict[int, float] = {}
        """For each user, the seconds for which devices were drained in vain."""
        self._longest: dict[int, float] = {}
        """For each user, the longest allowed drain, if it is not `LONGEST_DRAIN`."""
        self._asked: dict[int, int] = {}
        """For each user, the most bytes that were kept in vain at once."""
        self._losses: dict[int, int] = {}
        """For each user, how often the user has lost its turn."""
        self._lost: dict[int, tuple[float, float]] = {}
        """For each user that has lost its turn, the time until which its tickets are ignored, and the total seconds for
        which they are ignored."""
        self._leases: frozenset[str] = frozenset()

    def see(self, now: float, waiters: Sequence[Waiter], decision: Decision, leases: Sequence[Lease]) -> None:
        """Note for which tickets capacity is kept, or devices are drained, from now on.

        Reset the counts of a user who has used such capacity since the last call.
        """
        passed, self._at = min(max(0.0, now - self._at), STANDS_STILL), now
        if self._asked:
            for lease in leases:
                if lease.name not in self._leases and lease.uid in self._asked:
                    self._take(lease)
        self._leases = frozenset(lease.name for lease in leases)
        kept = [waiter for waiter in waiters if waiter.name in decision.fitting and not waiter.passed_up]
        draining = [waiter for waiter in waiters if waiter.name in decision.draining]
        for uid in self._count(self._kept, kept, min(passed, CHANCE)):
            if self._kept[uid] > IN_VAIN:
                self._lose(uid, now)
        for uid in self._count(self._drained, draining, passed):
            longest = self._longest.get(uid, LONGEST_DRAIN)
            if self._drained[uid] > longest:
                self._lose(uid, now)
                self._longest[uid] = 4 * longest

    def _count(self, seconds: dict[int, float], waiters: Sequence[Waiter], passed: float) -> set[int]:
        """Add the time since the last call, in seconds, to the entries in `seconds` for the users of these waiters;
        return these users.
        """
        users = {waiter.uid for waiter in waiters}
        for uid in users:
            asked = max(_bytes(waiter.ticket) for waiter in waiters if waiter.uid == uid)
            self._asked[uid] = max(asked, self._asked.get(uid, 0))
            seconds[uid] = seconds.get(uid, 0.0) + passed
        return users

    def _lose(self, uid: int, now: float) -> None:
        """Ignore the tickets of a user from now on, for a time that doubles with each lost turn."""
        self._kept[uid] = 0.0
        losses = self._losses.get(uid, 0)
        loss = max(LOSES_TURN, self._drained.pop(uid, 0.0)) * min(2**losses, MOST_TIMES)
        self._lost[uid], self._losses[uid] = (now + loss, loss), losses + 1

    def _take(self, lease: Lease) -> None:
        """Reset the counts of a user if its new lease has at least half of the bytes that were kept for the user."""
        if 2 * sum(lease.reserved.values()) >= self._asked[lease.uid]:
            for of in (self._kept, self._drained, self._longest, self._asked, self._lost, self._losses):
                of.pop(lease.uid, None)

    def has_had_losses(self, uid: int) -> bool:
        """Tell whether a user has lost its turn and has not since used the capacity that was kept for it."""
        return uid in self._losses

    def has_lost_its_turn(self, uid: int, now: float) -> bool:
        """Tell whether the tickets of a user are ignored at this time."""
        until, loss = self._lost.get(uid, (0.0, 0.0))
        return 0 < until - now <= loss


def _bytes(ticket: WaitTicket) -> int:
    return sum(bytes_ or 0 for bytes_ in ticket.gpus or (ticket.host,))


class TurnTracker:
    """The turn of this run among all waiting schedulers, from one decision to the next."""

    def __init__(self, rules: SchedulingConfig) -> None:
        self._rules = rules
        self._task = NO_TASK
        self._since = 0.0
        self._passed = self._lately = self._beside = 0
        self._last: tuple[float, WaitTicket] | None = None
        """The ticket of the last task that found too little capacity, and the time of that decision."""
        self._waits_for: Sequence[str] = ()
        self._devices: frozenset[str] = frozenset()
        """The devices for which this run waits. The set is replaced only when these devices change."""
        self._ahead: frozenset[str] = frozenset()
        """Other runs whose turn comes before that of this run: their starts do not count as bypasses."""
        self._leases: frozenset[str] = frozenset()
        self._placed = 0.0
        """The time at which this run last started something."""
        self._patience = Patience()
        self._fits: dict[str, float] = {}
        """For each scheduler whose turn it is, the time since which there seems to be enough capacity for it."""

    def turn(self, now: float, leases: Sequence[Lease]) -> Turn:
        """Return the turn of this run, after counting the starts of other runs since the last call."""
        if self._task == NO_TASK:
            return Turn(last=self._placed)
        new = [lease for lease in leases if lease.name not in self._leases and lease.run not in self._ahead]
        self._lately = sum(not self._devices.isdisjoint(lease.reserved) for lease in new)
        self._passed += self._lately
        if 2 * self._passed >= self._rules.bypass_limit:
            beside = sum(not self._devices.isdisjoint(lease.reserved) for lease in leases)
            self._beside = max(self._beside, beside)  # where some have just ended, as many start at once
        self._leases = frozenset(lease.name for lease in leases)
        waited = max(0.0, now - self._since)
        return Turn(self._task, waited, self._is_closed(waited), self._placed)

    def _is_closed(self, waited: float) -> bool:
        """Tell whether later tasks may no longer bypass this run: they have done so too often, or would have done so by
        the next look.
        """
        most = self._rules.bypass_limit
        too_often = self._passed >= most or self._passed + self._lately > most
        too_late = 2 * self._passed >= most and self._passed + self._lately + self._beside >= MOST_ENDS
        return too_often or too_late or waited >= self._rules.bypassed_for

    def waiters(self, now: float, waiters: Sequence[Waiter]) -> tuple[Waiter, ...]:
        """Return the other waiting schedulers, each with a mark if it could have started something but did not."""
        return tuple(self._seen(waiter, now) for waiter in waiters)

    def _seen(self, waiter: Waiter, now: float) -> Waiter:
        waiter = replace(waiter, lets_capacity_pass=self._patience.has_had_losses(waiter.uid))
        if self._patience.has_lost_its_turn(waiter.uid, now):
            return replace(waiter, passed_up=True, ticket=replace(waiter.ticket, closed=False))
        return replace(waiter, passed_up=self._had_its_chance(waiter, now))

    def _had_its_chance(self, waiter: Waiter, now: float) -> bool:
        since = self._fits.get(waiter.name)
        return since is not None and now - waiter.idle > since + CHANCE

    def after(
        self,
        now: float,
        decision: Decision,
        waiters: Sequence[Waiter],
        leases: Sequence[Lease],
        after: frozenset[int] = frozenset(),
    ) -> WaitTicket | None:
        """Return the ticket of this run after a decision; None if the run waits for nothing that others hold.

        `after` contains the users whose turn comes after this run's, however long they have waited.
        """
        self._patience.see(now, waiters, decision, leases)
        self._fits = {name: self._fits.get(name, now) for name in decision.fitting}
        if decision.placements:
            self._placed = now
        wait = decision.wait or self._still(now, decision)
        if wait is None:
            self._task = NO_TASK
            return None
        if decision.wait is not None:
            self._last = now, wait
        if self._task == NO_TASK or any(placement.task == self._task for placement in decision.placements):
            self._since, self._passed, self._lately, self._beside = now, 0, 0, 0
            self._leases = frozenset(lease.name for lease in leases)
        self._task = wait.task
        if wait.devices is not self._waits_for:
            self._waits_for, self._devices = wait.devices, frozenset(wait.devices)
        waited = max(0.0, now - self._since)
        self._ahead = frozenset(
            waiter.run for waiter in waiters if waiter.ticket.waited > waited and waiter.uid not in after
        )
        return replace(wait, waited=waited, closed=self._is_closed(waited), last=self._placed)

    def _still(self, now: float, decision: Decision) -> WaitTicket | None:
        """Return the last ticket again if its task still waits, but for another reason than capacity, which may last
        only a moment.

        An example is a neighbour's memory that is measured before the neighbour's lease is read: this must not cost the
        run its place in the queue.
        """
        if self._last is None or now - self._last[0] > STANDS_STILL:
            return None
        waits = any(refusal.task == self._task for refusal in decision.refusals)
        return self._last[1] if waits and self._last[1].task == self._task else None
