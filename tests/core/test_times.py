"""How long tasks take as far as that is known, and what several ways of going on come to."""

from __future__ import annotations

import math

import pytest

from scheduler.core.forecast import Course, Expected, Forecast, Span, joined
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Knowledge
from scheduler.core.times import ANY, LIKE, OWN, Time, Times, left


def knowing(*seconds: float, epochs: int | None = None) -> Knowledge:
    """Kinds 1, 2, … of one script, of which those with a time have run."""
    known = Knowledge()
    for place, took in enumerate(seconds):
        number = known.number(Kind(f"k{place}", f"train.py --k {place}", False, "train.py"))
        if took:
            known.learn(number, Evidence({"host": 1}, seconds=took, epochs=epochs))
    return known


class TestTimes:
    def test_nothing_is_said_while_nothing_like_it_has_ended(self) -> None:
        assert Times(knowing(0.0)).of(1, None) is None

    def test_a_kind_that_ran_takes_as_long_again(self) -> None:
        assert Times(knowing(60.0)).of(1, None) == Time(60.0, OWN, "kind 1")

    def test_other_epochs_take_as_much_longer(self) -> None:
        found = Times(knowing(60.0, epochs=10)).of(1, 20)
        assert found is not None
        assert found.seconds == 120.0

    def test_others_of_its_script_tell_with_less_certainty(self) -> None:
        found = Times(knowing(60.0, 60.0, 60.0, 0.0)).of(4, None)
        assert found == Time(60.0, LIKE, "train.py")

    def test_a_single_other_one_tells_hardly_anything(self) -> None:
        found = Times(knowing(60.0, 0.0)).of(2, None)
        assert found is not None
        assert found.spread == ANY

    def test_those_that_differ_much_leave_much_open(self) -> None:
        found = Times(knowing(10.0, 10.0, 200.0, 0.0)).of(4, None)
        assert found is not None
        assert found.spread > 1.0

    def test_whatever_ran_tells_of_another_script_too(self) -> None:
        known = knowing(60.0)
        other = known.number(Kind("other", "eval.py", False, "eval.py"))
        found = Times(known).of(other, None)
        assert found is not None
        assert (found.seconds, found.told_by) == (60.0, "")

    def test_the_pace_of_one_that_runs_tells_of_its_kind(self) -> None:
        found = Times(knowing(0.0), [(1, 3.0)]).of(1, 10)
        assert found is not None
        assert found.seconds == 30.0

    def test_those_that_end_first_are_not_taken_for_all_that_began_with_them(self) -> None:
        known = knowing(10.0, 10.0, 10.0, 0.0, 0.0)
        found = Times(known, (), [(4, 30.0), (5, 30.0)]).of(4, None)
        assert found is not None
        assert found.seconds == 20.0

    def test_who_runs_already_takes_longer_than_he_has(self) -> None:
        time = Time(60.0, 0.5, "x")
        drawn = [time.still(go, task, 80.0) for go in range(1, 5) for task in range(50)]
        assert (
            sum(seconds > 80.0 for seconds in drawn)
            > 0.6 * len(drawn)
            > sum(time.drawn(go, 1) > 80.0 for go in range(1, 201))
        )
        assert time.still(0, 1, 80.0) == 60.0

    def test_who_is_late_takes_longer_still(self) -> None:
        assert left(60.0, 40.0) == 20.0
        assert left(60.0, 80.0) == 20.0


class TestDraws:
    def test_the_first_go_is_the_likely_one(self) -> None:
        assert Time(60.0, 0.5, "x").drawn(0, 1) == 60.0

    def test_others_scatter_as_they_are_said_to(self) -> None:
        logs = [math.log(Time(1.0, 0.5, f"{n}").drawn(1, n)) for n in range(1, 2000)]
        assert sum(logs) / len(logs) == pytest.approx(0.0, abs=0.05)
        assert math.sqrt(sum(one * one for one in logs) / len(logs)) == pytest.approx(0.5, rel=0.1)

    def test_what_is_told_by_the_same_is_wrong_alike(self) -> None:
        logs = [[math.log(Time(1.0, 1.0, "same").drawn(go, task)) for task in range(2)] for go in range(1, 1000)]
        assert sum(a * b for a, b in logs) / len(logs) == pytest.approx(0.5, abs=0.15)


class TestForecast:
    def test_the_likely_end_lies_between_an_early_and_a_late_one(self) -> None:
        goes = [Course({}, {1: end}, end) for end in (200.0, 150.0, 260.0, 300.0)]
        found = joined(100.0, goes)
        assert found.end is not None
        assert found.end.likely == 230.0
        assert 150.0 <= found.end.early <= 200.0
        assert 260.0 <= found.end.late <= 300.0

    def test_nothing_is_surer_than_the_model(self) -> None:
        assert joined(100.0, [Course({}, {}, 200.0)] * 3).end == Span(200.0, 185.0, 215.0)

    def test_tasks_that_wait_have_a_start_and_those_that_run_have_none(self) -> None:
        found = joined(0.0, [Course({2: 100.0}, {1: 100.0, 2: 300.0}, 300.0)])
        assert found.tasks[1].start is None
        assert found.tasks[2] == Expected(Span(100.0, 85.0, 115.0), Span(300.0, 255.0, 345.0))

    def test_tasks_that_find_no_room_leave_the_end_open(self) -> None:
        found = joined(0.0, [Course({}, {1: 100.0}, None, stuck=3)])
        assert (found.end, found.why) == (None, "3 of its tasks find no room, as things stand")

    def test_it_is_read_as_it_was_written(self) -> None:
        found = joined(0.0, [Course({2: 100.0}, {1: 100.0, 2: 300.0}, 300.0)])
        assert Forecast.unpack(found.pack()) == found
