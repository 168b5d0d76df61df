"""Tasks with what they will really do: rows of a trace made into what a simulation is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.core import kinds
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Profile, main_parts
from scheduler.core.model import HOST, Spec, Terms
from scheduler.core.truth import Truth, curve, draw

TOLD_EPOCHS = 90
"""So many epochs the longest task of a kind has where times are known; the others have so many as fit their time."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row of a trace: when a task came, and what it was measured to need."""

    job: str
    seconds: float
    peak: int
    """Bytes on each of its GPUs; in the host's RAM where it has none."""
    arrives: float = 0.0
    gpus: int = 1
    priority: int = 0
    busy: float = 1.0
    """The share of each of its GPUs that it keeps busy when alone."""
    epochs: int | None = None
    config: str = ""
    """Script and arguments: rows that say the same are of one kind."""
    cores: float = 0.0
    host_peak: int = 0
    """In the host's RAM, beside its GPUs."""


@dataclass(frozen=True, slots=True)
class Given:
    """A row as the scheduler sees it, and what it will really do."""

    spec: Spec
    truth: Truth
    arrives: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before the first task starts."""

    times: bool = False
    peaks: bool = False
    own: bool = False
    """Every task's own peak, as no scheduler ever knows it: the oracle that others are compared with."""


@dataclass(frozen=True, slots=True)
class Workload:
    """All that a simulation is given."""

    tasks: Sequence[Given]
    known: Mapping[str, Profile] = field(default_factory=dict)
    """What is known of their kinds beforehand."""


def model(terms: Terms) -> str:
    """What a simulated task runs on, as far as its memory depends on that."""
    return HOST if terms.gpus == 0 else f"{terms.gpus or 1} x simulated"


def kind_of(spec: Spec, append: str = "both") -> Kind:
    """The kind of a simulated row: what it says is all there is."""
    return kinds.kind(spec, append, "python", "", model(spec.terms))


def workload(
    rows: Sequence[TraceRow], known: Known, *, seed: int = 1, deviation: bool = True, largest: int = 0
) -> Workload:
    """A trace's rows as tasks; peaks that deviate are cut at `largest`, beyond which nothing would ever run."""
    told = dict(_told_epochs(rows)) if known.times else {}
    rows = [replace(row, epochs=told.get(number, row.epochs)) for number, row in enumerate(rows)]
    truths = [_truth(row, number, seed, deviation, largest) for number, row in enumerate(rows)]
    given = [
        Given(_spec(row, number, truth if known.own else None), truth, row.arrives)
        for number, (row, truth) in enumerate(zip(rows, truths, strict=True))
    ]
    return Workload(given, _profiles(rows, given, known))


def _truth(row: TraceRow, number: int, seed: int, deviation: bool, largest: int) -> Truth:
    truth = Truth(row.seconds, (curve(row.peak, row.seconds),), epochs=row.epochs)
    if deviation:
        truth = draw(seed, number, row.peak, row.seconds, row.epochs)
        if largest and row.peak <= largest:
            cut = tuple((at, min(bytes_, largest)) for at, bytes_ in truth.memory[0])
            truth = replace(truth, memory=(cut,))
    beside = curve(row.host_peak, row.seconds) if row.host_peak and row.gpus else ()
    return replace(truth, utilisation=row.busy, cores=row.cores, host_memory=beside)


def _spec(row: TraceRow, number: int, truth: Truth | None) -> Spec:
    memory = max(bytes_ for _, bytes_ in truth.memory[0]) if truth is not None else None
    terms = Terms(priority=row.priority, epochs=row.epochs, gpus=row.gpus, memory=memory)
    return Spec(number + 2, "", "-1", row.config or row.job, "", row.job, (), (), terms)


def _told_epochs(rows: Sequence[TraceRow]) -> Iterator[tuple[int, int]]:
    """Epochs of one length in each kind, so that an epoch's time tells how long every task takes."""
    longest: dict[tuple[str, int], float] = {}
    for row in rows:
        key = (row.config or row.job, row.gpus)
        longest[key] = max(longest.get(key, 0.0), row.seconds)
    for number, row in enumerate(rows):
        whole = longest[row.config or row.job, row.gpus]
        yield number, max(1, round(TOLD_EPOCHS * row.seconds / whole))


def _profiles(rows: Sequence[TraceRow], given: Sequence[Given], known: Known) -> dict[str, Profile]:
    """What earlier runs of these kinds would have left."""
    profiles: dict[str, Profile] = {}
    if not (known.times or known.peaks):
        return profiles
    for row, one in zip(rows, given, strict=True):
        kind = kind_of(one.spec)
        profile = profiles.setdefault(kind.key, Profile(earlier=True, family=kind.family, slots=kind.slots))
        if known.peaks:
            profile.learn(_evidence(row))
        if known.times and row.epochs == TOLD_EPOCHS:
            profile.epoch_seconds = row.seconds / TOLD_EPOCHS
    return profiles


def _evidence(row: TraceRow) -> Evidence:
    peaks = dict.fromkeys(main_parts(row.gpus), row.peak)
    if row.gpus and row.host_peak:
        peaks[HOST] = row.host_peak
    return Evidence(peaks, seconds=row.seconds, cpu_seconds=row.cores * row.seconds, busy=row.busy)


def peaks_of(given: Given) -> tuple[int, int]:
    """The most that a task holds on each of its GPUs, and in the host's RAM."""
    main = max((bytes_ for _, bytes_ in given.truth.memory_on(0)), default=0)
    beside = max((bytes_ for _, bytes_ in given.truth.host_memory), default=0)
    return (main, beside) if given.spec.terms.gpus != 0 else (0, max(main, beside))


def batches_by_arrival(tasks: Iterable[Given]) -> list[tuple[float, list[Given]]]:
    """Rows that come at the same moment, the earliest first."""
    moments: dict[float, list[Given]] = {}
    for one in tasks:
        moments.setdefault(one.arrives, []).append(one)
    return sorted(moments.items())
