"""The test for factors that do not change the peak: a function of all observations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter

from scheduler.core.profiling.family.argument_table import LEFT_OUT, SPLITTING, Role
from scheduler.core.profiling.family.scatter import differ
from scheduler.values import dataclass, field

Key = tuple[int, ...]
Peaks = tuple[int, ...]
"""Bytes on each part, in the order of the parts."""
Span = tuple[Peaks, Peaks]
"""The lowest and the highest peak on each part."""
Places = tuple[int, ...]
"""Positions of factors, ascending."""

ENOUGH = 3
"""A factor is neutral when this many of its values gave similar peaks; if it has fewer values, all of them."""


@dataclass(frozen=True, slots=True)
class FactorVerdict:
    """The verdict on the factors, by position."""

    splits: Places = ()
    """The factors that distinguish classes: neither neutral nor left out."""
    withdrawn: frozenset[int] = frozenset()
    """The factors that were left out until a peak contradicted."""
    contradicted: bool = False
    """True if a factor had been taken as neutral, or left out, until a peak contradicted."""
    cells: Mapping[Key, tuple[Peaks, ...]] = field(default_factory=dict)
    """The peaks of classes that are equal in all splitting factors: the lowest and the highest, or all of them."""


def take(places: Sequence[int]) -> Callable[[Key], Key]:
    """Return a function that selects these places of a key."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda key: (key[places[0]],)) if places else (lambda key: ())


def spans(seen: Iterable[tuple[Key, Peaks]], places: Sequence[int]) -> dict[Key, Span]:
    """Return the spans of the peaks of all classes that are equal in these places."""
    return _merged(((key, (peaks, peaks)) for key, peaks in seen), take(places))


def judge(seen: Sequence[tuple[Key, Peaks]], roles: Sequence[Role], values: Sequence[int]) -> FactorVerdict:
    """Judge factors with these roles and numbers of values by these peaks."""
    base = [place for place, role in enumerate(roles) if role in SPLITTING]
    withdrawn = _labels_that_matter(seen, base, roles)
    base = sorted((*base, *withdrawn))
    highest = [(key, high) for key, (_, high) in spans(seen, base).items()]
    needed = [min(ENOUGH, values[place]) for place in base]
    fixed = {at for at, place in enumerate(base) if place in withdrawn or roles[place] is Role.NEEDED}
    splits, matter, cells = _settled(highest, needed, fixed)
    return FactorVerdict(
        tuple(base[at] for at in splits),
        frozenset(withdrawn),
        bool(withdrawn) or len(matter) > len(fixed),
        cells,
    )


def _labels_that_matter(seen: Sequence[tuple[Key, Peaks]], base: Sequence[int], roles: Sequence[Role]) -> list[int]:
    """Return the left-out factors that alone explain a difference; a label by name only if no other factor does."""
    withdrawn: list[int] = []
    for role in LEFT_OUT:
        left_out = [place for place, its in enumerate(roles) if its is role]
        while blamed := _blamed(seen, (*base, *withdrawn), [place for place in left_out if place not in withdrawn]):
            withdrawn += blamed
    return withdrawn


def _settled(
    seen: Sequence[tuple[Key, Peaks]], needed: Sequence[int], fixed: Iterable[int]
) -> tuple[Places, set[int], dict[Key, Span]]:
    """Return the places that split, those of them that are blamed for a contradiction or fixed, and the cells."""
    matter = set(fixed)
    while True:
        splits, cells = _grown(seen, needed, matter)
        blamed = _blamed(seen, splits, [place for place in range(len(needed)) if place not in splits])
        if not blamed:
            return splits, matter, cells
        matter.update(blamed)


def _grown(
    seen: Sequence[tuple[Key, Peaks]], needed: Sequence[int], matter: Collection[int]
) -> tuple[Places, dict[Key, Span]]:
    """Return the places that are left after neutral ones are removed, and their cells.

    A neutral factor no longer distinguishes classes, so that more classes can be compared for the next factor.
    """
    splits = tuple(range(len(needed)))
    cells = spans(seen, splits)
    while True:
        proven = [at for at, place in enumerate(splits) if place not in matter and _proven(cells, at, needed[place])]
        if not proven:
            return splits, cells
        kept = [at for at in range(len(splits)) if at not in proven]
        splits = tuple(splits[at] for at in kept)
        cells = _merged(cells.items(), take(kept))


def _proven(cells: Mapping[Key, Span], at: int, needed: int) -> bool:
    """Tell whether enough values at this place, with all else equal, gave similar peaks, and none gave a different
    one.
    """
    return max(count(cells, at).values(), default=0) >= needed and not _any_differs(_without(cells, at))


def count(cells: Iterable[Key], at: int) -> dict[Key, int]:
    """Return the number of values at this place that were seen with all else equal."""
    counts: dict[Key, int] = {}
    for key in cells:
        rest = key[:at] + key[at + 1 :]
        counts[rest] = counts.get(rest, 0) + 1
    return counts


def _without(cells: Mapping[Key, Span], at: int) -> dict[Key, Span]:
    return _merged(cells.items(), lambda key: key[:at] + key[at + 1 :])


def _blamed(seen: Sequence[tuple[Key, Peaks]], splits: Sequence[int], suspects: Sequence[int]) -> list[int]:
    """Return the smallest set of suspects that must split as well for all peaks in each cell to be similar.

    First any that explains it alone; then those for which two classes that differ in no other place prove it; then
    those of the two classes that differ in the fewest places.
    """
    if not suspects or not _any_differs(spans(seen, splits)):
        return []
    both = (*splits, *suspects)
    seen = _explicable(seen, both)
    wrong, pick = {key for key, span in spans(seen, splits).items() if _differs(span)}, take(splits)
    seen = [(key, peaks) for key, peaks in seen if pick(key) in wrong]
    alone = [one for one in suspects if seen and not _any_differs(spans(seen, (*splits, one)))]
    if alone or not seen:
        return alone
    proven = [one for one in suspects if _any_differs(spans(seen, [at for at in both if at != one]))]
    return proven or _in_the_nearest_pair(seen, splits, suspects)


def _explicable(seen: Sequence[tuple[Key, Peaks]], places: Sequence[int]) -> list[tuple[Key, Peaks]]:
    """Return the highest peaks for each key, ignoring differences between classes that are equal in all these
    places.
    """
    cells, pick = spans(seen, places), take(places)
    return [(key, cells[pick(key)][1]) for key, _ in seen]


def _in_the_nearest_pair(
    seen: Sequence[tuple[Key, Peaks]], splits: Sequence[int], suspects: Sequence[int]
) -> list[int]:
    """Return the suspects in which the lowest and the highest class of a cell differ, for the pair with the fewest."""
    pick = take(splits)
    cells: dict[Key, list[tuple[Key, Peaks]]] = {}
    for key, peaks in seen:
        cells.setdefault(pick(key), []).append((key, peaks))
    found = []
    for cell in cells.values():
        for part in range(len(cell[0][1])):
            (low_key, low), (high_key, high) = (side(cell, key=lambda one: one[1][part]) for side in (min, max))
            if differ(low[part], high[part]):
                found.append([at for at in suspects if low_key[at] != high_key[at]])
    return min((one for one in found if one), key=len, default=[])


def _merged(cells: Iterable[tuple[Key, Span]], pick: Callable[[Key], Key]) -> dict[Key, Span]:
    merged: dict[Key, Span] = {}
    for key, span in cells:
        rest = pick(key)
        before = merged.get(rest)
        merged[rest] = span if before is None or before == span else _joined(before, span)
    return merged


def _joined(one: Span, other: Span) -> Span:
    return tuple(map(min, one[0], other[0])), tuple(map(max, one[1], other[1]))


def _differs(span: Span) -> bool:
    low, high = span
    return low != high and any(map(differ, low, high))


def _any_differs(cells: Mapping[Key, Span]) -> bool:
    return any(map(_differs, cells.values()))
