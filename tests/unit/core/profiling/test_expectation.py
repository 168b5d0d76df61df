from __future__ import annotations

import random

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Exited, Peaked
from scheduler.core.model import EstimateSource, Outcome
from scheduler.core.profiling.expectation import Sizes
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB
from tests.support.builders import brain, placed, started, tasks, tell


def sizes(*all_: int) -> Sizes:
    made = Sizes()
    for number, size in enumerate(all_, 1):
        made.put(number, size)
    return made


def test_nothing_is_expected_while_too_few_are_known() -> None:
    assert sizes(4).bound(0.9, 2) == 0


def test_bound_of_few_is_above_the_highest_by_their_number() -> None:
    assert (sizes(4, 8).bound(0.9, 2), sizes(4, 8, 8, 8).bound(0.9, 2)) == (12, 10)


def test_bound_of_many_is_the_size_that_one_more_exceeds_as_rarely_as_asked() -> None:
    assert sizes(*range(1, 100)).bound(0.9, 2) == 90


@pytest.mark.parametrize("seed", range(3))
def test_one_more_of_any_distribution_exceeds_the_bound_as_rarely_as_asked(seed: int) -> None:
    dice, above, goes = random.Random(seed), 0, 2000
    for _ in range(goes):
        drawn = [round(dice.lognormvariate(20, 1)) for _ in range(31)]
        above += drawn[-1] > sizes(*drawn[:-1]).bound(0.9, 2)
    assert 0.06 < above / goes < 0.13, f"seed {seed}"


def test_a_class_that_is_put_again_counts_once() -> None:
    made = sizes(4, 8)
    assert made.put(2, 16)
    assert not made.put(2, 16)
    assert (len(made), made.least, made.bound(0.9, 2)) == (2, 4, 24)


class TestSettling:
    """A task on a GPU of which nothing is known."""

    def watched(self, *samples: tuple[float, int]) -> tuple[Brain, list[str]]:
        b = brain(tasks(1, epochs=5), profile="live")
        b.assign(1, TaskClass("k", "train.py", probes=False))
        tell(b, placed(1, "20GiB", device="GPU-0", source=EstimateSource.MEASURED), started(1))
        causes = []
        for at, used in samples:
            for event in b.watch(1, 1, {"GPU-0": used}, now=at, busy=0.5):
                causes.append(getattr(event, "cause", "peaked"))
                b.apply(event, at)
        return b, causes

    def test_growth_that_took_long_is_waited_for_longer(self) -> None:
        assert "settled" not in self.watched((1.0, 500 * MIB), (40.0, 4 * GIB), (59.0, 4 * GIB))[1]
        assert "settled" in self.watched((1.0, 500 * MIB), (40.0, 4 * GIB), (60.0, 4 * GIB))[1]

    def test_growth_that_came_at_once_settles_within_seconds(self) -> None:
        assert "settled" in self.watched((2.0, 4 * GIB), (7.0, 4 * GIB))[1]

    def test_memory_of_a_context_alone_waits_for_the_clock(self) -> None:
        assert "settled" not in self.watched((1.0, 500 * MIB), (60.0, 500 * MIB))[1]
        assert "settled" in self.watched((1.0, 500 * MIB), (61.0, 500 * MIB))[1]


class TestGrowth:
    """The use of a task of unknown memory before it has settled."""

    def expected_beside(self, *used: int) -> int | None:
        """Return the expected need of task 2 while task 1, of another script, has used so many bytes."""
        b = brain(tasks(2), profile="live")
        for task in (1, 2):
            b.assign(task, TaskClass(f"k{task}", f"{task}.py", probes=False))
        tell(b, placed(1, "20GiB", device="GPU-0", source=EstimateSource.MEASURED), started(1))
        b.need(2, 1)
        for at, bytes_ in enumerate(used):
            b.apply(Peaked(1, 1, {"GPU-0": bytes_}), float(at))
        return b.need(2, 1).gpus[0].bytes

    def test_growth_beyond_a_context_lets_others_expect_twice_as_much(self) -> None:
        expected = self.expected_beside(500 * MIB, 4 * GIB)
        assert expected is not None
        assert 8 * GIB <= expected < 8.5 * GIB

    def test_a_context_alone_lets_others_expect_nothing(self) -> None:
        assert self.expected_beside(500 * MIB) is None

    def test_later_growth_replaces_earlier_growth(self) -> None:
        assert self.expected_beside(GIB, 4 * GIB) == self.expected_beside(4 * GIB)


class TestHidden:
    """Tasks that have shown no more than a context while others of their script have shown their need."""

    def enough(self, script: str, *used: tuple[int, int]) -> int:
        """Return what task 4 of a script starts with beside task 3, which has used so many bytes at these times."""
        b = brain(tasks(4), profile="live")
        for task, of in ((1, "train.py"), (2, "train.py"), (3, "train.py"), (4, script)):
            b.assign(task, TaskClass(f"k{task}", of, probes=False, family=of, slots=(("--width", str(task)),)))
        for task, peak in ((1, 2 * GIB), (2, 4 * GIB)):
            tell(b, placed(task, "6GiB", device="GPU-0"), started(task))
            tell(b, Exited(task, 1, Outcome.SUCCEEDED, peak={"GPU-0": peak}, seconds=60.0, watched=1.0))
        b.need(4, 1)
        tell(b, placed(3, "6GiB", device="GPU-0", source=EstimateSource.MEASURED), started(3))
        for at, bytes_ in used:
            b.apply(Peaked(3, 1, {"GPU-0": bytes_}), at)
        return b.need(4, 1).gpus[0].enough

    def test_task_of_its_script_that_has_shown_nothing_counts_as_larger_than_all_known(self) -> None:
        assert self.enough("train.py", (1.0, 500 * MIB)) > self.enough("train.py", (1.0, GIB))

    def test_task_of_another_script_that_has_shown_nothing_does_not_count(self) -> None:
        assert self.enough("other.py", (1.0, 500 * MIB)) == self.enough("other.py", (1.0, GIB))

    def test_hidden_ones_raise_the_bound_of_few_and_move_that_of_many(self) -> None:
        assert sizes(4, 8).bound(0.9, 2, hidden=1) == 16
        assert sizes(*range(1, 100)).bound(0.5, 2, hidden=20) == 60
