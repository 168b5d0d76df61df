"""The timeline of runs as SVG: lanes for each device, a bar for each attempt, coloured by its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.ui.charts.svg import FAINT, GREY, INK, Drawing, SvgRect, SvgText, svg
from scheduler.ui.web.report import ReportedRun, data
from scheduler.units import duration
from scheduler.values import dataclass

WIDTH, EDGE, HEAD, AXIS, LEGEND = 1200, 16, 24, 24, 24
GAP, ENTRY = 8, 110
MOST_HIGH = 400
"""Height of the lanes of one device at most."""
COLOURS: Mapping[str, str] = {
    "succeeded": "#2f7d4f",
    "failed": "#c0362c",
    "oom": "#a3399a",
    "timeout": "#b26a00",
    "interrupted": "#6e7781",
    "lost": "#6e7781",
    "unstarted": "#6e7781",
    "again": "#3d8f97",
    "running": "#2a6fc9",
    "probe": "#8a7f00",
}
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class DeviceLanes:
    """The lanes of one device in one run."""

    title: str
    bars: Sequence[Sequence[Any]]
    number: int
    high: float


def timeline_svg(runs: Sequence[ReportedRun]) -> bytes:
    """Return the timeline of runs as an SVG file."""
    return svg(draw(data(runs)["runs"])).encode()


def draw(runs: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw all runs, one below the other on one time scale."""
    rows = [_lanes(run, device) for run in runs for device in run["devices"] if device["bars"]]
    height = EDGE + sum(HEAD + row.number * row.high + GAP for row in rows) + AXIS + LEGEND
    drawing = Drawing(WIDTH, height)
    longest = max([run["seconds"] for run in runs if run["seconds"] > 0] or [1.0])
    _axis(drawing, longest, EDGE, height - AXIS - LEGEND)
    top: float = EDGE
    for row in rows:
        drawing.words.append(SvgText(EDGE, top + HEAD - 8, row.title))
        top += HEAD
        for bar in row.bars:
            left, right = _at(bar[3], longest), _at(bar[4], longest)
            gap = 1 if row.high > 4 else 0
            where = left, top + bar[2] * row.high, max(1, right - left - gap), row.high - gap
            drawing.rects.append(SvgRect(*where, _colour(bar)))
        top += row.number * row.high + GAP
    _legend(drawing, {_outcome(bar) for row in rows for bar in row.bars}, height - LEGEND)
    return drawing


def _lanes(run: Mapping[str, Any], device: Mapping[str, Any]) -> DeviceLanes:
    number = 1 + max(bar[2] for bar in device["bars"])
    attempts = len(device["bars"])
    title = f"run {run['number']} {device['label']}: {attempts} attempt{'' if attempts == 1 else 's'}"
    return DeviceLanes(title, device["bars"], number, max(1.5, min(14, MOST_HIGH / number)))


def _at(seconds: float, longest: float) -> float:
    return EDGE + seconds / longest * (WIDTH - 2 * EDGE)


def _outcome(bar: Sequence[Any]) -> str:
    return "probe" if bar[6] == "probe" and bar[5] == "succeeded" else str(bar[5])


def _colour(bar: Sequence[Any]) -> str:
    return COLOURS.get(_outcome(bar), INK)


def _axis(drawing: Drawing, longest: float, top: float, bottom: float) -> None:
    step = next((step for step in _STEPS if longest / step <= 10), longest / 10)
    number = 0
    while number * step <= longest * (1 + 1e-9):
        x = _at(number * step, longest)
        anchor = "start" if not number else "end" if x > WIDTH - 2 * EDGE else "middle"
        drawing.rects.append(SvgRect(x, top, 1, bottom - top, FAINT))
        drawing.words.append(SvgText(x, bottom + 14, duration(number * step), anchor, fill=GREY))
        number += 1


def _legend(drawing: Drawing, outcomes: set[str], top: float) -> None:
    for place, name in enumerate(sorted(outcomes)):
        left = EDGE + place * ENTRY
        drawing.rects.append(SvgRect(left, top + 2, 11, 11, COLOURS.get(name, INK)))
        drawing.words.append(SvgText(left + 16, top + 12, name))
