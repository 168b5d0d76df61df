"""Does it fit: the room on each device, and placements or refusals with their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.model import HOST, Budget, Device, Hold, KnownBy, Machine, Placement, Purpose, Refusal, Terms
from scheduler.core.rules import Rules

if TYPE_CHECKING:
    from scheduler.core.ports import Lease

NEARLY = 0.9
"""What ran out of memory on a whole device is tried again on nearly that much: it was stopped at the device's edge, a
little above what is free there now, and would wait for ever for the rest."""


@dataclass(slots=True)
class Room:
    """The working copy of one device during a pass: what is left of it as placements are made."""

    device: Device
    bytes: int
    load: float
    residents: int
    """Live leases of anybody."""
    ours: int
    """Attempts of this run."""
    closed: bool = False
    taken_alone: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What a task asks of each of its devices; no bytes means unknown."""

    bytes: int | None
    cores: float
    known_by: KnownBy
    alone: bool = False
    purpose: Purpose = Purpose.RUN
    bare: int = 0
    """What of it was really said or seen; all above that is margin, and is cut where the device ends."""
    retried: bool = False
    """It ran out of memory before; the number of its tries is bounded."""


def own_hold(placement: Placement, used: Mapping[str, int]) -> Hold:
    """One of our own promises, in the shape of everybody's."""
    return Hold(promised=placement.promise, used=used, load={HOST: placement.cores})


def others_hold(lease: Lease, used: Mapping[str, int]) -> Hold:
    """Another scheduler's lease; what cannot be seen of it counts as not taken yet: that wastes, never overcommits."""
    return Hold(promised=lease.promised, used=used, load=lease.load, unreadable=not lease.readable)


def room_on(budget: Budget, holds: Iterable[Hold], buffer: int) -> int:
    """Bytes that may be promised on a device.

    Free now, less what is promised but not yet taken, less the buffer; a budget set by the user is on top of that.
    Never free alone and never promises alone: each of these overcommits.
    """
    key = budget.device.key
    untaken = taken_or_promised = 0
    for hold in holds:
        promised, used = hold.promised.get(key, 0), hold.used.get(key, 0)
        untaken += max(0, promised - used)
        taken_or_promised += max(promised, used)
    room = budget.free - untaken - buffer
    if budget.cap is not None:
        room = min(room, budget.cap - taken_or_promised - buffer)
    return room


def rooms(machine: Machine, own: Iterable[Placement], rules: Rules) -> dict[str, Room]:
    """The room on every device, before this pass places anything."""
    mine = list(own)
    holds = [own_hold(p, machine.used.get((p.task, p.attempt), {})) for p in mine] + list(machine.holds)
    found = {}
    for budget in machine.budgets:
        key = budget.device.key
        here = [p for p in mine if key in p.promise]
        found[key] = Room(
            device=budget.device,
            bytes=room_on(budget, holds, rules.buffer),
            load=budget.device.load_capacity * rules.max_load - sum(h.load.get(key, 0.0) for h in holds),
            residents=sum(1 for h in holds if key in h.promised),
            ours=len(here),
            taken_alone=any(p.alone for p in here) or any(h.unreadable for h in holds),
        )
    return found


def largest(device: Device, cap: int | None) -> int:
    """The most that one task can ever hold on a device."""
    return device.total if cap is None else min(device.total, cap)


def never_fits(terms: Terms, budgets: Iterable[Budget]) -> Refusal | None:
    """Whether what the row declares is above every device, with the numbers."""
    need = declared(terms)
    totals = {b.device.key: largest(b.device, b.cap) for b in budgets}
    if need is None or not totals:
        return None
    key = max(totals, key=lambda k: totals[k])
    if need <= totals[key]:
        return None
    return Refusal(task=0, reason="never", device=key, wanted=need, total=totals[key])


def declared(terms: Terms) -> int | None:
    """What the row says its task holds on the host."""
    return terms.memory if terms.memory is not None else terms.host_memory


def fit(task: int, attempt: int, need: Need, room: Room, cap: int | None, rules: Rules) -> Placement | Refusal:
    """Place one task on one device, or say by which number it misses."""
    crowd = _crowded(task, need, room, rules)
    if crowd is not None:
        return crowd
    if rules.slots is not None:
        promise = need.bytes or 0
    else:
        fitted = _fit_bytes(task, need, room, cap, rules)
        if isinstance(fitted, Refusal):
            return fitted
        promise = fitted
    promised = {room.device.key: promise}
    cores = min(need.cores, room.device.load_capacity)
    return Placement(task, attempt, need.purpose, promised, cores, need.known_by, need.alone)


def _crowded(task: int, need: Need, room: Room, rules: Rules) -> Refusal | None:
    """Refusals that have nothing to do with bytes: slots, exclusive neighbours, load."""
    key = room.device.key
    per_device = rules.slots if rules.slots is not None else rules.max_per_device
    if per_device is not None and room.ours >= per_device:
        return Refusal(task, "slots", key, wanted=1, room=0, total=per_device)
    if room.taken_alone or (need.alone and room.residents > 0):
        return Refusal(task, "alone", key, wanted=1, room=room.residents)
    if rules.slots is None and room.residents > 0 and need.cores > room.load + 1e-9:
        return Refusal(task, "load", key, round(need.cores * 100), round(max(room.load, 0) * 100))
    return None


def _fit_bytes(task: int, need: Need, room: Room, cap: int | None, rules: Rules) -> int | Refusal:
    """The bytes to promise, cut at the device; a task too big for the buffer runs alone without it."""
    key = room.device.key
    most = largest(room.device, cap)
    if need.bytes is None:
        promise = int(room.bytes * rules.unknown_share)
        if promise < rules.unknown_least:
            return Refusal(task, "memory", key, rules.unknown_least * 2, max(room.bytes, 0), most)
        return promise
    if need.bare > most:
        return Refusal(task, "never", key, need.bare, max(room.bytes, 0), most)
    alone = need.bare > most - rules.buffer
    limit, available = most if alone else most - rules.buffer, room.bytes
    if room.residents == 0:
        available += rules.buffer if alone else 0
        limit = min(limit, available)  # nobody's end would ever give it more
    least = need.bare if not need.retried or room.residents else int(need.bare * NEARLY)
    promise = max(least, min(need.bytes, limit))
    if promise > available:
        return Refusal(task, "memory", key, promise, max(available, 0), most)
    return promise


def take(room: Room, placement: Placement) -> None:
    """Book a placement on the working copy, so that the next one of this pass sees it."""
    room.bytes -= placement.promise[room.device.key]
    room.load -= placement.cores
    room.residents += 1
    room.ours += 1
    room.taken_alone = room.taken_alone or placement.alone
