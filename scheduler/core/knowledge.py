"""What is known of each kind of task: peaks, times, cores; learned from every run, asked before every placement."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from scheduler.core.kinds import Kind
from scheduler.core.model import HOST, KnownBy
from scheduler.core.rules import Rules
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.core.factors import Family

RERANK_STEP = 0.25
"""Times wander a little with every run; only what changes by more moves a task in the line."""
MOST_PEAKS = 20
"""Older peaks are forgotten: a script's data may have changed."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one ended attempt taught."""

    peaks: Mapping[str, int]
    """By part: `host`, or the place of a GPU among those the task sees."""
    seconds: float = 0.0
    epochs: int | None = None
    epoch_seconds: float | None = None
    cpu_seconds: float = 0.0
    busy: float = 0.0
    whole: bool = True
    """A full, watched, successful run; anything else can raise what is known, never lower it."""
    broken: bool = False
    """It failed or was stopped: what it held says little about what its like will need."""
    probe: bool = False


@dataclass(slots=True)
class Peaks:
    """What one part of a kind's memory was seen to be."""

    full: list[int] = field(default_factory=list)
    """Of full runs, the newest last."""
    lower: int = 0
    """The most that was seen outside full runs: in probes, in runs that failed or still go on."""
    lower_by: KnownBy = KnownBy.PROFILE
    above: int = 0
    """What attempts held (or asked for) that failed before anything was known: it needs at least that."""

    @property
    def known(self) -> bool:
        """Whether there is anything to promise by."""
        return bool(self.full) or self.lower > 0

    @property
    def peak(self) -> int:
        """The most it is known to need."""
        return max([self.lower, *self.full])

    def settled(self, rules: Rules) -> bool:
        """Whether enough full runs agree to trust the peak with the small margin."""
        enough = self.full[-rules.tight_samples :]
        return len(enough) >= rules.tight_samples and self.peak <= min(enough) * (1 + rules.tight_spread)

    def learn(self, peak: int, evidence: Evidence) -> None:
        """Take one attempt's peak in."""
        if peak > 0 and evidence.whole:
            self.full = [*self.full, peak][-MOST_PEAKS:]
            self.lower = 0 if self.lower <= peak else self.lower
        elif evidence.broken and not self.known:
            self.above = max(self.above, peak)
        elif peak > self.lower:
            self.lower = peak
            self.lower_by = KnownBy.PROBE if evidence.probe else KnownBy.PROFILE


@dataclass(frozen=True, slots=True)
class Guess:
    """What a kind may need, taken from others like it, and in what way."""

    peaks: Mapping[str, int]
    """By part."""
    by: KnownBy
    busy: float = 0.0


def main_parts(gpus: int) -> tuple[str, ...]:
    """The parts without which a task is unknown: those on its GPUs, or the host's where it has none."""
    return tuple(str(position) for position in range(gpus)) or (HOST,)


@dataclass(slots=True)
class Profile:
    """What is known of one kind."""

    parts: dict[str, Peaks] = field(default_factory=dict)
    epoch_seconds: float = 0.0
    ranked_seconds: float = 0.0
    """The epoch time that tasks are ranked by: follows the learned one in steps, so that the line keeps its order."""
    whole_seconds: float = 0.0
    """How long it takes as a whole."""
    cores: float = 0.0
    busy: float = 0.0
    """The share of a GPU that it keeps busy."""
    earlier: bool = False
    """Known before this run began."""
    settlings: int = 0
    """How many attempts held still for long enough to be believed, and were still running then."""
    family: str = ""
    slots: tuple[tuple[str, str], ...] = ()
    """Of which script, and with which arguments: what it may be compared with."""

    def part(self, name: str) -> Peaks:
        """What is known of one part; an empty one where that is nothing."""
        return self.parts.get(name) or Peaks()

    def knows(self, gpus: int) -> bool:
        """Whether there is anything to promise a task by that has so many GPUs."""
        return all(self.part(name).known for name in main_parts(gpus))

    def known_by(self, gpus: int) -> KnownBy:
        """Where that is known from."""
        probed = any(not p.full and p.lower_by is KnownBy.PROBE for p in map(self.part, main_parts(gpus)))
        return KnownBy.PROBE if probed and not self.earlier else KnownBy.PROFILE

    def is_sure(self, rules: Rules) -> bool:
        """Whether what is known may be trusted by more than one at a time: one may reach its peak at its very end."""
        seen = any(part.full or part.lower_by is KnownBy.PROBE for name, part in self.parts.items() if name != HOST)
        return self.earlier or seen or self.settlings >= rules.sure_after

    def expected(self, epochs: int | None) -> float:
        """How long an attempt takes, by its epochs, else as a whole; 0 while that is not known."""
        return self.epoch_seconds * (epochs or 0) or self.whole_seconds

    @property
    def peaks(self) -> dict[str, int]:
        """The most that is known to be needed of each part."""
        return {name: part.peak for name, part in self.parts.items() if part.known}

    def runs(self, parts: Iterable[str]) -> list[list[int]]:
        """The peaks of all its full runs on each of these parts of which there were several."""
        return [self.part(name).full for name in parts if len(self.part(name).full) > 1]

    def learn(self, evidence: Evidence) -> None:
        """Take one attempt in."""
        for name, peak in evidence.peaks.items():
            self.parts.setdefault(name, Peaks()).learn(peak, evidence)
        self.settlings += not (evidence.whole or evidence.broken or evidence.probe)
        self._learn_times(evidence)

    def rerank(self) -> bool:
        """Let the ranking follow what was learned; True where that changed it."""
        if abs(self.epoch_seconds - self.ranked_seconds) <= RERANK_STEP * self.ranked_seconds:
            return False
        self.ranked_seconds = self.epoch_seconds
        return True

    def _learn_times(self, evidence: Evidence) -> None:
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


def on_gpus(peaks: Mapping[str, int]) -> dict[str, int]:
    """What of a kind's peaks is compared with its like: what it needs where it runs."""
    return {part: peak for part, peak in peaks.items() if part != HOST} or dict(peaks)


def family_of(profiles: Iterable[Profile]) -> Family:
    """What profiles of one script teach about its arguments."""
    from scheduler.core.factors import Family  # 3 ms that whoever only looks at a run never pays

    family = Family()
    for number, profile in enumerate(profiles):
        family.add(number, profile.slots)
        seen = on_gpus(profile.peaks)
        family.observe(number, seen, profile.runs(seen))
    return family


class Knowledge:
    """Kinds by number; number 0 is what nobody has looked at."""

    def __init__(
        self, known: Mapping[str, Profile] | None = None, *, ignore: Iterable[str] = (), only: Iterable[str] = ()
    ) -> None:
        self.kinds: list[Kind | None] = [None]
        self._profiles: list[Profile] = [Profile()]
        self._numbers: dict[str, int] = {}
        self._known = dict(known or {})
        self._relatives: dict[str, list[str]] = {}
        """Kinds of earlier runs, by the script they are of."""
        for key, profile in self._known.items():
            if profile.family:
                self._relatives.setdefault(profile.family, []).append(key)
        self._families: dict[str, Family] = {}
        self._words = tuple(ignore), tuple(only)
        self._claims: dict[str, frozenset[str]] = {}
        self._largest: dict[int, int] = {}
        self._sizes: list[int] = []
        """The most that each kind was seen to need on one of its GPUs, by kind, and all of these in order."""
        self._seen_busy: dict[str, dict[int, None]] = {}
        """Kinds of each script that were seen to keep a GPU busy."""
        self._means: dict[str, float] = {}
        """How busy they do in the mean, until more is known of one."""
        self._touched: set[str] = set()
        """Families of which something was learned since `news` was asked."""

    def number(self, kind: Kind) -> int:
        """The number of the kind of one more task, a new one where it was never seen."""
        number = self._numbers.get(kind.key) or self._take(kind)
        self.kinds[number] = kind
        if kind.family:
            self._family(kind.family).add(number, kind.slots)
        self._observe(number)
        return number

    def _take(self, kind: Kind) -> int:
        number = self._numbers[kind.key] = len(self.kinds)
        self.kinds.append(kind)
        profile = self._known.pop(kind.key, None) or Profile()
        profile.rerank()
        self._profiles.append(profile)
        return number

    def _family(self, name: str) -> Family:
        """All kinds of one script, those of earlier runs among them."""
        family = self._families.get(name)
        if family is None:
            from scheduler.core.factors import Family  # as in family_of

            family = self._families[name] = Family(*self._words)
            for key in self._relatives.pop(name, ()):
                if key in self._known:
                    self._remember(family, name, key)
        return family

    def _remember(self, family: Family, name: str, key: str) -> None:
        slots = self._known[key].slots
        number = self._take(Kind(key, "", False, name, slots))
        family.add(number, slots, rows=0)
        self._observe(number)

    def _size(self, number: int) -> None:
        """Keep what a kind needs on one GPU among what all of them do."""
        parts = self._profiles[number].parts
        now = max((max(part.peak, part.above) for name, part in parts.items() if name != HOST), default=0)
        before = self._largest.get(number, 0)
        if now != before:
            if before:
                del self._sizes[bisect_left(self._sizes, before)]
            self._largest[number] = now
            insort(self._sizes, now)

    def usual(self, share: float, least: int) -> int:
        """What so large a share of all kinds needs at most on one GPU; 0 while fewer than `least` of them are known."""
        return self._sizes[int(share * (len(self._sizes) - 1))] if len(self._sizes) >= least else 0

    def _observe(self, number: int) -> None:
        """Let a kind's family know what it needs where it runs."""
        self._size(number)
        kind, peaks = self.kinds[number], self._profiles[number].peaks
        if kind is None or not kind.family or not peaks:
            return
        without_gpus = not kind.device or kind.device.startswith(HOST)
        if without_gpus or peaks.keys() != {HOST}:  # else it was over before anybody saw it on its GPUs
            seen = on_gpus(peaks)
            self._families[kind.family].observe(number, seen, self._profiles[number].runs(seen))

    def unheard(self) -> list[str]:
        """Arguments that the user named and no kind has: a slip of the keyboard, most likely."""
        from scheduler.core.arguments import plain_name  # not for who only looks at runs

        slots = {plain_name(name) for kind in self.kinds if kind is not None for name, _ in kind.slots}
        return sorted(name for names in self._words for name in names if plain_name(name) not in slots)

    def profile(self, number: int) -> Profile:
        """What is known of a kind; nothing of number 0."""
        return self._profiles[number]

    def kind(self, number: int) -> Kind | None:
        """The kind of a number."""
        return self.kinds[number]

    def group(self, number: int) -> Hashable:
        """Equal for kinds of which one should be learned before the next is started unknown."""
        kind = self.kinds[number]
        return (kind.family, self._families[kind.family].group(number)) if kind is not None and kind.family else number

    def guess(self, number: int) -> Guess | None:
        """What a kind may need that was never seen, taken from others like it."""
        kind = self.kinds[number]
        guess = self._families[kind.family].like(number) if kind is not None and kind.family else None
        if guess is None:
            return None
        beside = max((self._profiles[other].part(HOST).peak for other in guess.of), default=0)
        seen = [self._profiles[other].busy for other in guess.of if self._profiles[other].busy]
        busy = sum(seen) / len(seen) if seen else 0.0
        return Guess({HOST: beside, **guess.peaks} if beside else guess.peaks, guess.by, busy)

    def usual_busy(self, number: int) -> float:
        """What share of a GPU the kinds of the same script keep busy in the mean; 0 where none was seen."""
        kind = self.kinds[number]
        if kind is None or not kind.family:
            return 0.0
        if kind.family not in self._means:
            seen = [self._profiles[other].busy for other in self._seen_busy.get(kind.family, ())]
            self._means[kind.family] = sum(seen) / len(seen) if seen else 0.0
        return self._means[kind.family]

    def learn(self, number: int, evidence: Evidence) -> bool:
        """Take one attempt of a kind in; True where its tasks rank elsewhere now."""
        if not number:
            return False
        self._profiles[number].learn(evidence)
        self._observe(number)
        kind = self.kinds[number]
        if kind is not None and kind.family:
            self._touched.add(kind.family)
            if self._profiles[number].busy:
                self._seen_busy.setdefault(kind.family, {})[number] = None
                self._means.pop(kind.family, None)
        return self._profiles[number].rerank()

    def news(self) -> list[tuple[str, str, bool]]:
        """What was found out since the last call: script, argument, and whether that is neutral, or no longer."""
        found = []
        for name in sorted(self._touched):
            before, now = self._claims.get(name, frozenset()), self._families[name].claims()
            self._claims[name] = now
            found += [(self._script(name), factor, True) for factor in sorted(now - before)]
            found += [(self._script(name), factor, False) for factor in sorted(before - now)]
        self._touched.clear()
        return found

    def _script(self, family: str) -> str:
        whats = (kind.what for kind in self.kinds if kind is not None and kind.family == family and kind.what)
        return next(whats, "").split(" ", 1)[0]

    def learned(self) -> Iterator[tuple[str, Profile, bool]]:
        """What is known of each kind, with the script it is of, and whether it is one of this run's."""
        for kind, profile in zip(self.kinds[1:], self._profiles[1:], strict=True):
            yield kind.family if kind is not None else "", profile, True
        for profile in self._known.values():
            yield profile.family, profile, False

    def expected(self, number: int, epochs: int | None) -> float:
        """How long an attempt at a task of this kind takes, for people who wait; 0 while that is not known."""
        return self._profiles[number].expected(epochs)

    def duration(self, number: int, epochs: int | None) -> float:
        """How long a task of this kind takes; 0 while that is not known."""
        return self._profiles[number].ranked_seconds * (epochs or 0) if number else 0.0
