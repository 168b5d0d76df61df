"""Forecasts in words, rounded to the precision that they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scheduler.ui.text import instant

_STEPS = ((60.0, 5), (600.0, 30), (3600.0, 60), (6 * 3600.0, 300), (86400.0, 1800))
"""Up to this many seconds, a time is rounded to this many."""


def roughly(seconds: float) -> str:
    """Round a time that is not known to the second: `25s`, `12m`, `3h20m`, `2d06h`."""
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


def about(span: Mapping[str, float], now: float) -> str:
    """Return how far away a moment is, with its bounds: `about 12m (10m to 15m)`."""
    likely, early, late = (roughly(max(0.0, span[what] - now)) for what in ("likely", "early", "late"))
    return f"about {likely}" if early == late == likely else f"about {likely} ({early} to {late})"


def left(end: Mapping[str, float], now: float) -> str:
    """Return the remaining time, with its bounds: `about 12m left (10m to 15m)`."""
    likely, _, bounds = about(end, now).partition(" (")
    return f"{likely} left" + (f" ({bounds}" if bounds else "")


def of_run(forecast: Mapping[str, Any] | None, now: float) -> str:
    """Return when a run is expected to end; empty without a forecast."""
    if forecast is None:
        return ""
    return left(forecast["end"], now) if forecast["end"] is not None else f"time left {forecast['why']}"


def of_task(one: Mapping[str, Any] | None, now: float) -> str:
    """Return when a task is expected to start or to end, short enough for a column."""
    if one is None:
        return ""
    if one["start"] is not None:
        away = one["start"]["likely"] - now
        return f"starts in {roughly(away)}" if away > 0 else "starts soon"
    return f"{roughly(max(0.0, one['end']['likely'] - now))} left"


def of_task_at_length(one: Mapping[str, Any] | None, now: float) -> str:
    """Return when a task is expected to start and to end, with bounds."""
    if one is None:
        return ""
    if one["start"] is None:
        return f"it is expected to end in {about(one['end'], now)}"
    return f"it is expected to start in {about(one['start'], now)} and to end in {about(one['end'], now)}"


def of_program(forecast: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a run's forecast for JSON: when it was made, the expected end, or why that is unknown."""
    if forecast is None:
        return None
    end = forecast["end"] and {what: instant(at) for what, at in forecast["end"].items()}
    return {"at": instant(forecast["at"]), "end": end, "why": forecast["why"]}


def of_program_task(one: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a task's forecast for JSON, with moments as ISO 8601."""
    if one is None:
        return None
    return {what: one[what] and {k: instant(at) for k, at in one[what].items()} for what in ("start", "end")}


def with_expected(rows: Iterable[dict[str, Any]], forecast: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield rows with their forecast in `expected`; a user's column of that name becomes `file.expected`."""
    for row in rows:
        if "expected" in row:
            row["file.expected"] = row.pop("expected")
        yield {**row, "expected": of_one(forecast, row["id"], row["state"])}


def of_one(forecast: Mapping[str, Any] | None, task: int, state: str) -> Mapping[str, Any] | None:
    """Return the forecast of a task in this state; None if it has ended."""
    if forecast is None or state not in ("waiting", "running", "probing"):
        return None
    one = forecast["tasks"].get(str(task))
    return one if one is None or state == "waiting" else {**one, "start": None}
