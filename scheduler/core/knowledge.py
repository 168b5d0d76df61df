"""What is known of each kind of task: peaks, times, cores; learned from every run, asked before every placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.core.kinds import Kind
from scheduler.core.model import KnownBy
from scheduler.core.rules import Rules

RERANK_STEP = 0.25
"""Times wander a little with every run; only what changes by more moves a task in the line."""
MOST_PEAKS = 20
"""Older peaks are forgotten: a script's data may have changed."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one ended attempt taught."""

    peak: int
    seconds: float = 0.0
    epochs: int | None = None
    epoch_seconds: float | None = None
    cpu_seconds: float = 0.0
    whole: bool = True
    """A full, watched, successful run; anything else can raise what is known, never lower it."""
    probe: bool = False


@dataclass(slots=True)
class Profile:
    """What is known of one kind."""

    peaks: list[int] = field(default_factory=list)
    """Of full runs, the newest last."""
    lower: int = 0
    """The most that was seen outside full runs: in probes, in runs that failed or still go on."""
    lower_by: KnownBy = KnownBy.LIVE
    epoch_seconds: float = 0.0
    ranked_seconds: float = 0.0
    """The epoch time that tasks are ranked by: follows the learned one in steps, so that the line keeps its order."""
    cores: float = 0.0
    earlier: bool = False
    """Known before this run began."""

    @property
    def known(self) -> bool:
        """Whether there is anything to promise by."""
        return bool(self.peaks) or self.lower > 0

    @property
    def peak(self) -> int:
        """The most it is known to need."""
        return max([self.lower, *self.peaks])

    @property
    def known_by(self) -> KnownBy:
        """Where that is known from."""
        if self.peaks or self.earlier:
            return KnownBy.PROFILE
        return self.lower_by

    def settled(self, rules: Rules) -> bool:
        """Whether enough full runs agree to trust the peak with the small margin."""
        enough = self.peaks[-rules.tight_samples :]
        return len(enough) >= rules.tight_samples and self.peak <= min(enough) * (1 + rules.tight_spread)

    def learn(self, evidence: Evidence) -> None:
        """Take one attempt in."""
        if evidence.peak > 0 and evidence.whole:
            self.peaks = [*self.peaks, evidence.peak][-MOST_PEAKS:]
            self.lower = 0 if self.lower <= evidence.peak else self.lower
        elif evidence.peak > self.lower:
            self.lower = evidence.peak
            self.lower_by = KnownBy.PROBE if evidence.probe else KnownBy.LIVE
        self._learn_times(evidence)

    def rerank(self) -> bool:
        """Let the ranking follow what was learned; True where that changed it."""
        if abs(self.epoch_seconds - self.ranked_seconds) <= RERANK_STEP * self.ranked_seconds:
            return False
        self.ranked_seconds = self.epoch_seconds
        return True

    def _learn_times(self, evidence: Evidence) -> None:
        if not evidence.whole and not evidence.probe:
            return
        seconds = evidence.epoch_seconds
        if seconds is None and evidence.epochs and evidence.seconds > 0:
            seconds = evidence.seconds / evidence.epochs
        if seconds:
            self.epoch_seconds = seconds if not self.epoch_seconds else (self.epoch_seconds + seconds) / 2
        if evidence.seconds >= 1.0:
            self.cores = max(self.cores, evidence.cpu_seconds / evidence.seconds)


class Knowledge:
    """Kinds by number; number 0 is what nobody has looked at."""

    def __init__(self, known: Mapping[str, Profile] | None = None) -> None:
        self.kinds: list[Kind | None] = [None]
        self._profiles: list[Profile] = [Profile()]
        self._numbers: dict[str, int] = {}
        self._known = dict(known or {})

    def number(self, kind: Kind) -> int:
        """The number of a kind, a new one where it was never seen."""
        number = self._numbers.get(kind.key)
        if number is None:
            number = self._numbers[kind.key] = len(self.kinds)
            self.kinds.append(kind)
            profile = self._known.pop(kind.key) if kind.key in self._known else Profile()
            profile.rerank()
            self._profiles.append(profile)
        return number

    def profile(self, number: int) -> Profile:
        """What is known of a kind; nothing of number 0."""
        return self._profiles[number]

    def kind(self, number: int) -> Kind | None:
        """The kind of a number."""
        return self.kinds[number]

    def learn(self, number: int, evidence: Evidence) -> bool:
        """Take one attempt of a kind in; True where its tasks rank elsewhere now."""
        if not number:
            return False
        self._profiles[number].learn(evidence)
        return self._profiles[number].rerank()

    def duration(self, number: int, epochs: int | None) -> float:
        """How long a task of this kind takes; 0 while that is not known."""
        return self._profiles[number].ranked_seconds * (epochs or 0) if number else 0.0
