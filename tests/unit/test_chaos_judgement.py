"""The judgement of chaos.py on tasks that make room: asked, at most three times in a row, never after their end."""

from __future__ import annotations

import pytest

from scheduler.core.events import Exited
from scheduler.core.model import Outcome
from scripts.bench.chaos import Attempt, Job, Judgement, Score

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
