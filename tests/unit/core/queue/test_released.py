"""Released memory: a lower value counts only after several measurements."""

from __future__ import annotations

from scheduler.core.placement.device_capacity import DeviceCapacity
from scheduler.core.queue.released import CALM, DOUBT, Released
from scheduler.units import GIB
from tests.support.builders import gpu

DEVICE = gpu(0).device


def steadied(of: Released, now: float, surely: int, most: int | None = None) -> int:
    """Return the value after one measurement, in GiB."""
    room = DeviceCapacity(DEVICE, 24 * GIB, 0, 1.0, 0, 0)
    room.released_surely, room.released = surely * GIB, (surely if most is None else most) * GIB
    of.steady(room, now)
    return room.released // GIB


def test_the_first_measurement_counts() -> None:
    assert steadied(Released(), 0.0, 20) == 20
    assert steadied(Released(), 0.0, 10, 20) == 20


def test_a_lower_value_counts_after_it_was_seen_for_a_while() -> None:
    of = Released()
    assert [steadied(of, now, surely) for now, surely in ((0.0, 23), (1.0, 20), (2.0, 23))] == [23, 23, 23]
    assert steadied(of, 2.0 + CALM, 20) == 23
    assert steadied(of, 2.1 + CALM, 20) == 20


def test_a_higher_value_counts_at_once() -> None:
    of = Released()
    assert [steadied(of, now, surely) for now, surely in ((0.0, 20), (0.1, 23))] == [20, 23]


def test_the_use_of_new_attempts_does_not_change_the_value_for_a_while() -> None:
    of = Released()
    assert steadied(of, 0.0, 20) == 20
    assert steadied(of, 1.0, 12, 24) == 20
    assert steadied(of, DOUBT, 12, 24) == 20
    assert steadied(of, DOUBT + 1, 12, 24) == 24


def test_a_clock_that_was_set_back_does_not_prolong_a_value() -> None:
    of = Released()
    steadied(of, 1000.0, 23)
    assert steadied(of, 0.0, 20) == 20
