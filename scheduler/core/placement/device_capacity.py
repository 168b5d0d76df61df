"""The capacity of one device: what leases, unmanaged memory and the buffer leave free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.core.config import SchedulingConfig
from scheduler.core.leases import Lease
from scheduler.core.model import (
    HOST,
    Device,
    DeviceBudget,
    Machine,
    Placement,
    Terms,
    UnmanagedPolicy,
    UnmanagedUse,
)
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.units import count, size
from scheduler.values import dataclass, replace

ENOUGH = 1e-9
NEARLY = 0.9
"""A task that had at least this share of a device counts as having had all of it. If such a task ran out of memory, its
next attempt needs only this share, because the last few bytes of a device may never become free."""
MOST_OWNERS = 5
"""The most owners of unmanaged memory that a message names."""
MOST_LISTED = 16
"""The most devices or nodes that a message lists when a row names an unknown one."""


@dataclass(slots=True)
class DeviceCapacity:
    """The working copy of one device during a pass; its capacity shrinks as placements are made."""

    device: Device
    most: int
    """The most bytes that one task can ever use on the device."""
    bytes: int
    load: float
    residents: int
    """The number of live leases of all schedulers."""
    ours: int
    """The number of live leases of this run."""
    closed: bool = False
    taken_alone: bool = False
    unmanaged_bytes: int = 0
    """Bytes that unmanaged processes use on the device."""
    coming: bool = False
    """True if ended attempts are still giving memory back, so that the free bytes will grow."""
    shut: Refusal | None = None
    """The refusal of every task on the device; None: tasks may start."""
    released: int = 0
    """Bytes that one task could have if every lease on the device ended now; unmanaged memory stays."""
    released_surely: int = 0
    """The part of `released` that does not depend on leases whose use has not been measured yet."""
    unsettled: int = 0
    """The number of this run's tasks on the device that started with unknown memory and have not settled."""
    beginning: int = 0
    """The first task of unknown memory on the device that has used no more than a CUDA context; 0: none."""
    arriving: bool = False
    """True if one of this run's tasks of known memory on the device has used no more than a CUDA context, though it
    needs more."""
    spare: int = 0
    """Bytes reserved on the device above the known peaks of this run's tasks: the headroom that these tasks share."""
    squares: float = 0.0
    """The sum of the squares of the known peaks of this run's tasks that share their headroom on the device."""
    kept_for: str = ""
    """The task and user for which the device, or capacity on it, is kept in this pass."""

    def copy(self) -> DeviceCapacity:
        """Return a copy that may be changed. dataclasses.replace takes four times as long, and a pass makes many
        copies.
        """
        return DeviceCapacity(
            self.device,
            self.most,
            self.bytes,
            self.load,
            self.residents,
            self.ours,
            self.closed,
            self.taken_alone,
            self.unmanaged_bytes,
            self.coming,
            self.shut,
            self.released,
            self.released_surely,
            self.unsettled,
            self.beginning,
            self.arriving,
            self.spare,
            self.squares,
            self.kept_for,
        )

    def emptied(self) -> DeviceCapacity:
        """Return the device as it would be if all its leases ended now."""
        shut = self.shut if self.shut is not None and self.shut.reason is not Reason.UNREADABLE else None
        return DeviceCapacity(
            self.device,
            self.most,
            self.released,
            self.device.load_capacity,
            0,
            0,
            taken_alone=self.device.single and self.unmanaged_bytes > 0 and self.taken_alone,
            unmanaged_bytes=self.unmanaged_bytes,
            shut=shut,
        )


def _left(budget: DeviceBudget, used: int, untaken: int, kept: int) -> int:
    """Return the bytes of a device that may still be reserved, in addition to the bytes that are used, reserved but
    unused, or kept free.
    """
    room = budget.free - untaken - kept
    return room if budget.cap is None else min(room, budget.cap - used - untaken - kept)


@dataclass(frozen=True, slots=True)
class LeaseSums:
    """The sums over all leases on one device; they are valid until a lease comes, goes or is measured."""

    ours: int = 0
    """The number of leases of this run."""
    residents: int = 0
    """The number of live leases of all schedulers."""
    in_use: int = 0
    untaken: int = 0
    """Bytes that are reserved but not used yet."""
    unseen: int = 0
    """Bytes reserved by the leases whose use is not measured yet."""
    load: float = 0.0
    spare: int = 0
    """Bytes reserved above the known peaks of the tasks of this run that share their margins."""
    squares: float = 0.0
    """The sum of the squares of the known peaks of the tasks of this run that share their margins."""
    alone: bool = False
    """True if an attempt has the device to itself."""
    unreadable: str = ""
    """The owner of a lease that cannot be read; empty if all can be read."""


def sums_on(
    device: Device, mine: Iterable[Placement], machine: Machine, peaks: Mapping[int, int] | None = None
) -> LeaseSums:
    """Return the numbers and bytes of the leases on a device, added up. `mine` must contain all live reservations of
    this run there, and none on other nodes.

    `peaks` has, by task, the known peak on the device of each task that shares the device's headroom.
    """
    key, seen, is_gpu = device.key_there, machine.used, device.is_gpu
    ours, load, alone, unreadable = 0, 0.0, False, ""
    in_use = untaken = unseen = spare = 0
    squares = 0.0
    for placement in mine:  # one loop for all sums: it is most of the cost of a changed device in a pass
        reserved = placement.reservation.get(key)
        if reserved is None:
            continue
        used = seen.get((placement.task, placement.attempt)) if seen else None
        holds = used.get(key, 0) if used else 0
        in_use += holds
        untaken += reserved - holds if reserved > holds else 0
        unseen += reserved if used is None else 0
        load += placement.busy if is_gpu else placement.load_on(device)
        if peaks and (known := peaks.get(placement.task)):
            peak = max(known, holds)
            spare += max(0, reserved - peak)
            squares += float(peak) * peak
        ours += 1
        alone = alone or (placement.alone and key in placement.devices)
    residents = ours
    for lease in _on_node(machine.leases, device.node):
        reserved, holds = lease.reserved.get(key, 0), lease.used.get(key, 0)
        in_use += holds
        untaken += max(0, reserved - holds)
        unseen += 0 if holds else reserved
        residents += key in lease.reserved
        load += lease.load.get(key, 0.0)
        alone = alone or (lease.alone and _runs_on(key, lease.reserved))
        if lease.unreadable and (not lease.reserved or _runs_on(key, lease.reserved)):
            unreadable = lease.unreadable
    return LeaseSums(ours, residents, in_use, untaken, unseen, load, spare, squares, alone, unreadable)


def _on_node(leases: Sequence[Lease], node: str) -> Sequence[Lease]:
    return [lease for lease in leases if lease.node == node] if node else leases


def capacities(
    machine: Machine,
    own: Iterable[Placement],
    rules: SchedulingConfig,
    peaks_of: Callable[[Placement], Mapping[str, int]] = lambda _: {},
) -> dict[str, DeviceCapacity]:
    """Return the capacity of every device before a pass has placed anything.

    `peaks_of` returns the known peaks, by GPU, of an attempt that shares its margins.
    """
    mine = list(own)
    peaks = {placement.task: peaks_of(placement) for placement in mine}

    def sums(device: Device) -> LeaseSums:
        known = {task: here[device.key] for task, here in peaks.items() if device.key in here}
        return sums_on(device, [one for one in mine if one.node == device.node], machine, known)

    return {budget.device.key: capacity_of(budget, sums(budget.device), machine, rules) for budget in machine.budgets}


def capacity_of(budget: DeviceBudget, leases: LeaseSums, machine: Machine, rules: SchedulingConfig) -> DeviceCapacity:
    """Return the capacity that the leases on a device leave there."""
    device, shut = budget.device, _shut(budget, rules)
    if leases.unreadable and shut is None:
        shut = Refusal(0, Reason.UNREADABLE, device.label, text=leases.unreadable)
    held = sum(one.bytes for one in budget.unmanaged) if budget.unmanaged else 0
    if budget.strayed:
        leases = replace(leases, in_use=leases.in_use + sum(bytes_ for _, bytes_ in budget.strayed))
    single = device.single and not rules.mps and (leases.residents > 0 or held > 0)
    kept_free, most_released = _kept_free(budget, rules), _most_released(budget, held)
    free_then = budget.free + budget.unreclaimed + leases.in_use  # after all have ended, as far as their use is known
    released, coming = min(free_then + leases.unseen, most_released), _is_coming(budget, machine, rules)
    return DeviceCapacity(
        device,
        largest(device, budget.cap),
        _left(budget, leases.in_use, leases.untaken, kept_free),
        device.load_capacity * (rules.max_gpu_load if device.is_gpu else rules.max_load) - leases.load,
        leases.residents,
        leases.ours,
        taken_alone=single or leases.alone,
        unmanaged_bytes=held,
        coming=coming,
        shut=shut,
        released=(most_released if coming else released) - kept_free,  # memory being given back is not counted yet
        released_surely=min(free_then, most_released) - kept_free,
        spare=leases.spare,
        squares=leases.squares,
    )


def _most_released(budget: DeviceBudget, unmanaged_bytes: int) -> int:
    """Return the bytes that would be free if all leases on a device had ended: unmanaged processes keep their
    memory.
    """
    most = budget.device.total - unmanaged_bytes
    return most if budget.cap is None else min(most, budget.cap)


def _kept_free(budget: DeviceBudget, rules: SchedulingConfig) -> int:
    return rules.buffer + kept_for_unmanaged(budget, rules) if budget.unmanaged else rules.buffer


def _is_coming(budget: DeviceBudget, machine: Machine, rules: SchedulingConfig) -> bool:
    if budget.unreclaimed >= rules.peak_step_bytes:
        return True
    ended = machine.ended.get(budget.device.key)
    return ended is not None and machine.now - budget.age < ended + rules.back_after


def _runs_on(key: str, reserved: Mapping[str, int]) -> bool:
    """Tell whether a lease is for a task that runs on a device: on one of its GPUs, or on the host if it has none."""
    return key in reserved and (key != HOST or len(reserved) == 1)


def kept_for_unmanaged(budget: DeviceBudget, rules: SchedulingConfig) -> int:
    """Return the bytes kept free for the growth of unmanaged processes on a GPU."""
    if not budget.unmanaged:
        return 0
    held = sum(one.bytes for one in budget.unmanaged)
    if rules.manners is UnmanagedPolicy.IGNORE or held < rules.unmanaged_least or not budget.device.is_gpu:
        return 0
    return max(rules.unmanaged_room, int(held * rules.unmanaged_share))


def _shut(budget: DeviceBudget, rules: SchedulingConfig) -> Refusal | None:
    """Return the refusal of every task on a device that is closed, does not answer, or has unmanaged processes with
    which no task may share it: any (by the run's policy), or processes that are new or still grow. None: tasks may
    start.
    """
    label = budget.device.label
    if budget.device.key in rules.closed:
        return Refusal(0, Reason.DISABLED, label)
    if budget.closed or budget.away:
        reason = Reason.CLOSED_DEVICE if budget.closed else Reason.SILENT_NODE
        return Refusal(0, reason, label, text=budget.closed or budget.away)
    if not budget.unmanaged or not kept_for_unmanaged(budget, rules):
        return None
    held = sum(one.bytes for one in budget.unmanaged)
    who = ", ".join(sorted({one.user for one in budget.unmanaged if one.user}))
    if rules.manners is UnmanagedPolicy.AVOID:
        return Refusal(0, Reason.AVOIDED, label, room=held, text=who)
    calm = min(one.calm for one in budget.unmanaged)
    if calm < rules.unmanaged_calm:
        return Refusal(0, Reason.YOUNG, label, wanted=int(rules.unmanaged_calm - calm) + 1, room=held, text=who)
    return None


def blocked_by_unmanaged(never: Refusal, budgets: Iterable[DeviceBudget]) -> Refusal | None:
    """Return the refusal of a task that would not fit even if all leases ended; it names the owners of unmanaged
    memory.

    Return None if something other than memory would be missing after all leases have ended.
    """
    if not never.reason.is_for_memory:
        return None
    unmanaged = [one for budget in budgets if budget.device.label == never.device for one in budget.unmanaged]
    most = sorted(unmanaged, key=lambda one: -one.bytes)[:MOST_OWNERS]
    who = ", ".join(_owner(one) for one in most if one.user or one.pid)
    return replace(never, reason=Reason.UNMANAGED, text=who)


def _owner(one: UnmanagedUse) -> str:
    process = f"process {one.pid}" if one.pid else ""
    return f"{size(one.bytes)} of {' of '.join(part for part in (process, one.user) if part)}"


def largest(device: Device, cap: int | None) -> int:
    """Return the most bytes that one task can ever use on a device."""
    return device.total if cap is None else min(device.total, cap)


def may_use(device: Device, terms: Terms) -> bool:
    """Tell whether a task may run on a device, given the device, the nodes and the features that its row names."""
    return is_on(device, terms) and (not terms.device or is_called(device, terms.device))


def listed(names: Sequence[str], noun: str) -> str:
    """Return names as one string; if there are many, only the first ones, and the number of all."""
    if len(names) <= MOST_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_LISTED])}, … ({count(len(names), noun)} in all)"


def usable(rooms: Iterable[DeviceCapacity], terms: Terms) -> list[DeviceCapacity]:
    """Return the capacities of the devices on which a task may run."""
    return [room for room in rooms if may_use(room.device, terms)]


def is_on(device: Device, terms: Terms) -> bool:
    """Tell whether a task may run on the node of a device."""
    if terms.features and not set(terms.features.split(",")) <= {*device.features}:
        return False
    return is_named(device.node, terms)


def is_named(node: str, terms: Terms) -> bool:
    """Tell whether a row names no node, or names this one."""
    return not terms.node or node in terms.node.split(",")


def is_called(device: Device, words: str) -> bool:
    """Tell whether one of the names in `words`, separated by commas, is a name of the device. The names of a GPU are
    its number in nvidia-smi, its UUID and the beginning of the UUID. The name of a host is `host`. The name of a slot
    may contain commas.
    """
    if "," not in words or device.is_slot:
        return _is_called(device, words)
    return any(_is_called(device, word.strip()) for word in words.split(","))


def unknown_name(words: str, devices: Sequence[Device]) -> str:
    """Return the first of the names in `words` that no device has; empty if devices have all of them."""
    alone = [words] if any(device.is_slot for device in devices) else words.split(",")
    return next((word.strip() for word in alone if not any(is_called(one, word.strip()) for one in devices)), "")


def _is_called(device: Device, word: str) -> bool:
    if device.node and word.startswith(f"{device.node}:"):  # `gpu2:0`, or `gpu2:` for all of a node
        word = word[len(device.node) + 1 :]
        return not word or word == device.key_there or (device.is_gpu and word == device.number)
    if word in (device.key_there, device.label) or (device.is_gpu and word == device.number):
        return True
    if device.is_slot:
        return device.label == f"slot {word}"
    return device.is_gpu and len(word) >= len("GPU-") + 4 and device.key.startswith(word)
