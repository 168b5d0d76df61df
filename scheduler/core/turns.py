"""Turns: who is next of all that wait on this machine, whosever they are.

Next on a device is the waiting user who holds least there; among equals, whose newest start there is the oldest (a user
with many runs has somebody who came first at all times), then, and between the waiters of one user, who came first.
What is free is kept for those who are before a task and fit in now; who does not fit is passed over, until it
was passed over too often: then its devices close to whoever came later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.core import packing
from scheduler.core.model import NO_TASK, Decision, Hold, KnownBy, Machine, Placement, Refusal, Ticket, Turn, Waiter
from scheduler.core.packing import Ask, Need, Room
from scheduler.core.promises import Lease
from scheduler.core.rules import Rules

STANDS_STILL = 5.0
"""Seconds without a look after which a waiter is left out: it was stopped, or its disk is full."""
CHANCE = 1.0
"""Seconds within which a waiter takes the room that is kept for it; if it looks and does not, it has its reasons."""
MOST_ENDS = 55
"""A waiter that is passed over starts within so many ends of others, and a few that were over before it looked: what
runs when its devices close ends as well. So where much runs they close before it was passed as often as it may be, but
not before half of that."""
FOR_ROOM = frozenset({"memory", "unknown", "spent", "alone", "load", "busy", "closed"})
"""Refusals by which a task waits for what others hold."""
Stake = tuple[int, float]
"""What a user holds, and when the newest of it began."""
Rank = tuple[int, int, float, float]
_NOBODY = 0
"""The task's number of a placement that is somebody else's affair."""


class Queue:
    """Everybody who waits, as one pass over this run's line sees them."""

    def __init__(self, machine: Machine, own: Iterable[Placement], rules: Rules, *, slots: bool = False) -> None:
        """`slots`: the run fills slots, which do not look at memory."""
        self.fitting: list[str] = []
        self._me = machine.uid
        self._turn = machine.turn
        self._rules = replace(rules, slots=None, max_per_device=None)
        self._slots = slots or rules.slots is not None
        self._waiters = [waiter for waiter in machine.waiters if waiter.idle <= STANDS_STILL]
        self._holds = machine.holds
        self._own = [placement.promise for placement in own]
        self._now = machine.now
        self._last = machine.turn.last

    def take(self, placement: Placement) -> None:
        """Something of this run starts: it holds more now."""
        self._own.append(placement.promise)
        self._last = self._now

    def give_way(self, task: int, rooms: Mapping[str, Room], host: Room | None) -> bool:
        """Keep room for all whose turn is before this task's, each once in a pass; whether there is anybody."""
        turn = self._turn if task == self._turn.task else Turn()
        before = [waiter for waiter in self._waiters if self._is_before(waiter, turn)]
        for waiter in sorted(before, key=self._rank):
            self._waiters.remove(waiter)
            self._keep_room(waiter, rooms, host)
        return bool(before)

    def _is_before(self, waiter: Waiter, turn: Turn) -> bool:
        mine = _rank(turn.closed, self._stake(self._me, waiter.ticket), turn.waited)
        return self._rank(waiter) < mine

    def _rank(self, waiter: Waiter) -> Rank:
        return _rank(waiter.ticket.closed, self._stake(waiter.uid, waiter.ticket), waiter.ticket.waited)

    def _stake(self, uid: int, ticket: Ticket) -> Stake:
        held, newest = _stake(uid, ticket, self._holds, self._own if uid == self._me else ())
        return held, max(newest, self._last) if uid == self._me else newest

    def _keep_room(self, waiter: Waiter, rooms: Mapping[str, Room], host: Room | None) -> None:
        ticket = waiter.ticket
        here = [rooms[key] for key in ticket.devices if key in rooms]
        gpus = [room for room in here if room.device.is_gpu]
        if not here or len(gpus) < len(ticket.gpus):
            return  # it waits for what this run knows nothing of
        tried = packing.fit(_NOBODY, 1, _need(ticket), sorted(gpus, key=_best_first), host, self._rules)
        if not isinstance(tried, Refusal):
            self.fitting.append(waiter.name)
            if not waiter.passed_up:
                self._reserve(tried, rooms)
        elif ticket.closed:
            for room in here:
                room.closed = True

    def _reserve(self, placement: Placement, rooms: Mapping[str, Room]) -> None:
        packing.take(rooms, placement)
        for key in placement.promise:
            rooms[key].ours -= 1
        if self._slots:
            for key in placement.devices:
                rooms[key].closed = True  # slots do not look at memory


def _best_first(room: Room) -> tuple[bool, float, int]:
    return room.strangers > 0, -room.load, -room.bytes


def _rank(closed: bool, stake: Stake, waited: float) -> Rank:  # of a ticket
    """Smaller is next; who was passed over too often comes before all others, whatever they hold."""
    return (0, 0, 0.0, -waited) if closed else (1, *stake, -waited)


def _stake(uid: int, ticket: Ticket, holds: Iterable[Hold], own: Iterable[Mapping[str, int]]) -> Stake:
    """What a user holds on the devices that a ticket is about, and since when the newest of it."""
    held, newest = sum(promised.get(key, 0) for promised in own for key in ticket.devices), 0.0
    for hold in holds:
        if hold.uid == uid and (bytes_ := sum(hold.promised.get(key, 0) for key in ticket.devices)):
            held, newest = held + bytes_, max(newest, hold.since)
    return held, newest


def richer(machine: Machine, own: Iterable[Placement], decision: Decision) -> frozenset[int]:
    """The users who wait and hold more than this run's where it waits: however early they came, it is before them."""
    ticket = decision.wait
    if ticket is None:
        return frozenset()
    mine = [placement.promise for placement in (*own, *decision.placements)]
    held, _ = _stake(machine.uid, ticket, machine.holds, mine)
    users = {waiter.uid for waiter in machine.waiters} - {machine.uid}
    return frozenset(uid for uid in users if _stake(uid, ticket, machine.holds, ())[0] > held)


def _need(ticket: Ticket) -> Need:
    def ask(bytes_: int | None) -> Ask:
        return Ask(bytes_, bytes_ or 0)

    gpus = tuple(ask(bytes_) for bytes_ in ticket.gpus)
    return Need(ask(ticket.host), ticket.cores, KnownBy.DECLARED, gpus, ticket.busy, ticket.alone)


class Standing:
    """How this run stands among all who wait, from one decision to the next."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._task = NO_TASK
        self._since = 0.0
        self._passed = self._lately = self._beside = 0
        self._last: tuple[float, Ticket] | None = None
        """The ticket that was shown last, and when it was true."""
        self._waits_for: Sequence[str] = ()
        self._devices: frozenset[str] = frozenset()
        """The same; of a thousand GPUs it is made anew only where they are others."""
        self._ahead: frozenset[str] = frozenset()
        """Runs that came before this one: what they start passes nobody."""
        self._leases: frozenset[str] = frozenset()
        self._placed = 0.0
        """When this run last started something."""
        self._fits: dict[str, float] = {}
        """Since when there seems to be room for others whose turn it is."""

    def turn(self, now: float, leases: Sequence[Lease]) -> Turn:
        """This run's turn, once what was started since the last look is counted."""
        if self._task == NO_TASK:
            return Turn(last=self._placed)
        new = [lease for lease in leases if lease.name not in self._leases and lease.run not in self._ahead]
        self._lately = sum(not self._devices.isdisjoint(lease.promised) for lease in new)
        self._passed += self._lately
        if 2 * self._passed >= self._rules.overtakes:
            beside = sum(not self._devices.isdisjoint(lease.promised) for lease in leases)
            self._beside = max(self._beside, beside)  # where some have just ended, as many start at once
        self._leases = frozenset(lease.name for lease in leases)
        waited = max(0.0, now - self._since)
        return Turn(self._task, waited, self._is_closed(waited), self._placed)

    def _is_closed(self, waited: float) -> bool:
        """Whether nobody who came later may pass any more, be it because that would be too often by the next look."""
        most = self._rules.overtakes
        too_often = self._passed >= most or self._passed + self._lately > most
        too_late = 2 * self._passed >= most and self._passed + self._lately + self._beside >= MOST_ENDS
        return too_often or too_late or waited >= self._rules.overtaken_for

    def waiters(self, now: float, waiters: Sequence[Waiter]) -> tuple[Waiter, ...]:
        """The others, with who of them had the chance to start and did not take it."""
        return tuple(replace(waiter, passed_up=self._had_its_chance(waiter, now)) for waiter in waiters)

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
    ) -> Ticket | None:
        """What this run has to tell the others from now on; None where it waits for nothing that they hold.

        `after`: users whose turn is after this run's, however long they have waited.
        """
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
        return replace(wait, waited=waited, closed=self._is_closed(waited))

    def _still(self, now: float, decision: Decision) -> Ticket | None:
        """The ticket of a task that is kept from starting by something else for a moment.

        As when a neighbour's memory is seen before its lease says whose it is: nobody loses a place in line by that.
        """
        if self._last is None or now - self._last[0] > STANDS_STILL:
            return None
        waits = any(refusal.task == self._task for refusal in decision.refusals)
        return self._last[1] if waits and self._last[1].task == self._task else None
