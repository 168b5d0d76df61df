"""The data of one task for the page and the report: its cells in the table, and its details when the user opens it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.metrics.curve import Curve
from scheduler.core.metrics.goal import Goal, goal_of, ranked
from scheduler.core.metrics.record import SHOWN_VALUES, MetricRecord
from scheduler.core.model import EstimateSource
from scheduler.core.reporting.memory_timeline import AttemptTrack
from scheduler.ui.text import clean

MOST_CELLS = 6
"""The most metrics that have columns in a table."""
MOST_CURVES = 12
"""The most metrics whose curves an open task shows."""


def number(value: float | None) -> float | None:
    """Return a finite value rounded to five significant digits; None for any other value."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


def cells(record: MetricRecord | None, first: Sequence[str]) -> dict[str, Any]:
    """Return the most important metrics of a task by name: the last and the best value of each, and the shape of its
    curve.
    """
    if record is None:
        return {}
    return {clean(name): _cell(name, record.curves[name]) for name in ranked(record.curves, first)[:MOST_CELLS]}


def _cell(name: str, curve: Curve) -> dict[str, Any]:
    goal = goal_of(clean(name))
    best = best_of(curve, goal)
    values = [number(value) for value in curve.values(SHOWN_VALUES)]
    return {"goal": str(goal), "last": number(curve.last), "best": best and number(best[0]), "values": values}


def best_of(curve: Curve, goal: Goal) -> tuple[float, float] | None:
    """Return the best finite value of a curve with its step; None if it has no finite value."""
    return curve.lowest if goal is Goal.MIN else curve.highest


def sort_value(record: MetricRecord | None, kind: str, name: str) -> float:
    """Return the last value (`result`) or the best value of a metric, for sorting; NaN if there is none."""
    found = next((one for one in record.curves if clean(one) == name), None) if record is not None else None
    if record is None or found is None:
        return math.nan
    curve = record.curves[found]
    best = best_of(curve, goal_of(name)) if kind == "best" else None
    return curve.last if kind == "result" else best[0] if best else math.nan


def curves(record: MetricRecord | None, first: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Return the curves of a task whose details are open, each with about `most` points or fewer."""
    if record is None:
        return []
    return [_curve(name, record.curves[name], most) for name in ranked(record.curves, first)[:MOST_CURVES]]


def _curve(name: str, curve: Curve, most: int) -> dict[str, Any]:
    best, points = best_of(curve, goal_of(clean(name))), curve.few_steps(most)
    return {
        "name": clean(name),
        "last": number(curve.last),
        "best": best and number(best[0]),
        "step": best and number(best[1]),
        "nan_from": number(curve.nan_step),
        "end": number(curve.end),
        "steps": [step for step, _ in points],
        "values": [number(value) for _, value in points],
    }


def attempts(tracks: Iterable[AttemptTrack], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the attempts of a task, oldest first; times are in seconds since 1970."""
    return [_attempt(track, labels) for track in tracks]


def _attempt(track: AttemptTrack, labels: Mapping[str, str]) -> dict[str, Any]:
    attempt = track.attempt
    main = [key for key in attempt.devices if key in attempt.reserved]
    return {
        "attempt": attempt.number,
        "outcome": str(attempt.outcome or "running"),
        "purpose": str(attempt.purpose),
        "device": ", ".join(attempt.shown_on(labels)),
        "began": attempt.started or attempt.placed,
        "ended": attempt.ended,
        "seconds": attempt.seconds if attempt.ended is not None else None,
        "reserved": max((attempt.reserved[key] for key in main), default=None),
        "peak": max((attempt.peak.get(key, 0) for key in main), default=0),
        "source": EstimateSource(attempt.source).words if attempt.source else "",
        "exit": attempt.code if attempt.signal is None else 128 + attempt.signal,
    }


def memory(track: AttemptTrack | None, labels: Mapping[str, str], now: float) -> list[dict[str, Any]]:
    """Return the reserved and the used memory of an attempt over time, for each device."""
    if track is None:
        return []
    begin, end = track.attempt.placed, now if track.attempt.ended is None else track.attempt.ended
    return [
        {
            "label": labels.get(key, key),
            "end": round(end - begin, 3),
            "steps": [[round(at - begin, 3), reserved, held] for at, reserved, held in steps],
        }
        for key, steps in track.steps.items()
        if any(reserved or held for _, reserved, held in steps)
    ]
