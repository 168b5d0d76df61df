"""Lower bounds on the end of a list under any schedule, with the reason for each.

The bounds hold for schedules that know everything in advance except when a task reaches its peak, and therefore keep
the whole peak free while the task runs. A task takes at least its time alone; sharing only makes it longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import ceil, inf

from scheduler.core.model import Device
from scheduler.core.placement.device_capacity import ENOUGH
from scheduler.simulation.interference import Interference
from scheduler.simulation.workload import GivenTask, peaks_of
from scheduler.units import count, duration, size
from scheduler.values import dataclass, replace

MOST_SHARES = 64
"""The most sizes that are tried as the limit below which tasks are ignored; trying more sizes would hardly raise the
bound."""

MIXES = tuple(part / 16 for part in range(1, 16))
"""The shares of a task's price for its memory; the rest is for its computing."""

NONE = -1
"""The size that every task exceeds."""


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The facts about one task that matter for the bound."""

    arrives: float
    seconds: float
    bytes: int
    """The bytes on each of its GPUs, or in RAM for a task without GPUs."""
    gpus: int
    busy: float
    cores: float
    beside: int
    """The bytes in RAM of a task that also uses GPUs."""
    loading: float = 0.0
    """The seconds from the task's start until it uses its GPUs."""

    @property
    def computing(self) -> float:
        """The seconds of a GPU's time that the task needs on each of its GPUs."""
        return (self.seconds - self.loading) * self.busy


@dataclass(frozen=True, slots=True)
class BoundReason:
    """One bound, and the reason for it."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class LowerBound:
    """The shortest times in which a machine can run a list."""

    reasons: tuple[BoundReason, ...]
    """The reasons, the strongest first."""
    mean_completion: float
    p95_completion: float
    tasks: int
    """The number of tasks that fit on the machine; the others are left out."""

    @property
    def makespan(self) -> float:
        """The seconds from the first arrival to the last end."""
        return self.reasons[0].seconds if self.reasons else 0.0


Area = Callable[[TaskWork], float]


def works_of(given: Iterable[GivenTask]) -> list[TaskWork]:
    """Return the work of each task."""
    return [_work(one) for one in given]


def _work(given: GivenTask) -> TaskWork:
    gpus = 1 if given.spec.terms.gpus is None else given.spec.terms.gpus
    main, beside = peaks_of(given)
    truth = given.truth
    bytes_, beside = (main, beside) if gpus else (beside, 0)
    return TaskWork(given.arrives, truth.seconds, bytes_, gpus, truth.utilisation, truth.cores, beside, truth.loading)


def lower_bound(works: Sequence[TaskWork], devices: Sequence[Device], model: Interference) -> LowerBound:
    """Return the bound for a list on a machine whose GPUs slow tasks down by this model."""
    fitting = [work for work in works if _fits(work, devices)]
    if not fitting:
        return LowerBound((), 0.0, 0.0, 0)
    first = min(work.arrives for work in fitting)
    fitting = [replace(work, arrives=work.arrives - first) for work in fitting]
    longest = max(fitting, key=lambda work: work.arrives + work.seconds)
    late = f", which arrives after {duration(longest.arrives)}" if longest.arrives else ""
    reasons = [BoundReason(longest.arrives + longest.seconds, f"the longest task by itself{late}")]
    areas = _areas(fitting, devices, model)
    reasons += [BoundReason(_swept(fitting, area, capacity), why) for area, capacity, why in areas]
    reasons.sort(key=lambda reason: -reason.seconds)
    mean, p95 = _completions(fitting, [(area, capacity) for area, capacity, _ in areas])
    return LowerBound(tuple(reasons), mean, p95, len(fitting))


def _fits(work: TaskWork, devices: Sequence[Device]) -> bool:
    nodes = {device.node for device in devices}
    return any(_fits_on([device for device in devices if device.node == node], work) for node in nodes)


def _fits_on(devices: Sequence[Device], work: TaskWork) -> bool:
    """Tell whether a task fits on the devices of one node."""
    wide_enough = sum(d.is_gpu and d.total >= work.bytes for d in devices) >= work.gpus
    ram = next((d.total for d in devices if d.is_host), 0 if not work.gpus else inf)
    return wide_enough and ram >= (work.beside if work.gpus else work.bytes)


def _areas(works: Sequence[TaskWork], devices: Sequence[Device], model: Interference) -> list[tuple[Area, float, str]]:
    """Return every limited resource: the amount that each task takes, the total amount, and the name in words."""
    found: list[tuple[Area, float, str]] = []
    gpus = [device for device in devices if device.is_gpu]
    for above in sorted({NONE, *(device.total for device in gpus)} - {max((d.total for d in gpus), default=0)}):
        big = [device for device in gpus if device.total > above]
        if big:
            found += _of_gpus(works, big, above, model)
    hosts = [device for device in devices if device.is_host]
    if len(hosts) == len({device.node for device in devices}):  # a node without one has RAM and cores without limit
        total, where = sum(host.total for host in hosts), "the host" if len(hosts) == 1 else f"{len(hosts)} hosts"
        found.append((_ram, total, f"memory of {where} ({size(total)})"))
        cores = sum(host.load_capacity for host in hosts)
        found.append((lambda work: work.seconds * work.cores, cores, f"cores of {where}"))
    return found


def _ram(work: TaskWork) -> float:
    return work.seconds * (work.beside if work.gpus else work.bytes)


def _of_gpus(
    works: Sequence[TaskWork], gpus: Sequence[Device], above: int, model: Interference
) -> list[tuple[Area, float, str]]:
    """Return the resources of the GPUs that can hold tasks above a size; no other GPUs can hold such tasks."""
    total, largest = sum(device.total for device in gpus), max(device.total for device in gpus)
    which = count(len(gpus), "GPU") + (f" above {size(above)}" if above != NONE else "") + f" ({size(total)} in all)"

    def counts(work: TaskWork) -> float:
        return work.seconds * work.gpus

    counted = [work for work in works if work.gpus and work.bytes > above]
    plain = MemoryModel(lambda work: work.bytes / largest, tuple(device.total / largest for device in gpus))
    found: list[tuple[Area, float, str]] = [(lambda w: counts(w) * w.bytes, total, f"memory of {which}")]
    if model.throughput < inf:
        found.append((lambda w: w.gpus * w.computing, len(gpus) * model.throughput, f"compute time of {which}"))
        found += _mixed(counted, plain, model, f"memory of {which}")
    share = _best_share(counted, largest)
    if share > 0:
        why = f"memory of {which}; a task above {size(largest * (1 - share))} takes a whole one"
        whole = MemoryModel(lambda work: _weight(work.bytes / largest, share), (1.0,) * len(gpus))
        found.append((lambda w: counts(w) * whole.takes(w), len(gpus), why))
        found += _mixed(counted, whole, model, why)
    return [(_only(area, above), capacity, why) for area, capacity, why in found]


def _only(area: Area, above: int) -> Area:
    """Return what a task takes of a resource, or 0 if another device could hold the task."""
    return lambda work: area(work) if work.gpus and work.bytes > above else 0.0


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """One way to count memory: `takes` returns what a task takes, as a share of what all tasks on the largest GPU may
    take together.
    """

    takes: Callable[[TaskWork], float]
    there: tuple[float, ...]
    """The memory of each GPU, in the unit of `takes`."""


def _mixed(
    works: Sequence[TaskWork], memory: MemoryModel, model: Interference, why: str
) -> list[tuple[Area, float, str]]:
    """Return memory and computing as one resource, because a task with much of one has little of the other at any time.

    Each second of a task's own time has a price: its memory times a share, and its computing times the rest. A GPU
    earns at most the price of the tasks that fit on it; it earns more slowly the more their summed load slows them
    down, and there is a best load. No schedule ends before the devices have earned the price of all tasks.
    """
    if not works or not model.knees:
        return []
    sizes = {(memory.takes(work), work.busy) for work in works}
    seconds = sum(work.seconds * work.gpus * memory.takes(work) for work in works)
    busy = sum(work.gpus * work.computing for work in works)

    def earned(share: float) -> float:
        """Return the most that all GPUs earn in a second: with one task alone, or with several at one of the knees."""
        alone = max(share * takes + (1 - share) * load for takes, load in sizes)
        shared = ((share * there, (1 - share)) for there in memory.there)
        return sum(max(alone, *((m + c * knee) / model.slowdown(knee) for knee in model.knees)) for m, c in shared)

    best = max(MIXES, key=lambda share: (share * seconds + (1 - share) * busy) / earned(share))

    def worth(work: TaskWork) -> float:
        return work.gpus * (best * work.seconds * memory.takes(work) + (1 - best) * work.computing)

    return [(worth, earned(best), f"{why} and their compute time together")]


def _weight(size_: float, share: float) -> float:
    """Return what a task takes of a device if tasks below `share` of the device are ignored.

    A task that leaves less than this share of the device free counts as taking the whole device. Tasks that fit on a
    device together weigh at most 1.
    """
    if size_ > 1 - share + ENOUGH:
        return 1.0
    return size_ if size_ >= share else 0.0


def _best_share(works: Sequence[TaskWork], largest: int) -> float:
    """Return the share of a device for which the weights of the tasks (see `_weight`) have the highest sum."""
    by_size: dict[float, float] = {}
    for work in works:
        fraction = work.bytes / largest
        by_size[fraction] = by_size.get(fraction, 0.0) + work.seconds * work.gpus
    shares = sorted({min(fraction, 1 - fraction) for fraction in by_size} | {0.5})
    shares = [share for share in shares if share > 0][:: max(1, len(shares) // MOST_SHARES)]
    weighed = {
        share: sum(area * _weight(fraction, share) for fraction, area in by_size.items()) for share in (0.0, *shares)
    }
    return max(weighed, key=lambda share: weighed[share])


def _swept(works: Sequence[TaskWork], area: Area, capacity: float) -> float:
    """Return the latest of these ends: for each arrival time, the end of all work that arrives from then on, if that
    work has all of a resource.
    """
    best = left = 0.0
    for work in sorted(works, key=lambda work: -work.arrives):
        left += area(work)
        best = max(best, work.arrives + left / capacity)
    return best


def _completions(works: Sequence[TaskWork], areas: Sequence[tuple[Area, float]]) -> tuple[float, float]:
    """Return the least mean, and the least 95th percentile, of the times from a task's arrival to its end.

    The first k tasks to end have used a resource for at least its k smallest areas; and no task ends before its own
    time is over.
    """
    number = len(works)
    place = ceil(0.95 * number) - 1
    alone = sorted(work.seconds for work in works)
    means, p95s = [sum(alone) / number], [alone[place]]
    offsets = sum(work.arrives for work in works)
    for area, capacity in areas:
        ends = [done / capacity for done in accumulate(sorted(area(work) for work in works))]
        means.append((sum(ends) - offsets) / number)
        if not offsets:
            p95s.append(ends[place])
    return max(means), max(p95s)
