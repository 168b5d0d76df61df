"""Why a task waits, as data: what it asks for, what each device has, who holds it, when there may be room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf

from scheduler.core import estimate, packing
from scheduler.core.brain import Brain
from scheduler.core.deciding import Pass
from scheduler.core.explain import waiting, waits
from scheduler.core.filling import Filling
from scheduler.core.lifecycle import Task
from scheduler.core.model import HOST, KnownBy, Machine, Placement, Refusal, State
from scheduler.core.packing import Ask, Need, Room
from scheduler.core.ports import Answer, Key
from scheduler.values import dataclass

MOST_GROUPS = 500
"""Of a whole run so many groups of equal tasks are asked, the best-ranked first; a list has a handful of them."""
OTHERS, STRANGERS = "other runs", "people without a lease"
UNLEASED, BUFFER = "what runs without the scheduler", "the buffer"


@dataclass(frozen=True, slots=True)
class Held:
    """Who has how much of a device."""

    who: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Stand:
    """One device that a task may run on, as a decision sees it."""

    device: str
    room: int
    total: int
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class Wants:
    """What a task asks for on each of its devices, and how that is known."""

    bytes: int | None
    """None: nobody knows."""
    peak: int
    """What of it was said or seen; the rest is margin."""
    gpus: int
    known_by: KnownBy
    share: float = 0.0
    margin: int = 0
    """`peak` and this share of it and so many bytes more are `bytes`; both 0 where it was made otherwise."""
    ooms: int = 0
    """How often it ran out of memory before."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Why one task does not start now."""

    refusal: Refusal
    wants: Wants
    devices: tuple[Stand, ...] = ()
    overtaken: int = 0
    """How many that rank behind it were started while it waited."""
    at_most: int = 0
    """How many may be."""
    room_in: float | None = None
    """Seconds until there may be room; None: nobody knows."""
    after: int = 0
    """The task of this run whose end makes it."""


def answers(
    brain: Brain, machine: Machine, tasks: Sequence[int], lasts: Mapping[Key, float], full: str = ""
) -> list[Answer]:
    """Why these tasks wait, those that do; without any: for what all of the run wait. `full`: of which disk."""
    if not tasks:
        found = Counter({"full": brain.waiting}) if full else of_run(brain, machine)
        return [Answer((), True, waiting(found), {"reasons": dict(found)})]
    said = []
    for task in tasks:
        if task in brain.roll and brain.state(task) is State.WAITING:
            one = of_task(brain, machine, task, lasts)
            if full:
                one = replace(one, refusal=Refusal(task, "full", text=full))
            said.append(Answer((task,), True, waits(one), asdict(one)))
    return said


def of_task(brain: Brain, machine: Machine, task: int, lasts: Mapping[Key, float]) -> Waits:
    """What a waiting task waits for; `lasts`: seconds that each living attempt still takes, where that is known."""
    asked = _asker(brain, machine)
    refusal = _refusal(brain, asked, task)
    need = brain.need(task, packing.gpus_of(brain.terms[brain.roll.terms(task)], bool(brain.yard.gpus)))
    rooms = _may_run_on(brain, task, need)
    soon = _room_in(brain, need, refusal, rooms, lasts) if refusal.reason in _FOR_ROOM else (None, 0)
    return Waits(
        refusal,
        _wants(brain, task, need),
        tuple(_stand(brain, machine, room) for room in rooms),
        brain.line.overtaken(task),
        brain.rules.overtakes,
        *soon,
    )


def of_run(brain: Brain, machine: Machine) -> Counter[str]:
    """How many tasks wait for what, by the reasons of refusals, with `@host` behind those that are about RAM."""
    groups: dict[tuple[int, int, bool], list[int]] = {}
    for task in brain.roll.in_state(State.WAITING):
        groups.setdefault((brain.roll.terms(task), brain.roll.kind(task), task in brain.tasks), []).append(task)
    found: Counter[str] = Counter()
    asked = _asker(brain, machine)
    first = sorted(groups.values(), key=lambda tasks: brain.line.rank(tasks[0]))
    for number, tasks in enumerate(first):
        refusal = _refusal(brain, asked, tasks[0]) if number < MOST_GROUPS else Refusal(tasks[0], "unlooked")
        found[refusal.reason + ("@host" if refusal.device == HOST else "")] += len(tasks)
    return found


_FOR_ROOM = frozenset({"memory", "unknown", "spent", "alone", "load", "busy", "slots", "clients"})
_FULL = frozenset({"slots", "clients"})


def _asker(brain: Brain, machine: Machine) -> Pass | Filling:
    """A pass that has decided already: whoever is asked for now stands behind all that it came to."""
    brain.yard.look(machine)
    made = Filling(brain, machine) if brain.yard.has_slots else Pass(brain, machine)
    made.decide()
    return made


def _refusal(brain: Brain, asked: Pass | Filling, task: int) -> Refusal:
    if brain.draining:
        return Refusal(task, "draining")
    if any(placement.task == task for placement in asked.placements):
        return Refusal(task, "next")
    if asked.left <= 0:
        return asked.one_too_many(task)
    tried = asked.ask(task)
    return tried if isinstance(tried, Refusal) else Refusal(task, "next")


def _wants(brain: Brain, task: int, need: Need) -> Wants:
    ask = max(need.gpus, key=lambda one: one.bytes or 0) if need.gpus else need.host
    share, margin = _margin(brain, ask)
    touched = brain.task(task)
    peak = ask.bare or ask.least
    return Wants(ask.bytes, peak, len(need.gpus), need.known_by, share, margin, touched.ooms if touched else 0)


def _margin(brain: Brain, ask: Ask) -> tuple[float, int]:
    """What was added to a peak that was seen."""
    rules, peak = brain.rules, ask.bare or ask.least
    if ask.bytes is not None and ask.bytes == estimate.with_margin(peak, rules):
        return rules.margin, rules.margin_bytes
    if ask.bytes is not None and ask.bytes == int(peak * (1 + rules.tight_margin)) + rules.tight_margin_bytes:
        return rules.tight_margin, rules.tight_margin_bytes
    return 0.0, 0


def _may_run_on(brain: Brain, task: int, need: Need) -> list[Room]:
    """The devices that a task may run on, as they are; the host's RAM where it has no GPUs."""
    rooms, word = brain.yard.rooms, brain.terms[brain.roll.terms(task)].device
    if brain.yard.has_slots:
        keys: Iterable[str] = (key for key in rooms if rooms[key].device.is_slot)
    else:
        keys = brain.yard.gpus if need.gpus else [key for key in rooms if key == HOST]
    return [rooms[key] for key in keys if not word or packing.is_called(rooms[key].device, word)]


def _stand(brain: Brain, machine: Machine, room: Room) -> Stand:
    """Who holds how much of a device, the most first."""
    key = room.device.key
    held = [Held(f"task {p.task}", p.promise[key]) for p in brain.placements() if p.promise.get(key)]
    others = sum(hold.promised.get(key, 0) for hold in machine.holds)
    held += [Held(OTHERS, others)] if others else []
    held += [Held(STRANGERS, room.strangers)] if room.strangers else []
    rest = room.most - max(0, room.bytes) - brain.rules.buffer - sum(one.bytes for one in held)
    held += [Held(UNLEASED, rest)] if rest > brain.rules.peak_step_bytes else []
    held.sort(key=lambda one: -one.bytes)
    held += [Held(BUFFER, brain.rules.buffer)] if brain.rules.buffer else []
    return Stand(room.device.label, max(0, room.bytes), room.most, tuple(held))


def _room_in(
    brain: Brain, need: Need, refusal: Refusal, rooms: Iterable[Room], lasts: Mapping[Key, float]
) -> tuple[float | None, int]:
    """When as many devices as it needs may have room, and whose end makes it; only ends of this run's are foreseen."""
    asks = need.gpus or (need.host,)
    bytes_ = refusal.wanted if refusal.reason == "unknown" else max(ask.bytes or 0 for ask in asks)
    soon = sorted(_room_on(brain, room, need, bytes_, refusal.reason in _FULL, lasts) for room in rooms)
    at, after = soon[len(asks) - 1] if len(soon) >= len(asks) else (inf, 0)
    return (at, after) if at < inf else (None, 0)


def _room_on(
    brain: Brain, room: Room, need: Need, bytes_: int, full: bool, lasts: Mapping[Key, float]
) -> tuple[float, int]:
    """When one device may have room, if nobody else comes; one that is full of tasks has it with the first end."""
    left, load = replace(room), need.busy if room.device.is_gpu else need.cores
    bytes_ = min(bytes_, room.most - brain.rules.buffer)
    here = [task for task in brain.living() if task.placement and room.device.key in task.placement.promise]
    ends = sorted((lasts.get((task.id, task.attempts), inf), task.id) for task in here)
    for at, number in [(0.0, 0), *ends]:
        if number:
            _give_back(left, brain.tasks[number])
        elif full or left.taken_alone:
            continue
        enough = left.bytes >= bytes_ and load <= left.load + packing.ENOUGH
        if (full and number) or (left.residents <= 0 and number) or (enough and not need.alone):
            return at, number
    return inf, 0


def _give_back(room: Room, task: Task) -> None:
    placement: Placement | None = task.placement
    assert placement is not None
    key = room.device.key
    room.bytes += max(placement.promise[key], task.peak.get(key, 0))
    room.load += placement.load.get(key, 0.0)
    room.residents -= 1
