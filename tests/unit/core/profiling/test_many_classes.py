"""A run of very many different commands: neither the work for each task nor the memory grows with their number."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Exited
from scheduler.core.model import HOST, EstimateSource, Outcome, State
from scheduler.core.profiling import profile_index
from scheduler.core.profiling.class_profile import Profile
from scheduler.core.profiling.family.families import Family
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB
from tests.support.builders import asked, brain, decide, gpu, host, place, placed, resized, starts, submit, tasks, tell

AHEAD = 20
"""The number of waiting tasks whose class was looked up."""


def kind(number: int, family: str = "train.py") -> TaskClass:
    return TaskClass(f"key {number}", f"train.py --lr {number}", False, family, (("--lr", str(number)),))


class Run:
    """Tasks of one GPU each, placed by what similar tasks needed."""

    def __init__(self, kinds: Callable[[int], TaskClass] = kind, runs_of_each: int = 1, **said: Any) -> None:
        self.brain = brain(profile="auto", **said)
        self._dice = random.Random(1)
        self._kinds = kinds
        self._runs = runs_of_each
        self._looked = 0

    def end(self, number: int) -> None:
        """Submit, run and end this number of tasks."""
        submit(self.brain, tasks(number))
        for _ in range(number):
            self._look_ahead()
            self._end_one()

    def _look_ahead(self) -> None:
        for task in self.brain.wait_queue.unlooked(AHEAD - self.brain.looked):
            self._looked += 1
            self.brain.assign(task, self._kinds((self._looked - 1) // self._runs))

    def _end_one(self) -> None:
        task = decide(self.brain, gpu(), host()).placements[0].task
        tell(self.brain, placed(task, "2GiB", device="GPU-0"))
        peak = {"GPU-0": self._dice.randrange(2000, 2050) * MIB, HOST: self._dice.randrange(500, 510) * MIB}
        end = Exited(task, 1, Outcome.SUCCEEDED, peak=peak, seconds=60.0, watched=60.0, busy=0.2 + task % 5 / 10)
        self.brain.apply(end)
        self.brain.profiles.news()


def calls(of: Callable[[], None]) -> int:
    """Return the number of calls of Python and C functions; each step of a generator counts."""
    counted = 0

    def count(frame: FrameType, event: str, what: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        of()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("runs_of_each", [1, 2])
def test_an_end_costs_as_many_calls_after_many_classes_as_after_few(runs_of_each: int) -> None:
    run = Run(runs_of_each=runs_of_each)
    run.end(100)
    after_few = calls(lambda: run.end(50))
    run.end(600)
    assert calls(lambda: run.end(50)) < 1.5 * after_few


@pytest.fixture
def few_idle(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the number of classes without a task that are remembered, and return it."""
    monkeypatch.setattr(profile_index, "IDLE_KINDS", 50)
    return 50


@pytest.mark.parametrize("families", [1, 1000])
def test_classes_without_tasks_are_forgotten(few_idle: int, families: int) -> None:
    run = Run(lambda number: kind(number, f"script {number % families}"))
    run.end(400)
    known = run.brain.profiles
    assert few_idle <= len(known.kinds) <= 2 * few_idle + AHEAD + 1
    assert len(known._families) <= len(known.kinds)


def test_memory_does_not_grow_with_the_classes_that_ended(few_idle: int) -> None:
    run = Run()
    run.end(500)  # what is kept of a family is bounded, and full by then
    tracemalloc.start()
    try:
        run.end(100)  # as many as are forgotten between two looks at what is idle
        before = tracemalloc.get_traced_memory()[0]
        run.end(200)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / 200 < 800  # a kind that is remembered takes more than 1500


def test_the_rest_of_a_family_gives_the_estimate_of_a_family_of_that_rest(few_idle: int) -> None:
    run = Run()
    run.end(400)
    known = run.brain.profiles
    alone = Family()
    for number, one in known.kinds.items():
        alone.add(number, one.slots)
        peaks = {part: peak for part, peak in known.profile(number).peaks.items() if part != HOST}
        alone.observe(number, peaks)
    waiting = run.brain.profiles.number(kind(10**6))
    alone.add(waiting, kind(10**6).slots)
    guess, expected = known.guess(waiting), alone.like(waiting)
    assert guess is not None
    assert expected is not None
    assert guess.peaks["0"] == expected.peaks["0"]


def test_a_class_that_a_waiting_task_needs_is_not_forgotten(few_idle: int) -> None:
    run = Run(order="global")
    b = submit(run.brain, tasks(1, priority=9))
    b.assign(1, kind(10**6))
    run.end(300)
    assert b.profiles.kind(b.kind_of(1)) == kind(10**6)


def test_a_released_task_whose_class_was_forgotten_is_looked_up_again(few_idle: int) -> None:
    run = Run()
    run.end(300)
    held = _held(run.brain)
    run.end(300)
    assert run.brain.profiles.kind(run.brain.kind_of(held)) is None
    tell(run.brain, asked("release", held))
    assert run.brain.state(held) is State.WAITING
    assert held in run.brain.wait_queue.unlooked(10)


def _held(b: Brain) -> int:
    """Add a task whose class was looked up and that is held, and return it."""
    task = max(b.task_table) + 1
    submit(b, tasks(1))
    b.assign(task, kind(10**6))
    tell(b, asked("hold", task))
    return task


def test_a_profile_of_earlier_runs_survives_a_class_that_is_forgotten(few_idle: int) -> None:
    known = ProfileIndex(
        {kind(5).key: Profile(whole_seconds=30.0, earlier=True, family="train.py", slots=kind(5).slots)}
    )
    for number in range(200):
        known.number(kind(number))
        if known.may_forget:
            known.forget(())
    assert known.number(kind(5)) > 200
    assert known.expected(known.number(kind(5)), None) == 30.0


def test_an_argument_is_known_to_exist_after_its_classes_were_forgotten(few_idle: int) -> None:
    known = ProfileIndex(only=["lr", "bs"])
    for number in range(100):
        known.number(kind(number, "" if number else "train.py") if number == 0 else TaskClass(f"k{number}", "", False))
    known.forget(())
    assert known.unheard() == ["bs"]


def _behind_a_full_gpu(waiting: int) -> Brain:
    """Return a Brain with one task on its GPU and so many tasks of unknown scripts that wait for half of it."""
    b = brain(tasks(waiting + 1), profile="auto")
    for task in range(1, waiting + 2):
        b.assign(task, kind(task, f"script {task}"))
    assert place(b, gpu(), host()) == [1]
    tell(b, resized(1, "14GiB", "settled", device="GPU-0"))
    assert decide(b, gpu(), host()).placements == ()
    return b


def test_pass_costs_as_many_calls_with_many_waiting_unknown_scripts_as_with_few() -> None:
    def one_more_pass(b: Brain) -> int:
        tell(b, asked("hold", 20))
        return calls(lambda: decide(b, gpu(), host()))

    assert one_more_pass(_behind_a_full_gpu(400)) < 1.5 * one_more_pass(_behind_a_full_gpu(40))


def test_pass_costs_as_many_calls_with_many_expected_scripts_as_with_few() -> None:
    def one_more_pass(b: Brain) -> int:
        for task in (21, 22):
            tell(b, placed(task, "1GiB", device="GPU-0"))
            end = Exited(task, 1, Outcome.SUCCEEDED, peak={"GPU-0": 12 * GIB, HOST: GIB}, seconds=9.0, watched=1.0)
            tell(b, end)
        assert b.enough_to_start == 12 * GIB
        assert decide(b, gpu(), host()).placements == ()
        tell(b, asked("hold", 20))
        return calls(lambda: decide(b, gpu(), host()))

    assert one_more_pass(_behind_a_full_gpu(400)) < 1.5 * one_more_pass(_behind_a_full_gpu(40))


def test_unknown_task_is_looked_at_again_once_other_classes_of_its_script_were_learned() -> None:
    b = _behind_a_full_gpu(40)
    for task in (21, 22, 23, 2, 3, 4):
        if task < 5:
            b.assign(task, TaskClass(f"other {task}", "", False, "script 30", (("--lr", str(task)),)))
        assert b.need(30, 1).source is EstimateSource.MEASURED
        decide(b, gpu(), host())
        tell(b, placed(task, "14GiB", device="GPU-0"))
        peak = {"GPU-0": (7 if task < 5 else 20) * GIB, HOST: GIB}
        tell(b, Exited(task, 1, Outcome.SUCCEEDED, peak=peak, seconds=9.0, watched=1.0))
    assert b.need(30, 1).source is EstimateSource.SIMILAR
    assert starts(b, gpu(), host()) == [30]
