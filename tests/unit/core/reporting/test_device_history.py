"""The load of devices over the time of a run: bounded, with no peak of memory lost, and read again."""

from __future__ import annotations

import json

import pytest

from scheduler.core.model import Device, DeviceBudget
from scheduler.core.reporting.device_history import EVERY, MOST_POINTS, DeviceHistory

TOTAL = 1000


def gpu(key: str) -> Device:
    return Device(key, "GPU", TOTAL, 1.0)


def budget(busy: float | None, free: int = 400, celsius: int | None = 50, key: str = "GPU-1") -> DeviceBudget:
    return DeviceBudget(gpu(key), free, busy=busy, celsius=celsius, watts=150.0)


def test_point_has_load_used_memory_temperature_and_power() -> None:
    history = DeviceHistory()
    history.add(5.0, [budget(0.25), budget(None, key="host")])
    assert [*history.points] == ["GPU-1"]
    (point,) = history.points["GPU-1"]
    assert (point.at, point.busy, point.used, point.celsius, point.watts) == (5.0, 0.25, 600, 50, 150.0)


def test_long_history_stays_bounded_and_keeps_the_highest_use_and_the_mean_load() -> None:
    history = DeviceHistory()
    for number in range(20 * MOST_POINTS):
        history.add(float(number), [budget(number % 2, free=0 if number == 777 else 900, celsius=None)])
    points = history.points["GPU-1"]
    assert len(points) <= MOST_POINTS
    assert history.every > EVERY
    assert max(point.used for point in points) == TOTAL
    assert all(point.busy == 0.5 for point in points[: len(points) // 2])
    assert [point.at for point in points] == sorted(point.at for point in points)


def test_history_is_read_again_as_it_was_written() -> None:
    history = DeviceHistory()
    for number in range(MOST_POINTS + 3):
        history.add(float(number), [budget(0.5)])
    again = DeviceHistory.from_dict(json.loads(json.dumps(history.to_dict(), allow_nan=False)))
    assert (again.points, again.every) == (history.points, history.every)


@pytest.mark.parametrize("said", [{}, {"format": 1}, {"format": 2, "every": 2, "devices": {"a": [[1]]}}])
def test_other_data_is_refused(said: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        DeviceHistory.from_dict(said)
