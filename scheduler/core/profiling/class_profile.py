"""Profiles of task classes: the peaks, times, cores and load that their attempts have shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import HOST, EstimateSource
from scheduler.values import dataclass, field

if TYPE_CHECKING:
    from scheduler.core.profiling.family.families import Family

RERANK_STEP = 0.25
"""A task moves in the queue only if the known time of its class changes by more than this share, because times vary a
little from attempt to attempt."""
MOST_PEAKS = 20
"""The most peaks that a class keeps for one part. They are the newest ones, because a script's data may change."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The memory, times and load of one attempt, from which its task class learns."""

    peaks: Mapping[str, int]
    """The highest use in bytes, by part: `host`, or the position of a GPU among those that the task sees."""
    seconds: float = 0.0
    epochs: int | None = None
    epoch_seconds: float | None = None
    cpu_seconds: float = 0.0
    busy: float = 0.0
    whole: bool = True
    """True for a full, sampled, successful attempt. Only such an attempt can lower the known need; any other
    observation can only raise it."""
    broken: bool = False
    """True if the attempt failed or was stopped: its use says little about the need of its class."""
    probe: bool = False


@dataclass(slots=True)
class Peaks:
    """The observed peaks of a task class on one part: on the host, or on the GPU at one position."""

    full: list[int] = field(default_factory=list)
    """The peaks of full attempts, the newest last."""
    lower: int = 0
    """The highest use of attempts that do not count as full: probes, failed attempts, and attempts that have not
    ended."""
    lower_by: EstimateSource = EstimateSource.PROFILE
    without: bool = False
    """True if a living attempt has shown that it computes without this part."""
    above: int = 0
    """The use, or the request, of attempts that failed while the need was unknown: the class needs at least this."""

    @property
    def known(self) -> bool:
        """True if the need on this part is known."""
        return bool(self.full) or self.lower > 0 or self.without

    @property
    def peak(self) -> int:
        """The highest known need in bytes."""
        return max([self.lower, *self.full])

    def note_use(self, used: int) -> None:
        """Forget the attempts that used nothing on this part, because another attempt now uses `used` bytes there. The
        class needs at least these bytes; how many it needs is then unknown.
        """
        self.without, self.above = False, max(self.above, used)
        self.full = [peak for peak in self.full if peak]

    def settled(self, rules: SchedulingConfig) -> bool:
        """Tell whether the peaks of the newest full attempts are so close to each other that the small margin is
        enough.
        """
        enough = self.full[-rules.tight_samples :]
        return len(enough) >= rules.tight_samples and self.peak <= min(enough) * (1 + rules.tight_spread)

    def learn(self, peak: int, evidence: Observation) -> None:
        """Add the peak that one attempt has shown on this part."""
        if evidence.whole:
            self.full = [*self.full, peak][-MOST_PEAKS:]
            self.lower = 0 if self.lower <= peak else self.lower
        elif evidence.broken and not self.known:
            self.above = max(self.above, peak)
        elif peak > self.lower:
            self.lower = peak
            self.lower_by = EstimateSource.PROBE if evidence.probe else EstimateSource.PROFILE


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """The expected need of a task class, estimated from other classes, with the source of the estimate."""

    peaks: Mapping[str, int]
    """The expected need in bytes, by part."""
    by: EstimateSource
    busy: float = 0.0
    grown: float = 1.0
    """The factor by which a new version of the script needs more than the earlier one; `peaks` include it."""
    confirmed: int = 0
    """The number of classes of the new version whose need could be compared with the earlier version."""


def main_parts(gpus: int) -> tuple[str, ...]:
    """Return the parts (`host`, or the positions of GPUs) on which a task's need must be known: its GPUs, or the host
    if it has none.
    """
    return tuple(str(position) for position in range(gpus)) or (HOST,)


@dataclass(slots=True)
class Profile:
    """The known memory, times, cores and load of one task class."""

    parts: dict[str, Peaks] = field(default_factory=dict)
    epoch_seconds: float = 0.0
    ranked_seconds: float = 0.0
    """The time per epoch by which tasks are ranked. It follows `epoch_seconds` in steps only, so that the queue keeps
    its order."""
    whole_seconds: float = 0.0
    """The mean duration of a whole attempt in seconds."""
    cores: float = 0.0
    busy: float = 0.0
    """The share of time for which an attempt keeps a GPU busy."""
    earlier: bool = False
    """True if the class was known before this run began."""
    settlings: int = 0
    """The number of attempts whose peak settled while they were running."""
    family: str = ""
    slots: tuple[tuple[str, str], ...] = ()
    """The arguments of the class, by which it is compared with other classes."""
    relations: tuple[str, ...] = ()
    """Two keys that the versions of a script share: one for its path, one for its content."""
    updated: float = 0.0
    """The time at which the profile was last changed, in seconds since the epoch; 0 if this run created it."""
    confirmed: bool = False
    """True if an earlier version of the script needed at least as much as this class."""

    def part(self, name: str) -> Peaks:
        """Return the peaks on one part; an object without peaks if none are known."""
        return self.parts.get(name) or Peaks()

    def knows(self, gpus: int) -> bool:
        """Tell whether the need of a task with this number of GPUs is known."""
        return all(self.part(name).known for name in main_parts(gpus))

    def source(self, gpus: int) -> EstimateSource:
        """Return the source of the known need of a task with this number of GPUs."""
        probed = any(not p.full and p.lower_by is EstimateSource.PROBE for p in map(self.part, main_parts(gpus)))
        return EstimateSource.PROBE if probed and not self.earlier else EstimateSource.PROFILE

    def is_without(self, gpus: int) -> bool:
        """Tell whether at least one attempt provably used none of its GPUs, and no attempt is known to have used
        any.
        """
        for position in range(gpus):  # every placement calls this, and a generator would take three times as long
            part = self.parts.get(str(position))
            if part is None or not part.known or part.peak or part.above:
                return False
        return gpus > 0

    def is_sure(self, rules: SchedulingConfig) -> bool:
        """Tell whether more than one task at a time may rely on these peaks.

        Peaks that only running attempts have shown are not sure, because an attempt may reach its highest use at its
        very end.
        """
        seen = any(
            part.full or part.lower_by is EstimateSource.PROBE for name, part in self.parts.items() if name != HOST
        )
        return self.earlier or self.confirmed or seen or self.settlings >= rules.sure_after

    def expected(self, epochs: int | None) -> float:
        """Return the expected duration in seconds of an attempt with this number of epochs. If the seconds per epoch or
        the number are unknown, return the mean duration of whole attempts; 0 if that is unknown too.
        """
        return self.epoch_seconds * (epochs or 0) or self.whole_seconds

    @property
    def peaks(self) -> dict[str, int]:
        """Return the highest known need of each part."""
        return {name: part.peak for name, part in self.parts.items() if part.known}

    def learn(self, evidence: Observation) -> None:
        """Add what one attempt has shown."""
        for name, peak in evidence.peaks.items():
            if peak or (evidence.whole and name != HOST):  # only a whole attempt shows that a GPU is not used
                self.parts.setdefault(name, Peaks()).learn(peak, evidence)
        on_its_devices = set(evidence.peaks) not in ({HOST}, set())  # the RAM of a GPU task says nothing about GPUs
        self.settlings += on_its_devices and not (evidence.whole or evidence.broken or evidence.probe)
        self._learn_times(evidence)

    def rerank(self) -> bool:
        """Update the time by which tasks are ranked; return whether it has changed."""
        if abs(self.epoch_seconds - self.ranked_seconds) <= RERANK_STEP * self.ranked_seconds:
            return False
        self.ranked_seconds = self.epoch_seconds
        return True

    def _learn_times(self, evidence: Observation) -> None:
        if not evidence.broken and evidence.busy:
            self.busy = (self.busy + evidence.busy) / 2 if self.busy else evidence.busy
        if not evidence.whole and not evidence.probe:
            return
        if evidence.whole:
            whole = evidence.seconds
            self.whole_seconds = whole if not self.whole_seconds else (self.whole_seconds + whole) / 2
        seconds = evidence.epoch_seconds
        if seconds is None and evidence.epochs and evidence.seconds > 0:
            seconds = evidence.seconds / evidence.epochs
        if seconds:
            self.epoch_seconds = seconds if not self.epoch_seconds else (self.epoch_seconds + seconds) / 2
        if evidence.seconds >= 1.0:
            self.cores = max(self.cores, evidence.cpu_seconds / evidence.seconds)


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A profile as it is stored for later runs."""

    key: str
    what: str
    """The script and its arguments."""
    device: str
    """The model of the device on which the profile was measured."""
    updated: float
    """The time at which the profile was last changed, in seconds since the epoch."""
    profile: Profile


def on_gpus(peaks: Mapping[str, int]) -> dict[str, int]:
    """Return the peaks by which classes are compared: those on GPUs, or on the host if there are none."""
    return {part: peak for part, peak in peaks.items() if part != HOST} or dict(peaks)


def family_of(profiles: Iterable[Profile]) -> Family:
    """Return the family of one script's classes, built from their profiles, with what is known about the arguments."""
    from scheduler.core.profiling.family.families import Family  # takes 3 ms; a view of a run does not need it

    family = Family()
    for number, profile in enumerate(profiles):
        family.add(number, profile.slots)
        family.observe(number, on_gpus(profile.peaks))
    return family
