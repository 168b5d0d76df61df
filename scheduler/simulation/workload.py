"""Workloads: the rows of a trace as tasks whose behaviour a simulation determines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.model import HOST, Spec, Terms
from scheduler.core.profiling import task_class
from scheduler.core.profiling.class_profile import Observation, Profile, main_parts
from scheduler.core.profiling.task_class import TaskClass
from scheduler.simulation.task_behaviour import TaskBehaviour, chance, curve, draw
from scheduler.values import dataclass, field, names_of, replace

TOLD_EPOCHS = 90
"""The number of epochs of the longest task of a class if durations are known; the epochs of its other tasks take
equally long."""


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """The measurements of one task; None: unknown."""

    arrives: float | None = None
    seconds: float | None = None
    peak: int | None = None
    """The task's peak in bytes on each of its GPUs; without GPUs, in the host's RAM."""
    busy: float | None = None
    """The share of time for which the task keeps each of its GPUs busy when alone."""
    cores: float | None = None
    host_peak: int | None = None
    """The peak in bytes in the host's RAM of a task that also uses GPUs."""

    def over(self, other: MeasuredTask) -> MeasuredTask:
        """Return these measurements; those that are unknown come from `other`."""
        mine = {name: held for name in names_of(type(self)) if (held := getattr(self, name)) is not None}
        return replace(other, **mine)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row as the scheduler will see it, and its measured needs."""

    spec: Spec
    seconds: float
    peak: int
    arrives: float = 0.0
    busy: float = 1.0
    cores: float = 0.0
    host_peak: int = 0
    job: str = ""
    """The name of the task in the trace."""
    guessed: bool = False
    """True if the time or the peak is a typical value, because that of the task is not known."""

    @property
    def gpus(self) -> int:
        """The number of GPUs that the task gets."""
        return 1 if self.spec.terms.gpus is None else self.spec.terms.gpus


@dataclass(frozen=True, slots=True)
class GivenTask:
    """A row as the scheduler sees it, and its real behaviour."""

    spec: Spec
    truth: TaskBehaviour
    arrives: float = 0.0


@dataclass(frozen=True, slots=True)
class InitialKnowledge:
    """The facts that the scheduler knows before the first task starts."""

    times: bool = False
    peaks: bool = False
    own: bool = False
    """True if every task's own peak is known, which no real scheduler knows: the oracle for comparisons."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The tasks of a simulation, and the profiles known before it."""

    tasks: Sequence[GivenTask]
    known: Mapping[str, Profile] = field(default_factory=dict)
    """The profiles that are known in advance, by task class."""


def model(terms: Terms) -> str:
    """Return the model of device on which a simulated task runs, as far as the task's memory depends on the model."""
    return HOST if terms.gpus == 0 else f"{terms.gpus or 1} x simulated"


def kind_of(spec: Spec, append: str = "both") -> TaskClass:
    """Return the task class of a simulated row."""
    return task_class.kind(spec, append, "python", "", model(spec.terms))


def trace_row(spec: Spec, found: MeasuredTask, job: str = "") -> TraceRow:
    """Return a row whose time and peak are known; unknown measurements get typical values."""
    assert found.seconds is not None
    assert found.peak is not None
    usual = MeasuredTask(0.0, busy=1.0, cores=1.0 if spec.terms.gpus == 0 else 0.0, host_peak=0)
    whole = found.over(usual)
    return TraceRow(
        spec,
        found.seconds,
        found.peak,
        whole.arrives or 0.0,
        whole.busy or 0.0,
        whole.cores or 0.0,
        whole.host_peak or 0,
        job,
    )


def from_profile(profile: Profile, epochs: int | None, gpus: int) -> MeasuredTask:
    """Return the measurements of a task, as far as the profile of its class contains them."""
    parts = profile.peaks
    main = [parts[part] for part in main_parts(gpus) if part in parts]
    return MeasuredTask(
        seconds=profile.expected(epochs) or None,
        peak=max(main) if main else None,
        busy=profile.busy or None,
        cores=profile.cores or None,
        host_peak=parts.get(HOST) if gpus else None,
    )


def arriving_over(rows: Sequence[TraceRow], seconds: float, seed: int) -> list[TraceRow]:
    """Return the rows in order with random arrival times within some period; the first one arrives at once."""
    times = sorted(chance(seed, "arrives", number) * seconds for number in range(len(rows)))
    first = times[0] if times else 0.0
    return [replace(row, arrives=at - first) for row, at in zip(rows, times, strict=True)]


def workload(
    rows: Sequence[TraceRow],
    known: InitialKnowledge,
    *,
    seed: int = 1,
    deviation: bool = True,
    largest: int = 0,
    loading: float = 0.0,
) -> Workload:
    """Return rows as tasks; peaks that deviate are limited to `largest` bytes, because a task that needs more could
    never run.

    `loading` is the share of its time for which a task on GPUs loads its data before it keeps them busy.
    """
    if known.times:
        rows = [_with_epochs(row, epochs) for row, epochs in zip(rows, _told_epochs(rows), strict=True)]
    given = []
    for number, row in enumerate(rows):
        truth = _truth(row, number, seed, deviation, largest)
        if loading and row.gpus:
            truth = replace(truth, loading=loading * row.seconds)
        given.append(GivenTask(_with_peak(row.spec, truth) if known.own else row.spec, truth, row.arrives))
    return Workload(given, _profiles(rows, known))


def _truth(row: TraceRow, number: int, seed: int, deviation: bool, largest: int) -> TaskBehaviour:
    epochs = row.spec.terms.epochs
    truth = TaskBehaviour(row.seconds, (curve(row.peak, row.seconds),), epochs=epochs)
    if deviation:
        truth = draw(seed, number, row.peak, row.seconds, epochs)
        if row.peak <= largest:
            cut = tuple((at, min(bytes_, largest)) for at, bytes_ in truth.memory[0])
            truth = replace(truth, memory=(cut,))
    beside = curve(row.host_peak, row.seconds) if row.host_peak and row.gpus else ()
    resumes = row.spec.terms.resumable
    return replace(truth, utilisation=row.busy, cores=row.cores, host_memory=beside, resumes=resumes)


def _with_peak(spec: Spec, truth: TaskBehaviour) -> Spec:
    """Return a row that declares the memory that its task will really use."""
    peak = max(bytes_ for _, bytes_ in truth.memory[0])
    return replace(spec, terms=replace(spec.terms, memory=peak))


def _with_epochs(row: TraceRow, epochs: int) -> TraceRow:
    return replace(row, spec=replace(row.spec, terms=replace(row.spec.terms, epochs=epochs)))


def _told_epochs(rows: Sequence[TraceRow]) -> list[int]:
    """Return numbers of epochs such that all epochs of a class take equally long: the time of one then gives the
    duration of every task.
    """
    keys = [kind_of(row.spec).key for row in rows]
    longest: dict[str, float] = {}
    for key, row in zip(keys, rows, strict=True):
        longest[key] = max(longest.get(key, 0.0), row.seconds)
    return [max(1, round(TOLD_EPOCHS * row.seconds / longest[key])) for key, row in zip(keys, rows, strict=True)]


def _profiles(rows: Sequence[TraceRow], known: InitialKnowledge) -> dict[str, Profile]:
    """Return the profiles that earlier runs of these classes would have left."""
    profiles: dict[str, Profile] = {}
    if not (known.times or known.peaks):
        return profiles
    for row in rows:
        kind = kind_of(row.spec)
        profile = profiles.setdefault(kind.key, Profile(earlier=True, family=kind.family, slots=kind.slots))
        if known.peaks:
            profile.learn(_evidence(row))
        if known.times and row.spec.terms.epochs == TOLD_EPOCHS:
            profile.epoch_seconds = row.seconds / TOLD_EPOCHS
    return profiles


def _evidence(row: TraceRow) -> Observation:
    peaks = dict.fromkeys(main_parts(row.gpus), row.peak)
    if row.gpus and row.host_peak:
        peaks[HOST] = row.host_peak
    return Observation(peaks, seconds=row.seconds, cpu_seconds=row.cores * row.seconds, busy=row.busy)


def peaks_of(given: GivenTask) -> tuple[int, int]:
    """Return the highest use of a task on each of its GPUs, and in the host's RAM."""
    main = max((bytes_ for _, bytes_ in given.truth.memory_on(0)), default=0)
    beside = max((bytes_ for _, bytes_ in given.truth.host_memory), default=0)
    return (main, beside) if given.spec.terms.gpus != 0 else (0, max(main, beside))


def batches_by_arrival(tasks: Iterable[GivenTask]) -> list[tuple[float, list[GivenTask]]]:
    """Group rows that arrive at the same moment, the earliest first."""
    moments: dict[float, list[GivenTask]] = {}
    for one in tasks:
        moments.setdefault(one.arrives, []).append(one)
    return sorted(moments.items())
