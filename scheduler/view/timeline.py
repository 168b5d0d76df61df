"""The timeline of runs as a picture: lanes for each device, a bar for each attempt, coloured by its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.units import duration
from scheduler.view.picture import HIGH, Colour, Picture, wide
from scheduler.view.report import Told, data

WIDTH, EDGE, HEAD, AXIS, LEGEND = 1600, 20, 28, 30, 26
MOST_HIGH = 600
"""Of one device."""
PAPER, INK, FAINT = (255, 255, 255), (27, 31, 36), (213, 218, 224)
COLOURS: Mapping[str, Colour] = {
    "succeeded": (47, 125, 79),
    "failed": (192, 54, 44),
    "oom": (163, 57, 154),
    "timeout": (178, 106, 0),
    "interrupted": (110, 119, 129),
    "lost": (110, 119, 129),
    "again": (61, 143, 151),
    "running": (42, 111, 201),
    "probe": (138, 127, 0),
}
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Lanes:
    """One device of one run."""

    title: str
    bars: Sequence[Sequence[Any]]
    number: int
    high: int


def png(told: Sequence[Told]) -> bytes:
    """The file."""
    runs = data(told)["runs"]
    return draw(runs).png()


def draw(runs: Sequence[Mapping[str, Any]]) -> Picture:
    """All runs below each other, on one scale."""
    rows = [_lanes(run, device) for run in runs for device in run["devices"] if device["bars"]]
    height = EDGE + sum(HEAD + row.number * row.high + 10 for row in rows) + AXIS + LEGEND
    picture = Picture(WIDTH, height, PAPER)
    longest = max([run["seconds"] for run in runs if run["seconds"] > 0] or [1.0])
    _axis(picture, longest, EDGE, height - AXIS - LEGEND)
    top = EDGE
    for row in rows:
        picture.write(EDGE, top + 4, row.title, INK)
        top += HEAD
        for bar in row.bars:
            left, right = _at(bar[3], longest), _at(bar[4], longest)
            gap = 1 if row.high > 4 else 0
            picture.fill(left, top + bar[2] * row.high, max(1, right - left - gap), row.high - gap, _colour(bar))
        top += row.number * row.high + 10
    _legend(picture, {_outcome(bar) for row in rows for bar in row.bars}, height - LEGEND)
    return picture


def _lanes(run: Mapping[str, Any], device: Mapping[str, Any]) -> Lanes:
    number = 1 + max(bar[2] for bar in device["bars"])
    attempts = len(device["bars"])
    title = f"run {run['number']} {device['label']}: {attempts} attempt{'' if attempts == 1 else 's'}"
    return Lanes(title, device["bars"], number, max(2, min(18, MOST_HIGH // number)))


def _at(seconds: float, longest: float) -> int:
    return EDGE + round(seconds / longest * (WIDTH - 2 * EDGE))


def _outcome(bar: Sequence[Any]) -> str:
    return "probe" if bar[6] == "probe" and bar[5] == "succeeded" else str(bar[5])


def _colour(bar: Sequence[Any]) -> Colour:
    return COLOURS.get(_outcome(bar), INK)


def _axis(picture: Picture, longest: float, top: int, bottom: int) -> None:
    step = next((step for step in _STEPS if longest / step <= 10), longest / 10)
    number = 0
    while number * step <= longest * (1 + 1e-9):
        x, text = _at(number * step, longest), duration(number * step)
        picture.fill(x, top, 1, bottom - top, FAINT)
        left = min(max(EDGE, x - wide(text) // 2), WIDTH - EDGE - wide(text))
        picture.write(left, bottom + 8, text, INK)
        number += 1


def _legend(picture: Picture, outcomes: set[str], top: int) -> None:
    left = EDGE
    for name in sorted(outcomes):
        picture.fill(left, top, 2 * HIGH, 2 * HIGH, COLOURS.get(name, INK))
        picture.write(left + 20, top, name, INK)
        left += 40 + wide(name)
