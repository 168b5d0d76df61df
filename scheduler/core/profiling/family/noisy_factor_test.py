"""The factor test for classes whose runs differ: it finds the factors that explain more outliers than chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

from scheduler.core.profiling.family.argument_table import LEFT_OUT, SPLITTING, Role
from scheduler.core.profiling.family.factor_test import ENOUGH, FactorVerdict, Key, Peaks, take
from scheduler.core.profiling.family.scatter import Scatter
from scheduler.values import dataclass

Seen = tuple[Key, Peaks]

SIGMAS = 3.0
"""A factor is searched for if the outliers exceed the expected number by this many standard deviations.

Of 60 generated sweeps (30, 80 and 160 classes, half of them run twice, peaks that deviate as measured) 56 were judged
right, with 2 deviations 55, with 1 50; a factor of 9 % was found in 39 of 40."""
BEYOND = 0.02
"""The share of peaks that may exceed what repeated runs have shown: of a hundred classes some do, of few none may."""


@dataclass(frozen=True, slots=True)
class _Apart:
    """The number of peaks that lie apart from those with which they are compared."""

    cells: int
    compared: int
    apart: int
    beyond: int

    @property
    def cost(self) -> int:
        """The cost of a way to distinguish classes: the number of cells and of outliers; less is better."""
        return self.cells + self.apart + self.beyond

    def is_too_much(self, by: Scatter) -> bool:
        """Tell whether runs of one class would not scatter so often, or so far."""
        expected = by.share * self.compared
        return self.apart > expected + SIGMAS * sqrt(expected) or self.beyond > self.compared * BEYOND


def judge(seen: Sequence[Seen], roles: Sequence[Role], values: Sequence[int], by: Scatter) -> FactorVerdict:
    """Judge factors with these roles and numbers of values by these peaks.

    All cells are judged together: an outlier in one cell may be an ordinary run, but a factor that matters causes many
    outliers. A factor that is not needed to explain them, and was seen with enough values, is neutral.
    """
    base = [place for place, role in enumerate(roles) if role in SPLITTING]
    withdrawn: list[int] = []
    for role in LEFT_OUT:
        withdrawn += _needed(seen, [*base, *withdrawn], [place for place, its in enumerate(roles) if its is role], by)
    fixed = [place for place in base if roles[place] is Role.NEEDED] + withdrawn
    matter = [*fixed, *_needed(seen, fixed, [place for place in base if place not in fixed], by)]
    rest = [place for place in base if place not in matter]
    undecided = [place for place in rest if _most_values(seen, matter, place) < min(ENOUGH, values[place])]
    splits = tuple(sorted((*matter, *undecided)))
    cells = {key: tuple(peaks) for key, peaks in _cells(seen, splits).items()}
    return FactorVerdict(splits, frozenset(withdrawn), bool(withdrawn), cells)


def _needed(seen: Sequence[Seen], splits: Sequence[int], suspects: Sequence[int], by: Scatter) -> list[int]:
    """Return the suspects that must split as well: step by step the one that explains most, or all if none stands
    out.
    """
    found: list[int] = []
    while len(found) < len(suspects) and _apart(seen, [*splits, *found], by).is_too_much(by):
        costs = {one: _apart(seen, [*splits, *found, one], by).cost for one in suspects if one not in found}
        found += [one for one, cost in costs.items() if cost == min(costs.values())]
    return found


def _apart(seen: Sequence[Seen], places: Sequence[int], by: Scatter) -> _Apart:
    cells = _cells(seen, places)
    columns = [peaks for cell in cells.values() if len(cell) > 1 for peaks in zip(*cell, strict=True)]
    far = [one for peaks in columns for one in by.apart(peaks)]
    return _Apart(len(cells), sum(map(len, columns)), len(far), sum(one > 1 for one in far))


def _most_values(seen: Sequence[Seen], places: Sequence[int], at: int) -> int:
    """Return the number of values of a factor that were seen with all other relevant factors equal."""
    pick, found = take(places), dict[Key, set[int]]()
    for key, _ in seen:
        found.setdefault(pick(key), set()).add(key[at])
    return max(map(len, found.values()), default=0)


def _cells(seen: Iterable[Seen], places: Sequence[int]) -> dict[Key, list[Peaks]]:
    """Return the peaks of the classes in each cell, where classes are equal in all these places."""
    pick, cells = take(places), dict[Key, list[Peaks]]()
    for key, peaks in seen:
        cells.setdefault(pick(key), []).append(peaks)
    return cells
