"""The values of arguments in observed task classes: which values count as known, and the typical peak of each value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

Row = Sequence[float | str | None]
"""The argument values of one task class: numbers, strings, or None for an argument that the class does not have."""

ENOUGH = 3
"""Once a function has been right for this many values of an argument that it does not use, the argument is proved to
change no peak. If the argument has fewer values, the function must have been right for all of them."""
BETWEEN_FROM = 4
"""Once this many values of a numeric argument have been seen, all values between them count as known."""
MOST_TEXTS = 8
"""The most values of an argument that is used as a category. For an argument with more values, a function uses the
typical peak of each value instead, if the values repeat."""


class SeenValues:
    """The values of one argument in the classes to which a function was fitted. Each value is kept with the number of
    classes for which the function predicts well.

    If values repeat, as in a grid, a class with a new value may be unlike all others. So only values that were seen
    twice, and numbers between others, count as known.
    """

    def __init__(self, column: Sequence[float | str | None], right: Sequence[bool], covered: Sequence[bool]) -> None:
        """Take the value of the argument in each class.

        `right` is True for a class whose peak is predicted correctly from the other classes, `covered` for a class
        whose peak is not above the bound computed from them.
        """
        self._times = Counter(column)
        self._right = Counter(value for value, is_so in zip(column, right, strict=True) if is_so)
        self._covered = Counter(value for value, is_so in zip(column, covered, strict=True) if is_so)
        plain = is_number(column)
        self.is_free = plain and 2 * len(self._times) > len(column) and len(self._times) >= ENOUGH
        """True for a numeric argument whose values seldom repeat, as in a random search; then every value counts as
        known."""
        numbers = sorted(value for value in self._times if isinstance(value, float))
        between = plain and len(numbers) >= BETWEEN_FROM
        self._least, self._most = (numbers[0], numbers[-1]) if between else (inf, -inf)

    def knows(self, value: float | str | None) -> bool:
        """Tell whether a value counts as known. A value that was seen at least twice counts if at least half of its
        classes are below their bound.
        """
        times = self._times[value]
        if times > 1:
            return 2 * self._covered[value] >= times
        return self.is_free or (isinstance(value, float) and self._least <= value <= self._most)

    def is_neutral(self, values: int) -> bool:
        """Tell whether an argument with this number of values, which the function does not use, changes nothing.

        This holds if the function was right for enough of the values, and if there is no value for which it was wrong
        in most classes.
        """
        right = sum(2 * self._right[value] > times for value, times in self._times.items())
        wrong = any(times > 1 and 2 * self._right[value] < times for value, times in self._times.items())
        return right >= min(ENOUGH, values) and not wrong

    def was_right(self, value: float | str | None) -> bool:
        """Tell whether the function was right for most classes with this value."""
        return 2 * self._right[value] > self._times[value]


class UsualPeaks:
    """The mean peak of each value, for the arguments whose values repeat. These means are further columns of a row.

    The classes with a value are divided into two halves, and each class takes the mean of the half without it. The mean
    of all other classes would not do: from it a function could compute the peak of the class itself.
    """

    def __init__(self, rows: Sequence[Row], peaks: Sequence[int]) -> None:
        self._arguments = len(rows[0])
        self._mean = sum(peaks) / len(peaks)
        columns = list(zip(*rows, strict=True))
        self.places = [place for place, column in enumerate(columns) if MOST_TEXTS < len(set(column)) <= len(rows) // 2]
        """The positions of the arguments whose values have a typical peak."""
        self._of = [_halves(columns[place], peaks) for place in self.places]

    def place(self, column: int) -> int:
        """Return the position of the argument to which a column of an extended row belongs."""
        return column if column < self._arguments else self.places[column - self._arguments]

    def extended(self, row: Row) -> Row:
        """Return the row of a new class with the typical peaks of its values added."""
        return [
            *row,
            *(self._usual(its.get(row[place], ([], []))) for place, its in zip(self.places, self._of, strict=True)),
        ]

    def extended_all(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of all observed classes with the typical peaks of their values added."""
        times: list[Counter[float | str | None]] = [Counter() for _ in self.places]
        found: list[Row] = []
        for row in rows:
            more = []
            for place, its, seen in zip(self.places, self._of, times, strict=True):
                more.append(self._usual((its[row[place]][1 - seen[row[place]] % 2],)))
                seen[row[place]] += 1
            found.append([*row, *more])
        return found

    def _usual(self, halves: Sequence[Sequence[int]]) -> float:
        number = sum(map(len, halves))
        return sum(map(sum, halves)) / number if number else self._mean


def _halves(
    column: Sequence[float | str | None], peaks: Sequence[int]
) -> dict[float | str | None, tuple[list[int], list[int]]]:
    """Return, for each value, the peaks of the classes that have it, divided into two halves. Classes go to the two
    halves in turn.
    """
    found: dict[float | str | None, tuple[list[int], list[int]]] = {}
    for value, peak in zip(column, peaks, strict=True):
        first, second = found.setdefault(value, ([], []))
        (first if len(first) == len(second) else second).append(peak)
    return found


def is_number(column: Sequence[float | str | None]) -> bool:
    """Tell whether all values of an argument are numbers; classes without the argument do not count."""
    return all(value is None or isinstance(value, float) for value in column)


def is_among(value: float | str | None, others: Sequence[float | str | None]) -> bool:
    """Tell whether a value is one of `others`, or a number between them."""
    if value in others:
        return True
    numbers = [other for other in others if isinstance(other, float)]
    return isinstance(value, float) and bool(numbers) and min(numbers) <= value <= max(numbers)
