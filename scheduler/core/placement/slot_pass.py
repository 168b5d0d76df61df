"""One decision of a run with slots: the best-ranked task for each empty slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import HOST, Decision, Machine, Placement, Profiling, Purpose, Terms
from scheduler.core.placement import fit
from scheduler.core.placement.device_capacity import DeviceCapacity, is_called
from scheduler.core.placement.queue_pass import QueuePass
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.placement.scratch_machine import ScratchCapacity
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.queue.fair_share import Contenders
from scheduler.core.run_state import RunState
from scheduler.values import replace


def decide(brain: RunState, machine: Machine) -> Decision:
    """Go through the queue by rank until no task or no empty slot is left."""
    return SlotPass(brain, machine).decide()


class SlotPass(QueuePass):
    """One pass that gives each empty slot the best-ranked task that may use it."""

    def __init__(self, brain: RunState, machine: Machine) -> None:
        capacity = brain.capacity.look(machine)
        self.rooms = ScratchCapacity(capacity.rooms)
        self.slots = in_turn([self.rooms[key] for key in capacity.rooms], brain.freed)
        super().__init__(brain, machine, slots=True)

    def _is_full(self) -> bool:
        return all(slot.ours or slot.closed or slot.shut is not None for slot in self.slots)

    def _count(self, terms: Terms) -> int:
        return len(self.slots[0].device.cards or ())

    def _give_way(self, queue: Contenders, task: int) -> None:
        queue.give_way(task, self.rooms)

    def _fit_now(self, task: WaitingTask) -> Placement | Refusal:
        attempt = (task.tried.attempts if task.tried else 0) + 1
        need = partial(self.brain.need, task.number)
        tried = fit_slot(task.number, attempt, need, self._may(task.terms), self.rooms, self.rules)
        if self.allowed is None or isinstance(tried, Refusal):
            return tried
        asked = need(len(tried.gpus))
        return self.allowed.refuses(task.number, asked) or self.allowed.cut(tried, asked)

    def _may(self, terms: Terms) -> list[DeviceCapacity]:
        """Return the slots that a task with these terms may use, preferred ones first."""
        may = [room for room in self.slots if not terms.device or is_called(room.device, terms.device)]
        return sorted(may, key=lambda room: not (terms.prefer and is_called(room.device, terms.prefer)))

    def _use(self, placement: Placement) -> None:
        fit.take(self.rooms, placement)

    def _keep_devices(self, task: WaitingTask, refusal: Refusal) -> None:
        """Keep for a task every slot that it may use."""
        for room in self._may(task.terms):
            room.closed, room.kept_for = True, f"task {task.number} of this run"


def in_turn(rooms: Iterable[DeviceCapacity], freed: Iterable[str]) -> list[DeviceCapacity]:
    """Return the slots in the order of use: the slot that became free last comes first. Slots that were never used
    follow, in the order in which they are listed.
    """
    newest = {key: place for place, key in enumerate(reversed(list(freed)))}
    slots = [room for room in rooms if room.device.is_slot]
    return sorted(slots, key=lambda room: newest.get(room.device.key, len(newest)))


def fit_slot(
    task: int,
    attempt: int,
    need: Callable[[int], ResourceRequest],
    slots: Sequence[DeviceCapacity],
    rooms: Mapping[str, DeviceCapacity],
    rules: SchedulingConfig,
) -> Placement | Refusal:
    """Return the placement of a task in the first empty slot, or a refusal; `need` returns the task's request when
    given a number of GPUs.

    The lease states how much memory the task is expected to use, so that other schedulers leave that memory free. It
    does not limit the other slots of this run.
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
    """Return the request of a real attempt in place of that of a probe, unless the user wants probes."""
    probes = rules.learn_only or rules.profile is Profiling.PROBE
    return need if probes else replace(need, purpose=Purpose.RUN)


def _taken(task: int, slot: DeviceCapacity) -> Refusal | None:
    if slot.shut is not None:
        return replace(slot.shut, task=task)
    if slot.closed:
        return Refusal(task, Reason.KEPT, slot.device.label, text=slot.kept_for)
    return Refusal(task, Reason.SLOTS, slot.device.label, wanted=1, total=1) if slot.ours else None


def _closed(task: int, need: ResourceRequest, under: Sequence[DeviceCapacity]) -> Refusal | None:
    """Return why a task cannot start even in an empty slot: a device of the slot does not answer, is kept for others,
    or would have to be used by one task alone.
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
        reservation[key] = fit.regardless(ask, rooms[key], _share(rooms[key], rooms.values(), rules))
    cores = need.cores
    if HOST in rooms:
        reservation[HOST] = fit.regardless(need.host, rooms[HOST], _share(rooms[HOST], rooms.values(), rules))
        cores = min(cores, rooms[HOST].device.load_capacity)
    busy = need.busy if need.gpus else 0.0
    expected = bool(need.gpus) and HOST in rooms and need.host.is_expected
    return Placement(
        task, attempt, need.purpose, reservation, cores, need.source, need.alone, busy=busy, ram_expected=expected
    )


def _share(room: DeviceCapacity, rooms: Iterable[DeviceCapacity], rules: SchedulingConfig) -> int:
    """Return the expected need of a task of unknown memory: an equal share of the device for each of its slots."""
    slots = (one.device for one in rooms if one.device.is_slot)
    number = sum(room.device.key == HOST or room.device.key in (slot.cards or ()) for slot in slots)
    return (room.most - rules.buffer) // number
