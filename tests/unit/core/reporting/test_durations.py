"""Durations of tasks, from profiles of their class, script and run, and from living attempts."""

from __future__ import annotations

from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.reporting.durations import OWN_SPREAD, RUN_SPREAD, SCRIPT_SPREAD, Duration, DurationIndex, remaining


def knowing(*seconds: float, epochs: int | None = None) -> ProfileIndex:
    """Return profiles of the classes 1, 2, … of one script; a class with 0 seconds has not run."""
    known = ProfileIndex()
    for place, took in enumerate(seconds):
        number = known.number(TaskClass(f"k{place}", f"train.py --k {place}", False, "train.py"))
        if took:
            known.learn(number, Observation({"host": 1}, seconds=took, epochs=epochs))
    return known


class TestDurationIndex:
    def test_duration_is_unknown_before_a_similar_task_has_ended(self) -> None:
        assert DurationIndex(knowing(0.0)).expect(1, None) is None

    def test_class_that_ran_is_expected_to_take_as_long_again(self) -> None:
        assert DurationIndex(knowing(60.0)).expect(1, None) == Duration(60.0, OWN_SPREAD)

    def test_duration_scales_with_the_epochs(self) -> None:
        found = DurationIndex(knowing(60.0, epochs=10)).expect(1, 20)
        assert found is not None
        assert found.seconds == 120.0

    def test_duration_from_other_classes_of_the_script_has_a_wider_spread(self) -> None:
        found = DurationIndex(knowing(60.0, 60.0, 60.0, 0.0)).expect(4, None)
        assert found == Duration(60.0, SCRIPT_SPREAD)

    def test_duration_from_a_single_other_class_has_the_widest_spread(self) -> None:
        found = DurationIndex(knowing(60.0, 0.0)).expect(2, None)
        assert found is not None
        assert found.spread == RUN_SPREAD

    def test_durations_that_differ_much_give_a_wide_spread(self) -> None:
        found = DurationIndex(knowing(10.0, 10.0, 200.0, 0.0)).expect(4, None)
        assert found is not None
        assert found.spread > 1.0

    def test_duration_from_other_scripts_of_the_run_is_used_where_nothing_else_is_known(self) -> None:
        known = knowing(60.0)
        other = known.number(TaskClass("other", "eval.py", False, "eval.py"))
        found = DurationIndex(known).expect(other, None)
        assert found is not None
        assert (found.seconds, found.spread) == (60.0, RUN_SPREAD)

    def test_epoch_time_of_a_living_attempt_gives_the_duration_of_its_class(self) -> None:
        found = DurationIndex(knowing(0.0), [(1, 3.0)]).expect(1, 10)
        assert found is not None
        assert found.seconds == 30.0

    def test_elapsed_time_of_living_attempts_raises_the_mean_of_ended_ones(self) -> None:
        known = knowing(10.0, 10.0, 10.0, 0.0, 0.0)
        found = DurationIndex(known, (), [(4, 30.0), (5, 30.0)]).expect(4, None)
        assert found is not None
        assert found.seconds == 20.0

    def test_late_attempt_needs_a_share_of_its_elapsed_time_more(self) -> None:
        assert remaining(60.0, 40.0) == 20.0
        assert remaining(60.0, 80.0) == 20.0
