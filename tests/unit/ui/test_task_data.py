"""The data of one task for the page and the report: metrics, attempts, memory, and links to trackers."""

from __future__ import annotations

import json
import math

import pytest

from scheduler.core.metrics.record import MetricRecord
from scheduler.core.model import HOST, Outcome, Purpose
from scheduler.core.reporting.memory_timeline import AttemptTrack
from scheduler.core.reporting.run_history import AttemptHistory
from scheduler.ui.web import task_data

GIB = 1 << 30


def record(*values: float, name: str = "val_loss") -> MetricRecord:
    made = MetricRecord()
    made.take([(name, value, float(step)) for step, value in enumerate(values, 1)])
    return made


def track(**more: object) -> AttemptTrack:
    attempt = AttemptHistory(2, Purpose.RUN, (HOST,), {HOST: 4 * GIB}, "profile", 100.0, started=101.0)
    for name, value in more.items():
        setattr(attempt, name, value)
    return AttemptTrack(3, attempt, {HOST: [(100.0, 4 * GIB, 0), (110.0, 2 * GIB, GIB)]})


def test_cell_of_a_metric_has_last_best_and_the_shape() -> None:
    cell = task_data.cells(record(3.0, 1.0, 2.0), ())["val_loss"]
    assert cell == {"goal": "min", "last": 2.0, "best": 1.0, "values": [3.0, 1.0, 2.0]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_number_is_none_in_json(value: float) -> None:
    cells = task_data.cells(record(1.0, value), ())
    assert cells["val_loss"]["last"] is None
    assert cells["val_loss"]["best"] == 1.0
    json.dumps([cells, task_data.curves(record(1.0, value), (), 10)], allow_nan=False)


def test_metric_without_a_finite_value_has_no_best() -> None:
    assert task_data.cells(record(math.nan), ())["val_loss"]["best"] is None
    assert task_data.curves(record(math.nan), (), 10)[0]["steps"] == []


def test_table_has_columns_of_a_few_metrics_only() -> None:
    made = MetricRecord()
    made.take([(f"loss{number}", 1.0, None) for number in range(32)])
    assert len(task_data.cells(made, ())) == task_data.MOST_CELLS


def test_names_of_metrics_lose_control_characters_and_still_sort() -> None:
    made = record(2.0, 1.0, name="lo\x1b[31mss\u202e")
    assert [*task_data.cells(made, ())] == ["loss"]
    assert task_data.sort_value(made, "best", "loss") == 1.0
    assert math.isnan(task_data.sort_value(made, "best", "other"))
    assert math.isnan(task_data.sort_value(None, "result", "loss"))


def test_attempt_says_when_it_ended_and_how() -> None:
    ended = track(ended=130.0, seconds=29.0, outcome=Outcome.FAILED, signal=9, peak={HOST: GIB})
    (said,) = task_data.attempts([ended], {HOST: "host"})
    assert (said["attempt"], said["outcome"], said["began"], said["ended"]) == (2, "failed", 101.0, 130.0)
    assert (said["exit"], said["peak"], said["reserved"], said["device"]) == (137, GIB, 4 * GIB, "host")


def test_attempt_that_runs_has_no_end() -> None:
    (said,) = task_data.attempts([track()], {})
    assert (said["outcome"], said["ended"], said["seconds"], said["exit"]) == ("running", None, None, None)


def test_memory_of_an_attempt_is_told_from_its_begin() -> None:
    (said,) = task_data.memory(track(), {HOST: "RAM"}, now=120.0)
    assert said == {"label": "RAM", "end": 20.0, "steps": [[0.0, 4 * GIB, 0], [10.0, 2 * GIB, GIB]]}
    assert task_data.memory(None, {}, now=0.0) == []
