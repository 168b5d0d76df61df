"""The answer to why tasks wait: their request, the state and the holders of each device, and the expected start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from scheduler.core.brain import Brain
from scheduler.core.config import BATCHES
from scheduler.core.control.messages import is_host_label, waiting, waits
from scheduler.core.control.wait_reason import DeviceState, HolderUse, RequestedResources, WaitReason
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import EstimateSource, Machine, Placement, State
from scheduler.core.placement.device_capacity import ENOUGH, DeviceCapacity, kept_for_unmanaged, usable
from scheduler.core.placement.policies.batches import BatchPass
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, gpus_of
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.slot_pass import SlotPass
from scheduler.core.ports import Answer, Key
from scheduler.core.profiling import estimator
from scheduler.values import replace

MOST_GROUPS = 500
"""The most groups of equal tasks that are examined, best-ranked first; most lists have fewer than ten groups."""
OTHER_RUNS, UNMANAGED_PROCESSES = "other runs", "unmanaged processes"
UNMANAGED_MEMORY, BUFFER = "unmanaged memory", "buffer"
KEPT_FOR_GROWTH = "kept for the growth of unmanaged memory"
"""The name for memory that is kept free for the growth of unmanaged processes. Like the four names above, this name is
shown in place of a task that holds memory."""
NOT_GIVEN = "(not given this GPU)"


def answers(
    brain: Brain, machine: Machine, tasks: Sequence[int], lasts: Mapping[Key, float], shut: Refusal | None = None
) -> list[Answer]:
    """Return why these tasks wait, if they do; without `tasks`, count the run's waiting tasks by the reason for which
    they wait.

    `shut` is the refusal of all tasks while no task may start, because of a full disk, a pause or the window of the
    run.
    """
    if not tasks:
        found = Counter({str(shut.reason): brain.waiting}) if shut else of_run(brain, machine)
        return [Answer((), True, waiting(found), {"reasons": dict(found)})]
    said = []
    for task in tasks:
        if task in brain.task_table and brain.state(task) is State.WAITING:
            one = of_task(brain, machine, task, lasts)
            if shut is not None:
                one = replace(one, refusal=replace(shut, task=task))
            said.append(Answer((task,), True, waits(one), one.to_dict()))
    return said


def of_task(brain: Brain, machine: Machine, task: int, lasts: Mapping[Key, float]) -> WaitReason:
    """Return why a waiting task does not start; `lasts` contains the expected remaining seconds of living attempts,
    where known.
    """
    asked = _asker(brain, machine)
    refusal = _refusal(brain, machine, asked, task)
    need = brain.need(task, gpus_of(brain.terms_of(task), bool(brain.capacity.gpus)))
    rooms = _may_run_on(brain, task, need)
    soon = _room_in(brain, need, refusal, rooms, lasts) if refusal.reason.ends_free_it else (None, 0)
    return WaitReason(
        refusal,
        _wants(brain, task, need),
        tuple(_stand(brain, machine, room) for room in rooms),
        brain.wait_queue.bypassed(task),
        brain.rules.bypass_limit,
        *soon,
    )


def of_run(brain: Brain, machine: Machine) -> Counter[str]:
    """Count the waiting tasks by the reason for their refusal; a reason that concerns the host ends with `@host`."""
    groups: dict[tuple[int, int, bool, str], list[int]] = {}
    for task in brain.task_table.in_state(State.WAITING):
        equals = (brain.task_table.terms(task), brain.kind_of(task), task in brain.tasks, brain.backoff.directory(task))
        groups.setdefault(equals, []).append(task)
    found: Counter[str] = Counter()
    asked = _asker(brain, machine)
    first = sorted(groups.values(), key=lambda tasks: brain.wait_queue.rank(tasks[0]))
    for number, tasks in enumerate(first):
        refusal = (
            _refusal(brain, machine, asked, tasks[0]) if number < MOST_GROUPS else Refusal(tasks[0], Reason.UNLOOKED)
        )
        found[refusal.reason + ("@host" if is_host_label(refusal.device) else "")] += len(tasks)
    return found


def _asker(brain: Brain, machine: Machine) -> SchedulingPass | SlotPass:
    """Return a scheduling pass that has decided already; its `ask` then treats a given task as the next one in the
    queue.
    """
    brain.capacity.look(machine)
    by_rank = BatchPass if brain.rules.policy == BATCHES else SchedulingPass
    made = SlotPass(brain, machine) if brain.capacity.has_slots else by_rank(brain, machine)
    made.decide()
    return made


def _refusal(brain: Brain, machine: Machine, asked: SchedulingPass | SlotPass, task: int) -> Refusal:
    if brain.draining:
        return Refusal(task, Reason.DRAINING)
    if brain.backoff.left(machine.now, brain.rules) == 0:
        return brain.backoff.suspended(task)
    if any(placement.task == task for placement in asked.placements):
        return Refusal(task, Reason.NEXT)
    if asked.left <= 0:
        return asked.one_too_many(task)
    tried = asked.met.get(task) or asked.ask(task)
    return tried if isinstance(tried, Refusal) else Refusal(task, Reason.NEXT)


def _wants(brain: Brain, task: int, need: ResourceRequest) -> RequestedResources:
    ask = max(need.gpus, key=lambda one: one.bytes or 0) if need.gpus else need.host
    share, margin = _margin(brain, ask, need.source)
    touched = brain.task(task)
    peak, reserved = ask.bare or ask.least, _within_devices(brain, task, need, ask)
    expect, enough = brain.rules.unknown_shares(max(1, len(need.gpus)))
    return RequestedResources(
        reserved,
        peak,
        len(need.gpus),
        need.source,
        share,
        margin,
        touched.ooms if touched else 0,
        no_gpu=need.visible > 0,
        is_expected=ask.enough > 0 and need.source is EstimateSource.MEASURED,
        classes=brain.profiles.sized if ask.enough else 0,
        starts_with=min(ask.enough or ask.shared, reserved or 0),
        expect=expect if ask.enough else 0.0,
        enough=enough if ask.enough else 0.0,
    )


def _within_devices(brain: Brain, task: int, need: ResourceRequest, ask: MemoryRequest) -> int | None:
    """Return the bytes that a task would reserve; an expected need is limited to the capacity of the largest device."""
    if ask.bytes is None or not ask.enough:
        return ask.bytes
    return min(
        ask.bytes, max((room.most - brain.rules.buffer for room in _may_run_on(brain, task, need)), default=ask.bytes)
    )


def _margin(brain: Brain, ask: MemoryRequest, source: EstimateSource) -> tuple[float, int]:
    """Return the margin of a measured peak as a share and in bytes."""
    rules, peak = brain.rules, ask.bare or ask.least
    if ask.bytes is not None and ask.bytes == estimator.with_margin(peak, rules):
        return rules.margin, rules.margin_bytes
    if ask.bytes is not None and ask.bytes == int(peak * (1 + rules.tight_margin)) + rules.tight_margin_bytes:
        return rules.tight_margin, rules.tight_margin_bytes
    if source is EstimateSource.EARLIER and ask.bytes is not None and peak:
        return round((ask.bytes - rules.margin_bytes) / peak - 1, 2), rules.margin_bytes
    return 0.0, 0


def _may_run_on(brain: Brain, task: int, need: ResourceRequest) -> list[DeviceCapacity]:
    """Return the devices on which a task may run; the host if it needs no GPUs."""
    rooms, terms = brain.capacity.rooms.values(), brain.terms_of(task)
    if brain.capacity.has_slots:
        return usable((room for room in rooms if room.device.is_slot), terms)
    return usable((room for room in rooms if (room.device.is_gpu if need.gpus else room.device.is_host)), terms)


def _stand(brain: Brain, machine: Machine, room: DeviceCapacity) -> DeviceState:
    """Return the state of a device: its free bytes, and its holders, the largest first."""
    key, node, there = room.device.key, room.device.node, room.device.key_there
    held = [HolderUse(f"task {p.task}", p.by_device[key]) for p in brain.placements() if p.by_device.get(key)]
    held += [HolderUse(f"task {task} {NOT_GIVEN}", bytes_) for task, bytes_ in _strayed(machine, key)]
    others = sum(lease.reserved.get(there, 0) for lease in machine.leases if lease.node == node)
    held += [HolderUse(OTHER_RUNS, others)] if others else []
    held += [HolderUse(UNMANAGED_PROCESSES, room.unmanaged_bytes)] if room.unmanaged_bytes else []
    kept = sum(kept_for_unmanaged(one, brain.rules) for one in machine.budgets if one.device.key == key)
    held += [HolderUse(KEPT_FOR_GROWTH, kept)] if kept else []
    rest = room.most - max(0, room.bytes) - brain.rules.buffer - sum(one.bytes for one in held)
    held += [HolderUse(UNMANAGED_MEMORY, rest)] if rest > brain.rules.peak_step_bytes else []
    held.sort(key=lambda one: -one.bytes)
    held += [HolderUse(BUFFER, brain.rules.buffer)] if brain.rules.buffer else []
    return DeviceState(room.device.label, max(0, room.bytes), room.most, tuple(held))


def _strayed(machine: Machine, key: str) -> Iterable[tuple[int, int]]:
    """Return the tasks that use a device that they were not given, each with the bytes that it uses there."""
    return next((budget.strayed for budget in machine.budgets if budget.device.key == key), ())


def _room_in(
    brain: Brain, need: ResourceRequest, refusal: Refusal, rooms: Iterable[DeviceCapacity], lasts: Mapping[Key, float]
) -> tuple[float | None, int]:
    """Return the seconds until enough devices may have capacity, and the task whose end frees that capacity.

    Only the ends of this run's tasks can be predicted.
    """
    asks = need.gpus or (need.host,)
    bytes_ = refusal.wanted if refusal.reason is Reason.UNKNOWN else max(ask.bytes or 0 for ask in asks)
    nodes: dict[str, list[tuple[float, int]]] = {}
    for room in rooms:
        soon = nodes.setdefault(room.device.node, [])
        soon.append(_room_on(brain, room, need, bytes_, refusal.reason.is_count, lasts))
    enough = (sorted(soon)[len(asks) - 1] for soon in nodes.values() if len(soon) >= len(asks))
    at, after = min(enough, default=(inf, 0))
    return (at, after) if at < inf else (None, 0)


def _room_on(
    brain: Brain, room: DeviceCapacity, need: ResourceRequest, bytes_: int, full: bool, lasts: Mapping[Key, float]
) -> tuple[float, int]:
    """Return when one device may have capacity if no other task starts there, and the task whose end frees that
    capacity.

    A device on which the number of tasks is limited has capacity after the first end.
    """
    left, load = replace(room), need.busy if room.device.is_gpu else need.cores
    bytes_ = min(bytes_, room.most - brain.rules.buffer)
    here = [task for task in brain.living() if task.placement and room.device.key in task.placement.by_device]
    ends = sorted((lasts.get((task.id, task.attempts), inf), task.id) for task in here)
    for at, number in [(0.0, 0), *ends]:
        if number:
            _give_back(left, brain.tasks[number])
        elif full or left.taken_alone:
            continue
        enough = left.bytes >= bytes_ and load <= left.load + ENOUGH
        if (full and number) or (left.residents <= 0 and number) or (enough and not need.alone):
            return at, number
    return inf, 0


def _give_back(room: DeviceCapacity, task: TaskState) -> None:
    placement: Placement | None = task.placement
    assert placement is not None
    key = room.device.key_there
    room.bytes += max(placement.reservation[key], task.peak.get(key, 0))
    room.load += placement.load.get(key, 0.0)
    room.residents -= 1
