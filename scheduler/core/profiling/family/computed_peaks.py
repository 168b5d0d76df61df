"""The peaks of a family as functions of its arguments, one per part of the memory, fitted again as the family grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.core.profiling.family.class_summaries import Beside, Cell
from scheduler.core.profiling.family.peak_function import FIT_FROM, PeakFunction, Row, fit

BOUND = 0.75
"""The share of new classes whose peak should not exceed the function; the margin of a reservation covers the rest."""
REFIT = 1.3
"""Functions are fitted again when the number of known classes has grown by this factor."""


class ComputedPeaks:
    """Functions that are fitted at fixed numbers of known classes, so that they do not depend on when they are
    asked.
    """

    def __init__(self) -> None:
        self.cell = Cell()
        """The needs of the fitted classes, apart from their peaks."""
        self._sample: tuple[tuple[int, Mapping[str, int]], ...] = ()
        """The classes and peaks to which the functions are fitted: all that were known at that moment."""
        self._functions: dict[str, PeakFunction] | None = None
        """The functions by part; None: not fitted yet. Empty: no function explains the peaks on all parts."""

    def see(self, peaks: Mapping[int, Mapping[str, int]]) -> bool:
        """Take the peaks of all classes after one more is known; return whether computed peaks may have changed."""
        if len(peaks) < max(FIT_FROM, len(self._sample) * REFIT):
            return False
        self._sample, self._functions = tuple(peaks.items()), None
        return True

    def forget(self) -> None:
        """Drop the functions, because the arguments of classes are distinguished in another way now."""
        self._functions = None

    def peaks(self, row: Row, row_of: Callable[[int], Row], beside: Callable[[int], Beside]) -> dict[str, int] | None:
        """Return the peaks of a class with these arguments; None if it is too different from the known ones.

        `row_of` and `beside` return the arguments and the further needs of observed classes.
        """
        functions = self.functions(row_of, beside)
        found = {part: function.predict(row, BOUND) for part, function in functions.items()}
        peaks = {part: predicted.bound for part, predicted in found.items() if predicted is not None}
        return peaks if functions and len(peaks) == len(found) else None

    def functions(self, row_of: Callable[[int], Row], beside: Callable[[int], Beside]) -> Mapping[str, PeakFunction]:
        """Return the functions by part, as `peaks` uses them; empty if there are none."""
        if self._functions is None:
            self._fit(row_of, beside)
        return self._functions or {}

    def _fit(self, row_of: Callable[[int], Row], beside: Callable[[int], Beside]) -> None:
        self._functions, self.cell = {}, Cell()
        for kind, peaks in self._sample:
            self.cell.take(kind, peaks, beside(kind))
        rows = [row_of(kind) for kind, _ in self._sample]
        for part in sorted({part for _, peaks in self._sample for part in peaks}):
            function = fit(rows, [peaks.get(part, 0) for _, peaks in self._sample])
            if function is None:
                self._functions = {}
                return
            self._functions[part] = function
