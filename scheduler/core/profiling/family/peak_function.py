"""The peak of a script as a function of its arguments, with a bound that holds for a stated share of new tasks.

The function is a sum of few terms: a constant, numbers, their squares, logarithms and products, and texts that are
equal to a value. Memory of training is of that shape: weights grow with width x width x depth, activations with batch x
width. Terms are chosen one by one while they explain more than chance would. Errors are relative. The bound comes from
the errors of predictions of each observed peak by all others, so it holds whatever the true shape is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from math import ceil, inf, log, sqrt

from scheduler.units import GIB, MIB
from scheduler.values import dataclass

Row = Sequence[float | str | None]
"""The values of one task class, by argument: a number, a text, or None where the class does not have it."""

FIT_FROM = 8
"""The least number of known classes for which a function is sought."""
MOST_ROWS = 100
"""A function is fitted to at most this many of the newest classes: more would add little, and cost more."""
MOST_TERMS = 8
ROWS_A_TERM = 4
"""The least number of known classes for each term."""
MOST_TEXTS = 8
"""A text with more values than this is not a category."""
MOST_NUMBERS = 12
"""With more numbers than this, products of three are left out, because they would be too many to distinguish."""
CHANCE = 2.0
"""A term is kept if it explains more than this many times what the best of equally many random terms would."""
LEAST_ERROR = 0.01
"""The error below which no further term is sought."""
BETWEEN_FROM = 4
"""From this many values of a number on, values between them are considered known."""
SMALL = 1e-9
UNITS = {"GiB": GIB, "MiB": MIB, "KiB": 1024, "B": 1}
FAR = 16.0
"""The leverage above which a task is too far from all observations."""


@dataclass(frozen=True, slots=True)
class Term:
    """One product of a function: places of numbers, of logarithms, and a text that must be equal."""

    numbers: tuple[int, ...] = ()
    logarithm: int | None = None
    text: tuple[int, str | None] | None = None

    def of(self, row: Row) -> float:
        """Return the value of this term for a class; 0 if it lacks a number."""
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
        """Return the term in words, given the names of the arguments; empty for the constant."""
        factors = [names[place] for place in self.numbers]
        factors += [f"log({names[self.logarithm]})"] if self.logarithm is not None else []
        factors += [f"({names[self.text[0]]} = {self.text[1]})"] if self.text is not None else []
        return " x ".join(factors)

    @property
    def places(self) -> frozenset[int]:
        """The arguments on which it depends."""
        some = set(self.numbers)
        some |= {self.logarithm} if self.logarithm is not None else set()
        return frozenset(some | ({self.text[0]} if self.text is not None else set()))


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peak that a function predicts for one class."""

    middle: int
    """The most likely peak, in bytes."""
    bound: int
    """The peak that is not exceeded in the requested share of cases."""


class PeakFunction:
    """A function fitted to observed peaks."""

    def __init__(self, terms: Sequence[Term], directions: _Directions, rows: Sequence[Row]) -> None:
        self.terms = tuple(terms)
        self.rows = len(rows)
        """The number of classes to which it was fitted."""
        self._seen = [_Seen(column) for column in zip(*rows, strict=True)]
        self._directions = directions
        self.errors = directions.errors()
        """The ratio of each real peak to the predicted one, sorted."""

    @property
    def places(self) -> frozenset[int]:
        """The arguments that matter."""
        return frozenset().union(*(term.places for term in self.terms))

    def words(self, names: Sequence[str]) -> str:
        """Return the function in words, given the names of the arguments."""
        said = ""
        for at, term in enumerate(self.terms):
            factor, _ = self._directions.at([float(other == at) for other in range(len(self.terms))])
            amount = " x ".join(filter(None, (_amount(abs(factor)), term.words(names))))
            said += amount if not at and factor >= 0 else f"{' ' * bool(at)}{'+' if factor >= 0 else '-'} {amount}"
        return said

    def error(self, share: float) -> float:
        """Return the ratio of the real to the predicted peak that a new class does not exceed in this share of
        cases.
        """
        place = ceil(share * (len(self.errors) + 1))
        highest = self.errors[-1]
        return self.errors[place - 1] if place <= len(self.errors) else highest + max(0.0, highest - 1)

    def predict(self, row: Row, share: float) -> Prediction | None:
        """Return the predicted peak of a class; None if it differs too much from all observed classes."""
        if not all(seen.knows(value) for seen, value in zip(self._seen, row, strict=True)):
            return None
        middle, leverage = self._directions.at([term.of(row) for term in self.terms])
        if not (leverage < FAR and middle > 0):
            return None
        error = self.error(share)
        wider = 1 + max(0.0, error - 1) * sqrt((1 + leverage) / (1 + len(self.terms) / self.rows))
        return Prediction(round(middle), round(middle * (wider if error > 1 else 1.0)))


class _Directions:
    """Terms over all rows, made orthogonal one after another; all rows are weighted by their peak."""

    def __init__(self, peaks: Sequence[int]) -> None:
        self._peaks = peaks
        self.rest = [1.0] * len(peaks)
        """The unexplained share of each peak."""
        self.leverages = [0.0] * len(peaks)
        self._units: list[list[float]] = []
        self._shares: list[float] = []
        self._mixes: list[list[float]] = []
        self._norms: list[float] = []

    def weighted(self, values: Iterable[float]) -> list[float]:
        """Return a term's values divided by the peaks."""
        return [value / peak for value, peak in zip(values, self._peaks, strict=True)]

    def add(self, values: Sequence[float]) -> None:
        """Add a term, and subtract what it explains."""
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
        """Return the direction that was added last."""
        return self._units[-1]

    def left_out(self) -> list[float]:
        """Return the relative error of the prediction of each peak by all others."""
        return [
            one / max(SMALL, 1 - leverage) if leverage < 1 - SMALL else inf
            for one, leverage in zip(self.rest, self.leverages, strict=True)
        ]

    def errors(self) -> list[float]:
        """Return the ratio of each peak to its prediction by all others, sorted."""
        return sorted(1 / (1 - error) if error < 1 - SMALL else 1 / SMALL for error in self.left_out())

    def at(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the peak for these values of the terms, and how far they are from all observations."""
        found, coordinates = 0.0, list[float]()
        for value, mix, norm, share in zip(values, self._mixes, self._norms, self._shares, strict=True):
            coordinate = (value - sum(one * other for one, other in zip(mix, coordinates, strict=True))) / norm
            coordinates.append(coordinate)
            found += coordinate * share
        leverage = sum(one * one for one in coordinates) / (found * found) if found else inf
        return found, leverage


def fit(rows: Sequence[Row], peaks: Sequence[int]) -> PeakFunction | None:
    """Return the function of these peaks; None if too few are known, or if nothing explains them."""
    rows, peaks = rows[-MOST_ROWS:], peaks[-MOST_ROWS:]
    if len(rows) < FIT_FROM or min(peaks) <= 0:
        return None
    found, chosen = _Directions(peaks), [Term()]
    found.add(found.weighted([1.0] * len(rows)))
    candidates = {term: found.weighted(map(term.of, rows)) for term in _terms(rows)}
    for unit_of in candidates:
        candidates[unit_of] = _without(candidates[unit_of], found.newest())
    enough = min(MOST_TERMS, len(rows) // ROWS_A_TERM)
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
    return PeakFunction(chosen, found, rows) if len(chosen) > 1 else None


def _amount(factor: float) -> str:
    """Return bytes with three digits, in the largest unit that is not above them."""
    unit = next((unit for unit in UNITS if factor >= UNITS[unit]), "B")
    return f"{factor / UNITS[unit]:.3g} {unit}"


def _explains(before: _Directions, after: _Directions, among: int) -> bool:
    """Tell whether one more term, the best of `among`, predicts better than chance would."""
    number = len(before.rest)
    floor = number * LEAST_ERROR * LEAST_ERROR
    was, now = (sum(error * error for error in one.left_out()) + floor for one in (before, after))
    return number * log(was / now) > CHANCE * log(among + 1) if now < was < inf else now < was


def _best(candidates: Mapping[Term, Sequence[float]], rest: Sequence[float]) -> Term | None:
    """Return the term that explains most of what is left; of equal ones the simplest."""
    best, most = None, SMALL
    for term, values in candidates.items():
        length = _dot(values, values)
        if length <= SMALL * SMALL:
            continue
        share = _dot(values, rest) ** 2 / length
        if share > most * (1 + 1e-6):
            best, most = term, share
    return best


def _terms(rows: Sequence[Row]) -> list[Term]:
    """Return all terms that differ between classes, the simplest first."""
    columns = list(zip(*rows, strict=True))
    numbers = [place for place, column in enumerate(columns) if _varies(column) and _is_number(column)]
    positive = [place for place in numbers if all(isinstance(one, float) and one > 0 for one in columns[place])]
    texts = [(place, one) for place, column in enumerate(columns) if _varies(column) for one in _categories(column)]
    most = 3 if len(numbers) <= MOST_NUMBERS else 2
    products = [places for size in range(1, most + 1) for places in combinations_with_replacement(numbers, size)]
    made = [Term(places) for places in products[: len(numbers)]]
    made += [Term(logarithm=place) for place in positive] + [Term(text=text) for text in texts]
    made += [Term(places) for places in products[len(numbers) :]]
    return made + [Term((place,), text=text) for text in texts for place in numbers]


class _Seen:
    """The values of one argument that count as known.

    If values repeat, as in a grid, a class with a new value may be unlike all others: known are the values that were
    seen twice, and numbers between others.
    """

    def __init__(self, column: Sequence[float | str | None]) -> None:
        times = Counter(column)
        self._all = 2 * len(times) > len(column)
        self._twice = frozenset(value for value, number in times.items() if number > 1)
        numbers = sorted(value for value in times if isinstance(value, float))
        between = _is_number(column) and len(numbers) >= BETWEEN_FROM
        self._least, self._most = (numbers[0], numbers[-1]) if between else (inf, -inf)

    def knows(self, value: float | str | None) -> bool:
        """Tell whether a value counts as known."""
        if self._all or value in self._twice:
            return True
        return isinstance(value, float) and self._least <= value <= self._most


def _varies(column: Sequence[float | str | None]) -> bool:
    return len(set(column)) > 1


def _is_number(column: Sequence[float | str | None]) -> bool:
    return all(value is None or isinstance(value, float) for value in column)


def _categories(column: Sequence[float | str | None]) -> list[str | None]:
    """Return the values of a text that may matter, except the first; none if nearly every class has its own."""
    if _is_number(column) and None not in column:
        return []
    values = dict.fromkeys(value if isinstance(value, str) else None for value in column)
    return list(values)[1:] if len(values) <= MOST_TEXTS else []


def _without(values: Sequence[float], unit: Sequence[float]) -> list[float]:
    share = _dot(values, unit)
    return [one - share * other for one, other in zip(values, unit, strict=True)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(_times, one, other))


_times: Callable[[float, float], float] = float.__mul__
