"""Does it fit: the room on each device, and placements or refusals with their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.model import (
    HOST,
    Budget,
    Device,
    Hold,
    KnownBy,
    Machine,
    Manners,
    Placement,
    Purpose,
    Refusal,
    Terms,
)
from scheduler.core.rules import Rules
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.core.promises import Lease

NEARLY = 0.9
"""What ran out of memory on a whole device is tried again on nearly that much: it was stopped at the device's edge, a
little above what is free there now, and would wait for ever for the rest."""
ENOUGH = 1e-9


@dataclass(slots=True)
class Room:
    """The working copy of one device during a pass: what is left of it as placements are made."""

    device: Device
    most: int
    """The most that one task can ever hold here."""
    bytes: int
    load: float
    residents: int
    """Live leases of anybody."""
    ours: int
    """Attempts of this run."""
    closed: bool = False
    taken_alone: bool = False
    strangers: int = 0
    """What people without a lease hold here."""
    coming: bool = False
    """Whether memory is just coming back here, so that what is free is not yet all there will be."""
    shut: Refusal | None = None
    """Why nothing starts here at all, whatever it needs."""

    def copy(self) -> Room:
        """One that may be changed; dataclasses.replace takes four times as long, and a pass makes many."""
        return Room(
            self.device,
            self.most,
            self.bytes,
            self.load,
            self.residents,
            self.ours,
            self.closed,
            self.taken_alone,
            self.strangers,
            self.coming,
            self.shut,
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """What a task asks of one of its devices; no bytes means unknown."""

    bytes: int | None
    bare: int = 0
    """What of it was really said or seen; all above that is margin, and is cut where the device ends."""
    retried: bool = False
    """It ran out of memory before; the number of its tries is bounded."""
    had: int = 0
    """What it was promised then."""
    wanted: int = 0
    """What it held then, and asked for besides."""
    least: int = 0
    """What it is taken to need at least, though nobody saw it hold that: something like it needed so much, or ran out
    of memory or failed with it."""

    @property
    def is_plain(self) -> bool:
        """Whether it is so many bytes and nothing else."""
        return self.bytes is not None and not (self.retried or self.had or self.least)


@dataclass(frozen=True, slots=True)
class Need:
    """What a task asks of the machine: bytes of RAM, bytes on each of its GPUs in its own order, cores, load."""

    host: Ask
    cores: float
    known_by: KnownBy
    gpus: tuple[Ask, ...] = ()
    busy: float = 0.0
    alone: bool = False
    purpose: Purpose = Purpose.RUN

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what it needs where it runs."""
        return any(ask.bytes is None for ask in self.gpus or (self.host,))


def others_hold(lease: Lease, used: Mapping[str, int]) -> Hold:
    """Another scheduler's lease; what cannot be seen of it counts as not taken yet: that wastes, never overcommits."""
    return Hold(
        promised=lease.promised,
        used=used,
        load=lease.load,
        unreadable=lease.unreadable,
        alone=lease.alone,
        uid=lease.uid,
        since=lease.since,
    )


def room_on(budget: Budget, taken: Iterable[tuple[int, int]], buffer: int) -> int:
    """Bytes that may be promised on a device of which others were promised so much, and have taken so much.

    Free now, less what is promised but not yet taken, less the buffer; a budget set by the user is on top of that.
    Never free alone and never promises alone: each of these overcommits.
    """
    untaken = used_ = 0
    for promised, used in taken:
        used_ += used
        if promised > used:
            untaken += promised - used
    room = budget.free - untaken - buffer
    return room if budget.cap is None else min(room, budget.cap - used_ - untaken - buffer)


def rooms(machine: Machine, own: Iterable[Placement], rules: Rules) -> dict[str, Room]:
    """The room on every device, before this pass places anything."""
    mine = list(own)
    return {budget.device.key: room(budget, mine, machine, rules) for budget in machine.budgets}


def room(budget: Budget, mine: Sequence[Placement], machine: Machine, rules: Rules) -> Room:
    """The room on one device; of our own promises it needs those that live there."""
    found = _room(budget, mine, machine, rules)
    found.coming = _is_coming(budget, machine, rules)
    return found


def _is_coming(budget: Budget, machine: Machine, rules: Rules) -> bool:
    if budget.ghosts >= rules.peak_step_bytes:
        return True
    ended = machine.ended.get(budget.device.key)
    return ended is not None and machine.now - budget.age < ended + rules.back_after


def _room(budget: Budget, mine: Sequence[Placement], machine: Machine, rules: Rules) -> Room:
    device, key = budget.device, budget.device.key
    load = device.load_capacity * (rules.max_gpu_load if device.is_gpu else rules.max_load)
    taken: list[tuple[int, int]] = []
    ours, busy, alone, whose = 0, 0.0, False, ""
    seen, is_gpu = machine.used, device.is_gpu
    for placement in mine:  # one loop for all: it is most of what a device costs a pass on which something changed
        promised = placement.promise.get(key)
        if promised is None:
            continue
        used = seen.get((placement.task, placement.attempt)) if seen else None
        taken.append((promised, used.get(key, 0) if used else 0))
        busy += placement.busy if is_gpu else placement.load_on(device)
        ours += 1
        alone = alone or (placement.alone and key in placement.devices)
    residents = ours
    for hold in machine.holds:
        taken.append((hold.promised.get(key, 0), hold.used.get(key, 0)))
        residents += key in hold.promised
        busy += hold.load.get(key, 0.0)
        alone = alone or (hold.alone and _runs_on(key, hold.promised))
        if hold.unreadable and (not hold.promised or _runs_on(key, hold.promised)):
            whose = hold.unreadable
    held = sum(stranger.bytes for stranger in budget.foreign) if budget.foreign else 0
    single = device.single and not rules.mps and (residents > 0 or held > 0)
    return Room(
        device=device,
        most=largest(device, budget.cap),
        bytes=room_on(budget, taken, rules.buffer) - kept_for_strangers(budget, rules),
        load=load - busy,
        residents=residents,
        ours=ours,
        taken_alone=single or alone,
        strangers=held,
        shut=_shut(budget, rules) or (Refusal(0, "unreadable", device.label, text=whose) if whose else None),
    )


def _runs_on(key: str, promised: Mapping[str, int]) -> bool:
    """Whether that is a device it runs on: its GPUs, or the host where it has none."""
    return key in promised and (key != HOST or len(promised) == 1)


def kept_for_strangers(budget: Budget, rules: Rules) -> int:
    """Bytes that people without a lease may still come to need on a GPU they use."""
    if not budget.foreign:
        return 0
    held = sum(stranger.bytes for stranger in budget.foreign)
    if rules.manners is Manners.IGNORE or held < rules.foreign_least or not budget.device.is_gpu:
        return 0
    return max(rules.foreign_room, int(held * rules.foreign_share))


def _shut(budget: Budget, rules: Rules) -> Refusal | None:
    """Nothing starts on a device that does not answer, nor beside a stranger who has just come or still grows."""
    label = budget.device.label
    if budget.device.key in rules.closed:
        return Refusal(0, "disabled", label)
    if budget.closed:
        return Refusal(0, "closed-device", label, text=budget.closed)
    if not budget.foreign or not kept_for_strangers(budget, rules):
        return None
    held = sum(stranger.bytes for stranger in budget.foreign)
    who = ", ".join(sorted({stranger.user for stranger in budget.foreign if stranger.user}))
    if rules.manners is Manners.AVOID:
        return Refusal(0, "foreign", label, room=held, text=who)
    calm = min(stranger.calm for stranger in budget.foreign)
    if calm < rules.foreign_calm:
        return Refusal(0, "young", label, wanted=int(rules.foreign_calm - calm) + 1, room=held, text=who)
    return None


def largest(device: Device, cap: int | None) -> int:
    """The most that one task can ever hold on a device."""
    return device.total if cap is None else min(device.total, cap)


def gpus_of(terms: Terms, some: bool) -> int:  # whether the machine has any
    """How many GPUs a task gets: as its row says, else one where there are any."""
    if terms.gpus is not None:
        return terms.gpus
    return 1 if some else 0


def is_called(device: Device, word: str) -> bool:
    """Whether people can mean this device: number as nvidia-smi counts, UUID or its beginning, `host`, slot's name."""
    if word in (device.key, device.label) or (device.is_gpu and word == str(device.index)):
        return True
    if device.is_slot:
        return device.label == f"slot {word}"
    return device.is_gpu and len(word) >= len("GPU-") + 4 and device.key.startswith(word)


def never_fits(terms: Terms, budgets: Iterable[Budget]) -> Refusal | None:
    """Whether what the row declares is above every device, with the numbers."""
    all_ = list(budgets)
    gpus = gpus_of(terms, any(b.device.is_gpu for b in all_))
    host = terms.host_memory if gpus else declared(terms, 0)
    asked = [(declared(terms, gpus), True)] if gpus else []
    for need, on_gpus in [*asked, (host, False)]:
        fitting = [b for b in all_ if b.device.is_gpu is on_gpus]
        totals = {b.device.label: largest(b.device, b.cap) for b in fitting}
        label = max(totals, key=lambda k: totals[k], default="")
        if need is not None and label and need > totals[label]:
            return Refusal(task=0, reason="never", device=label, wanted=need, total=totals[label])
    return None


def declared(terms: Terms, gpus: int = 0) -> int | None:
    """What the row says its task holds on each of its GPUs; on the host, where it has none."""
    if gpus or terms.memory is not None:
        return terms.memory
    return terms.host_memory


def fit(  # a task, what it needs, what there is
    task: int, attempt: int, need: Need, gpus: Sequence[Room], host: Room | None, rules: Rules, expected: float = 0.0
) -> Placement | Refusal:
    """Place one task: on as many of these GPUs as it asks for, the best first, and in the host's RAM beside them.

    All of it fits, or nothing is placed and the number is named by which it misses.
    """
    promise = room_for(task, need, gpus, host, rules)
    if isinstance(promise, Refusal):
        return promise
    return placed(task, attempt, need, promise, host, expected)


def room_for(task: int, need: Need, gpus: Sequence[Room], host: Room | None, rules: Rules) -> dict[str, int] | Refusal:
    """The bytes to promise on each device."""
    promise: dict[str, int] = {}
    if need.gpus:
        chosen = _choose(task, need, gpus, rules)
        if isinstance(chosen, Refusal):
            return chosen
        promise = dict(chosen)
    if host is not None:
        fitted = (_beside if need.gpus else _on)(task, need, need.host, host, rules)
        if isinstance(fitted, Refusal):
            return fitted
        promise[HOST] = fitted
    return promise


def placed(  # all that a placement says
    task: int, attempt: int, need: Need, promise: Mapping[str, int], host: Room | None, expected: float
) -> Placement:
    """The placement of a task for which there is so much room."""
    cores = need.cores if host is None else min(need.cores, host.device.load_capacity)
    busy = need.busy if need.gpus else 0.0
    return Placement(
        task, attempt, need.purpose, promise, cores, need.known_by, need.alone, busy=busy, expected=expected
    )


def _choose(task: int, need: Need, gpus: Sequence[Room], rules: Rules) -> Refusal | list[tuple[str, int]]:
    """A GPU for each that it asks for, those that ask for most first; what each is promised, in the task's order."""
    if len(need.gpus) > len(gpus):
        return Refusal(task, "gpus", wanted=len(need.gpus), total=len(gpus))
    if len(need.gpus) == 1:
        return _choose_one(task, need, gpus, rules)
    places: dict[int, tuple[str, int]] = {}
    taken: set[str] = set()
    by_size = sorted(range(len(need.gpus)), key=lambda place: -(need.gpus[place].bytes or 0))
    for place in by_size:
        refusal: Refusal | None = None
        for room in gpus:
            if room.device.key in taken:
                continue
            fitted = _on(task, need, need.gpus[place], room, rules)
            if isinstance(fitted, int):
                places[place] = (room.device.key, fitted)
                taken.add(room.device.key)
                break
            refusal = better(refusal, fitted)
        else:
            return refusal or Refusal(task, "gpus", wanted=len(need.gpus), total=len(gpus))
    return [places[place] for place in range(len(need.gpus))]


def _choose_one(task: int, need: Need, gpus: Sequence[Room], rules: Rules) -> Refusal | list[tuple[str, int]]:
    """The same for one GPU."""
    refusal: Refusal | None = None
    for room in gpus:
        fitted = _on(task, need, need.gpus[0], room, rules)
        if isinstance(fitted, int):
            return [(room.device.key, fitted)]
        refusal = better(refusal, fitted)
    return refusal or Refusal(task, "gpus", wanted=1, total=len(gpus))


def better(known: Refusal | None, new: Refusal) -> Refusal:
    """Of two devices' refusals the one that tells more: of a device it will fit on some day, with the most room."""
    if known is None or _hope(new) > _hope(known):
        return new
    if known.reason == new.reason == "never":
        return new if new.total > known.total else known
    return new if known.reason == new.reason == "memory" and new.room > known.room else known


def _hope(refusal: Refusal) -> int:
    return _HOPES.get(refusal.reason, 3)


_HOPES = {"never": 0, "disabled": 1, "closed-device": 1, "unreadable": 1, "foreign": 2}


def _on(task: int, need: Need, ask: Ask, room: Room, rules: Rules) -> int | Refusal:
    """The bytes to promise on a device that the task runs on."""
    crowd = _crowded(task, need, room, rules)
    if crowd is not None:
        return crowd
    if rules.slots is not None:
        return ask.bytes or 0
    return _fit_bytes(task, ask, room, rules)


def _beside(task: int, need: Need, ask: Ask, host: Room, rules: Rules) -> int | Refusal:
    """The RAM to promise to a task that runs on GPUs; what nobody knows yet only needs some to be left."""
    if host.closed or host.taken_alone:
        return Refusal(task, "closed" if host.closed else "alone", host.device.label, room=host.residents)
    if rules.slots is not None:
        return ask.bytes or 0
    if host.residents > 0 and need.cores > host.load + ENOUGH:
        return Refusal(task, "load", host.device.label, round(need.cores * 100), round(max(host.load, 0) * 100))
    if ask.bytes is not None:
        return _fit_bytes(task, ask, host, rules)
    return 0 if host.bytes > 0 else Refusal(task, "spent", host.device.label, total=host.most)


def _crowded(task: int, need: Need, room: Room, rules: Rules) -> Refusal | None:
    """Refusals that have nothing to do with bytes: strangers, slots, exclusive neighbours, load."""
    if room.closed:
        return Refusal(task, "closed", room.device.label)
    if room.shut is not None:
        return Refusal(task, room.shut.reason, room.device.label, room.shut.wanted, room.shut.room, text=room.shut.text)
    if rules.counts_residents:
        many = _too_many(task, room, rules)
        if many is not None:
            return many
    if room.taken_alone or (need.alone and room.residents > 0):
        return Refusal(task, "alone", room.device.label, wanted=1, room=room.residents)
    return _too_busy(task, need, room, rules) if room.residents > 0 and rules.slots is None else None


def _too_busy(task: int, need: Need, room: Room, rules: Rules) -> Refusal | None:
    """There is less load left than it asks for."""
    on_gpu = room.device.index >= 0
    if (load_asked(need.busy, rules) if on_gpu else need.cores) <= room.load + ENOUGH:
        return None
    said, asked = ("busy", need.busy) if on_gpu else ("load", need.cores)
    return Refusal(task, said, room.device.label, round(asked * 100), round(max(room.load, 0) * 100))


def _too_many(task: int, room: Room, rules: Rules) -> Refusal | None:
    """As many as the user allows, or as MPS takes, are there."""
    per_device = rules.max_per_device if rules.slots is None else rules.slots
    if per_device is not None and room.ours >= per_device:
        return Refusal(task, "slots", room.device.label, wanted=1, room=0, total=per_device)
    if rules.mps and room.device.is_gpu and room.residents >= rules.max_clients:
        return Refusal(task, "clients", room.device.label, room=room.residents, total=rules.max_clients)
    return None


def load_asked(busy: float, rules: Rules) -> float:
    """So much load must be left on a GPU that a task which keeps it so busy is started there."""
    return busy * rules.gpu_load_share


def _fit_bytes(task: int, ask: Ask, room: Room, rules: Rules) -> int | Refusal:
    """The bytes to promise, cut at the device; a task too big for the buffer runs alone without it."""
    most = room.most
    if room.residents and ask.is_plain and ask.bare <= most - rules.buffer:
        promise = max(ask.bare, min(ask.bytes or 0, most - rules.buffer))
        return promise if promise <= room.bytes else _too_little(task, promise, room)
    return _fit_odd_bytes(task, ask, room, rules)


def _too_little(task: int, promise: int, room: Room) -> Refusal:
    return Refusal(task, "memory", room.device.label, promise, max(room.bytes, 0), room.most)


def _fit_odd_bytes(task: int, ask: Ask, room: Room, rules: Rules) -> int | Refusal:
    """The same where nobody else is, or what it needs is not just so many bytes."""
    label, most = room.device.label, room.most
    proved = ask.wanted if ask.had >= most * NEARLY else ask.bare  # it had as good as all of such a device
    if max(proved, ask.bare) > most:
        return Refusal(task, "never", label, max(proved, ask.bare), max(room.bytes, 0), most)
    if ask.bytes is None:
        return _fit_unknown(task, ask, room, rules)
    whole = ask.bare > most - rules.buffer
    final = room.residents == 0 and not room.coming
    # nearly as much as a device holds beside the buffer may never be free beside it, either
    alone = whole or (final and max(room.bytes, (most - rules.buffer) * NEARLY) < ask.bare)
    limit, available = most if alone else most - rules.buffer, room.bytes
    if room.residents == 0:
        available += rules.buffer if alone else 0
    if final:
        limit = min(limit, available)  # nobody's end would ever give it more
    least = int(ask.bare * NEARLY) if final and (ask.retried or whole) else ask.bare
    least = max(least, min(ask.least, int((most - rules.buffer) * NEARLY)))
    promise = max(least, min(ask.bytes, limit))
    return promise if promise <= available else Refusal(task, "memory", label, promise, max(available, 0), most)


def _fit_unknown(task: int, ask: Ask, room: Room, rules: Rules) -> int | Refusal:
    """On a GPU all that is free, if that is at least half of it: that is the lock. On the host half of what is free."""
    label, most = room.device.label, room.most - rules.buffer
    known = min(ask.least, int(most * NEARLY))  # of a device that is idle all but that may be free
    if room.device.is_gpu:
        half = int((room.most - room.strangers) * rules.unknown_gpu_least)
        least = max(min(half, int(most * NEARLY)), known)
        if ask.retried and room.residents == 0 and not room.coming:
            least = min(least, int(most * NEARLY), max(room.bytes, 1))  # nobody's end would ever give it more
        return room.bytes if room.bytes >= least else Refusal(task, "unknown", label, least, room.bytes, room.most)
    if room.residents == 0 and not room.coming:
        known = min(known, room.bytes)  # what the system keeps does not end
    promise = max(int(room.bytes * rules.unknown_share), known)
    if promise < rules.unknown_least or promise > room.bytes:
        return Refusal(task, "memory", label, rules.unknown_least * 2, max(room.bytes, 0), room.most)
    return promise


def take(rooms_: Mapping[str, Room], placement: Placement) -> None:
    """Book a placement on the working copy, so that the next one of this pass sees it."""
    for key, bytes_ in placement.promise.items():
        room = rooms_[key]
        room.bytes -= bytes_
        room.load -= placement.load_on(room.device)
        room.residents += 1
        room.ours += 1
        if (room.device.single and not placement.percentage) or (placement.alone and key in placement.devices):
            room.taken_alone = True
