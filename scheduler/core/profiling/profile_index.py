"""The index of task classes and their profiles, learned from every run and read before every placement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.model import HOST
from scheduler.core.profiling.class_profile import Observation, Peaks, PredictedPeak, Profile, main_parts, on_gpus
from scheduler.core.profiling.expectation import Sizes
from scheduler.core.tasks.parameters import script_of

if TYPE_CHECKING:
    from scheduler.core.profiling.earlier_versions import EarlierVersions
    from scheduler.core.profiling.family.families import Family
    from scheduler.core.profiling.task_class import TaskClass

IDLE_KINDS = 2000
"""At least this many classes without waiting or running tasks are remembered, and at most twice as many."""


def _is_without_gpus(kind: TaskClass) -> bool:
    """Tell whether tasks of a class run on the host alone."""
    return not kind.device or kind.device.startswith(HOST)


class ProfileIndex:
    """Task classes and their profiles by number; number 0 stands for tasks whose class is not determined."""

    _earlier: EarlierVersions | None = None
    """The cached value of `earlier`. It is only built when the first class is added, because a view of a run does not
    need it."""

    def __init__(
        self, known: Mapping[str, Profile] | None = None, *, ignore: Iterable[str] = (), only: Iterable[str] = ()
    ) -> None:
        self.kinds: dict[int, TaskClass] = {}
        self._profiles: dict[int, Profile] = {}
        self._nothing = Profile()
        self._numbers: dict[str, int] = {}
        self._newest, self._looked_over = 0, 0
        """The highest number of a class at present, and at the last search for idle classes. Numbers are never
        reused."""
        self._known = dict(known or {})
        self._relatives: dict[str, dict[str, None]] = {}
        """The keys of the classes that earlier runs knew, by script."""
        for key, profile in self._known.items():
            if profile.family:
                self._relatives.setdefault(profile.family, {})[key] = None
        self._families: dict[str, Family] = {}
        self._words = tuple(ignore), tuple(only)
        self._unheard = {name for names in self._words for name in names}
        self._claims: dict[str, frozenset[str]] = {}
        self._on_gpus, self._beside = Sizes(), Sizes()
        """For each class: its highest known need on one GPU, and the RAM that it needs if it runs on GPUs."""
        self._ram: dict[str, int] = {}
        """For each script, the highest known RAM that a class on GPUs needs."""
        self._loading: dict[str, int] = {}
        """For each script, the RAM that living tasks are expected to need, though they may still be loading their
        data."""
        self._seen_busy: dict[str, dict[int, float]] = {}
        """For each script and class, the share of time for which a task keeps a GPU busy."""
        self._busy_sums: dict[str, float] = {}
        """For each script, the sum of the shares of time for which its classes keep a GPU busy."""
        self.some_without_gpu = False
        """True once a class is known that was given GPUs and used none."""
        self._touched: set[str] = set()
        """Scripts about which something was learned since the last call of `news`."""

    @property
    def earlier(self) -> EarlierVersions:
        """The versions of all scripts that are known from earlier runs and from this one."""
        if self._earlier is None:
            from scheduler.core.profiling.earlier_versions import EarlierVersions  # not for readers of runs

            self._earlier = EarlierVersions(self._known.values(), self._words)
        return self._earlier

    def number(self, kind: TaskClass) -> int:
        """Add one more task of a class, and return the number of the class; a new class gets a new number."""
        number = self._numbers.get(kind.key) or self._take(kind)
        self.kinds[number] = kind
        if kind.family:
            self._family(kind.family).add(number, kind.slots)
        if self._unheard:
            self._hear(kind)
        self._observe(number)
        return number

    @property
    def may_forget(self) -> bool:
        """True if many classes were added since the last search for classes that can be forgotten."""
        return self._newest - self._looked_over >= IDLE_KINDS

    def forget(self, used: Collection[int]) -> list[int]:
        """Forget classes without tasks, the oldest first, and return their numbers; `used` are the classes with tasks.

        What earlier runs knew about a class is kept for later tasks. A family that loses classes is rebuilt from the
        remaining ones.
        """
        self._looked_over = self._newest
        gone = [number for number in self.kinds if number not in used][:-IDLE_KINDS]
        families = {self._drop(number) for number in gone}
        left: dict[str, list[int]] = {family: [] for family in families if family}
        for number, kind in self.kinds.items() if left else ():
            if kind.family in left:
                left[kind.family].append(number)
        for family, numbers in left.items():
            self._renew(family, numbers)
        return gone

    def _drop(self, number: int) -> str:
        """Forget one class, except in its family; return the name of the family."""
        kind, profile = self.kinds.pop(number), self._profiles.pop(number)
        del self._numbers[kind.key]
        if profile.earlier:
            self._known[kind.key] = profile
            self._relatives.setdefault(kind.family, {})[kind.key] = None
        else:
            self.earlier.forget(kind)
        for sizes in (self._on_gpus, self._beside):
            sizes.drop(number)
        seen = self._seen_busy.get(kind.family, {})
        if number in seen:
            self._busy_sums[kind.family] -= seen.pop(number)
        return kind.family

    def _renew(self, name: str, numbers: Sequence[int]) -> None:
        """Rebuild a family from these classes, which remain; forget the family if there are none."""
        from scheduler.core.profiling.family.families import Family  # as in family_of

        before = self._families.pop(name)
        if not numbers:
            self._touched.discard(name)
            for kept in (self._claims, self._seen_busy, self._busy_sums, self._ram, self._loading):
                kept.pop(name, None)
            return
        family = self._families[name] = Family(*self._words)
        for number in numbers:
            family.add(number, self.kinds[number].slots, before.rows(number))
        for number in numbers:
            self._observe(number)

    def _hear(self, kind: TaskClass) -> None:
        """Note that a class has some of the arguments that the user named."""
        from scheduler.core.profiling.family.arguments import plain_name  # not for readers of runs

        slots = {plain_name(name) for name, _ in kind.slots}
        self._unheard = {name for name in self._unheard if plain_name(name) not in slots}

    def _take(self, kind: TaskClass) -> int:
        self._newest += 1
        number = self._numbers[kind.key] = self._newest
        self.kinds[number] = kind
        earlier = self.earlier  # built from all profiles of earlier runs, so before one of them is taken out
        profile = self._known.pop(kind.key, None) or earlier.with_times_of(kind)
        profile.rerank()
        self._profiles[number] = profile
        return number

    def _family(self, name: str) -> Family:
        """Return the family of a script, with the classes of earlier runs."""
        family = self._families.get(name)
        if family is None:
            from scheduler.core.profiling.family.families import Family  # as in family_of

            family = self._families[name] = Family(*self._words)
            for key in self._relatives.pop(name, {}):
                if key in self._known:
                    self._remember(family, name, key)
        return family

    def _remember(self, family: Family, name: str, key: str) -> None:
        from scheduler.core.profiling.task_class import TaskClass  # not for readers of runs

        slots = self._known[key].slots
        number = self._take(TaskClass(key, "", False, name, slots, relations=self._known[key].relations))
        family.add(number, slots, rows=0)
        self._observe(number)

    def _size(self, number: int) -> None:
        """Update the needs of a class in the collected needs of all classes: its need on one GPU, and its RAM if it
        runs on GPUs.
        """
        parts, kind = self._profiles[number].parts, self.kinds[number]
        now = max((max(part.peak, part.above) for name, part in parts.items() if name != HOST), default=0)
        self._on_gpus.put(number, now)
        self.some_without_gpu = self.some_without_gpu or self._profiles[number].is_without(1)
        if not now and _is_without_gpus(kind):
            return
        ram = self._profiles[number].part(HOST).peak
        self._beside.put(number, ram)
        if kind.family and ram > self._ram.get(kind.family, 0):
            self._ram[kind.family] = ram

    def note_growth(self, number: int, bytes_: int, gpus: int) -> bool:
        """Note the use of a living attempt as the need of its class, as long as that need is unknown; return whether
        that changed anything.
        """
        return not self.profile(number).knows(gpus) and self._on_gpus.put(number, bytes_)

    def usual(self, share: float, least: int) -> int:
        """Return the bytes on one GPU that are enough for this share of all classes; 0 while fewer than `least` are
        known.
        """
        return self._on_gpus.usual(share, least)

    @property
    def sized(self) -> int:
        """The number of classes whose need on GPUs is known."""
        return len(self._on_gpus)

    def expected_peak(self, share: float, least: int, hidden: int) -> int:
        """Return the bytes on one GPU that a new class will not exceed with the probability `share`; 0 while too few
        classes are known.

        `hidden` is the number of classes whose needs are not known yet.
        """
        return self._on_gpus.bound(share, least, hidden)

    def is_unlike(self, bytes_: int, share: float, least: int) -> bool:
        """Tell whether `bytes_` are less than this share of the smallest need of all classes on a GPU. Return False
        while fewer than `least` classes are known.
        """
        return len(self._on_gpus) >= least and bytes_ < share * self._on_gpus.least

    def usual_ram(self, number: int, share: float, least: int) -> int:
        """Return the RAM that a task of a class on GPUs is expected to need; 0 if nothing is known.

        This is the highest known RAM of a class of its script. If none is known, it is the RAM that living tasks of the
        script are expected to need. If the script has no such task either, it is the RAM that this share of all classes
        does not exceed, once `least` classes are known.
        """
        kind = self.kinds.get(number)
        script = kind.family if kind is not None else ""
        return self._ram.get(script) or self._loading.get(script) or self._beside.usual(share, least)

    def expect_ram(self, number: int, bytes_: int) -> None:
        """Note the RAM that a living task of a class is expected to need; this value counts until the RAM of any class
        of the same script is known.
        """
        kind = self.kinds.get(number)
        if kind is not None and kind.family:
            self._loading[kind.family] = max(bytes_, self._loading.get(kind.family, 0))

    def _observe(self, number: int) -> None:
        """Update the needs of a class in its family and in the collected needs of all classes."""
        self._size(number)
        kind, peaks = self.kinds.get(number), self._profiles[number].peaks
        if kind is None or not kind.family or not peaks:
            return
        if _is_without_gpus(kind) or peaks.keys() != {HOST}:  # else it ended before it was sampled on its GPUs
            from scheduler.core.profiling.family.class_summaries import Beside  # not for readers of runs

            profile = self._profiles[number]
            beside = Beside(profile.part(HOST).peak, profile.busy)
            self._families[kind.family].observe(number, on_gpus(peaks), beside)
            self.earlier.observe(number, kind, profile)

    def script(self, number: int) -> str:
        """Return the name that all classes of a script share; empty for number 0 and for a forgotten class."""
        kind = self.kinds.get(number)
        return kind.family if kind is not None else ""

    def unheard(self) -> list[str]:
        """Return the arguments that the user named but that no class has: most likely they are misspelled."""
        return sorted(self._unheard)

    def profile(self, number: int) -> Profile:
        """Return the profile of a class; an empty profile for number 0 and for a forgotten class."""
        return self._profiles.get(number, self._nothing)

    def has_succeeded(self, number: int) -> bool:
        """Tell whether a full attempt has shown the peak of a class."""
        return any(part.full for part in self.profile(number).parts.values())

    def kind(self, number: int) -> TaskClass | None:
        """Return the class with this number; None for number 0 and for a forgotten class."""
        return self.kinds.get(number)

    def guess(self, number: int) -> PredictedPeak | None:
        """Return the expected need of a class without observations, estimated from similar classes; None if unknown."""
        kind = self.kinds.get(number)
        if kind is None or not kind.family:
            return None
        before = self.earlier.guess(kind)
        if before is not None and before.is_best:
            return before.need
        guess = self._families[kind.family].like(number)
        if guess is None:
            return None if before is None else before.need
        beside = guess.of.host
        return PredictedPeak({HOST: beside, **guess.peaks} if beside else guess.peaks, guess.by, guess.busy)

    def outgrew(self, number: int, peaks: Mapping[str, int]) -> bool:
        """Note the use of a living attempt whose need is known from an earlier version of its script. Return whether
        other tasks are now expected to need more.
        """
        kind = self.kinds.get(number)
        return kind is not None and self.earlier.outgrown(kind, peaks)

    def usual_busy(self, number: int) -> float:
        """Return the mean share of time for which the classes of a script keep a GPU busy; 0 if none was observed."""
        kind = self.kinds.get(number)
        if kind is None or not kind.family:
            return 0.0
        seen = self._seen_busy.get(kind.family)
        return self._busy_sums[kind.family] / len(seen) if seen else 0.0

    def learn(self, number: int, evidence: Observation) -> bool:
        """Add the observation from one attempt of a class; return whether the tasks of the class have a different rank
        now.
        """
        if number not in self._profiles:
            return False
        self._profiles[number].learn(evidence)
        self._observe(number)
        kind = self.kinds.get(number)
        if kind is not None and kind.family:
            self._touched.add(kind.family)
            self._see_busy(kind.family, number)
        return self._profiles[number].rerank()

    def _see_busy(self, family: str, number: int) -> None:
        """Update the sum of the shares for which the classes of a script keep a GPU busy."""
        busy = self._profiles[number].busy
        if busy:
            seen = self._seen_busy.setdefault(family, {})
            self._busy_sums[family] = self._busy_sums.get(family, 0.0) + busy - seen.get(number, 0.0)
            seen[number] = busy

    def note_absence(self, number: int, gpus: int, *, sure: bool) -> list[int]:
        """Note that a living attempt of a class computes without its GPUs; return the classes about which more is known
        now. `sure` is True if the attempt computes, False if it only rests.
        """
        if number not in self._profiles:
            return []
        profile = self._profiles[number]
        for part in main_parts(gpus):
            profile.parts.setdefault(part, Peaks()).without = True
        profile.settlings += sure
        self._observe(number)
        if family := self.script(number):
            self._touched.add(family)
        return [number]

    def withdraw_absence(self, number: int) -> list[int]:
        """Forget that living attempts of a class computed without their GPUs, because one of them ended without
        success. Return the classes about which less is known now.
        """
        parts = self._profiles[number].parts.values() if number in self._profiles else ()
        if not any(part.without for part in parts):
            return []
        for part in parts:
            part.without = False
        self._renew_family_of(number)
        return [number]

    def note_use(self, number: int, used: Mapping[str, int]) -> list[int]:
        """Note that an attempt of a class uses GPUs, though the class was known to need none. Return the classes about
        which less is known now.

        After that, it proves nothing that other living attempts of the script have used no GPU so far.
        """
        if number not in self._profiles:
            return []
        for name, bytes_ in used.items():
            if name != HOST and bytes_:
                self._profiles[number].parts.setdefault(name, Peaks()).note_use(bytes_)
        relatives = self._relatives_of(number)
        for part in (part for other in relatives for part in self._profiles[other].parts.values()):
            part.without = False
        self._renew_family_of(number)
        return relatives

    def _relatives_of(self, number: int) -> list[int]:
        """Return the classes of the script of a class, including that class."""
        family = self.script(number)
        return [other for other, kind in self.kinds.items() if kind.family == family] if family else [number]

    def _renew_family_of(self, number: int) -> None:
        """Rebuild the family of a class, because an observation of one of its classes was withdrawn."""
        if family := self.script(number):
            self._renew(family, self._relatives_of(number))
            self._touched.add(family)

    def news(self) -> list[tuple[str, str, bool]]:
        """Return the findings about arguments since the last call: script, argument, and whether it is neutral."""
        found = []
        for name in sorted(self._touched):
            before, now = self._claims.get(name, frozenset()), self._families[name].claims()
            self._claims[name] = now
            found += [(self._script(name), factor, True) for factor in sorted(now - before)]
            found += [(self._script(name), factor, False) for factor in sorted(before - now)]
        self._touched.clear()
        return found

    def _script(self, family: str) -> str:
        whats = (kind.what for kind in self.kinds.values() if kind.family == family and kind.what)
        return script_of(next(whats, "").split(" "))[0]

    def learned(self) -> Iterator[tuple[str, Profile, bool]]:
        """Yield for each class: its script, its profile, and whether it belongs to this run."""
        for number, kind in self.kinds.items():
            yield kind.family, self._profiles[number], True
        for profile in self._known.values():
            yield profile.family, profile, False

    def expected(self, number: int, epochs: int | None) -> float:
        """Return the expected duration of an attempt of this class, for forecasts; 0 if unknown."""
        return self.profile(number).expected(epochs)

    def duration(self, number: int, epochs: int | None) -> float:
        """Return the duration by which a task of this class is ranked; 0 if unknown."""
        return self.profile(number).ranked_seconds * (epochs or 0)
