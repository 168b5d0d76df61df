"""Which arguments of a script determine its memory, learned from the peaks of its classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.model import EstimateSource
from scheduler.core.profiling.family import noisy_factor_test
from scheduler.core.profiling.family.argument_table import LEFT_OUT, ArgumentGroup, ArgumentTable, Role
from scheduler.core.profiling.family.arguments import Slots
from scheduler.core.profiling.family.class_summaries import NOTHING, Beside, Cell
from scheduler.core.profiling.family.computed_peaks import BOUND, ComputedPeaks
from scheduler.core.profiling.family.factor_test import ENOUGH, FactorVerdict, Key, judge, take
from scheduler.core.profiling.family.peak_function import Row
from scheduler.core.profiling.family.scatter import STEADY, Pool, differ, middle
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class FamilyEstimate:
    """The expected need of a task class, from the peaks of other classes."""

    peaks: dict[str, int]
    """The bytes by part, without a margin."""
    by: EstimateSource
    """SIMILAR: from classes that are alike; INTERPOLATED: computed from the arguments of other classes."""
    of: tuple[Cell, ...]
    """The cells from which it was taken; they change as further classes join them."""


@dataclass(frozen=True, slots=True)
class Factor:
    """Arguments that always change together, and whether they matter."""

    name: str
    """The first of its slots."""
    slots: tuple[str, ...]
    values: int
    neutral: bool
    """True if it was found, presumed or declared to change no peak."""
    left_out: bool
    """True if it only labels rows; it is presumed neutral until a peak contradicts."""
    said: bool
    """True if the user declared it; no peak changes that."""


@dataclass(frozen=True, slots=True)
class ComputedPeak:
    """The peak on one part of the memory as a function of arguments, for users to read."""

    part: str
    words: str
    """The sum of its terms."""
    arguments: Sequence[str]
    """The arguments that change the peak."""
    classes: int
    """The number of classes to which it was fitted."""
    error: float
    """The ratio of the real to the computed peak that three of four classes do not exceed."""


class Family:
    """All task classes of one script, whatever their arguments.

    The answers follow from the classes and peaks that were added, not from the time of the question. They are computed
    on demand; an answer is cheap unless a factor has begun or ceased to matter since the last one.
    """

    def __init__(self, ignore: Iterable[str] = (), only: Iterable[str] = ()) -> None:
        """Create a family; `ignore` names slots that do not matter, `only` those that do, with or without dashes."""
        self._columns = ArgumentTable(ignore, only)
        self._numbers: dict[int, int] = {}
        """Classes by their row in the argument table."""
        self._rows: dict[int, int] = {}
        self._parts: tuple[str, ...] = ()
        self._peaks: dict[int, dict[str, int]] = {}
        self._beside: dict[int, Beside] = {}
        self._runs = Pool()
        self._scatter = STEADY
        self._bundles: tuple[ArgumentGroup, ...] = ()
        self._values: tuple[int, ...] = ()
        """The number of values of each argument group, as far as a proof needs it."""
        self._verdict = FactorVerdict()
        self._judged: dict[Key, list[tuple[int, int, int]]] = {}
        """The spans of the verdict's cells that were asked for."""
        self._vectors: list[Key] = []
        """The values of each row of the table, by argument group."""
        self._keys: list[Key] = []
        """The splitting places of each class: classes with equal keys are alike."""
        self._cells: dict[Key, Cell] = {}
        self._grown = self._unjudged = self._repeated = False
        self._guesses: dict[Key, FamilyEstimate | None] = {}
        self._computed = ComputedPeaks()

    def add(self, kind: int, slots: Slots, rows: int = 1) -> None:
        """Add a class with this number of further rows in the list; 0 if it is only known from earlier runs."""
        before = self._rows.get(kind)
        if before is None:
            self._numbers[kind] = len(self._columns.table)
            self._columns.add(slots)
        self._rows[kind] = (before or 0) + rows
        self._columns.rows += max(1, self._rows[kind]) - (0 if before is None else max(1, before))
        self._grown = True

    def rows(self, kind: int) -> int:
        """Return the number of rows of a class."""
        return self._rows[kind]

    def observe(
        self, kind: int, peaks: Mapping[str, int], runs: Sequence[Sequence[int]] = (), beside: Beside = NOTHING
    ) -> None:
        """Set the present peaks of a class by part; parts that are not named need nothing.

        `runs` are the peaks of its full runs one by one, for each part with several.
        """
        self._note_beside(kind, beside)
        if runs:
            self._runs.put(kind, runs)
            self._repeated = True
        before, now = self._peaks.get(kind), dict(peaks)
        if not now or now == before:
            return
        if not self._unjudged:
            self._refresh()
            self._unjudged = not (self._expected(kind, now) if before is None else self._is_alike(kind, before, now))
        self._peaks[kind] = now
        if self._computed.see(self._peaks):
            self._guesses.clear()

    def _note_beside(self, kind: int, beside: Beside) -> None:
        """Keep what a class needs apart from its peaks, also in its cell."""
        before = self._beside.get(kind, NOTHING)
        if beside == before:
            return
        self._beside[kind] = beside
        if kind not in self._peaks or self._unjudged:
            return  # it is in no cell, or all cells are made anew
        cell = self._cells[self._key(kind)]
        cell.change(before, beside)
        if before.host == cell.host > beside.host:
            cell.lower(self._beside.get(other, NOTHING).host for other in cell.kinds)

    def like(self, kind: int) -> FamilyEstimate | None:
        """Return the expected need of a class without peaks, from similar classes or from its arguments; None if it
        is unknown.
        """
        self._refresh()
        key = self._key(kind)
        if key not in self._guesses:
            self._guesses[key] = self._guess(key)
        return self._guesses[key]

    def factors(self) -> list[Factor]:
        """Return all factors that vary, for users to read."""
        self._refresh()
        return [self._factor(place, bundle) for place, bundle in enumerate(self._bundles)]

    def computed(self) -> list[ComputedPeak]:
        """Return the function for each part of the memory, for users to read."""
        self._refresh()
        names = [self._columns.columns[self._bundles[place].slots[0]].name for place in self._verdict.splits]
        found = self._computed.functions(self._arguments_of, self._needs_beside)
        return [
            ComputedPeak(
                part, one.words(names), sorted(names[place] for place in one.places), one.rows, one.error(BOUND)
            )
            for part, one in found.items()
        ]

    def claims(self) -> frozenset[str]:
        """Return the names of the factors that were found neutral and that no peak contradicts."""
        return frozenset(one.name for one in self.factors() if one.neutral and not one.said and not one.left_out)

    # ---- working it out ----

    def _refresh(self) -> None:
        """Bring all results up to date; compute only what has changed."""
        if self._grown:
            self._lay_out()
        if self._repeated:
            self._pool()
        if self._unjudged:
            self._judge()
        if len(self._keys) < len(self._vectors):
            self._make_keys()
        self._grown = self._unjudged = self._repeated = False

    def _pool(self) -> None:
        """Update the scatter of runs of one class, as far as it is known."""
        now = self._runs.scatter()
        self._unjudged = self._unjudged or now != self._scatter
        self._scatter = now

    def _lay_out(self) -> None:
        """Determine which arguments vary now, and every class's values of them."""
        bundles = self._columns.bundles()
        values = tuple(min(ENOUGH, self._columns.values(bundle.slots[0])) for bundle in bundles)
        if bundles != self._bundles:
            self._vectors.clear()
            self._keys.clear()
        if bundles != self._bundles or values != self._values:
            self._bundles, self._values = bundles, values
            self._unjudged = True
        pick = take([bundle.slots[0] for bundle in bundles])
        self._vectors += map(pick, self._columns.table[len(self._vectors) :])

    def _judge(self) -> None:
        """Judge the factors by all peaks together."""
        self._parts = tuple(sorted({part for peaks in self._peaks.values() for part in peaks}))
        seen = [(self._vectors[self._numbers[kind]], self._row(peaks)) for kind, peaks in self._peaks.items()]
        roles = [bundle.role for bundle in self._bundles]
        steady = not self._scatter.share
        verdict = (
            judge(seen, roles, self._values)
            if steady
            else noisy_factor_test.judge(seen, roles, self._values, self._scatter)
        )
        if verdict.splits != self._verdict.splits:
            self._keys.clear()
        self._verdict = verdict
        self._judged.clear()
        self._make_keys()
        self._cells.clear()
        for kind, peaks in self._peaks.items():
            self._cells.setdefault(self._key(kind), Cell()).take(kind, peaks, self._beside.get(kind, NOTHING))
        self._guesses.clear()
        self._computed.forget()

    def _row(self, peaks: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([peaks.get(part, 0) for part in self._parts])

    def _key(self, kind: int) -> Key:
        return self._keys[self._numbers[kind]]

    def _make_keys(self) -> None:
        """Compute the keys of all classes that have none."""
        pick = take(self._verdict.splits)
        self._keys += map(pick, self._vectors[len(self._keys) :])

    def _expected(self, kind: int, peaks: Mapping[str, int]) -> bool:
        """Tell whether the first peaks of a class lie among those of similar classes; then it only joins them."""
        if not self._are_usual(kind, peaks):
            return False
        key = self._key(kind)
        self._cells[key].take(kind, peaks, self._beside.get(kind, NOTHING))
        self._guesses.pop(key, None)
        return True

    def _is_alike(self, kind: int, before: Mapping[str, int], now: Mapping[str, int]) -> bool:
        """Tell whether further peaks of a class agree with its former ones: both lie among those of similar classes.

        If the former peaks were the lowest or the highest of all, the verdict may have changed.
        """
        if before.keys() != now.keys() or not self._are_usual(kind, now) or not self._are_usual(kind, before):
            return False
        key = self._key(kind)
        cell, spans = self._cells[key], zip(self._parts, self._spans(key), strict=True)
        for part, (low, _, high) in spans:
            was = before.get(part, 0)
            if was in (low, high) and was != now.get(part, 0) and cell.times[part][was] < 2:
                return False
        cell.replace(before, now)
        return True

    def _are_usual(self, kind: int, peaks: Mapping[str, int]) -> bool:
        """Tell whether these peaks lie among those of similar classes, and could not change the answer to an open
        question.
        """
        if self._verdict.contradicted or not peaks.keys() <= set(self._parts):
            return False
        key = self._key(kind)
        return key in self._verdict.cells and all(map(self._is_usual, self._spans(key), self._row(peaks)))

    def _spans(self, key: Key) -> list[tuple[int, int, int]]:
        """Return the lowest, the median and the highest peak on each part of a judged cell."""
        if key not in self._judged:
            parts = zip(*self._verdict.cells[key], strict=True)
            self._judged[key] = [(min(seen), middle(seen), max(seen)) for seen in parts]
        return self._judged[key]

    def _is_usual(self, span: tuple[int, int, int], peak: int) -> bool:
        """Tell whether a peak lies among the others, and not apart from most of them."""
        low, usual, high = span
        return low <= peak <= high and not (self._scatter.share and differ(min(peak, usual), max(peak, usual)))

    # ---- answers ----

    def _guess(self, key: Key) -> FamilyEstimate | None:
        cell = self._cells.get(key)
        if cell is not None:
            return FamilyEstimate(dict(cell.highest), EstimateSource.SIMILAR, (cell,))
        peaks = self._computed.peaks(self._arguments(key), self._arguments_of, self._needs_beside)
        if peaks is None:
            return None
        return FamilyEstimate(peaks, EstimateSource.INTERPOLATED, (self._computed.cell,))

    def _needs_beside(self, kind: int) -> Beside:
        return self._beside.get(kind, NOTHING)

    def _arguments_of(self, kind: int) -> Row:
        return self._arguments(self._key(kind))

    def _arguments(self, key: Key) -> Row:
        """Return the values of a key: numbers if all values of an argument are numbers, else texts."""
        places = [self._bundles[place] for place in self._verdict.splits]
        return [self._argument(bundle, code) for bundle, code in zip(places, key, strict=True)]

    def _argument(self, bundle: ArgumentGroup, code: int) -> float | str | None:
        text = self._columns.columns[bundle.slots[0]].texts[code]
        return float(text) if bundle.numbers and text is not None else text

    def _factor(self, place: int, bundle: ArgumentGroup) -> Factor:
        names = tuple(self._columns.columns[slot].name for slot in bundle.slots)
        left_out = bundle.role in LEFT_OUT and place not in self._verdict.withdrawn
        said = bundle.role in {Role.IGNORED, Role.NEEDED}
        neutral = place not in self._verdict.splits
        return Factor(names[0], names, self._columns.values(bundle.slots[0]), neutral, left_out, said)
