"""The test of whether a task fits on devices: a placement, or a refusal with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import HOST, DeviceBudget, Placement, Terms, on_node
from scheduler.core.placement.device_capacity import ENOUGH, NEARLY, DeviceCapacity, is_on, largest
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, declared, gpus_of
from scheduler.core.profiling.estimator import with_shared_margin
from scheduler.values import replace


def never_fits(terms: Terms, budgets: Iterable[DeviceBudget]) -> Refusal | None:
    """Return a refusal if the row of a task declares more memory than any device has."""
    all_ = [budget for budget in budgets if is_on(budget.device, terms)]
    gpus = gpus_of(terms, any(b.device.is_gpu for b in all_))
    host = terms.host_memory if gpus else declared(terms, 0)
    asked = [(declared(terms, gpus), True)] if gpus else []
    for need, on_gpus in [*asked, (host, False)]:
        fitting = [b for b in all_ if b.device.is_gpu is on_gpus]
        totals = {b.device.label: largest(b.device, b.cap) for b in fitting}
        label = max(totals, key=lambda k: totals[k], default="")
        if need is not None and label and need > totals[label]:
            return Refusal(task=0, reason=Reason.NEVER, device=label, wanted=need, total=totals[label])
    return None


def fit(
    task: int,
    attempt: int,
    need: ResourceRequest,
    gpus: Sequence[DeviceCapacity],
    host: DeviceCapacity | None,
    rules: SchedulingConfig,
    expected: float = 0.0,
) -> Placement | Refusal:
    """Place one task on as many of these GPUs of one node as it requests, best first, and in the RAM of that node's
    host.

    Either all of the request fits, or nothing is placed and the refusal says how much is missing.
    """
    reservation = room_for(task, need, gpus, host, rules)
    if isinstance(reservation, Refusal):
        return reservation
    node = next((room.device.node for room in (host, *gpus) if room is not None), "")
    return placed(task, attempt, need, reservation, host, expected, node)


def room_for(
    task: int,
    need: ResourceRequest,
    gpus: Sequence[DeviceCapacity],
    host: DeviceCapacity | None,
    rules: SchedulingConfig,
) -> dict[str, int] | Refusal:
    """Return the bytes to reserve for a task on each device, or a refusal."""
    reservation: dict[str, int] = {}
    if need.gpus:
        chosen = _choose(task, need, gpus, rules)
        if isinstance(chosen, Refusal):
            return chosen
        reservation = dict(chosen)
    if host is not None:
        never = too_small(task, need.host, host, rules) if rules.slots is None else None
        fitted = never or (beside if need.gpus else _on)(task, need, need.host, host, rules)
        if isinstance(fitted, Refusal):
            return fitted
        reservation[HOST] = fitted
    return reservation


def placed(
    task: int,
    attempt: int,
    need: ResourceRequest,
    reservation: Mapping[str, int],
    host: DeviceCapacity | None,
    expected: float,
    node: str = "",
) -> Placement:
    """Return the placement of a task, given what is reserved for it."""
    cores = need.cores if host is None else min(need.cores, host.device.load_capacity)
    return Placement(
        task,
        attempt,
        need.purpose,
        reservation,
        cores,
        need.source,
        need.alone,
        busy=need.busy if need.gpus else 0.0,
        expected=expected,
        ram_expected=bool(need.gpus) and host is not None and need.host.is_expected,
        node=node,
    )


def never_now(
    task: int,
    need: ResourceRequest,
    gpus: Sequence[DeviceCapacity],
    host: DeviceCapacity | None,
    rules: SchedulingConfig,
) -> tuple[list[DeviceCapacity], Refusal | None]:
    """Return the GPUs on which a task would fit if all leases of the machine ended now, and its refusal if it would fit
    on none.

    Memory outside of leases stays: devices that it fills are not kept for the task.
    """
    then = None if host is None else host.emptied()
    if not need.gpus:
        tried = room_for(task, need, (), then, rules)
        return [], tried if isinstance(tried, Refusal) else None
    emptied = [room.emptied() for room in gpus]
    tried = room_for(task, need, emptied, then, rules)
    if isinstance(tried, Refusal):
        return [], tried
    smallest = min(need.gpus, key=lambda ask: -1 if ask.bytes is None else ask.bytes)
    fits = (isinstance(_on(task, need, smallest, room, rules), int) for room in emptied)
    return list(compress(gpus, fits)), None


def _choose(
    task: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity], rules: SchedulingConfig
) -> Refusal | list[tuple[str, int]]:
    """Choose a GPU for each memory request of a task, the largest request first; or return a refusal. The result has
    the order of the task's GPUs.
    """
    if len(need.gpus) > 1:
        gpus = [room for room in gpus if not room.device.is_instance]
    if len(need.gpus) > len(gpus):
        return Refusal(task, Reason.GPUS, wanted=len(need.gpus), total=len(gpus))
    if len(need.gpus) == 1:
        return _choose_one(task, need, gpus, rules)
    never = _too_small_together(task, need, gpus, rules) if rules.slots is None else None
    if never is not None:
        return never
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
            return refusal or Refusal(task, Reason.GPUS, wanted=len(need.gpus), total=len(gpus))
    return [places[place] for place in range(len(need.gpus))]


def _too_small_together(
    task: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity], rules: SchedulingConfig
) -> Refusal | None:
    """Return a refusal if these GPUs, even when empty, cannot hold the requests of a task, one on each GPU."""
    asks = sorted(need.gpus, key=lambda ask: -max(ask.bare, ask.wanted))
    rooms = sorted(gpus, key=lambda room: -room.most)
    never = (too_small(task, ask, room, rules) for ask, room in zip(asks, rooms, strict=False))
    return next((refusal for refusal in never if refusal is not None), None)


def _choose_one(
    task: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity], rules: SchedulingConfig
) -> Refusal | list[tuple[str, int]]:
    """Choose a GPU for a task that requests one."""
    refusal: Refusal | None = None
    for room in gpus:
        fitted = _on(task, need, need.gpus[0], room, rules)
        if isinstance(fitted, int):
            return [(room.device.key, fitted)]
        refusal = better(refusal, fitted)
    return refusal or Refusal(task, Reason.GPUS, wanted=1, total=len(gpus))


def better(known: Refusal | None, new: Refusal) -> Refusal:
    """Return the more informative of two refusals. A device on which the task may fit some day comes first, then the
    device with more capacity.
    """
    if known is None or new.reason.hope > known.reason.hope:
        return new
    if known.reason == new.reason is Reason.NEVER:
        return new if new.total > known.total else known
    return new if known.reason == new.reason is Reason.MEMORY and new.room > known.room else known


def _on(
    task: int, need: ResourceRequest, ask: MemoryRequest, room: DeviceCapacity, rules: SchedulingConfig
) -> int | Refusal:
    """Return the bytes to reserve on a device on which the task runs, or a refusal. If the task can never fit there,
    the refusal says that, even if something else is missing too.
    """
    slots = rules.slots
    if slots is None and (ask.bare > room.most or ask.wanted > room.most):
        never = too_small(task, ask, room, rules)
        if never is not None:
            return never
    refusal = _crowded(task, need, room, rules)
    if refusal is not None:
        return refusal
    if slots is not None:
        return regardless(ask, room, (room.most - rules.buffer) // slots)
    return _fit_bytes(task, ask, room, rules)


def too_small(task: int, ask: MemoryRequest, room: DeviceCapacity, rules: SchedulingConfig) -> Refusal | None:
    """Return a refusal if the task needs more than it can ever use on this device, even if the device is empty."""
    most, needed = room.most, ask.bare
    if ask.wanted > needed and ask.had >= (most - rules.buffer) * NEARLY:  # it had nearly all of such a device
        needed = ask.wanted
    return Refusal(task, Reason.NEVER, room.device.label, needed, max(room.bytes, 0), most) if needed > most else None


def regardless(ask: MemoryRequest, room: DeviceCapacity, share: int) -> int:
    """Return the bytes to reserve for a task that starts on a device however little is free: all that it requests.

    An unknown need counts as `share` bytes, or as the least expected need if that is more, but never as more than is
    free. It cannot count as nothing, because other schedulers see only what is reserved.
    """
    return ask.bytes if ask.bytes is not None else max(0, min(room.bytes, max(share, ask.least)))


def beside(
    task: int, need: ResourceRequest, ask: MemoryRequest, host: DeviceCapacity, rules: SchedulingConfig
) -> int | Refusal:
    """Return the RAM to reserve for a task that runs on GPUs, or a refusal.

    For unknown RAM, reserve `unknown_share` of the free RAM, but at least enough to load libraries.
    """
    if host.closed or host.taken_alone:
        reason, text = (Reason.KEPT, host.kept_for) if host.closed else (Reason.ALONE, "")
        return Refusal(task, reason, host.device.label, room=host.residents, text=text)
    if rules.slots is not None:
        return regardless(ask, host, max(int(host.bytes * rules.unknown_share), rules.unknown_beside))
    if host.residents > 0 and need.cores > host.load + ENOUGH:
        return Refusal(task, Reason.LOAD, host.device.label, round(need.cores * 100), round(max(host.load, 0) * 100))
    if ask.bytes is not None:
        return _fit_bytes(task, ask, host, rules)
    fitted = _fit_unknown(task, replace(ask, least=max(ask.least, rules.unknown_beside)), host, rules)
    if isinstance(fitted, int):
        return fitted
    return Refusal(task, Reason.SPENT, host.device.label, rules.unknown_beside, max(host.bytes, 0), host.most)


def _crowded(task: int, need: ResourceRequest, room: DeviceCapacity, rules: SchedulingConfig) -> Refusal | None:
    """Return a refusal if a device cannot take a task for a reason other than bytes, such as unmanaged processes or
    load.
    """
    if room.closed:
        return Refusal(task, Reason.KEPT, room.device.label, text=room.kept_for)
    if room.shut is not None:
        return Refusal(task, room.shut.reason, room.device.label, room.shut.wanted, room.shut.room, text=room.shut.text)
    if room.beginning and not need.unknown and not need.source.is_watched:
        return Refusal(task, Reason.BEGINNING, room.device.label, room.beginning)
    if rules.counts_residents:
        many = _too_many(task, room, rules)
        if many is not None:
            return many
    if room.taken_alone or (need.alone and room.residents > 0):
        return Refusal(task, Reason.ALONE, room.device.label, wanted=1, room=room.residents)
    return _too_busy(task, need, room, rules) if room.residents > 0 and rules.slots is None else None


def _too_busy(task: int, need: ResourceRequest, room: DeviceCapacity, rules: SchedulingConfig) -> Refusal | None:
    """Return a refusal if a device has less load left than the task needs to start."""
    on_gpu = room.device.index >= 0
    if (load_asked(need.busy, rules) if on_gpu else need.cores) <= room.load + ENOUGH:
        return None
    reason, asked = (Reason.BUSY, need.busy) if on_gpu else (Reason.LOAD, need.cores)
    return Refusal(task, reason, room.device.label, round(asked * 100), round(max(room.load, 0) * 100))


def _too_many(task: int, room: DeviceCapacity, rules: SchedulingConfig) -> Refusal | None:
    """Return a refusal if the number of tasks on a device has reached the limit that the user or MPS sets."""
    per_device = rules.max_per_device if rules.slots is None else rules.slots
    if per_device is not None and room.ours >= per_device:
        return Refusal(task, Reason.SLOTS, room.device.label, wanted=1, room=0, total=per_device)
    if rules.mps and room.device.is_gpu and room.residents >= rules.max_clients:
        return Refusal(task, Reason.CLIENTS, room.device.label, room=room.residents, total=rules.max_clients)
    return None


def load_asked(busy: float, rules: SchedulingConfig) -> float:
    """Return the load that a GPU must have left for a task with the load `busy` to start there."""
    return busy * rules.gpu_load_share


def _fit_bytes(task: int, ask: MemoryRequest, room: DeviceCapacity, rules: SchedulingConfig) -> int | Refusal:
    """Return the bytes to reserve for a known need, or a refusal. A task that fits only without the buffer gets the
    device to itself.
    """
    most = room.most
    if room.residents and ask.is_plain and ask.bare <= most - rules.buffer:
        wanted = ask.bytes or 0
        if ask.shared and room.squares:
            wanted = with_shared_margin(ask.bare, wanted, room.spare, room.squares, rules)
        reservation = max(ask.bare, min(wanted, most - rules.buffer))
        return reservation if reservation <= room.bytes else _too_little(task, reservation, room)
    return _fit_odd_bytes(task, ask, room, rules)


def _too_little(task: int, reservation: int, room: DeviceCapacity) -> Refusal:
    return Refusal(task, Reason.MEMORY, room.device.label, reservation, max(room.bytes, 0), room.most, room.kept_for)


def _fit_odd_bytes(task: int, ask: MemoryRequest, room: DeviceCapacity, rules: SchedulingConfig) -> int | Refusal:
    """Return the bytes to reserve in the less usual cases: on an empty device, or for a request with further
    conditions.
    """
    label, most = room.device.label, room.most
    if ask.bytes is None:
        return _fit_unknown(task, ask, room, rules)
    whole = ask.bare > most - rules.buffer
    final = room.residents == 0 and not room.coming
    # a need just below the capacity without the buffer may never fit next to the buffer, either
    alone = whole or (final and max(room.bytes, (most - rules.buffer) * NEARLY) < ask.bare)
    limit, available = most if alone else most - rules.buffer, room.bytes
    if room.residents == 0:
        available += rules.buffer if alone else 0
    if final:
        limit = min(limit, available)  # no task's end would ever free more
    least = int(ask.bare * NEARLY) if final and (ask.retried or whole) else ask.bare
    shown = limit if final and ask.retried and ask.enough else most - rules.buffer  # as for a wholly unknown need
    least = max(least, min(ask.least, int(shown * NEARLY)))
    reservation = max(least, min(ask.bytes, limit))
    if reservation <= available:
        return reservation
    if ask.enough and not (room.unsettled or room.arriving) and max(ask.enough, least) <= available:
        return available
    return Refusal(task, Reason.MEMORY, label, reservation, max(available, 0), most, room.kept_for)


def _fit_unknown(task: int, ask: MemoryRequest, room: DeviceCapacity, rules: SchedulingConfig) -> int | Refusal:
    """Return the bytes to reserve for an unknown need, or a refusal.

    On a GPU reserve all free memory, so that no other task starts there, if it is at least the share
    `unknown_gpu_least` of the GPU. On the host reserve the share `unknown_share` of the free memory. In both cases
    reserve no less than the task is expected to need.
    """
    label, most = room.device.label, room.most - rules.buffer
    if room.device.is_gpu:
        least = least_unknown(ask.least, room, rules)
        if ask.retried and room.residents == 0 and not room.coming:
            least = min(least, int(most * NEARLY), max(room.bytes, 1))  # no task's end would ever free more
        if room.bytes >= least:
            return room.bytes
        return Refusal(task, Reason.UNKNOWN, label, least, room.bytes, room.most, room.kept_for)
    known = min(ask.least, int(most * NEARLY))  # an idle device may never have more free
    if room.residents == 0 and not room.coming:
        known = min(known, room.bytes)  # the system's own use does not end
    reservation = max(int(room.bytes * rules.unknown_share), known)
    if reservation < rules.unknown_least or reservation > room.bytes:
        return Refusal(task, Reason.MEMORY, label, rules.unknown_least * 2, max(room.bytes, 0), room.most)
    return reservation


def least_unknown(least: int, room: DeviceCapacity, rules: SchedulingConfig) -> int:
    """Return the bytes that a GPU must have left for a task of unknown memory that needs at least `least`."""
    most = int((room.most - rules.buffer) * NEARLY)  # an idle device may never have more free
    half = int((room.most - room.unmanaged_bytes) * rules.unknown_gpu_least)
    return max(min(half, most), min(least, most))


def take(rooms_: Mapping[str, DeviceCapacity], placement: Placement, peaks: Mapping[str, int] | None = None) -> None:
    """Subtract a placement from the working copy, so that later placements of this pass take it into account.

    `peaks` are the known peaks of the placed task by device, if the task shares its margins.
    """
    for key, bytes_ in placement.reservation.items():
        room = rooms_[on_node(key, placement.node)]
        if peaks and (peak := peaks.get(key)):
            room.spare += max(0, bytes_ - peak)
            room.squares += float(peak) * peak
        room.bytes -= bytes_
        room.load -= placement.load_on(room.device)
        room.residents += 1
        room.ours += 1
        if (room.device.single and not placement.percentage) or (placement.alone and key in placement.devices):
            room.taken_alone = True
