"""The best value of each metric over the tasks of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from scheduler.app.live.tasks import MOST_COMPARED, BestValues
from scheduler.core.metrics.record import MetricRecord
from scheduler.ui.live.ports import BestTask


def record(**values: Sequence[float]) -> MetricRecord:
    """Return a record with these values of each metric."""
    made = MetricRecord()
    for name, each in values.items():
        made.take([(name, value, None) for value in each])
    return made


def test_lowest_loss_of_any_step_is_the_best() -> None:
    best = BestValues(())
    best.take(1, record(val_loss=[0.9, 0.3, 0.5]))
    best.take(2, record(val_loss=[0.8, 0.4]))
    assert best.best(()) == BestTask("val_loss", 0.3, 1, 2)


def test_highest_accuracy_is_the_best_if_the_user_has_named_it() -> None:
    best = BestValues(("val_acc",))
    best.take(1, record(val_loss=[0.1], val_acc=[0.5]))
    best.take(2, record(val_loss=[0.2], val_acc=[0.7, 0.6]))
    assert best.best(()) == BestTask("val_acc", 0.7, 2, 2)


def test_value_that_is_no_number_is_never_the_best() -> None:
    best = BestValues(())
    best.take(1, record(val_loss=[math.nan, -math.inf]))
    assert best.best(()) is None
    best.take(2, record(val_loss=[3.0, math.nan]))
    assert best.best(()) == BestTask("val_loss", 3.0, 2, 1)


def test_parameter_that_a_task_prints_is_not_compared() -> None:
    best = BestValues(())
    best.take(1, record(lr=[0.1]))
    assert best.best(("lr",)) is None


@pytest.mark.parametrize("tasks", [3])
def test_number_of_metrics_is_bounded(tasks: int) -> None:
    best = BestValues(())
    for task in range(tasks):
        best.take(task, record(**{f"m{task}x{at}": [1.0] for at in range(32)}))
    assert len(best._found) == MOST_COMPARED
