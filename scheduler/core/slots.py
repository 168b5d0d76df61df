"""Slots: places that the user named, one task each; what a task needs is learned there and never holds it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.core.model import HOST, Placement, Profiling, Purpose, Refusal
from scheduler.core.packing import Need, Room
from scheduler.core.rules import Rules


def in_turn(rooms: Iterable[Room], freed: Iterable[str]) -> list[Room]:
    """The slots in the order in which they are taken: the one that came free last, then those never used as listed."""
    newest = {key: place for place, key in enumerate(reversed(list(freed)))}
    slots = [room for room in rooms if room.device.is_slot]
    return sorted(slots, key=lambda room: newest.get(room.device.key, len(newest)))


def fit(
    task: int,
    attempt: int,
    need: Callable[[int], Need],
    slots: Sequence[Room],
    rooms: Mapping[str, Room],
    rules: Rules,
) -> Placement | Refusal:
    """Place a task in the first of these slots that is empty; `need` is what it asks for on so many GPUs.

    The lease says what it is expected to take of the cards, so that others leave that alone; it is no lock here.
    """
    refusal: Refusal | None = None
    for slot in slots:
        refused = _taken(task, slot)
        if refused is None:
            asked = _for_real(need(len(slot.device.cards or ())), rules)
            refused = _closed(task, asked, [rooms[key] for key in slot.device.cards or (HOST,) if key in rooms])
            if refused is None:
                return _placed(task, attempt, asked, slot, rooms, rules)
        refusal = refusal if refusal is not None and refused.reason == "slots" else refused
    return refusal or Refusal(task, "device")


def _for_real(need: Need, rules: Rules) -> Need:
    """Nobody waits for a probe here, unless that was asked for."""
    probes = rules.learn_only or rules.profile is Profiling.PROBE
    return need if probes else replace(need, purpose=Purpose.RUN)


def _taken(task: int, slot: Room) -> Refusal | None:
    if slot.shut is not None:
        return replace(slot.shut, task=task)
    if slot.closed:
        return Refusal(task, "closed", slot.device.label)
    return Refusal(task, "slots", slot.device.label, wanted=1, total=1) if slot.ours else None


def _closed(task: int, need: Need, under: Sequence[Room]) -> Refusal | None:
    """What keeps even an empty slot empty: a card that does not answer or is kept for others, somebody alone on it."""
    for room in under:
        label = room.device.label
        if room.shut is not None and room.shut.reason in ("closed-device", "disabled", "unreadable"):
            return replace(room.shut, task=task)
        if room.closed:
            return Refusal(task, "closed", label)
        if room.taken_alone or (need.alone and room.residents > 0):
            return Refusal(task, "alone", label, wanted=1, room=room.residents)
    return None


def _placed(task: int, attempt: int, need: Need, slot: Room, rooms: Mapping[str, Room], rules: Rules) -> Placement:
    promise = {slot.device.key: 0}
    for key, ask in zip(slot.device.cards or (), need.gpus, strict=True):
        promise[key] = _share(rooms[key], rooms.values(), rules) if ask.bytes is None else ask.bytes
    cores = need.cores
    if HOST in rooms:
        promise[HOST] = need.host.bytes or 0
        cores = min(cores, rooms[HOST].device.load_capacity)
    busy = need.busy if need.gpus else 0.0
    return Placement(task, attempt, need.purpose, promise, cores, need.known_by, need.alone, busy=busy)


def _share(card: Room, rooms: Iterable[Room], rules: Rules) -> int:
    """What somebody unknown is taken to need of a card: as much as each of its slots can have, or what is left."""
    slots = sum(card.device.key in (room.device.cards or ()) for room in rooms)
    return max(0, min(card.bytes, (card.most - rules.buffer) // slots))
