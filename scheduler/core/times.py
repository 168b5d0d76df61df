"""How long tasks take, as far as that can be known before they are over, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import cos, exp, log, pi, sqrt

from scheduler.core.knowledge import Knowledge, Profile
from scheduler.core.truth import chance
from scheduler.values import dataclass

OWN, LIKE, ANY = 0.08, 0.25, 0.5
"""How far the time of a task is off at least, as a share of it: where its own kind is known, others of its script, any
of its run. As many again are off by more than that as by less than a third of it."""
TRIES, TRY = 12, 1 << 41
"""So often a time is drawn for somebody who runs already."""
FEW = 3
"""So few others say hardly more than any would."""
RUNNING = 0.5
"""So much of what others have run already, whose time nobody knows, is added to what was seen: all of it would be right
if nobody knew the better how long a task takes the longer it runs. In a real run of 70 short tasks half of it told 0.98
of the real time, all of it 1.27, none 0.73."""
SHARED = 0.5
"""So much of that is wrong of all of a kind alike: they are told by the same number."""
STILL = 0.25
"""Who takes longer than he was expected to is taken to need at least this share more of the time he has taken."""


@dataclass(frozen=True, slots=True)
class Time:
    """How long something takes."""

    seconds: float
    spread: float
    """One standard deviation of its logarithm."""
    told_by: str
    """What it was taken from: all that is told by the same is wrong alike."""

    def still(self, seed: int, task: int, elapsed: float) -> float:
        """The same for one that runs for so long already: what it takes is more than that."""
        if not seed:
            return self.seconds
        goes = (self.drawn(seed, task + TRY * number) for number in range(TRIES))
        return next((seconds for seconds in goes if seconds > elapsed), self.seconds)

    def drawn(self, seed: int, task: int) -> float:
        """The seconds in one go; in go 0 what is expected."""
        if not seed:
            return self.seconds
        alike, alone = _normal(seed, self.told_by), _normal(seed, task)
        return self.seconds * exp(self.spread * (sqrt(SHARED) * alike + sqrt(1 - SHARED) * alone))


def _normal(*what: object) -> float:
    """A normal deviate that follows from its name (Box and Muller's)."""
    return sqrt(-2 * log(1 - chance(0, "length", *what))) * cos(2 * pi * chance(0, "angle", *what))


@dataclass(slots=True)
class _Seen:
    """Times of several kinds."""

    epochs: list[float]
    wholes: list[float]
    running: float = 0.0
    """Seconds for which others run already whose time nobody knows: whoever ends first is short, and would be taken for
    all of them."""

    def take(self, profile: Profile) -> None:
        if profile.epoch_seconds:
            self.epochs.append(profile.epoch_seconds)
        if profile.whole_seconds:
            self.wholes.append(profile.whole_seconds)

    def time(self, epochs: int | None, least: float, told_by: str) -> Time | None:
        found, times = (self.epochs, epochs) if epochs and self.epochs else (self.wholes, 1)
        if not found:
            return None
        mean = sum(found) / len(found)
        more = RUNNING * self.running / len(found) if found is self.wholes else 0.0
        spread = sqrt(sum((one - mean) ** 2 for one in found) / len(found)) / mean
        return Time((mean + more) * times, max(least, spread, ANY if len(found) < FEW else 0.0), told_by)


class Times:
    """What is known of times at one moment."""

    def __init__(
        self,
        knowledge: Knowledge,
        seen: Iterable[tuple[int, float]] = (),
        running: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Of living attempts their kinds; `seen`: how many seconds an epoch takes them, `running`: for how long."""
        self._knowledge = knowledge
        self._families: defaultdict[str, _Seen] = defaultdict(lambda: _Seen([], []))
        self._all = _Seen([], [])
        for family, profile, ours in knowledge.learned():
            if ours:
                self._all.take(profile)
            if family:
                self._families[family].take(profile)
        self._living: dict[int, float] = {}
        for number, seconds in seen:
            self._living[number] = seconds
            for known in self._told_by(number):
                known.epochs.append(seconds)
        for number, seconds in running:
            if not knowledge.expected(number, None):
                for known in self._told_by(number):
                    known.running += seconds
        self._kept: dict[tuple[int, int | None], Time | None] = {}

    def _told_by(self, number: int) -> list[_Seen]:
        """All that a kind says something about besides itself."""
        kind = self._knowledge.kind(number)
        return [self._all, *([self._families[kind.family]] if kind is not None and kind.family else [])]

    def of(self, kind: int, epochs: int | None) -> Time | None:
        """How long a task of a kind takes as a whole; None while nothing is known of anything like it."""
        asked = (kind, epochs)
        if asked not in self._kept:
            self._kept[asked] = self._find(kind, epochs)
        return self._kept[asked]

    def _find(self, kind: int, epochs: int | None) -> Time | None:
        own = self._knowledge.expected(kind, epochs) or self._living.get(kind, 0.0) * (epochs or 0)
        if own:
            return Time(own, OWN, f"kind {kind}")
        known = self._knowledge.kind(kind)
        if known is not None and known.family:
            like = self._families[known.family].time(epochs, LIKE, known.family)
            if like is not None:
                return like
        return self._all.time(epochs, ANY, "")


def left(whole: float, elapsed: float) -> float:
    """What is left of a time; somebody who is late takes longer still."""
    return max(whole - elapsed, STILL * elapsed if elapsed > whole else 0.0)
