"""The planned timeline of a list that is not started (`--dry-run`): a bar for each task on a device, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.model import shown_in
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.reporting.memory_timeline import lanes
from scheduler.ui.text import short, table
from scheduler.ui.verbs.eta import about, roughly
from scheduler.units import count
from scheduler.values import dataclass

MOST_LANES, MOST_DEVICES, MOST_ROWS = 6, 8, 12
"""The most lanes of a device, the most devices, and the most rows of the table that are shown; the rest is only
counted.
"""
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True, slots=True)
class PlannedBar:
    """One planned task: its device, its start and its end, in seconds from now."""

    row: int
    name: str
    device: str
    start: float
    end: float


def bars(forecast: Forecast, rows: Mapping[int, tuple[int, str]], labels: Mapping[str, str]) -> list[PlannedBar]:
    """Return a bar for each planned task on each of its devices; `rows` has the row number and name of each task."""
    now = forecast.at
    found = [
        PlannedBar(*rows.get(task, (0, "")), labels.get(key, key), one.start.likely - now, one.end.likely - now)
        for task, one in forecast.tasks.items()
        if one.start is not None
        for key in shown_in(one.devices)
    ]
    return sorted(found, key=lambda bar: (bar.start, bar.row))


def lines(forecast: Forecast, planned: Sequence[PlannedBar], number: int, guessed: int, width: int) -> list[str]:
    """Return the plan as text: its end, the chart, and the table of the first starts and ends."""
    if forecast.end is None or not planned:
        why = forecast.why or "nothing would start"
        return [f"timeline         {why}; scheduler simulate FILE --assume 10min,4GiB shows one for assumed durations"]
    result = [f"timeline         ends in {about(forecast.end, forecast.at)}{_estimated(guessed, number)}"]
    shown = len({bar.row for bar in planned})
    if shown < number:
        result.append(f"                 the first {shown:,} of {number:,} tasks are shown")
    return [*result, "", *_chart(planned, width), "", *_table(planned)]


def _estimated(guessed: int, number: int) -> str:
    """Return the number of tasks whose duration is estimated from other tasks, in words."""
    if not guessed:
        return ""
    which = "all tasks" if guessed == number else f"{guessed:,} of {count(number, 'task')}"
    return f"; durations of {which} are estimated from similar tasks"


def _chart(planned: Sequence[PlannedBar], width: int) -> list[str]:
    longest = max(bar.end for bar in planned) or 1.0
    devices = sorted({bar.device for bar in planned}, key=lambda name: (len(name), name))
    label = max(8, *(len(name) + 2 for name in devices))
    wide = max(20, width - label)
    result = [" " * label + _axis(longest, wide)]
    for device in devices[:MOST_DEVICES]:
        lanes = _lanes([bar for bar in planned if bar.device == device])
        names = [device, *[""] * MOST_LANES]
        drawn = [_drawn(lane, longest, wide) for lane in lanes[:MOST_LANES]]
        result += [f"{name:<{label}}{lane}" for name, lane in zip(names, drawn, strict=False)]
        if len(lanes) > MOST_LANES:
            result.append(f"{'':<{label}}and up to {len(lanes) - MOST_LANES} more at the same time")
    if len(devices) > MOST_DEVICES:
        result.append(f"and {len(devices) - MOST_DEVICES} more devices")
    return [line.rstrip() for line in result]


def _axis(longest: float, wide: int) -> str:
    step = next((step for step in _STEPS if longest / step <= wide / 12), _STEPS[-1])
    line = [" "] * (wide + 8)
    at = 0
    while at <= longest:
        place = int(at / longest * (wide - 1))
        text = f"|{_mark(at)}"
        line[place : place + len(text)] = text
        at += step
    return "".join(line)[:wide]


def _mark(seconds: int) -> str:
    """Return an exact time as briefly as possible: `now`, `90s`, `20m`, `1h30m`, `2d`."""
    if seconds == 0:
        return "now"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            rest = seconds % unit
            return f"{seconds // unit}{name}" + (_mark(rest) if rest else "")
    return f"{seconds}s"


def _lanes(here: Sequence[PlannedBar]) -> list[list[PlannedBar]]:
    """Return the lanes of a device: each bar is put into the first lane that is free at the bar's start."""
    places = lanes((bar.start + 1e-6, bar.end) for bar in here)
    return [[bar for bar, place in zip(here, places, strict=True) if place == lane] for lane in sorted({*places})]


def _drawn(lane: Sequence[PlannedBar], longest: float, wide: int) -> str:
    """Return a lane as text: its bars with their row numbers, with one blank between two bars."""
    line = [" "] * wide
    for bar in lane:
        first = min(wide - 1, int(bar.start / longest * wide))
        last = max(first + 1, min(wide, int(bar.end / longest * wide)))
        room = max(1, last - first - 1)
        text = str(bar.row)
        line[first : first + room] = (text if len(text) < room else "").ljust(room, "━")
    return "".join(line)


def _table(planned: Sequence[PlannedBar]) -> list[str]:
    first = planned[:MOST_ROWS]
    cells = [[str(bar.row), bar.device, _when(bar.start), roughly(bar.end), short(bar.name, 40)] for bar in first]
    result = table(["row", "device", "starts", "ends", "name"], cells, frozenset({0, 2, 3}))
    left = len(planned) - len(first)
    return [*result, *([f"and {count(left, 'more task')}"] if left > 0 else [])]


def _when(seconds: float) -> str:
    return "now" if seconds < 1 else roughly(seconds)


def facts(forecast: Forecast, planned: Sequence[PlannedBar]) -> dict[str, Any]:
    """Return the plan as data for JSON; times are in seconds from now."""
    end = forecast.end and {what: at - forecast.at for what, at in forecast.end.to_dict().items()}
    timeline = [{"row": b.row, "name": b.name, "device": b.device, "start_s": b.start, "end_s": b.end} for b in planned]
    return {"over_in_s": end, "why": forecast.why, "timeline": timeline}
