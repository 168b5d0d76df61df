"""The consequences of an out-of-memory: whether another attempt makes sense, and how much it reserves at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Edge, Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, DeviceBudget, Placement
from scheduler.core.placement.device_capacity import NEARLY, is_called, largest
from scheduler.core.profiling import estimator, observation
from scheduler.units import size
from scheduler.values import dataclass, replace

LAST_LOOK = 3.0
"""The age, in seconds, from which a measurement of a device is too old to judge an attempt: the attempt may have used
more since."""
Use = Mapping[tuple[int, int], Mapping[str, int]]
"""The bytes that each attempt uses, by (task, attempt) and by device."""


def raise_floors(task: TaskState, placement: Placement, event: Exited, rules: SchedulingConfig) -> None:
    """Raise the least reservation of a task's next attempt after an out-of-memory, but only for the kind of memory that
    ran out.
    """
    reserved, peaks = placement.by_part(placement.reservation), observation.peaks(task, placement, event)
    short = estimator.short_of(placement, event)
    least = min(peaks.get(part, 0) for part in short)
    for part in short:
        held, said = peaks.get(part, 0) if not event.asked else least, reserved.get(part, 0)
        task.seen[part] = max(task.seen.get(part, 0), peaks.get(part, 0))
        if event.asked:
            task.wanted[part] = (said, held + event.asked)
        floor = estimator.after_oom(said, held, rules, event.asked)
        task.floors[part] = max(task.floors.get(part, 0), floor)


@dataclass(frozen=True, slots=True)
class DeviceAtEnd:
    """A device on which an attempt ran out of memory, and the memory that the attempt had there."""

    budget: DeviceBudget
    reserved: int
    peak: int
    beside: int
    """Bytes of the device that everything except the attempt used."""
    largest: int
    """Bytes that the largest device of this type offers, among the devices that the task may use."""

    def was_whole(self, placement: Placement, rules: SchedulingConfig) -> bool:
        """Tell whether another attempt could hardly get more memory: this attempt had nearly all of the device
        reserved, or ran alone on it.
        """
        alone = placement.alone and largest(self.budget.device, self.budget.cap) >= self.largest
        return alone or self.reserved >= (self.largest - rules.buffer) * NEARLY

    def numbers(self) -> str:
        """Return a text for users about how much of the device was reserved for the attempt, and how much the attempt
        used.
        """
        seen = f", and {size(self.peak)} were seen in use" if self.peak else ""
        device = self.budget.device
        return f"{size(self.reserved)} of the {size(device.total)} of {device.label} were reserved for it{seen}"


def devices_at_end(
    exited: Exited, placement: Placement, budgets: Iterable[DeviceBudget], used: Use, named: str
) -> list[DeviceAtEnd]:
    """Return the devices on which an attempt ran out of memory; an empty list if one of these devices cannot be judged.

    `used` is the last measured use of all living attempts of this run; `named` is the device that the row of the
    attempt's task names.
    """
    known = {b.device.key: b for b in budgets if not b.closed and not b.device.is_slot and b.age < LAST_LOOK}
    keys = [HOST if part == HOST else placement.sees[int(part)] for part in estimator.short_of(placement, exited)]
    if any(key not in known for key in keys):
        return []
    own = used.get((exited.task, exited.attempt), {})
    found = []
    for key in keys:
        others = sum(use.get(key, 0) for use in used.values()) - own.get(key, 0)
        alike = [b for b in known.values() if b.device.is_gpu is known[key].device.is_gpu]
        may = [b for b in alike if not named or is_called(b.device, named)] or alike
        most = max(largest(b.device, b.cap) for b in may)
        peak = max(exited.peak.get(key, 0), own.get(key, 0))
        # A measurement after the end no longer shows the attempt's own use. That of the device may be older, and still
        # contain it.
        beside = max(others, _unexplained(known[key], own.get(key, 0) or peak))
        reserved = placement.reservation.get(key, 0)
        found.append(DeviceAtEnd(known[key], reserved, peak, beside, most))
    return found


def _unexplained(budget: DeviceBudget, own: int) -> int:
    """Return the bytes of a device that are in use, but by no attempt. If no process is known to use these bytes, only
    a large amount counts, because the driver and the system always use a little.
    """
    taken = budget.device.total - budget.free - own
    named = sum(one.bytes for one in budget.unmanaged) + budget.unreclaimed
    return max(named, taken if taken > budget.device.total * (1 - NEARLY) else 0)


def judged_at_edge(
    exited: Exited, task: TaskState, devices: Sequence[DeviceAtEnd], varies: bool, rules: SchedulingConfig
) -> Exited:
    """Return the event for an out-of-memory. If the attempt had nearly all of its devices, the event says what that
    means for the task.

    Because another attempt would get no more memory, the task is started at most once more, and only if something else
    used memory on these devices, or if the peaks of its class vary.
    """
    placement = task.placement
    if placement is None or not devices or not all(one.was_whole(placement, rules) for one in devices):
        return exited
    if exited.asked and all(one.peak + exited.asked > one.largest for one in devices):
        return exited  # it will be refused with what it needs
    most = max(devices, key=lambda one: one.beside)
    beside = most.beside if most.beside >= rules.unmanaged_least else 0
    label = most.budget.device.label
    if not (beside or varies):
        return replace(exited, edge=Edge.FINAL, reason=f"{exited.reason}: {most.numbers()}; {label} has no more for it")
    why = f"something else used {size(beside)} of {label}" if beside else "attempts like it have needed less"
    if task.edges:
        why = f"{why}, but it is the second time"
    return replace(exited, edge=Edge.ONCE_MORE, reason=f"{exited.reason}: {most.numbers()}; {why}")
