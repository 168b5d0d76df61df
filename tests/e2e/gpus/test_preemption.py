"""An urgent task on stand-in GPUs that are full of trainings with checkpoints: they save, make room and go on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_home import GpuHome
from tests.support.standin.box import NO_COMPILER, SAVES, TRAIN
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

STEPS = 12
URGENT = f"""
import sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
client.Cuda().allocate(0, 20 << 30)
print("urgent")
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    made.env |= {"SCHEDULER_PREEMPT_AFTER": "1s", "SCHEDULER_QUEUE_IDLE": "3s"}
    (made.root / "urgent.py").write_text(URGENT)
    trainings(made, STEPS)
    yield made
    made.end()


def trainings(home: GpuHome, steps: int) -> None:
    """Write a list of two trainings of some steps."""
    row = [f"python -S -E {SAVES} {steps}", "21GiB", "yes", 5]
    home.write("jobs.csv", "Command,Memory,Resumable,Priority", row, row)


def steps(home: GpuHome) -> list[str]:
    path = home.root / "steps"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def begin(home: GpuHome) -> None:
    """Submit the trainings, and wait until both compute on a GPU of their own."""
    home.call("submit", "jobs.csv", code=0)
    wait_until(lambda: len({line.split()[0] for line in steps(home)}) == 2 and len(steps(home)) > 4, 60)


def submit_urgent(home: GpuHome) -> None:
    words = ("--priority", "-5", "--preempt", "--memory", "21GiB", "--", "python", "-S", "-E", "urgent.py")
    home.call("submit", *words, code=0)


def test_a_training_saves_for_an_urgent_task_and_goes_on_where_it_was(home: GpuHome) -> None:
    begin(home)
    submit_urgent(home)
    wait_until(lambda: "asked to save and make room for it" in home.log(), 60)
    home.call("wait", "0-2", code=0)
    done = home.tasks("r1")
    assert [task["state"] for task in done] == ["succeeded"] * 3
    assert sorted(task["attempts"] for task in done) == [1, 1, 2]  # one of the trainings made room, once
    assert len({*steps(home)}) == 2 * STEPS
    assert len(steps(home)) <= 2 * STEPS + 1  # only the step that it was asked in is computed again
    urgent, last = done[2], max(done, key=lambda task: task["ended"])
    assert urgent["ended"] < last["ended"]


def test_a_scheduler_that_is_killed_after_it_asked_is_followed_by_one_that_knows(home: GpuHome) -> None:
    begin(home)
    submit_urgent(home)
    wait_until(lambda: "asked to save and make room for it" in home.log(), 60)
    os.kill(home.scheduler(), signal.SIGKILL)
    home.call("resume", "r1", "-d", code=0)
    home.call("wait", "0-2", code=0)
    done = home.tasks("r1")
    assert [task["state"] for task in done] == ["succeeded"] * 3
    assert len({*steps(home)}) == 2 * STEPS
    assert len(steps(home)) <= 2 * STEPS + 1


def test_a_training_of_another_run_saves_and_goes_on_where_it_was(home: GpuHome) -> None:
    long = 4 * STEPS
    trainings(home, long)
    home.call("run", "jobs.csv", "-d", code=0)
    wait_until(lambda: len({line.split()[0] for line in steps(home)}) == 2 and len(steps(home)) > 4, 60)
    submit_urgent(home)
    wait_until(lambda: "asked to save and make room for the more urgent task 2" in home.log(), 60)
    home.call("wait", "2", code=0)
    home.call("wait", "r1", code=0)
    done = home.tasks("r1")
    assert [task["state"] for task in done] == ["succeeded"] * 2
    assert sorted(task["attempts"] for task in done) == [1, 2]
    assert len({*steps(home)}) == 2 * long
    assert len(steps(home)) <= 2 * long + 1
    assert home.tasks("queue")[0]["ended"] < max(task["ended"] for task in done)


def test_without_preempt_an_urgent_task_waits_for_the_end_of_a_training(home: GpuHome) -> None:
    begin(home)
    home.call("submit", "--priority", "-5", "--memory", "21GiB", "--", "python", "-S", "-E", "urgent.py", code=0)
    home.call("wait", "0-2", code=0)
    assert [task["attempts"] for task in home.tasks("r1")] == [1, 1, 1]


def test_the_setting_lets_a_task_ask_that_does_not_say_so(home: GpuHome) -> None:
    home.env["SCHEDULER_PREEMPT"] = "yes"
    begin(home)
    home.call("submit", "--priority", "-5", "--memory", "21GiB", "--", "python", "-S", "-E", "urgent.py", code=0)
    wait_until(lambda: "asked to save and make room for it" in home.log(), 60)
