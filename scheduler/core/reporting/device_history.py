"""The history of the devices: their load, memory, temperature and power over the time of a run.

The number of points is limited: in a long run each point covers a longer time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.model import DeviceBudget
from scheduler.values import dataclass

FORMAT = 2
MOST_POINTS = 480
"""The most points that are kept of one device. When there are more, each pair of neighbouring points is merged into
one."""
EVERY = 2.0
"""Seconds between two points at the beginning of a run."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The state of a device at one time, or over a span of time: its mean load and power, its highest use and
    temperature.
    """

    at: float
    busy: float
    used: int
    celsius: int | None = None
    watts: float | None = None

    def with_next(self, other: LoadPoint) -> LoadPoint:
        """Return one point that replaces this one and the next one."""
        celsius = max((one for one in (self.celsius, other.celsius) if one is not None), default=None)
        known = [one for one in (self.watts, other.watts) if one is not None]
        watts = sum(known) / len(known) if known else None
        return LoadPoint(self.at, (self.busy + other.busy) / 2, max(self.used, other.used), celsius, watts)


class DeviceHistory:
    """The load, memory, temperature and power over time of the devices that report their load."""

    def __init__(self) -> None:
        self.every = EVERY
        """Seconds between two points at present."""
        self.points: dict[str, list[LoadPoint]] = {}

    def add(self, at: float, budgets: Iterable[DeviceBudget]) -> None:
        """Add the present state of the devices. A device that does not report its load is left out."""
        for budget in budgets:
            if budget.busy is not None and not budget.device.is_slot:
                used = max(0, budget.device.total - budget.free)
                points = self.points.setdefault(budget.device.key, [])
                points.append(LoadPoint(at, budget.busy, used, budget.celsius, budget.watts))
        if any(len(points) > MOST_POINTS for points in self.points.values()):
            self._thin()

    def _thin(self) -> None:
        self.every *= 2
        for key, points in self.points.items():
            pairs = [one.with_next(other) for one, other in zip(points[::2], points[1::2], strict=False)]
            self.points[key] = pairs + points[len(pairs) * 2 :]

    def to_dict(self) -> dict[str, Any]:
        """Return the history as JSON values."""
        devices = {key: [_told(point) for point in points] for key, points in self.points.items()}
        return {"format": FORMAT, "every": self.every, "devices": devices}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceHistory:
        """Return the history that `to_dict` described; raise KeyError, TypeError or ValueError for anything else."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']} of a device history is unknown here")
        made = cls()
        made.every = max(EVERY, float(data["every"]))
        made.points = {str(key): [_read(one) for one in points] for key, points in data["devices"].items()}
        return made


def parsed(text: bytes) -> DeviceHistory:
    """Return the history that a file contains; an empty one if it is damaged."""
    try:
        return DeviceHistory.from_dict(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return DeviceHistory()


def _told(point: LoadPoint) -> list[float | int | None]:
    watts = None if point.watts is None else round(point.watts, 1)
    return [round(point.at, 1), round(point.busy, 3), point.used, point.celsius, watts]


def _read(said: Sequence[Any]) -> LoadPoint:
    at, busy, used, celsius, watts = said
    heat, power = None if celsius is None else int(celsius), None if watts is None else float(watts)
    return LoadPoint(float(at), float(busy), int(used), heat, power)
