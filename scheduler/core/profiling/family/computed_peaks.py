"""The peaks of a family by functions of its arguments, one for each part of its memory, fitted again as it grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.core.profiling.family.class_summaries import Beside, Cell
from scheduler.core.profiling.family.peak_function import FIT_FROM, PeakFunction, Row, fit

BOUND = 0.75
"""The share of new classes that is to stay below what a function says; the margin of a reservation covers the rest."""
REFIT = 1.3
"""Functions are fitted again when so many times as many classes are known."""


class ComputedPeaks:
    """Functions that follow from the classes that were known at a few moments, not from when they are asked."""

    def __init__(self) -> None:
        self.cell = Cell()
        """The needs of the classes that the functions are fitted to, beside their peaks."""
        self._sample: tuple[tuple[int, Mapping[str, int]], ...] = ()
        """The classes and peaks that the functions are fitted to: all that were known when there were so many."""
        self._functions: dict[str, PeakFunction] | None = None
        """The functions by part; None: not fitted yet. Empty: no function explains the peaks on all parts."""

    def see(self, peaks: Mapping[int, Mapping[str, int]]) -> bool:
        """Take the peaks of all classes after one more is known; return whether what is computed may have changed."""
        if len(peaks) < max(FIT_FROM, len(self._sample) * REFIT):
            return False
        self._sample, self._functions = tuple(peaks.items()), None
        return True

    def forget(self) -> None:
        """Drop the functions, because the arguments of classes are told apart in another way now."""
        self._functions = None

    def peaks(self, row: Row, row_of: Callable[[int], Row], beside: Callable[[int], Beside]) -> dict[str, int] | None:
        """Return the peaks of a class with these arguments; None where it is too unlike those that are known.

        `row_of` and `beside` tell of the observed classes what they are fitted by.
        """
        functions = self.functions(row_of, beside)
        found = {part: function.predict(row, BOUND) for part, function in functions.items()}
        peaks = {part: predicted.bound for part, predicted in found.items() if predicted is not None}
        return peaks if functions and len(peaks) == len(found) else None

    def functions(self, row_of: Callable[[int], Row], beside: Callable[[int], Beside]) -> Mapping[str, PeakFunction]:
        """Return the functions by part, as `peaks` uses them; empty where there are none."""
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
