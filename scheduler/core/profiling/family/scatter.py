"""How far apart the peaks of like tasks lie: always a little, and as far as runs of one and the same kind do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, sqrt

from scheduler.values import dataclass

SPREAD = 0.05
SLACK = 64 << 20
"""Peaks this near, by either of both, are alike."""
FURTHER = 1.5
"""The factor for few runs: their extremes lie nearer than those of many, so others may lie this many times as far."""
STEP = 0.05
"""The step to which scatter is rounded up, so that not every further run is a reason to judge again."""


def differ(low: int, high: int, spread: float = SPREAD) -> bool:
    """Tell whether two peaks are too far apart to be alike."""
    return high - low > max(high * max(spread, SPREAD), SLACK)


def middle(peaks: Sequence[int]) -> int:
    """Return the median, which is usual however far a few values lie apart."""
    return sorted(peaks)[len(peaks) // 2]


@dataclass(frozen=True, slots=True)
class Scatter:
    """How the peaks of one kind's runs differ; by default they do not."""

    share: float = 0.0
    """So many of them lie apart from the usual one."""
    reach: float = 0.0
    """None lies further from the usual one, of the higher."""

    def apart(self, peaks: Sequence[int]) -> list[int]:
        """Return how far values lie from the middle one that are not alike with it: 1, or 2 where it is out of
        reach.
        """
        usual = middle(peaks)
        both = [(min(peak, usual), max(peak, usual)) for peak in peaks]
        return [1 + differ(low, high, self.reach) for low, high in both if differ(low, high)]


STEADY = Scatter()


@dataclass(frozen=True, slots=True)
class _Share:
    """The contribution of the runs of one class."""

    pairs: int = 0
    differing: int = 0
    furthest: float = 0.0
    """How far its lowest run lies from its highest, as a share of that; 0 where they are alike."""


NONE = _Share()


class Pool:
    """The scatter of repeated runs over all classes of a family; a change of one class costs the runs of that class
    only.

    Two classes that are alike differ no more often than two runs of one. The runs are pooled over all classes,
    because few of them run often, with two more runs that came out alike, because few runs prove little.
    """

    def __init__(self) -> None:
        self._apart: dict[int, _Share] = {}
        """The classes of which any two runs in a row differ."""
        self._pairs: dict[int, int] = {}
        self._sums = [2, 0]
        """All pairs of runs in a row, and those of them that differ."""

    def put(self, kind: int, runs: Iterable[Sequence[int]]) -> None:
        """Take the peaks of all full runs of a kind, of each part of its memory, in place of those known before."""
        now = _share(runs)
        before = self._apart.pop(kind, NONE)
        self._sums[0] += now.pairs - self._pairs.get(kind, 0)
        self._sums[1] += now.differing - before.differing
        self._pairs[kind] = now.pairs
        if now.differing or now.furthest:
            self._apart[kind] = now

    def scatter(self) -> Scatter:
        """Return how the runs of one kind scatter, as far as is known now."""
        pairs, differing = self._sums
        if not differing:
            return STEADY
        furthest = max(one.furthest for one in self._apart.values())
        return Scatter(_rounded(1 - sqrt(1 - differing / pairs)), _rounded(furthest * FURTHER))


def _share(runs: Iterable[Sequence[int]]) -> _Share:
    pairs, differing, furthest = 0, 0, 0.0
    for peaks in runs:
        pairs += len(peaks) - 1
        differing += sum(differ(min(two), max(two)) for two in pairwise(peaks))
        if differ(min(peaks), max(peaks)):
            furthest = max(furthest, 1 - min(peaks) / max(peaks))
    return _Share(pairs, differing, furthest)


def _rounded(share: float) -> float:
    return ceil(share / STEP) * STEP
