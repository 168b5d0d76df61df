"""The needs of a script's other versions, which differ in content, in the driver or in the model of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from scheduler.core.model import HOST, EstimateSource
from scheduler.core.profiling.class_profile import PredictedPeak, Profile, on_gpus
from scheduler.units import MIB
from scheduler.values import dataclass, field

if TYPE_CHECKING:
    from scheduler.core.profiling.family.arguments import Slots
    from scheduler.core.profiling.family.families import Family
    from scheduler.core.profiling.task_class import TaskClass

MOST_VERSIONS = 5
"""The most other versions of a script in which the need of a class is looked up; they are the newest ones."""
EQUAL_SHARE, EQUAL_BYTES = 0.05, 64 * MIB
"""Peaks of two versions count as equal if they differ by at most this share, or at most this number of bytes."""
LOWER_FROM = 2
"""Once the peaks of this many classes are known in the new version, and all of them are lower than in the earlier one,
the other classes are expected to need less as well."""
GROWN = 1.3
"""A version's function from arguments to peaks is refitted when the number of known classes of the version has grown by
this factor."""

Words = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Relative:
    """The need of a task class in an earlier version of its script."""

    peaks: Mapping[str, int]
    """The need in bytes, by part."""
    busy: float = 0.0
    profile: Profile | None = None
    """The profile of the class with equal arguments; None if the need was computed from other classes."""


@dataclass(frozen=True, slots=True)
class EarlierNeed:
    """The expected need of a class, taken from an earlier version of its script."""

    need: PredictedPeak
    is_best: bool
    """True if no better estimate can come from other classes of the new version."""


@dataclass(slots=True)
class Version:
    """The known classes of one version of a script."""

    order: int
    """The position of the version in time; the newest one has the highest number."""
    words: Words
    """The arguments that the user named as irrelevant and as relevant."""
    classes: dict[Slots, Profile] = field(default_factory=dict)
    """The classes whose peaks are known, by their arguments."""
    family: Family | None = None
    """The function from arguments to peaks that is fitted to the known classes of the version; None until its first
    use."""
    fitted_to: int = 0
    """The number of classes to which the function was fitted."""
    asked: dict[Slots, int] = field(default_factory=dict)
    """The numbers of the classes for which the function was asked, by the arguments of the classes."""

    def like(self, slots: Slots) -> Relative | None:
        """Return the need of a class with these arguments; None if this version does not show it."""
        if (profile := self.classes.get(slots)) is not None:
            return Relative(profile.peaks, profile.busy, profile)
        family = self._fitted()
        if slots not in self.asked:
            number = self.asked[slots] = -1 - len(self.asked)
            family.add(number, slots)
        guess = family.like(self.asked[slots])
        if guess is None:
            return None
        beside = {HOST: guess.of.host} if guess.of.host else {}
        return Relative({**beside, **guess.peaks}, guess.busy)

    def _fitted(self) -> Family:
        if self.family is not None and len(self.classes) <= self.fitted_to * GROWN:
            return self.family
        from scheduler.core.profiling.family.class_summaries import Beside  # not for readers of runs
        from scheduler.core.profiling.family.families import Family

        self.family, self.fitted_to = Family(*self.words), len(self.classes)
        self.asked.clear()
        for number, (slots, profile) in enumerate(self.classes.items()):
            self.family.add(number, slots)
            self.family.observe(number, on_gpus(profile.peaks), Beside(profile.part(HOST).peak, profile.busy))
        return self.family


@dataclass(slots=True)
class Change:
    """The comparison of what a new version of a script needs with what the earlier versions needed."""

    ratios: dict[str, float] = field(default_factory=dict)
    """The highest ratio of new to earlier peak that was seen, by part."""
    appeared: set[str] = field(default_factory=set)
    """The parts that a class of the new version uses, though it did not use them in the earlier version."""
    shown: set[int] = field(default_factory=set)
    """The classes whose peak in the new version is known."""

    def ratio(self, part: str) -> float:
        """Return the factor by which the need on a part is expected to have changed."""
        highest = self.ratios.get(part, 1.0)
        return highest if len(self.shown) >= LOWER_FROM else max(1.0, highest)

    @property
    def is_changed(self) -> bool:
        """True if the new version is expected to need a different amount of memory than the earlier one."""
        return self._expectation() != ({}, 0)

    def compare(self, earlier: Mapping[str, int], now: Mapping[str, int]) -> bool:
        """Note the peaks of a class in both versions; return whether other classes are now expected to need a different
        amount of memory.
        """
        before = self._expectation()
        for part in now.keys() & earlier.keys():
            ratio = _ratio(earlier[part], now[part])
            if earlier[part]:
                self.ratios[part] = max(ratio, self.ratios.get(part, ratio))
            elif ratio > 1.0:
                self.appeared.add(part)
        return self._expectation() != before

    def _expectation(self) -> tuple[dict[str, float], int]:
        return {part: self.ratio(part) for part in self.ratios if self.ratio(part) != 1.0}, len(self.appeared)

    def expected(self, relative: Relative) -> PredictedPeak | None:
        """Return the expected need of a class in the new version; None if it may use a part that it did not use
        before.
        """
        if any(not relative.peaks.get(part) for part in self.appeared):
            return None
        peaks = {part: int(peak * self.ratio(part)) for part, peak in relative.peaks.items()}
        grown = max(map(self.ratio, self.ratios), default=1.0)
        return PredictedPeak(peaks, EstimateSource.EARLIER, relative.busy, grown=grown, confirmed=len(self.shown))


class EarlierVersions:
    """The versions of all scripts. Two versions belong to one script if their paths or their contents are equal."""

    def __init__(self, known: Iterable[Profile], words: Words) -> None:
        """Take the profiles of earlier runs. `words` are the arguments that the user named as irrelevant, and as
        relevant.
        """
        self._words = words
        self._versions: dict[str, Version] = {}
        self._by_relation: dict[str, dict[str, Version]] = {}
        """For each path and for each content of a script, the versions that have it, by their names. A version appears
        under its path and under its content."""
        self._changes: dict[str, Change] = {}
        self._newest = 0
        for profile in sorted(known, key=lambda one: one.updated):
            if profile.family and profile.relations and profile.peaks:
                version = self._version(profile.family, profile.relations)
                version.classes[profile.slots] = profile
                version.order = self._newest = self._newest + 1

    def _version(self, name: str, relations: Iterable[str]) -> Version:
        version = self._versions.get(name)
        if version is None:
            self._newest += 1
            version = self._versions[name] = Version(self._newest, self._words)
        for relation in relations:
            self._by_relation.setdefault(relation, {})[name] = version
        return version

    def _newest_of(self, kind: TaskClass) -> list[Version]:
        """Return the other versions of the script of a class, the newest first, at most MOST_VERSIONS."""
        found = {
            name: version
            for relation in kind.relations
            for name, version in self._by_relation.get(relation, {}).items()
            if name != kind.family and version.classes
        }
        return sorted(found.values(), key=lambda version: -version.order)[:MOST_VERSIONS]

    def relative(self, kind: TaskClass) -> Relative | None:
        """Return the need of a class in the newest other version that shows it; None if none does."""
        return next(filter(None, (version.like(kind.slots) for version in self._newest_of(kind))), None)

    def guess(self, kind: TaskClass) -> EarlierNeed | None:
        """Return the need of a class as expected from an earlier version of its script; None if no version shows it."""
        relative = self.relative(kind)
        if relative is None:
            return None
        change = self._changes.get(kind.family) or Change()
        need = change.expected(relative)
        is_best = relative.profile is not None and not change.is_changed
        return None if need is None else EarlierNeed(need, is_best)

    def observe(self, number: int, kind: TaskClass, profile: Profile) -> None:
        """Note the known peaks of a class, and compare them with its need in an earlier version."""
        if not kind.relations:
            return
        self._version(kind.family, kind.relations).classes[kind.slots] = profile
        relative = self.relative(kind)
        if relative is None or not on_gpus(relative.peaks).keys() <= profile.peaks.keys():
            return
        change = self._changes.setdefault(kind.family, Change())
        change.shown.add(number)
        change.compare(relative.peaks, profile.peaks)
        profile.confirmed = all(
            _ratio(peak, profile.peaks[part]) <= 1.0 for part, peak in on_gpus(relative.peaks).items()
        )

    def outgrown(self, kind: TaskClass, peaks: Mapping[str, int]) -> bool:
        """Note the use of a living attempt; return whether other classes are now expected to need more."""
        relative = self.relative(kind)
        if relative is None:
            return False
        above = {part: peak for part, peak in peaks.items() if peak > relative.peaks.get(part, peak)}
        return self._changes.setdefault(kind.family, Change()).compare(relative.peaks, above)

    def with_times_of(self, kind: TaskClass) -> Profile:
        """Return a profile of a class without peaks. Its times, cores and load are those of an earlier version, if
        there is one.
        """
        newest = (version.classes.get(kind.slots) for version in self._newest_of(kind))
        found = next(filter(None, newest), None)
        if found is None:
            return Profile()
        seconds = found.epoch_seconds, found.whole_seconds
        return Profile(epoch_seconds=seconds[0], whole_seconds=seconds[1], cores=found.cores, busy=found.busy)

    def forget(self, kind: TaskClass) -> None:
        """Forget a class that has no tasks."""
        if kind.relations and (version := self._versions.get(kind.family)) is not None:
            version.classes.pop(kind.slots, None)


def _ratio(earlier: int, now: int) -> float:
    """Return the ratio of the present need to the earlier one; 1 if the difference is so small that the needs count as
    equal.
    """
    if abs(now - earlier) <= max(EQUAL_BYTES, EQUAL_SHARE * earlier):
        return 1.0
    return now / max(earlier, 1)
