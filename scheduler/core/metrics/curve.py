"""The curve of one metric: at most `MOST_POINTS` points, however many values were read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

MOST_POINTS = 500
Point = tuple[int, float, float]
"""The number of the reading, its step and its value."""


class Curve:
    """The values of one metric: the last, the lowest, the highest, and points that keep the shape.

    The readings are divided into groups of `gap` successive ones. Of each group the lowest and the highest value are
    kept, so no peak is lost. When there are too many points, the groups become twice as large.
    """

    def __init__(self) -> None:
        self.last = math.nan
        self.last_step = 0.0
        self.lowest: tuple[float, float] | None = None
        """The lowest finite value, with its step; None: there was none."""
        self.highest: tuple[float, float] | None = None
        self.nan_from: tuple[int, float] | None = None
        """The number and the step of the reading since which no value was finite; None: the last value is finite."""
        self.readings = 0
        self.gap = 1
        self.points: list[Point] = []
        """The kept points, which have finite values only."""

    def add(self, value: float, step: float | None = None) -> None:
        """Add a value; if no step is given, use the number of the reading as its step."""
        self.readings += 1
        step = float(self.readings) if step is None or not math.isfinite(step) else step
        self.last, self.last_step = value, step
        if not math.isfinite(value):
            self.nan_from = self.nan_from or (self.readings, step)
            return
        self.nan_from = None
        self.see(value, step)
        point = (self.readings, step, value)
        group = self.readings // self.gap
        at = len(self.points)
        while at and self.points[at - 1][0] // self.gap == group:
            at -= 1
        self.points[at:] = _extremes([*self.points[at:], point])
        while len(self.points) > MOST_POINTS:
            self._thin()

    def see(self, value: float, step: float) -> None:
        """Remember a finite value if it is the lowest or the highest one so far."""
        if self.lowest is None or value < self.lowest[0]:
            self.lowest = value, step
        if self.highest is None or value > self.highest[0]:
            self.highest = value, step

    def _thin(self) -> None:
        self.gap *= 2
        groups: dict[int, list[Point]] = {}
        for point in self.points:
            groups.setdefault(point[0] // self.gap, []).append(point)
        self.points = [point for group in groups.values() for point in _extremes(group)]

    def values(self, most: int) -> list[float]:
        """Return at most `most` values that show the shape of the curve: the last value of each of `most` equal
        parts.
        """
        found = [value for _, _, value in self.points]
        if len(found) <= most:
            return found
        return [found[(place + 1) * len(found) // most - 1] for place in range(most)]

    def steps(self) -> list[tuple[float, float]]:
        """Return the steps and values of the points. If the steps do not rise from point to point, return the numbers
        of the readings in their place.

        A script that counts the steps of each epoch from 1 has steps that do not rise.
        """
        rising = self._rises
        return [(step if rising else float(number), value) for number, step, value in self.points]

    @property
    def _rises(self) -> bool:
        return all(one[1] < other[1] for one, other in zip(self.points, self.points[1:], strict=False))

    @property
    def nan_step(self) -> float | None:
        """The step, as in `steps`, since which no value was finite; None: the last value is finite."""
        if self.nan_from is None:
            return None
        number, step = self.nan_from
        return step if self._rises else float(number)

    @property
    def end(self) -> float:
        """The step of the last reading, as in `steps`."""
        return self.last_step if self._rises else float(self.readings)

    def few_steps(self, most: int) -> list[tuple[float, float]]:
        """Return a few steps with their values, about `most` in all: the lowest and the highest value of each of equal
        parts.
        """
        found = self.steps()
        if len(found) <= most:
            return found
        parts = max(1, most // 2)
        kept: list[tuple[float, float]] = []
        for part in range(parts):
            points = found[part * len(found) // parts : (part + 1) * len(found) // parts]
            low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
            kept += [low] if low == high else sorted([low, high])
        return kept

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as JSON values; NaN and infinity become strings."""
        return {
            "last": _told(self.last), "step": self.last_step, "lowest": self.lowest, "highest": self.highest,
            "nan_from": self.nan_from, "readings": self.readings, "gap": self.gap,
            "numbers": [point[0] for point in self.points],
            "steps": [point[1] for point in self.points], "values": [point[2] for point in self.points],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Curve:
        """Return the curve that `to_dict` described; raise KeyError, TypeError or ValueError for anything else."""
        made = cls()
        made.last, made.last_step = float(data["last"]), float(data["step"])
        made.lowest, made.highest = _pair(data["lowest"]), _pair(data["highest"])
        bad = _pair(data.get("nan_from"))
        made.nan_from = bad and (int(bad[0]), bad[1])
        made.readings, made.gap = int(data["readings"]), max(1, int(data["gap"]))
        parts = zip(data["numbers"], data["steps"], data["values"], strict=True)
        made.points = [(int(number), float(step), float(value)) for number, step, value in parts][:MOST_POINTS]
        return made


def _extremes(points: Sequence[Point]) -> list[Point]:
    """Return the lowest and the highest of some points, in the order of the points; one point if they are equal."""
    low, high = min(points, key=lambda point: point[2]), max(points, key=lambda point: point[2])
    return [low] if low == high else sorted([low, high])


def _told(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _pair(data: Iterable[Any] | None) -> tuple[float, float] | None:
    if data is None:
        return None
    value, step = data
    return float(value), float(step)
