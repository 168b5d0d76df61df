"""The peak of a script as a function of its arguments, with a bound that holds for a stated share of new tasks.

The function is a sum of few terms: a constant, numbers, their squares, logarithms and products, strings that are equal
to a value, and the typical peak of a value. The memory of training has that shape: weights grow with width x width x
depth, activations with batch x width, and each model has a size of its own. Terms are added one by one while they
explain more than chance would. Errors are relative. For the bound, each observed peak is predicted from all others; the
bound follows from the errors, so it holds whatever the true shape is. A constant is a function too, if the peaks agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from math import ceil, inf, log, sqrt
from typing import TypeVar

from scheduler.core.profiling.family.argument_values import (
    ENOUGH,
    MOST_TEXTS,
    Row,
    SeenValues,
    UsualPeaks,
    is_among,
    is_number,
)
from scheduler.units import GIB, MIB
from scheduler.values import dataclass

FIT_FROM = 3
"""The fewest known classes to which a function is fitted. The peak of a new class is below the highest of three peaks
with probability 3/4."""
MOST_ROWS = 100
"""The most classes to which a function is fitted. If more are known, these are chosen at even distances: more classes
would add little accuracy and take longer."""
ALIKE, SLACK = 0.05, 64 * MIB
"""A prediction counts as right if its error is at most this share of the peak, or at most this number of bytes."""
MOST_TERMS = 8
ROWS_A_TERM = 4
"""The number of known classes that each term needs. With fewer than eight classes a function is therefore only a
constant."""
MOST_NUMBERS = 12
"""With more numeric arguments than this, products of three are not tried, because there would be too many products to
tell apart."""
CHANCE = 2.0
"""A term is kept if it explains this many times as much as the best of equally many random terms would."""
LEAST_ERROR = 0.01
"""Once the relative error of a function is below this, no further term is tried."""
SMALL = 1e-9
UNITS = {"GiB": GIB, "MiB": MIB, "KiB": 1024, "B": 1}
MOST = 0.75
"""The share of the peaks that must agree with their predictions for a function to explain them."""
WIDEST = 4.0
"""The highest allowed ratio of the bound to the predicted peak. Above it, the peaks of other scripts
tell more."""
FAR = 16.0
"""The leverage above which no peak is predicted for a class, because it is too far from all observed classes."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a function: a product of numbers, with a logarithm or the condition that a string has a certain
    value.

    `numbers`, `logarithm` and `text` name arguments by their positions.
    """

    numbers: tuple[int, ...] = ()
    logarithm: int | None = None
    text: tuple[int, str | None] | None = None

    def of(self, row: Row) -> float:
        """Return the value of this term for a class; 0 if the class lacks one of the numbers."""
        if self.text is not None and row[self.text[0]] != self.text[1]:
            return 0.0
        found = 1.0
        for place in self.numbers:
            value = row[place]
            found *= value if isinstance(value, float) else 0.0
        if self.logarithm is not None:
            value = row[self.logarithm]
            found *= log(value) if isinstance(value, float) and value > 0 else 0.0
        return found

    def words(self, names: Sequence[str]) -> str:
        """Return the term in words, given the names of the arguments; empty for the constant term."""
        factors = [names[place] for place in self.numbers]
        factors += [f"log({names[self.logarithm]})"] if self.logarithm is not None else []
        factors += [f"({names[self.text[0]]} = {self.text[1]})"] if self.text is not None else []
        return " x ".join(factors)

    @property
    def places(self) -> frozenset[int]:
        """The positions of the arguments on which the term depends."""
        some = set(self.numbers)
        some |= {self.logarithm} if self.logarithm is not None else set()
        return frozenset(some | ({self.text[0]} if self.text is not None else set()))


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peak that a function predicts for one class."""

    middle: int
    """The most likely peak, in bytes."""
    bound: int
    """The peak in bytes that is not exceeded in the requested share of cases."""


class PeakFunction:
    """A function from the arguments of a script to its peak, fitted to observed peaks."""

    def __init__(
        self, terms: Sequence[Term], directions: _Directions, usual: UsualPeaks, rows: Sequence[Row], *, unused: bool
    ) -> None:
        self.terms = tuple(terms)
        self.rows = len(rows)
        """The number of classes to which the function was fitted."""
        self._unused = unused
        """True if the peaks of all classes are 0."""
        self._usual, self._rows = usual, rows
        self._basis = directions.basis()
        errors, right = directions.errors(), directions.right()
        self.errors = sorted(errors)
        """The ratio of each observed peak to its prediction, in sorted order."""
        self.explains = sum(right) >= ceil(MOST * (self.rows + 1))
        """True if most peaks agree with their predictions from the other classes."""
        covered = [error <= self.error(MOST) + ALIKE for error in errors]
        self._seen = [SeenValues(column, right, covered) for column in zip(*rows, strict=True)]

    @property
    def places(self) -> frozenset[int]:
        """The positions of the arguments that the function uses."""
        return frozenset(self._usual.place(place) for term in self.terms for place in term.places)

    @property
    def _categories(self) -> frozenset[int]:
        """The positions of the arguments that the function uses by single values, not as numbers."""
        texts = {term.text[0] for term in self.terms if term.text is not None}
        usual = {self._usual.place(at) for term in self.terms for at in term.numbers if at >= len(self._seen)}
        return frozenset(texts | usual)

    def is_neutral(self, place: int, values: int) -> bool:
        """Tell whether an argument with this number of values is known to change no peak; `place` is its position."""
        return self.explains and place not in self.places and self._seen[place].is_neutral(values)

    def words(self, names: Sequence[str]) -> str:
        """Return the function in words, given the names of the arguments."""
        said, names = "", [*names, *(f"usual({names[place]})" for place in self._usual.places)]
        for at, term in enumerate(self.terms):
            factor, _ = self._basis.at([float(other == at) for other in range(len(self.terms))])
            bare = any(place >= len(self._seen) for place in term.numbers)
            amount = " x ".join(
                filter(None, (f"{abs(factor):.3g}" if bare else _amount(abs(factor)), term.words(names)))
            )
            said += amount if not at and factor >= 0 else f"{' ' * bool(at)}{'+' if factor >= 0 else '-'} {amount}"
        return said

    def error(self, share: float) -> float:
        """Return the ratio of real to predicted peak that a new class does not exceed in this share of cases."""
        place = ceil(share * (len(self.errors) + 1))
        highest = self.errors[-1]
        return self.errors[place - 1] if place <= len(self.errors) else highest + max(0.0, highest - 1)

    def predict(self, row: Row, share: float) -> Prediction | None:
        """Return the predicted peak of a class, with the bound for this share of cases.

        Return None if the class differs too much from all observed classes.
        """
        if not self._knows(row):
            return None
        if self._unused:
            return Prediction(0, 0)
        whole = self._usual.extended(row)
        middle, leverage = self._basis.at([term.of(whole) for term in self.terms])
        if not (leverage < FAR and middle > 0):
            return None
        error = self.error(share)
        wider = 1 + max(0.0, error - 1) * sqrt((1 + leverage) / (1 + len(self.terms) / self.rows))
        return Prediction(round(middle), round(middle * wider)) if wider <= WIDEST else None

    def says_of(self, place: int, value: float | str | None) -> bool:
        """Tell whether the function uses an argument, or has seen this value of it."""
        return place in self.places or any(row[place] == value for row in self._rows)

    def is_surprised(self, row: Row, peak: int) -> bool:
        """Tell whether the peak of a class is higher than predicted, or none was predicted."""
        guess = self.predict(row, 1.0)
        return guess is None or peak > max(guess.bound * (1 + ALIKE), guess.bound + SLACK)

    def _knows(self, row: Row) -> bool:
        matter = self.places
        known = all(
            seen.knows(value) or (place not in matter and self._is_unimportant(seen, value))
            for place, (seen, value) in enumerate(zip(self._seen, row, strict=True))
        )
        return known and all(self._knows_beside(place, row) for place in self._categories)

    def _knows_beside(self, place: int, row: Row) -> bool:
        """Tell whether observed classes with this value of an argument also had the other values of the row, or numbers
        on both sides of them. Only arguments that the function uses count.

        Without such classes the peak is unknown: what doubles the memory of one model may not change that of another.
        """
        alike = [other for other in self._rows if other[place] == row[place]]
        others = [one for one in self.places - {place} if not self._seen[one].is_free]
        return all(is_among(row[one], [other[one] for other in alike]) for one in others)

    def _is_unimportant(self, seen: SeenValues, value: float | str | None) -> bool:
        """Tell whether a value of an argument that the function does not use changes no peak, as far as is known."""
        return self.explains and (seen.was_right(value) or seen.is_neutral(ENOUGH))


@dataclass(frozen=True, slots=True)
class _Basis:
    """The terms of a function, made orthogonal one after another, and the coefficient with which each term contributes
    to the peak.
    """

    shares: Sequence[float]
    mixes: Sequence[Sequence[float]]
    norms: Sequence[float]

    def at(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the peak for these values of the terms, and its leverage: how far they are from all observed
        classes.
        """
        found, coordinates = 0.0, list[float]()
        for value, mix, norm, share in zip(values, self.mixes, self.norms, self.shares, strict=True):
            coordinate = (value - sum(one * other for one, other in zip(mix, coordinates, strict=True))) / norm
            coordinates.append(coordinate)
            found += coordinate * share
        leverage = sum(one * one for one in coordinates) / (found * found) if found else inf
        return found, leverage


class _Directions:
    """The values of terms in all rows, made orthogonal one after another; each row is divided by its peak."""

    def __init__(self, peaks: Sequence[int]) -> None:
        self._peaks = peaks
        self.rest = [1.0] * len(peaks)
        """For each row, the share of its peak that no term explains yet."""
        self.leverages = [0.0] * len(peaks)
        self._units: list[list[float]] = []
        self._shares: list[float] = []
        self._mixes: list[list[float]] = []
        self._norms: list[float] = []

    def weighted(self, values: Iterable[float]) -> list[float]:
        """Return the values of a term in all rows, divided by the peaks."""
        return [value / peak for value, peak in zip(values, self._peaks, strict=True)]

    def add(self, values: Sequence[float]) -> None:
        """Add a term with these values, and subtract from the peaks what it explains."""
        left, mix = list(values), []
        for unit in self._units:
            share = _dot(unit, left)
            mix.append(share)
            left = [one - share * other for one, other in zip(left, unit, strict=True)]
        norm = sqrt(_dot(left, left)) or 1.0
        unit = [one / norm for one in left]
        share = _dot(unit, self.rest)
        self.rest = [one - share * other for one, other in zip(self.rest, unit, strict=True)]
        self.leverages = [one + other * other for one, other in zip(self.leverages, unit, strict=True)]
        self._units.append(unit)
        self._shares.append(share)
        self._mixes.append(mix)
        self._norms.append(norm)

    def newest(self) -> list[float]:
        """Return the values of the term that was added last, made orthogonal to the earlier ones."""
        return self._units[-1]

    def left_out(self) -> list[float]:
        """Return, for each peak, the relative error of its prediction from all other rows."""
        return [
            one / max(SMALL, 1 - leverage) if leverage < 1 - SMALL else inf
            for one, leverage in zip(self.rest, self.leverages, strict=True)
        ]

    def right(self) -> list[bool]:
        """Tell, for each peak, whether it agrees with its prediction from all other rows."""
        return [
            abs(error) <= max(ALIKE, SLACK / peak) for error, peak in zip(self.left_out(), self._peaks, strict=True)
        ]

    def errors(self) -> list[float]:
        """Return, for each peak, its ratio to its prediction from all other rows."""
        return [1 / (1 - error) if error < 1 - SMALL else 1 / SMALL for error in self.left_out()]

    def basis(self) -> _Basis:
        """Return the terms in the form that is needed to predict further peaks."""
        return _Basis(self._shares, self._mixes, self._norms)


def fit(rows: Sequence[Row], peaks: Sequence[int]) -> PeakFunction | None:
    """Return the function that explains these peaks; None if there are too few rows, if only some of the peaks are 0,
    or if no function explains the peaks.
    """
    if len(rows) < FIT_FROM or min(peaks) <= 0 < max(peaks):
        return None
    unused, peaks = max(peaks) == 0, [max(1, peak) for peak in peaks]
    usual = UsualPeaks(rows, peaks)
    plain, peaks, rows = _spread(rows), _spread(peaks), _spread(usual.extended_all(rows))
    found, chosen = _Directions(peaks), [Term()]
    found.add(found.weighted([1.0] * len(rows)))
    enough = min(MOST_TERMS, len(rows) // ROWS_A_TERM)
    candidates = _candidates(rows, len(plain[0]), found) if enough > 1 else {}
    while len(chosen) < enough and (best := _best(candidates, found.rest)) is not None:
        more = _Directions(peaks)
        for term in (*chosen, best):
            more.add(more.weighted(map(term.of, rows)))
        if not _explains(found, more, len(candidates)):
            break
        found = more
        chosen.append(best)
        del candidates[best]
        for term, values in candidates.items():
            candidates[term] = _without(values, found.newest())
    function = PeakFunction(chosen, found, usual, plain, unused=unused)
    return function if len(chosen) > 1 or function.explains else None


def _spread(values: Sequence[Value]) -> Sequence[Value]:
    """Return at most MOST_ROWS of the values, spread evenly over all of them."""
    number = len(values)
    return values if number <= MOST_ROWS else [values[at * number // MOST_ROWS] for at in range(MOST_ROWS)]


def _candidates(rows: Sequence[Row], arguments: int, found: _Directions) -> dict[Term, list[float]]:
    """Return each term, apart from the constant, with its values made orthogonal to the constant and scaled to length
    1.
    """
    made = {term: _direction(found.weighted(map(term.of, rows))) for term in _terms(rows, arguments)}
    return {term: _without(values, found.newest()) for term, values in made.items()}


def _direction(values: Sequence[float]) -> list[float]:
    """Return the values scaled to length 1. After terms have been subtracted from the values, their length is the share
    that these terms do not explain.
    """
    length = sqrt(_dot(values, values)) or 1.0
    return [value / length for value in values]


def _amount(factor: float) -> str:
    """Return a number of bytes as text with three digits, in the largest unit that does not exceed it."""
    unit = next((unit for unit in UNITS if factor >= UNITS[unit]), "B")
    amount = factor / UNITS[unit]
    return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"


def _explains(before: _Directions, after: _Directions, among: int) -> bool:
    """Tell whether one more term, the best of `among` terms, improves the predictions more than chance would."""
    number = len(before.rest)
    floor = number * LEAST_ERROR * LEAST_ERROR
    was, now = (sum(error * error for error in one.left_out()) + floor for one in (before, after))
    return number * log(was / now) > CHANCE * log(among + 1) if now < was < inf else now < was


def _best(candidates: Mapping[Term, Sequence[float]], rest: Sequence[float]) -> Term | None:
    """Return the term that explains most of `rest`; if several explain it equally, the simplest one. None if no term
    does.
    """
    best, most = None, SMALL
    for term, values in candidates.items():
        length = _dot(values, values)
        if length <= SMALL * SMALL:
            continue
        share = _dot(values, rest) ** 2 / length
        if share > most * (1 + 1e-6):
            best, most = term, share
    return best


def _terms(rows: Sequence[Row], arguments: int) -> list[Term]:
    """Return all terms that differ between classes, the simplest first.

    The first `arguments` columns are arguments, and the others are typical peaks.
    """
    columns = list(zip(*rows, strict=True))
    varying = [place for place, column in enumerate(columns) if _varies(column)]
    numbers = [place for place in varying if place < arguments and is_number(columns[place])]
    positive = [place for place in numbers if all(isinstance(one, float) and one > 0 for one in columns[place])]
    texts = [(place, one) for place in varying if place < arguments for one in _categories(columns[place])]
    usual = [place for place in varying if place >= arguments]
    most = 3 if len(numbers) <= MOST_NUMBERS else 2
    products = [places for size in range(1, most + 1) for places in combinations_with_replacement(numbers, size)]
    made = [Term(places) for places in products[: len(numbers)]]
    made += [Term(logarithm=place) for place in positive] + [Term(text=text) for text in texts]
    made += [Term((place,)) for place in usual] + [Term(places) for places in products[len(numbers) :]]
    made += [Term((place,), text=text) for text in texts for place in (*numbers, *usual)]
    return made + [Term((number, place)) for place in usual for number in numbers]


def _varies(column: Sequence[float | str | None]) -> bool:
    return len(set(column)) > 1


def _categories(column: Sequence[float | str | None]) -> list[str | None]:
    """Return the strings in a column that can be terms: all but the first. Return no strings if there are too many."""
    if is_number(column) and None not in column:
        return []
    values = dict.fromkeys(value if isinstance(value, str) else None for value in column)
    return list(values)[1:] if len(values) <= MOST_TEXTS else []


def _without(values: Sequence[float], unit: Sequence[float]) -> list[float]:
    share = _dot(values, unit)
    return [one - share * other for one, other in zip(values, unit, strict=True)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(_times, one, other))


_times: Callable[[float, float], float] = float.__mul__
