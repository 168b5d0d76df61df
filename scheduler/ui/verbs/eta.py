"""Forecasts in words; times are rounded to the precision with which they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scheduler.core.local_time import clock_time
from scheduler.core.model import State
from scheduler.units import count

if TYPE_CHECKING:
    from scheduler.core.reporting.forecast import ExpectedTask, Forecast, TimeSpan

_STEPS = ((60.0, 5), (600.0, 30), (3600.0, 60), (6 * 3600.0, 300), (86400.0, 1800))
"""The times in seconds below which a time is rounded, each with the rounding step in seconds."""


def roughly(seconds: float) -> str:
    """Return a time that is not known to the second, rounded: `25s`, `12m`, `3h20m`, `2d06h`."""
    step = next((step for below, step in _STEPS if seconds < below), 3600)
    whole = max(step, round(seconds / step) * step)
    if whole < 60:
        return f"{whole}s"
    if whole < 600 and whole % 60:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def about(span: TimeSpan, now: float) -> str:
    """Return the time from now to an uncertain moment, with its bounds: `about 12m (10m to 15m)`."""
    likely, early, late = (roughly(max(0.0, at - now)) for at in (span.likely, span.early, span.late))
    return f"about {likely}" if early == late == likely else f"about {likely} ({early} to {late})"


def left(end: TimeSpan, now: float, held: int = 0, too_long: int = 0) -> str:
    """Return the remaining time with its bounds: `about 12m left (10m to 15m)`. Say that it does not include the held
    tasks, and the tasks that wait for a longer Slurm allocation; `held` and `too_long` are their numbers.
    """
    likely, _, bounds = about(end, now).partition(" (")
    without = [count(held, "held task")] if held else []
    without += [f"{count(too_long, 'task')} for which the allocation is too short"] if too_long else []
    apart = f" without {' and '.join(without)}" if without else ""
    return f"{likely} left" + (f" ({bounds}" if bounds else "") + apart


def of_run(forecast: Forecast | None, now: float) -> str:
    """Return in words when a run is expected to end; empty without a forecast."""
    if forecast is None:
        return ""
    if forecast.is_idle:
        return "idle: no task waits or runs"
    if forecast.end is None:
        return f"time left {forecast.why}"
    return left(forecast.end, now, forecast.held, forecast.too_long)


def of_pause(facts: Mapping[str, Any], now: float) -> str:
    """Return a phrase that says that a run is paused, and until when; empty if it is not paused."""
    if not facts.get("paused"):
        return ""
    until = facts.get("paused_until")
    return f"paused until {clock_time(until, now)}" if until else "paused"


def of_task(one: ExpectedTask | None, now: float) -> str:
    """Return when a task is expected to start or to end, in few enough words for a column."""
    if one is None:
        return ""
    if one.start is not None:
        away = one.start.likely - now
        return f"starts in {roughly(away)}" if away > 0 else "starts soon"
    return f"{roughly(max(0.0, one.end.likely - now))} left"


def of_task_at_length(one: ExpectedTask | None, now: float) -> str:
    """Return when a task is expected to start and to end, with the bounds of both times."""
    if one is None:
        return ""
    if one.start is None:
        return f"it is expected to end in {about(one.end, now)}"
    return f"it is expected to start in {about(one.start, now)} and to end in {about(one.end, now)}"


def with_expected(rows: Iterable[dict[str, Any]], forecast: Forecast | None) -> Iterator[dict[str, Any]]:
    """Yield rows with their ExpectedTask in `expected`; a user's column of that name becomes `file.expected`."""
    for row in rows:
        if "expected" in row:
            row["file.expected"] = row.pop("expected")
        yield {**row, "expected": forecast and forecast.of_task(row["id"], State(row["state"]))}
