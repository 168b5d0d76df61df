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
"""Of few runs the furthest apart lie nearer than of many: others may lie so many times as far."""
STEP = 0.05
"""What is said of scatter is rounded up to this, so that not every further run is a reason to judge anew."""


def differ(low: int, high: int, spread: float = SPREAD) -> bool:
    """Whether two peaks are too far apart to be alike."""
    return high - low > max(high * max(spread, SPREAD), SLACK)


def middle(peaks: Sequence[int]) -> int:
    """Half of them are not below this one: what is usual, however far a few lie apart."""
    return sorted(peaks)[len(peaks) // 2]


@dataclass(frozen=True, slots=True)
class Scatter:
    """How the peaks of one kind's runs differ; by default they do not."""

    share: float = 0.0
    """So many of them lie apart from the usual one."""
    reach: float = 0.0
    """None lies further from the usual one, of the higher."""

    def apart(self, peaks: Sequence[int]) -> list[int]:
        """How far those lie from the middle one that are not alike with it: 1, or 2 where it is beyond reach."""
        usual = middle(peaks)
        both = [(min(peak, usual), max(peak, usual)) for peak in peaks]
        return [1 + differ(low, high, self.reach) for low, high in both if differ(low, high)]


STEADY = Scatter()


def scatter(kinds: Iterable[Sequence[int]]) -> Scatter:
    """What repeated runs tell, kind by kind: two kinds that are alike differ no more often than two runs of one.

    Pooled over all kinds, as few of them run often; and as if two more runs had come out alike, as few of few say much.
    """
    pairs, differing, furthest = 2, 0, 0.0
    for peaks in kinds:
        pairs += len(peaks) - 1
        differing += sum(differ(min(two), max(two)) for two in pairwise(peaks))
        if differ(min(peaks), max(peaks)):
            furthest = max(furthest, 1 - min(peaks) / max(peaks))
    if not differing:
        return STEADY
    return Scatter(_rounded(1 - sqrt(1 - differing / pairs)), _rounded(furthest * FURTHER))


def _rounded(share: float) -> float:
    return ceil(share / STEP) * STEP
