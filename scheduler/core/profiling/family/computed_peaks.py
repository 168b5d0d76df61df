"""The peaks and the load of a family as functions of its arguments, refitted as the family grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.core.profiling.family.argument_values import Row
from scheduler.core.profiling.family.class_summaries import Beside, Cell
from scheduler.core.profiling.family.peak_function import FIT_FROM, PeakFunction, fit
from scheduler.values import dataclass

BOUND = 0.75
"""The share of new classes whose peaks should be below the computed bound; the margin covers the other classes."""
REFIT = 1.3
"""Functions are refitted when the number of known classes has grown by this factor since the last fit."""
SURPRISED = 1 / 32
"""Functions are also refitted if the number of unexpected peaks since the last fit exceeds this share of the classes
that were fitted."""
LOADS = 1_000_000
"""The factor by which a load is multiplied, so that it can be fitted as a whole number."""


ByPart = Mapping[str, PeakFunction]
"""The function that predicts the peak on each part of the memory."""
Seen = tuple[int, Mapping[str, int]]
"""A class, and its peaks by part."""


class ObservedClasses(Protocol):
    """The observed classes of a family: their arguments, and their needs apart from the peaks."""

    def arguments_of(self, kind: int) -> Row:
        """Return the argument values of a class."""

    def needs_beside(self, kind: int) -> Beside:
        """Return the needs of a class apart from its peaks."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The fitted functions from the arguments of a family to its peaks and its load."""

    peaks: Sequence[ByPart]
    """For each group of classes that use the same parts, their functions; empty if no functions explain the peaks."""
    load: PeakFunction | None
    """The function for the share of time for which a class keeps a GPU busy; None: no argument explains it."""
    classes: Cell
    """The classes to which the functions were fitted."""

    def is_neutral(self, place: int, values: int) -> bool:
        """Tell whether an argument with this number of values is known to change no peak."""
        return bool(self.peaks) and all(
            one.is_neutral(place, values) for by_part in self.peaks for one in by_part.values()
        )

    def predict(self, row: Row, needed: Sequence[int] = ()) -> dict[str, int] | None:
        """Return the peaks of a class with these argument values; None if the class differs too much from the known
        ones.

        `needed` are arguments that count although the peaks do not show that they matter.
        """
        found = [peaks for one in self.peaks if (peaks := _predicted(one, row, needed))]
        return found[0] if len(found) == 1 else None

    def busy(self, row: Row) -> float:
        """Return the expected load of a class with these argument values; 0 if none is known."""
        found = self.load.predict(row, BOUND) if self.load is not None else None
        return min(1.0, found.middle / LOADS) if found is not None else self.classes.usual_busy

    def are_surprised(self, row: Row, peaks: Mapping[str, int]) -> bool:
        """Tell whether the peaks of a class are higher than expected, or were not expected at all."""
        return all(
            any(one.is_surprised(row, peaks.get(part, 0)) for part, one in by_part.items()) for by_part in self.peaks
        )


def _predicted(by_part: ByPart, row: Row, needed: Sequence[int]) -> dict[str, int] | None:
    if not all(one.says_of(place, row[place]) for one in by_part.values() for place in needed):
        return None
    found = {part: function.predict(row, BOUND) for part, function in by_part.items()}
    peaks = {part: predicted.bound for part, predicted in found.items() if predicted is not None}
    return peaks if len(peaks) == len(found) else None


class ComputedPeaks:
    """The functions of a family, refitted as more classes become known.

    Only the known classes determine when the functions are refitted, so a prediction does not depend on when it is
    requested.
    """

    def __init__(self) -> None:
        self._sample: tuple[tuple[int, Mapping[str, int]], ...] = ()
        """The classes and peaks to which the functions were last fitted: all that were known then."""
        self._surprises = 0
        """The number of unexpected peaks since the functions were last fitted."""
        self._functions: Functions | None = None
        """The fitted functions; None: not fitted yet."""

    def see(self, peaks: Mapping[int, Mapping[str, int]], kind: int, of: ObservedClasses) -> bool:
        """Take the peaks of all classes after those of the class `kind` have changed; return whether the functions will
        be refitted.
        """
        if len(peaks) < FIT_FROM:
            return False
        fitted = len(self._sample)
        if len(peaks) < fitted * REFIT:
            self._surprises += self.functions(of).are_surprised(of.arguments_of(kind), peaks[kind])
            if self._surprises <= fitted * SURPRISED:
                return False
        self._sample, self._functions, self._surprises = tuple(peaks.items()), None, 0
        return True

    def forget(self) -> None:
        """Drop the functions, because other arguments distinguish the classes now."""
        self._functions = None

    def functions(self, of: ObservedClasses) -> Functions:
        """Return the functions of the known classes."""
        if self._functions is None:
            self._functions = self._fitted(of)
        return self._functions

    def _fitted(self, of: ObservedClasses) -> Functions:
        classes, by_use = Cell(), dict[frozenset[str], list[Seen]]()
        for kind, peaks in self._sample:
            classes.take(kind, peaks, of.needs_beside(kind))
            by_use.setdefault(frozenset(part for part, peak in peaks.items() if peak), []).append((kind, peaks))
        rows = [[of.arguments_of(kind) for kind, _ in its] for its in by_use.values()]
        if len(rows) > 1 and not _are_separate(rows):
            return Functions((), None, classes)
        fitted = [_fit_parts(its, seen) for its, seen in zip(rows, by_use.values(), strict=True)]
        return Functions(list(filter(None, fitted)), self._load(of), classes)

    def _load(self, of: ObservedClasses) -> PeakFunction | None:
        loads = [(of.arguments_of(kind), round(of.needs_beside(kind).busy * LOADS)) for kind, _ in self._sample]
        known = [(row, load) for row, load in loads if load > 0]
        return fit([row for row, _ in known], [load for _, load in known])


def _fit_parts(rows: Sequence[Row], seen: Sequence[Seen]) -> ByPart:
    """Return the functions for classes that use the same parts; empty if the peaks on one part are not explained."""
    functions = {}
    for part in sorted({part for _, peaks in seen for part in peaks}):
        function = fit(rows, [peaks.get(part, 0) for _, peaks in seen])
        if function is None:
            return {}
        functions[part] = function
    return functions


def _are_separate(groups: Sequence[Sequence[Row]]) -> bool:
    """Tell whether one argument, such as `--device`, has different values in all of these groups of classes."""
    for place in range(len(groups[0][0])):
        values = [{row[place] for row in rows} for rows in groups]
        if sum(map(len, values)) == len(set().union(*values)):
            return True
    return False
