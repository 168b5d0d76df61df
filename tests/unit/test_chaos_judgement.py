"""The judgement of chaos.py on tasks that make room: asked, at most three times in a row, never after their end."""

from __future__ import annotations

import pytest

from scheduler.core.events import Exited
from scheduler.core.model import Outcome
from scripts.bench.chaos import STALE, Attempt, Job, Judgement, Score, World

SAVES = Job("saves", 0, "", 1, "1GiB")
PLAIN = Job("plain", 0, "", 1, "1GiB")


def saved(number: int, *, asked: bool = True) -> Attempt:
    return Attempt(number, ["begin", "saved"], Exited(1, number, Outcome.AGAIN, 75), asked=asked)


def ended(number: int) -> Attempt:
    return Attempt(number, ["begin", "end"], Exited(1, number, Outcome.SUCCEEDED, 0))


def found(job: Job, *attempts: Attempt) -> dict[str, int]:
    score = Score()
    task = {"id": 1, "state": "succeeded", "attempts": len(attempts)}
    Judgement(score, "run", task, job).give({one.number: one for one in attempts})
    return {what: len(words) for what, words in score.found.items()}


def test_a_task_that_saved_three_times_and_ended_is_right() -> None:
    assert found(SAVES, saved(1), saved(2), saved(3), ended(4)) == {}


@pytest.mark.parametrize(
    ("job", "attempts", "faults"),
    [
        (SAVES, [saved(1), saved(2), saved(3), saved(4), ended(5)], {"disagreements": 1}),
        (SAVES, [saved(1, asked=False), ended(2)], {"disagreements": 2}),
        (PLAIN, [saved(1), ended(2)], {"disagreements": 1}),
        (SAVES, [ended(1), ended(2)], {"duplicated": 1}),
    ],
    ids=["four times in a row", "not asked", "not resumable", "once more after its end"],
)
def test_faults_of_making_room_are_found(job: Job, attempts: list[Attempt], faults: dict[str, int]) -> None:
    assert found(job, *attempts) == faults


def test_a_decision_must_know_unmanaged_memory_that_was_there_for_long_unless_its_scheduler_stood_still() -> None:
    world = World.__new__(World)
    world.unmanaged_processes = {0: [(0.0, 0), (100.0, 7), (120.0, 3)]}
    world.stopped = []
    known = [world.long_unmanaged(0, at) for at in (100.0 + STALE - 1, 100.0 + STALE, 119.9, 120.0)]
    world.stopped = [(104.0, 109.0), (150.0, float("inf"))]
    assert (known, [world.long_unmanaged(0, at) for at in (107.5, 109.0, 119.9)]) == ([0, 7, 7, 3], [0, 0, 7])
