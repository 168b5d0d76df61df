"""Curves keep their shape within their bounds, and the format of their file is frozen here."""

from __future__ import annotations

import json
import math
import random

import pytest

from scheduler.core.metrics.curve import MOST_POINTS, Curve
from scheduler.core.metrics.record import MOST_METRICS, MetricRecord


def curve(values: list[float]) -> Curve:
    made = Curve()
    for value in values:
        made.add(value)
    return made


def test_short_curve_keeps_every_point() -> None:
    values = [random.Random(1).random() for _ in range(MOST_POINTS)]
    assert [value for _, value in curve(values).steps()] == values


@pytest.mark.parametrize("number", [501, 5_000, 123_456])
def test_long_curve_keeps_its_extremes_and_its_ends_in_few_points(number: int) -> None:
    values = [math.exp(-place / number) for place in range(number)]
    values[number // 3], values[number // 2] = 7.0, -7.0
    made = curve(values)
    found = made.steps()
    assert MOST_POINTS // 4 < len(found) <= MOST_POINTS
    assert {7.0, -7.0} <= {value for _, value in found}
    assert found == sorted(found)
    assert found[0][0] <= made.gap
    assert found[-1][0] > number - made.gap
    assert (made.lowest, made.highest) == ((-7.0, number // 2 + 1), (7.0, number // 3 + 1))


def test_value_that_is_no_number_is_the_last_one_but_no_point() -> None:
    made = curve([2.0, 1.0, math.nan, math.inf, -math.inf, math.nan])
    assert math.isnan(made.last)
    assert [value for _, value in made.steps()] == [2.0, 1.0]
    assert made.lowest == (1.0, 2.0)
    assert made.highest == (2.0, 1.0)


def test_steps_that_begin_again_are_replaced_by_the_numbers_of_the_readings() -> None:
    made = Curve()
    for step in (10.0, 20.0, 10.0, 20.0):
        made.add(step / 10, step)
    assert made.steps() == [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0), (4.0, 2.0)]


def test_few_values_show_the_end_of_each_part() -> None:
    assert curve([float(n) for n in range(100)]).values(4) == [24.0, 49.0, 74.0, 99.0]
    assert curve([1.0, 2.0]).values(4) == [1.0, 2.0]


def test_record_as_json() -> None:
    record = MetricRecord()
    record.take([("loss", 2.0, 1.0), ("loss", math.nan, 2.0)])
    record.take([("acc", 0.5, None)], reported=True)
    record.progress, record.log_at, record.result_at, record.result_state = (2.0, 6.0), 40, 9, [1, 2, 3]
    data = json.loads(record.dump())
    assert data == {
        "format": 1, "final": False, "progress": [2.0, 6.0], "log_at": 40, "result_at": 9, "result_state": [1, 2, 3],
        "reported": ["acc"],
        "metrics": {
            "loss": {
                "last": "nan", "step": 2.0, "lowest": [2.0, 1.0], "highest": [2.0, 1.0], "readings": 2, "gap": 1,
                    "nan_from": [2, 2.0],
                "numbers": [1], "steps": [1.0], "values": [2.0],
            },
            "acc": {
                "last": 0.5, "step": 1.0, "lowest": [0.5, 1.0], "highest": [0.5, 1.0], "readings": 1, "gap": 1,
                    "nan_from": None,
                "numbers": [1], "steps": [1.0], "values": [0.5],
            },
        },
    }  # fmt: skip
    again = MetricRecord.load(record.dump())
    assert again is not None
    assert again.dump() == record.dump()


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b'{"format": 1}', b'{"format": 2, "metrics": {}}', b"[" * 100_000, b'{"format": 1', b"\xff"],
)
def test_damaged_record_or_one_of_a_newer_version_is_not_read(text: bytes) -> None:
    assert MetricRecord.load(text) is None


def test_the_first_of_ten_thousand_metrics_are_kept() -> None:
    record = MetricRecord()
    record.take([(f"m{number}", 1.0, None) for number in range(10_000)], reported=True)
    assert list(record.curves) == [f"m{number}" for number in range(MOST_METRICS)]


def test_reported_metric_replaces_what_the_output_seemed_to_say() -> None:
    record = MetricRecord()
    record.take([("loss", 9.0, 1.0), ("acc", 0.1, 1.0)])
    record.take([("loss", 0.5, 1.0)], reported=True)
    record.take([("loss", 8.0, 2.0), ("acc", 0.2, 2.0)])
    assert record.curves["loss"].steps() == [(1.0, 0.5)]
    assert record.curves["acc"].steps() == [(1.0, 0.1), (2.0, 0.2)]


def test_result_that_was_left_after_the_last_sample_is_the_end_of_its_curve() -> None:
    record = MetricRecord()
    record.take([("loss", 0.5, 1.0)], reported=True)
    record.complete({"loss": 0.25, "step": 2, "name": "x", "done": True, "acc": 0.75})
    record.complete({"loss": 0.25, "step": 2})  # it is added once
    assert record.curves["loss"].steps() == [(1.0, 0.5), (2.0, 0.25)]
    assert record.curves["loss"].lowest == (0.25, 2.0)
    assert record.curves["acc"].last == 0.75
    assert sorted(record.curves) == ["acc", "loss"]


def test_result_does_not_replace_a_curve_from_the_output() -> None:
    record = MetricRecord()
    record.take([("loss", 0.5, 1.0), ("loss", 0.4, 2.0)])
    record.complete({"loss": 0.3})
    assert record.curves["loss"].steps() == [(1.0, 0.5), (2.0, 0.4)]


@pytest.mark.parametrize(
    ("values", "since"),
    [([1.0, 2.0], None), ([1.0, math.nan, math.inf], 2.0), ([math.nan], 1.0), ([1.0, math.nan, 3.0], None)],
)
def test_curve_keeps_since_which_step_its_values_are_not_finite(values: list[float], since: float | None) -> None:
    made = Curve()
    for step, value in enumerate(values, 1):
        made.add(value, float(step))
    assert made.nan_step == since
    assert Curve.from_dict(json.loads(json.dumps(made.to_dict()))).nan_step == since
