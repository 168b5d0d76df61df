"""Interpolation between two values of a number whose peaks are known."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

from scheduler.core.profiling.family.class_summaries import Cell
from scheduler.core.profiling.family.scatter import SPREAD, differ
from scheduler.values import dataclass

LINE_SPREAD = 0.15
"""A line is trusted if each inner point is this close to the value that its neighbours predict."""
LINE_FROM = 3
"""The least number of points, since two points are always on a line."""


@dataclass(frozen=True, slots=True)
class Point:
    """The peaks at one value; a factor with several slots has one number for each."""

    at: tuple[float, ...]
    peaks: Mapping[str, int]
    of: Cell
    """The classes in which it was observed."""


def between(
    points: Sequence[Point], at: tuple[float, ...], spread: float = SPREAD
) -> tuple[dict[str, int], tuple[Cell, Cell]] | None:
    """Return the peaks for a value strictly between two points, and their cells.

    Return None outside of the points, and if the numbers are only labels. Peaks within `spread` may be equal.
    """
    points = sorted(points, key=lambda point: point.at)
    place = bisect_left(points, at, key=lambda point: point.at)
    if not 0 < place < len(points) or any(one.at[0] == next_.at[0] for one, next_ in pairwise(points)):
        return None
    low, high = points[place - 1], points[place]
    if not all(min(one, other) < mine < max(one, other) for one, mine, other in zip(low.at, at, high.at, strict=True)):
        return None
    numbers = [point.at[0] for point in points]
    peaks = {}
    for part in {part for point in points for part in point.peaks}:
        heights = [point.peaks.get(part, 0) for point in points]
        if not _one_way(heights, spread):
            return None
        peaks[part] = _height(numbers, heights, at[0], place)
    return peaks, (low.of, high.of)


def _one_way(heights: Sequence[int], spread: float) -> bool:
    """Tell whether peaks only rise or only fall, apart from differences within the scatter."""
    steps = {(high > low) for low, high in pairwise(heights) if differ(min(low, high), max(low, high), spread)}
    return len(steps) < 2


def _height(numbers: Sequence[float], heights: Sequence[int], at: float, place: int) -> int:
    if len(numbers) >= LINE_FROM and _is_line(numbers, heights):
        return math.ceil(_on_line(numbers, heights, place - 1, place, at))
    return max(heights[place - 1 : place + 1])


def _is_line(numbers: Sequence[float], heights: Sequence[int]) -> bool:
    return all(
        abs(_on_line(numbers, heights, inner - 1, inner + 1, numbers[inner]) - heights[inner])
        <= LINE_SPREAD * heights[inner]
        for inner in range(1, len(numbers) - 1)
    )


def _on_line(numbers: Sequence[float], heights: Sequence[int], low: int, high: int, at: float) -> float:
    share = (at - numbers[low]) / (numbers[high] - numbers[low])
    return heights[low] + share * (heights[high] - heights[low])
