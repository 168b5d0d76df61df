"""What lies ahead, in words: no more exact than it is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scheduler.view.words import instant

_STEPS = ((60.0, 5), (600.0, 30), (3600.0, 60), (6 * 3600.0, 300), (86400.0, 1800))
"""Below so many seconds an end is told to so many."""


def roughly(seconds: float) -> str:
    """A time that nobody knows to the second: `25s`, `12m`, `3h20m`, `2d06h`."""
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
    """How far away a moment is, and between which two it lies: `about 12m (10m to 15m)`."""
    likely, early, late = (roughly(max(0.0, span[what] - now)) for what in ("likely", "early", "late"))
    return f"about {likely}" if early == late == likely else f"about {likely} ({early} to {late})"


def left(end: Mapping[str, float], now: float) -> str:
    """How long something takes that goes on: `about 12m left (10m to 15m)`."""
    said, _, between = about(end, now).partition(" (")
    return f"{said} left" + (f" ({between}" if between else "")


def of_run(forecast: Mapping[str, Any] | None, now: float) -> str:
    """When a run is expected to be over; nothing where nobody looks ahead."""
    if forecast is None:
        return ""
    return left(forecast["end"], now) if forecast["end"] is not None else f"time left {forecast['why']}"


def of_task(one: Mapping[str, Any] | None, now: float) -> str:
    """When a task is expected to start or to be over, short enough for a column."""
    if one is None:
        return ""
    if one["start"] is not None:
        away = one["start"]["likely"] - now
        return f"starts in {roughly(away)}" if away > 0 else "starts soon"
    return f"{roughly(max(0.0, one['end']['likely'] - now))} left"


def of_task_at_length(one: Mapping[str, Any] | None, now: float) -> str:
    """The same with how sure that is."""
    if one is None:
        return ""
    if one["start"] is None:
        return f"it is expected to end in {about(one['end'], now)}"
    return f"it is expected to start in {about(one['start'], now)} and to end in {about(one['end'], now)}"


def of_program(forecast: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A run's forecast for programs: when it was made, when all is expected to be over, or why nobody knows."""
    if forecast is None:
        return None
    end = forecast["end"] and {what: instant(at) for what, at in forecast["end"].items()}
    return {"at": instant(forecast["at"]), "end": end, "why": forecast["why"]}


def of_program_task(one: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What is expected of a task for programs: moments as ISO 8601."""
    if one is None:
        return None
    return {what: one[what] and {k: instant(at) for k, at in one[what].items()} for what in ("start", "end")}


def with_expected(rows: Iterable[dict[str, Any]], forecast: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Rows of tasks, each with what is expected of it; a column of the user's that is called so keeps its cells."""
    for row in rows:
        if "expected" in row:
            row["file.expected"] = row.pop("expected")
        yield {**row, "expected": of_one(forecast, row["id"], row["state"])}


def of_one(forecast: Mapping[str, Any] | None, task: int, state: str) -> Mapping[str, Any] | None:
    """What is expected of a task that stands so now; nothing of one that is over."""
    if forecast is None or state not in ("waiting", "running", "probing"):
        return None
    one = forecast["tasks"].get(str(task))
    return one if one is None or state == "waiting" else {**one, "start": None}
