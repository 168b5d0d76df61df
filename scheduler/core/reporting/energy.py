"""The energy that tasks used, from the recorded power of their GPUs.

The energy of a GPU that several tasks shared is divided among them by their shares of its time, so it is an estimate.
Idle power is included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from scheduler.core.reporting.device_history import DeviceHistory, LoadPoint
from scheduler.core.reporting.run_history import AttemptHistory, TaskHistory

_HOUR = 3600.0


def watt_hours(history: DeviceHistory, tasks: Mapping[int, TaskHistory]) -> dict[int, float]:
    """Return the energy in watt hours that the attempts of each task used on GPUs. A task without recorded power is
    left out.
    """
    found: dict[int, float] = {}
    all_ = [(task, attempt) for task, each in tasks.items() for attempt in each.attempts]
    on_device: dict[str, list[tuple[int, AttemptHistory]]] = {}
    for task, attempt in all_:
        for device in history.points.keys() & attempt.devices:
            on_device.setdefault(device, []).append((task, attempt))
    for device, attempts in on_device.items():
        for task, joules in _shares(history.points[device], history.every, attempts):
            found[task] = found.get(task, 0.0) + joules / _HOUR
    return {task: round(energy, 3) for task, energy in found.items()}


def whole(history: DeviceHistory) -> float | None:
    """Return the energy in watt hours that all GPUs used while their power was recorded; None if none was recorded."""
    joules = [
        point.watts * (min(point.at + history.every, after) - point.at)
        for points in history.points.values()
        for point, after in zip(points, [*(point.at for point in points[1:]), inf], strict=True)
        if point.watts is not None
    ]
    return round(sum(joules) / _HOUR, 3) if joules else None


def _shares(
    points: Sequence[LoadPoint], every: float, attempts: Iterable[tuple[int, AttemptHistory]]
) -> Iterable[tuple[int, float]]:
    """Yield (task, joules) for the time of each point. The energy of a point is divided among the attempts that lived
    at that time.
    """
    coming = sorted(attempts, key=lambda one: -one[1].placed)
    living: list[tuple[int, AttemptHistory]] = []
    for point, after in zip(points, [*(point.at for point in points[1:]), inf], strict=True):
        begin, end = point.at, min(point.at + every, after)
        while coming and coming[-1][1].placed < end:
            living.append(coming.pop())
        living = [(task, attempt) for task, attempt in living if _end(attempt) > begin]
        if point.watts is None or not living:
            continue
        spans = [(task, attempt, min(end, _end(attempt)) - max(begin, attempt.placed)) for task, attempt in living]
        equal = any(not attempt.busy for _, attempt in living)
        weights = [span * (1.0 if equal else attempt.busy) for _, attempt, span in spans]
        covered = min(end - begin, max(span for *_, span in spans))
        whole = sum(weights)
        for (task, *_), weight in zip(spans, weights, strict=True):
            yield task, point.watts * covered * weight / whole


def _end(attempt: AttemptHistory) -> float:
    return inf if attempt.ended is None else attempt.ended
