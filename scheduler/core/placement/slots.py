"""Slots: places named by the user, one task each. A task's need is learned there and never holds it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import HOST, Placement, Profiling, Purpose
from scheduler.core.placement.device_capacity import DeviceCapacity
from scheduler.core.placement.fit import regardless
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import ResourceRequest


def in_turn(rooms: Iterable[DeviceCapacity], freed: Iterable[str]) -> list[DeviceCapacity]:
    """Return the slots in the order in which they are used: the one that came free last, then unused ones as listed."""
    newest = {key: place for place, key in enumerate(reversed(list(freed)))}
    slots = [room for room in rooms if room.device.is_slot]
    return sorted(slots, key=lambda room: newest.get(room.device.key, len(newest)))


def fit(
    task: int,
    attempt: int,
    need: Callable[[int], ResourceRequest],
    slots: Sequence[DeviceCapacity],
    rooms: Mapping[str, DeviceCapacity],
    rules: SchedulingConfig,
) -> Placement | Refusal:
    """Place a task in the first of these slots that is empty; `need` returns its request for a number of GPUs.

    The lease states what it is expected to use of the cards, so that others leave that alone; it is no lock here.
    """
    refusal: Refusal | None = None
    for slot in slots:
        refused = _taken(task, slot)
        if refused is None:
            asked = _for_real(need(len(slot.device.cards or ())), rules)
            refused = _closed(task, asked, [rooms[key] for key in slot.device.cards or (HOST,) if key in rooms])
            if refused is None:
                return _placed(task, attempt, asked, slot, rooms, rules)
        refusal = refusal if refusal is not None and refused.reason is Reason.SLOTS else refused
    return refusal or Refusal(task, Reason.DEVICE)


def _for_real(need: ResourceRequest, rules: SchedulingConfig) -> ResourceRequest:
    """Return the request without a probe, unless probes were requested."""
    probes = rules.learn_only or rules.profile is Profiling.PROBE
    return need if probes else replace(need, purpose=Purpose.RUN)


def _taken(task: int, slot: DeviceCapacity) -> Refusal | None:
    if slot.shut is not None:
        return replace(slot.shut, task=task)
    if slot.closed:
        return Refusal(task, Reason.KEPT, slot.device.label, text=slot.kept_for)
    return Refusal(task, Reason.SLOTS, slot.device.label, wanted=1, total=1) if slot.ours else None


def _closed(task: int, need: ResourceRequest, under: Sequence[DeviceCapacity]) -> Refusal | None:
    """Return what keeps even an empty slot empty: a card that does not answer or is kept for others, a task alone on
    it.
    """
    for room in under:
        label = room.device.label
        if room.shut is not None and room.shut.reason.is_device_closed:
            return replace(room.shut, task=task)
        if room.closed:
            return Refusal(task, Reason.KEPT, label, text=room.kept_for)
        if room.taken_alone or (need.alone and room.residents > 0):
            return Refusal(task, Reason.ALONE, label, wanted=1, room=room.residents)
    return None


def _placed(
    task: int,
    attempt: int,
    need: ResourceRequest,
    slot: DeviceCapacity,
    rooms: Mapping[str, DeviceCapacity],
    rules: SchedulingConfig,
) -> Placement:
    reservation = {slot.device.key: 0}
    for key, ask in zip(slot.device.cards or (), need.gpus, strict=True):
        reservation[key] = regardless(ask, rooms[key], _share(rooms[key], rooms.values(), rules))
    cores = need.cores
    if HOST in rooms:
        reservation[HOST] = regardless(need.host, rooms[HOST], _share(rooms[HOST], rooms.values(), rules))
        cores = min(cores, rooms[HOST].device.load_capacity)
    busy = need.busy if need.gpus else 0.0
    expected = bool(need.gpus) and HOST in rooms and need.host.is_expected
    return Placement(
        task, attempt, need.purpose, reservation, cores, need.source, need.alone, busy=busy, ram_expected=expected
    )


def _share(room: DeviceCapacity, rooms: Iterable[DeviceCapacity], rules: SchedulingConfig) -> int:
    """Return the expected need of an unknown task: an equal share of the device for each slot on it."""
    slots = (one.device for one in rooms if one.device.is_slot)
    number = sum(room.device.key == HOST or room.device.key in (slot.cards or ()) for slot in slots)
    return (room.most - rules.buffer) // number
