"""How far apart the peaks of similar tasks lie: always a little, and as far as those of repeated runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, sqrt

from scheduler.values import dataclass

SPREAD = 0.05
SLACK = 64 << 20
"""Peaks that differ by less than either of these are alike."""
FURTHER = 1.5
"""The factor for few runs: their extremes are closer than those of many, so later runs may lie this much further
out."""
STEP = 0.05
"""The step to which scatter is rounded up, so that not every further run changes the verdict."""


def differ(low: int, high: int, spread: float = SPREAD) -> bool:
    """Tell whether two peaks are too far apart to be alike."""
    return high - low > max(high * max(spread, SPREAD), SLACK)


def middle(peaks: Sequence[int]) -> int:
    """Return the median, which a few outliers cannot move."""
    return sorted(peaks)[len(peaks) // 2]


@dataclass(frozen=True, slots=True)
class Scatter:
    """How the peaks of repeated runs of one class differ; by default they do not."""

    share: float = 0.0
    """The share of runs that differ from the median."""
    reach: float = 0.0
    """The largest distance from the median, as a share of the higher value."""

    def apart(self, peaks: Sequence[int]) -> list[int]:
        """Return for each differing value how far it is from the median: 1, or 2 if it is out of reach."""
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
    """The distance of its lowest run from its highest, as a share of the highest; 0 if they are alike."""


NONE = _Share()


class Pool:
    """The scatter of repeated runs over all classes of a family; a change of one class costs only its own runs.

    Two similar classes differ no more often than two runs of one class. The runs are pooled over all classes, because
    most classes have few; two similar runs are added, because few runs prove little.
    """

    def __init__(self) -> None:
        self._apart: dict[int, _Share] = {}
        """The classes in which consecutive runs differ."""
        self._pairs: dict[int, int] = {}
        self._sums = [2, 0]
        """The number of pairs of consecutive runs, and of those that differ."""

    def put(self, kind: int, runs: Iterable[Sequence[int]]) -> None:
        """Replace the peaks of all full runs of a class, for each part of its memory."""
        now = _share(runs)
        before = self._apart.pop(kind, NONE)
        self._sums[0] += now.pairs - self._pairs.get(kind, 0)
        self._sums[1] += now.differing - before.differing
        self._pairs[kind] = now.pairs
        if now.differing or now.furthest:
            self._apart[kind] = now

    def scatter(self) -> Scatter:
        """Return how runs of one class scatter, as far as is known."""
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
