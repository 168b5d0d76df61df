"""Families: which arguments of a script determine its memory, learned from the peaks of its task classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core.model import EstimateSource
from scheduler.core.profiling.family.argument_table import LEFT_OUT, SPLITTING, ArgumentGroup, ArgumentTable, Key, Role
from scheduler.core.profiling.family.argument_values import ENOUGH, Row
from scheduler.core.profiling.family.arguments import Slots
from scheduler.core.profiling.family.class_summaries import NOTHING, Beside, Cell
from scheduler.core.profiling.family.computed_peaks import BOUND, ComputedPeaks, Functions
from scheduler.core.profiling.family.peak_function import FIT_FROM
from scheduler.values import dataclass

SAID = frozenset({Role.IGNORED, Role.NEEDED})
"""The roles of an argument that only a user can give."""


@dataclass(frozen=True, slots=True)
class FamilyEstimate:
    """The expected need of a task class, from the peaks of other classes."""

    peaks: dict[str, int]
    """The expected need in bytes by part, without a margin."""
    by: EstimateSource
    """SIMILAR if the need is that of classes that are alike; INTERPOLATED if it is computed from arguments."""
    of: Cell
    """The classes from which the estimate comes; it is updated as more classes join them."""
    busy: float
    """The share of time for which a task of the class is expected to keep a GPU busy; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A group of arguments that always change together, and whether it matters for the memory."""

    name: str
    """The first argument of the group, which stands for all."""
    slots: tuple[str, ...]
    values: int
    neutral: bool
    """True if the arguments change no peak: that was found, presumed or said by the user."""
    left_out: bool
    """True if the arguments only label rows, so that they are presumed neutral."""
    said: bool
    """True if the user said whether the arguments matter; peaks do not change that."""


@dataclass(frozen=True, slots=True)
class ComputedPeak:
    """The peak on one part of the memory as a function of arguments, for users to read."""

    part: str
    words: str
    """The function as a sum of terms, in words."""
    arguments: Sequence[str]
    """The arguments that change the peak."""
    classes: int
    """The number of classes to which the function was fitted."""
    error: float
    """The ratio of the real to the computed peak that three of four classes do not exceed."""


class Family:
    """All task classes of one script, whatever their arguments.

    The estimates depend on the classes and peaks that were added, not on when they are requested. They are computed on
    demand. An estimate takes little time, unless the arguments that matter have changed since the last one.
    """

    def __init__(self, ignore: Iterable[str] = (), only: Iterable[str] = ()) -> None:
        """Create a family. `ignore` names arguments that do not matter, `only` those that do, with or without
        dashes.
        """
        self._columns = ArgumentTable(ignore, only)
        self._numbers: dict[int, int] = {}
        """For each class, its row in the argument table."""
        self._rows: dict[int, int] = {}
        self._peaks: dict[int, dict[str, int]] = {}
        self._beside: dict[int, Beside] = {}
        self._bundles: tuple[ArgumentGroup, ...] = ()
        self._places: list[int] = []
        """The positions of the argument groups that may matter."""
        self._values: list[int] = []
        """The number of different values of each argument group that may matter, counted up to ENOUGH: more are not
        needed for a proof."""
        self._keys: list[Key] = []
        """For each row of the table, the values of the argument groups that may matter."""
        self._matter: tuple[int, ...] = ()
        """The positions in a key of the arguments that may change a peak. Classes with equal values at these positions
        are alike."""
        self._cells: dict[Key, Cell] = {}
        self._grown = False
        self._guesses: dict[Key, FamilyEstimate | None] = {}
        self._computed = ComputedPeaks()

    def add(self, kind: int, slots: Slots, rows: int = 1) -> None:
        """Add `rows` further rows of a class; 0 for a class that is only known from earlier runs."""
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

    def observe(self, kind: int, peaks: Mapping[str, int], beside: Beside = NOTHING) -> None:
        """Set the present peaks of a class by part; the class needs nothing on parts that are not in `peaks`."""
        self._refresh()
        self._note_beside(kind, beside)
        before, now = self._peaks.get(kind), dict(peaks)
        if not now or now == before:
            return
        self._peaks[kind] = now
        key = self._alike(self._key(kind))
        cell = self._cells.setdefault(key, Cell())
        if before is None:
            cell.take(kind, now, self.needs_beside(kind))
        elif any(before.get(part) in (low, cell.highest[part]) for part, low in cell.lowest.items()):
            cell.renew(self._peaks[other] for other in cell.kinds)
        else:
            cell.note(now)
        self._guesses.pop(key, None)
        if self._computed.see(self._peaks, kind, self):
            self._sort()

    def _note_beside(self, kind: int, beside: Beside) -> None:
        """Set the needs of a class apart from its peaks, also in the summary of its cell."""
        before = self.needs_beside(kind)
        if beside == before:
            return
        self._beside[kind] = beside
        if kind not in self._peaks:
            return
        key = self._alike(self._key(kind))
        cell = self._cells[key]
        self._guesses.pop(key, None)
        cell.change(before, beside)
        if before.host == cell.host > beside.host:
            cell.lower(self.needs_beside(other).host for other in cell.kinds)

    def like(self, kind: int) -> FamilyEstimate | None:
        """Return the expected need of a class without peaks, from classes that are alike or from its arguments; None if
        unknown.
        """
        self._refresh()
        key = self._key(kind)
        alike = self._alike(key)
        if alike not in self._guesses:
            self._guesses[alike] = self._guess(key)
        return self._guesses[alike]

    def factors(self) -> list[Factor]:
        """Return the groups of arguments that differ between classes, for users to read."""
        self._refresh()
        return [self._factor(place, bundle) for place, bundle in enumerate(self._bundles)]

    def computed(self) -> list[ComputedPeak]:
        """Return the functions that predict the peaks on each part of the memory, for users to read."""
        self._refresh()
        names = [self._columns.columns[self._bundles[place].slots[0]].name for place in self._places]
        return [
            ComputedPeak(
                part, one.words(names), sorted(names[place] for place in one.places), one.rows, one.error(BOUND)
            )
            for by_part in self._computed.functions(self).peaks
            for part, one in by_part.items()
        ]

    def claims(self) -> frozenset[str]:
        """Return the names of the factors that were found neutral."""
        return frozenset(one.name for one in self.factors() if one.neutral and not one.said and not one.left_out)

    # ---- working it out ----

    def _refresh(self) -> None:
        """Update the keys of all classes, and recompute only what has changed."""
        if not self._grown:
            return
        self._grown = False
        bundles = self._columns.bundles()
        if changed := bundles != self._bundles:
            self._bundles = bundles
            self._places = [place for place, bundle in enumerate(bundles) if bundle.role in SPLITTING]
            self._keys.clear()
            self._computed.forget()
        slots = [bundles[place].slots[0] for place in self._places]
        values = [min(ENOUGH, self._columns.values(slot)) for slot in slots]
        self._keys += [tuple([codes[slot] for slot in slots]) for codes in self._columns.table[len(self._keys) :]]
        if changed or values != self._values:
            self._values = values
            self._sort()

    def _sort(self) -> None:
        """Divide all observed classes into cells of classes that are alike."""
        functions = self._computed.functions(self)
        self._matter = tuple(place for place in range(len(self._places)) if not self._is_neutral(place, functions))
        self._cells.clear()
        for kind, peaks in self._peaks.items():
            key = self._alike(self._key(kind))
            self._cells.setdefault(key, Cell()).take(kind, peaks, self.needs_beside(kind))
        self._guesses.clear()

    def _is_neutral(self, place: int, functions: Functions) -> bool:
        """Tell whether an argument is known to change no peak; `place` is its position in a key."""
        learned = self._bundles[self._places[place]].role is Role.LEARNED
        return learned and functions.is_neutral(place, self._values[place])

    def _alike(self, key: Key) -> Key:
        """Return the part of a key in which all classes of a cell are equal."""
        return tuple([key[place] for place in self._matter])

    def _key(self, kind: int) -> Key:
        return self._keys[self._numbers[kind]]

    # ---- answers ----

    def _guess(self, key: Key) -> FamilyEstimate | None:
        computed, cell = self._predicted(key), self._cells.get(self._alike(key))
        if cell is None or not (cell.agrees or not self._is_labelled):
            return computed
        peaks = dict(cell.highest)
        if computed is not None and len(cell.kinds) < FIT_FROM:  # the highest of three is above three of four new ones
            peaks = {part: max(peak, computed.peaks.get(part, 0)) for part, peak in peaks.items()}
        return FamilyEstimate(peaks, EstimateSource.SIMILAR, cell, cell.usual_busy)

    def _predicted(self, key: Key) -> FamilyEstimate | None:
        """Return the estimate for a class from the fitted functions; None if they give none."""
        functions, row = self._computed.functions(self), self._arguments(key)
        needed = [at for at, place in enumerate(self._places) if self._bundles[place].role is Role.NEEDED]
        peaks = functions.predict(row, needed)
        if peaks is None:
            return None
        return FamilyEstimate(peaks, EstimateSource.INTERPOLATED, functions.classes, functions.busy(row))

    @property
    def _is_labelled(self) -> bool:
        """True if classes differ in arguments that are left out as labels."""
        return any(bundle.role in LEFT_OUT for bundle in self._bundles)

    def needs_beside(self, kind: int) -> Beside:
        """Return the needs of a class apart from its peaks, as far as they are known."""
        return self._beside.get(kind, NOTHING)

    def arguments_of(self, kind: int) -> Row:
        """Return the values of a class for the arguments that may matter."""
        return self._arguments(self._key(kind))

    def _arguments(self, key: Key) -> Row:
        """Return the values that a key stands for. An argument has numbers if all of its values are numbers, else
        strings.
        """
        bundles = [self._bundles[place] for place in self._places]
        return [self._argument(bundle, code) for bundle, code in zip(bundles, key, strict=True)]

    def _argument(self, bundle: ArgumentGroup, code: int) -> float | str | None:
        text = self._columns.columns[bundle.slots[0]].texts[code]
        return float(text) if bundle.numbers and text is not None else text

    def _factor(self, place: int, bundle: ArgumentGroup) -> Factor:
        names = tuple(self._columns.columns[slot].name for slot in bundle.slots)
        neutral = place not in {self._places[at] for at in self._matter}
        values = self._columns.values(bundle.slots[0])
        return Factor(names[0], names, values, neutral, bundle.role in LEFT_OUT, bundle.role in SAID)
