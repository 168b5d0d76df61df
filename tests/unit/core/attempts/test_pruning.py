"""The early stop of tasks by their metrics: conditions on one task, and successive halving over all."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from scheduler.core.attempts.pruning import PruningJudge, admitted, place
from scheduler.core.brain import Brain
from scheduler.core.control.requests import grant
from scheduler.core.events import Pruned, Reached
from scheduler.core.metrics.goal import Goal
from scheduler.core.metrics.stop_rules import keep_best, stop_rules
from scheduler.core.model import Purpose
from scheduler.core.ports import Request, Sample
from tests.support.builders import asked, brain, exited, placed, run, started, states, tasks, tell


class Halving:
    """A run whose tasks report metrics one after the other."""

    def __init__(self, number: int, stop_when: str = "", keep: str = "") -> None:
        rules = {"stop_when": stop_rules(stop_when), "keep_best": keep_best(keep)}
        self.brain: Brain = brain(tasks(number, "1GiB"), **rules)
        self.judge = PruningJudge(self.brain)

    def start(self, *numbers: int, attempt: int = 1) -> None:
        for number in numbers:
            tell(self.brain, placed(number, "1GiB", attempt=attempt), started(number, attempt))

    def read(
        self, task: int, *values: tuple[float, float], metric: str = "val_acc", attempt: int = 1, ended: bool = False
    ) -> Sequence[Reached | Pruned]:
        """Report values with their steps; apply what follows from them, and return it."""
        readings = [(metric, value, step) for value, step in values]
        found = self.judge.sampled(Sample(task, attempt, {}, {}, readings=readings, ended=ended))
        tell(self.brain, *found)
        return found


def ended(found: Sequence[Reached | Pruned]) -> str:
    """Return why a task is stopped; empty if it is not."""
    return "".join(event.reason for event in found if isinstance(event, Pruned))


class TestConditions:
    def test_a_task_whose_metric_meets_a_condition_is_stopped_once(self) -> None:
        run_ = Halving(1, "val_loss > 2 after 3")
        run_.start(1)
        assert not run_.read(1, (3.0, 1), (3.0, 2), metric="val_loss")
        assert ended(run_.read(1, (2.5, 3), metric="val/loss")) == "val_loss 2.5 > 2 at step 3"
        assert not run_.read(1, (2.6, 4), metric="val_loss")

    def test_a_pruned_task_ends_as_pruned_however_its_process_ends(self) -> None:
        for outcome in ("interrupted", "failed", "timeout", "oom", "lost", "again"):
            run_ = Halving(1, "val_loss is nan")
            run_.start(1)
            run_.read(1, (math.nan, 1), metric="val_loss")
            assert states(tell(run_.brain, exited(1, outcome))) == {1: "pruned"}

    def test_a_task_that_succeeded_before_its_signal_came_has_succeeded(self) -> None:
        run_ = Halving(1, "val_loss is nan")
        run_.start(1)
        run_.read(1, (math.nan, 1), metric="val_loss")
        assert states(tell(run_.brain, exited(1))) == {1: "succeeded"}

    def test_a_task_that_is_being_stopped_is_not_pruned(self) -> None:
        run_ = Halving(1, "val_loss is nan")
        run_.start(1)
        tell(run_.brain, asked("cancel", 1))
        assert not run_.read(1, (math.nan, 1), metric="val_loss")

    def test_a_probe_is_not_judged(self) -> None:
        run_ = Halving(1, "val_loss is nan", "1/2 by val_acc at 1")
        tell(run_.brain, placed(1, "1GiB", purpose=Purpose.PROBE), started(1))
        assert not run_.read(1, (math.nan, 1), metric="val_loss")
        assert not run_.read(1, (0.5, 1), ended=True)

    def test_readings_of_an_earlier_attempt_stop_no_later_one(self) -> None:
        run_ = Halving(1, "val_loss is nan")
        tell(run_.brain, run(1, "interrupted"), asked("resume"))
        run_.start(1, attempt=2)
        assert not run_.read(1, (math.nan, 1), metric="val_loss", attempt=1, ended=True)

    def test_a_retried_task_is_not_stopped_early_again_also_after_a_restart(self) -> None:
        run_ = Halving(2, "val_loss is nan")
        run_.start(1)
        run_.read(1, (math.nan, 1), metric="val_loss")
        tell(run_.brain, exited(1, "interrupted"))
        answer = grant(run_.brain, Request("retry", (1,)), [], lambda terms: 0)
        assert answer.answers[0].says == "queued again (was pruned), and is not stopped early again"
        tell(run_.brain, *answer.events)
        run_.start(1, attempt=2)
        assert not run_.read(1, (math.nan, 1), metric="val_loss", attempt=2)

    def test_retry_of_a_whole_run_leaves_pruned_tasks_alone(self) -> None:
        run_ = Halving(2, "val_loss is nan")
        run_.start(1, 2)
        run_.read(1, (math.nan, 1), metric="val_loss")
        tell(run_.brain, exited(1, "interrupted"), exited(2, "failed"))
        answer = grant(run_.brain, Request("retry"), [], lambda terms: 0)
        assert [event.tasks for event in answer.events if hasattr(event, "tasks")] == [(2,)]


class TestHalving:
    def test_a_task_goes_on_if_it_is_among_the_best_share_of_those_that_came_before(self) -> None:
        run_ = Halving(5, keep="1/3 by val_acc at 3")
        run_.start(1, 2, 3, 4, 5)
        fell = [ended(run_.read(task, (value, 3))) for task, value in enumerate((0.5, 0.4, 0.6, 0.55, 0.2), 1)]
        assert [bool(why) for why in fell] == [False, True, False, False, True]
        assert fell[1] == "val_acc 0.4 at step 3 is place 2 of 2 so far, and the best one goes on"
        assert fell[4] == "val_acc 0.2 at step 3 is place 5 of 5 so far, and the best 2 go on"

    def test_low_values_of_a_loss_are_the_best_ones(self) -> None:
        run_ = Halving(2, keep="1/2 by val_loss at 1")
        run_.start(1, 2)
        assert not ended(run_.read(1, (2.0, 1), metric="val_loss"))
        assert not ended(run_.read(2, (1.0, 1), metric="val_loss"))

    def test_the_lowest_loss_up_to_a_step_counts(self) -> None:
        run_ = Halving(1, keep="1/2 by val_loss at 2")
        run_.start(1)
        assert run_.read(1, (0.2, 1), (0.9, 2), metric="val_loss") == [Reached(1, 2.0, 0.2)]

    def test_the_best_value_up_to_a_step_counts_and_each_step_once(self) -> None:
        run_ = Halving(1, keep="1/3 by val_acc at 2,4")
        run_.start(1)
        assert run_.read(1, (0.9, 1), (0.2, 2)) == [Reached(1, 2.0, 0.9)]
        assert not run_.read(1, (0.95, 3))
        assert run_.read(1, (0.1, 9)) == [Reached(1, 4.0, 0.95)]

    def test_a_task_that_skips_over_steps_has_reached_all_of_them(self) -> None:
        run_ = Halving(1, keep="1/3 by val_acc at 2,4,100")
        run_.start(1)
        assert run_.read(1, (0.5, 10)) == [Reached(1, 2.0, 0.5), Reached(1, 4.0, 0.5)]

    def test_a_task_without_a_number_falls_out_even_if_it_is_the_first(self) -> None:
        run_ = Halving(1, keep="1/3 by val_acc at 2")
        run_.start(1)
        assert ended(run_.read(1, (math.nan, 2))) == "val_acc has no number at step 2"

    def test_equal_values_share_a_place_so_that_none_falls_out_by_chance(self) -> None:
        run_ = Halving(4, keep="1/3 by val_acc at 1")
        run_.start(1, 2, 3, 4)
        assert not any(ended(run_.read(task, (0.1, 1))) for task in (1, 2, 3, 4))

    def test_values_of_tasks_that_have_ended_count_for_the_others(self) -> None:
        run_ = Halving(2, keep="1/2 by val_acc at 1")
        run_.start(1, 2)
        tell(run_.brain, exited(1))
        assert run_.read(1, (0.9, 1), ended=True) == [Reached(1, 1.0, 0.9)]
        assert ended(run_.read(2, (0.5, 1)))

    def test_a_scheduler_that_takes_over_decides_nothing_twice(self) -> None:
        run_ = Halving(3, keep="1/3 by val_acc at 1")
        run_.start(1, 2)
        assert not ended(run_.read(1, (0.5, 1)))
        other = Halving(3, keep="1/3 by val_acc at 1")
        other.start(1, 2)
        tell(other.brain, Reached(1, 1.0, 0.5), Reached(2, 1.0, 0.9))
        assert not other.read(1, (0.5, 1), (0.5, 2))  # told again from its record

    def test_more_than_its_share_never_goes_on_from_a_shuffled_list(self) -> None:
        dice = random.Random(3)
        run_ = Halving(243, keep="1/3 by val_acc at 1")
        run_.start(*range(1, 244))
        values = [dice.random() for _ in range(243)]
        went = [task for task, value in enumerate(values, 1) if not ended(run_.read(task, (value, 1)))]
        assert 81 <= len(went) <= 81 + 15
        assert 1 + values.index(max(values)) in went


@pytest.mark.parametrize(("number", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (243, 81)])
def test_a_share_is_rounded_up(number: int, most: int) -> None:
    assert admitted(number, 1 / 3) == most


def test_places_count_only_what_is_better() -> None:
    assert place([0.1, None, 0.3], 0.2, Goal.MAX) == 2
    assert place([0.1, None, 0.3], 0.2, Goal.MIN) == 2
    assert place([0.1, None], None, Goal.MAX) == 3
