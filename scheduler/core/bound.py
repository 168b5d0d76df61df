"""What no schedule can beat: lower bounds on when a list is done, with the reason for each.

Counted are schedules that keep a task's whole peak free as long as it runs (when it comes cannot be known), and that
know everything else beforehand. A task's time alone is the least it takes; sharing only makes it longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil, inf

from scheduler.core.interference import Interference
from scheduler.core.model import HOST, Device
from scheduler.core.packing import ENOUGH
from scheduler.core.workload import Given, peaks_of
from scheduler.units import count, duration, size
from scheduler.values import dataclass

MOST_SHARES = 64
"""So many sizes are tried as the one below which tasks count for nothing; more of them hardly raise the bound."""

MIXES = tuple(part / 16 for part in range(1, 16))
"""So much of a task's price may be for its memory, where the rest is for its computing."""

NONE = -1
"""The size above which every task is."""


@dataclass(frozen=True, slots=True)
class Work:
    """What of a task counts for the bound."""

    arrives: float
    seconds: float
    bytes: int
    """On each of its GPUs; or in RAM, for a task without."""
    gpus: int
    busy: float
    cores: float
    beside: int
    """In RAM, beside its GPUs."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One bound, and what it follows from."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Bound:
    """The least that a list can take on a machine."""

    reasons: tuple[Reason, ...]
    """The strongest first."""
    mean_completion: float
    p95_completion: float
    tasks: int
    """How many fit the machine at all; the others are left out."""

    @property
    def makespan(self) -> float:
        """Seconds from the first arrival to the last end."""
        return self.reasons[0].seconds if self.reasons else 0.0


Area = Callable[[Work], float]


def works_of(given: Iterable[Given]) -> list[Work]:
    """What counts of each task."""
    return [_work(one) for one in given]


def _work(given: Given) -> Work:
    gpus = 1 if given.spec.terms.gpus is None else given.spec.terms.gpus
    main, beside = peaks_of(given)
    truth = given.truth
    bytes_, beside = (main, beside) if gpus else (beside, 0)
    return Work(given.arrives, truth.seconds, bytes_, gpus, truth.utilisation, truth.cores, beside)


def lower_bound(works: Sequence[Work], devices: Sequence[Device], model: Interference) -> Bound:
    """The bound of a list on a machine whose GPUs slow down those who share them by that model."""
    fitting = [work for work in works if _fits(work, devices)]
    if not fitting:
        return Bound((), 0.0, 0.0, 0)
    first = min(work.arrives for work in fitting)
    fitting = [replace(work, arrives=work.arrives - first) for work in fitting]
    longest = max(fitting, key=lambda work: work.arrives + work.seconds)
    late = f", which arrives after {duration(longest.arrives)}" if longest.arrives else ""
    reasons = [Reason(longest.arrives + longest.seconds, f"the longest task, alone{late}")]
    areas = _areas(fitting, devices, model)
    reasons += [Reason(_swept(fitting, area, capacity), why) for area, capacity, why in areas]
    reasons.sort(key=lambda reason: -reason.seconds)
    mean, p95 = _completions(fitting, [(area, capacity) for area, capacity, _ in areas])
    return Bound(tuple(reasons), mean, p95, len(fitting))


def _fits(work: Work, devices: Sequence[Device]) -> bool:
    wide_enough = sum(d.is_gpu and d.total >= work.bytes for d in devices) >= work.gpus
    ram = next((d.total for d in devices if d.key == HOST), 0 if not work.gpus else inf)
    return wide_enough and ram >= (work.beside if work.gpus else work.bytes)


def _areas(works: Sequence[Work], devices: Sequence[Device], model: Interference) -> list[tuple[Area, float, str]]:
    """Every resource of which a schedule has only so much: what a task takes of it, how much there is, in words."""
    found: list[tuple[Area, float, str]] = []
    gpus = [device for device in devices if device.is_gpu]
    for above in sorted({NONE, *(device.total for device in gpus)} - {max((d.total for d in gpus), default=0)}):
        big = [device for device in gpus if device.total > above]
        if big:
            found += _of_gpus(works, big, above, model)
    for device in devices:
        if device.key == HOST:
            found.append((_ram, device.total, f"the memory of the host, {size(device.total)}"))
            found.append((lambda work: work.seconds * work.cores, device.load_capacity, "the cores of the host"))
    return found


def _ram(work: Work) -> float:
    return work.seconds * (work.beside if work.gpus else work.bytes)


def _of_gpus(
    works: Sequence[Work], gpus: Sequence[Device], above: int, model: Interference
) -> list[tuple[Area, float, str]]:
    """The resources of those GPUs that alone can hold tasks above a size."""
    total, largest = sum(device.total for device in gpus), max(device.total for device in gpus)
    which = count(len(gpus), "GPU") + (f" above {size(above)}" if above != NONE else "") + f" ({size(total)} in all)"

    def counts(work: Work) -> float:
        return work.seconds * work.gpus

    counted = [work for work in works if work.gpus and work.bytes > above]
    plain = Memory(lambda work: work.bytes / largest, tuple(device.total / largest for device in gpus))
    found: list[tuple[Area, float, str]] = [(lambda w: counts(w) * w.bytes, total, f"the memory of {which}")]
    if model.throughput < inf:
        found.append((lambda w: counts(w) * w.busy, len(gpus) * model.throughput, f"the computing of {which}"))
        found += _mixed(counted, plain, model, f"the memory of {which}")
    share = _best_share(counted, largest)
    if share > 0:
        why = f"the memory of {which}, of which a task above {size(largest * (1 - share))} takes a whole one"
        whole = Memory(lambda work: _weight(work.bytes / largest, share), (1.0,) * len(gpus))
        found.append((lambda w: counts(w) * whole.takes(w), len(gpus), why))
        found += _mixed(counted, whole, model, why)
    return [(_only(area, above), capacity, why) for area, capacity, why in found]


def _only(area: Area, above: int) -> Area:
    """Of a task that another device could hold, nothing."""
    return lambda work: area(work) if work.gpus and work.bytes > above else 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """One way to count memory: what a task takes, of the most that those on one GPU take together."""

    takes: Callable[[Work], float]
    there: tuple[float, ...]
    """Of each GPU."""


def _mixed(works: Sequence[Work], memory: Memory, model: Interference, why: str) -> list[tuple[Area, float, str]]:
    """Memory and computing at once: who has much of the one at a time has little of the other.

    Each second of a task's own time is worth its memory times a share, and its computing times the rest. A GPU on which
    nobody waits earns at most what fits there; one that is shared earns it so many times slower as its load says, and
    some load is the best. No schedule is done before the devices have earned what all tasks are worth.
    """
    if not works or not model.knees:
        return []
    sizes = {(memory.takes(work), work.busy) for work in works}
    seconds = sum(work.seconds * work.gpus * memory.takes(work) for work in works)
    busy = sum(work.seconds * work.gpus * work.busy for work in works)

    def earned(share: float) -> float:
        """The most of all GPUs in a second: of one task alone, or of several at one of the knees."""
        alone = max(share * takes + (1 - share) * load for takes, load in sizes)
        shared = ((share * there, (1 - share)) for there in memory.there)
        return sum(max(alone, *((m + c * knee) / model.slowdown(knee) for knee in model.knees)) for m, c in shared)

    best = max(MIXES, key=lambda share: (share * seconds + (1 - share) * busy) / earned(share))

    def worth(work: Work) -> float:
        return work.seconds * work.gpus * (best * memory.takes(work) + (1 - best) * work.busy)

    return [(worth, earned(best), f"{why}, and their computing at once: who has much of the one has less of the other")]


def _weight(size_: float, share: float) -> float:
    """What a task takes of a device where those below `share` of it count for nothing: then whoever leaves less than
    that free takes all of it. Whatever fits on a device together weighs at most 1."""
    if size_ > 1 - share + ENOUGH:
        return 1.0
    return size_ if size_ >= share else 0.0


def _best_share(works: Sequence[Work], largest: int) -> float:
    """The share that makes the tasks weigh most."""
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


def _swept(works: Sequence[Work], area: Area, capacity: float) -> float:
    """The latest moment that is reached by whatever arrives from some moment on, if it has all of a resource."""
    best = left = 0.0
    for work in sorted(works, key=lambda work: -work.arrives):
        left += area(work)
        best = max(best, work.arrives + left / capacity)
    return best


def _completions(works: Sequence[Work], areas: Sequence[tuple[Area, float]]) -> tuple[float, float]:
    """The least mean, and the least 95th percentile, of the times from a task's arrival to its end.

    The k tasks that are done first have used a resource for at least its k smallest areas; and nobody is done before
    his own time is over.
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
