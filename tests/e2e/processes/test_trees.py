"""Trees of processes that tasks make: when the task is over, no process of its tree is left.

What it takes beyond the grace: `python -m tests.support.trees`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from tests.e2e.conftest import Driver, marked
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.terminal import Terminal
from tests.support.trees import GRACE, TREES, argv
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@fault(10, 11, 12)
@pytest.mark.parametrize("cgroups", [True, False], ids=["in groups", "without"])
@pytest.mark.parametrize("kill", [False, True], ids=["cancel", "kill"])
def test_no_process_is_left_of_a_stopped_tree(
    drivers: Callable[..., Driver], mark: str, kill: bool, cgroups: bool
) -> None:
    driver = drivers(cgroups=cgroups)
    tasks = [driver.launch(*argv(tree, "nap", mark), grace=GRACE) for tree in TREES]
    for task in tasks:
        wait_until(lambda task=task: "ready" in driver.log(task), 60)
        driver.started(task)
        driver.engine.stop(task, 1, kill=kill)
    assert {driver.exited(task, deadline=60).outcome for task in tasks} == {Outcome.INTERRUPTED}
    assert marked(mark) == []


@fault(10, 11, 12)
def test_no_process_is_left_of_a_timed_out_tree(driver: Driver, mark: str) -> None:
    tasks = [driver.launch(*argv(tree, "nap", mark), grace=GRACE, timeout=3.0) for tree in TREES]
    assert {driver.exited(task, deadline=60).outcome for task in tasks} == {Outcome.TIMEOUT}
    assert ["ready" in driver.log(task) for task in tasks] == [True] * len(TREES)
    assert marked(mark) == []


@fault(10, 12, 13)
def test_no_process_is_left_of_a_tree_whose_main_process_ends(driver: Driver, mark: str) -> None:
    tasks = [driver.launch(*argv(tree, "end", mark)) for tree in TREES]
    ended = [driver.exited(task, deadline=60) for task in tasks]
    assert {one.outcome for one in ended} == {Outcome.SUCCEEDED}
    assert all(one.leftovers for one in ended)
    assert marked(mark) == []


@pytest.fixture
def home(tmp_path: Path, mark: str) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@fault(10, 12, 15)
def test_no_process_is_left_of_a_tree_after_ctrl_c(home: Home, mark: str) -> None:
    home.commands(*[shlex.join(argv(tree, "nap", mark)) for tree in TREES])
    terminal = Terminal(
        home, "run", "jobs.csv", "--devices", "host", "--slots", str(len(TREES)), "--grace", "1s", "--plain"
    )

    def ready() -> bool:
        logs = home.state.glob("runs/1/tasks/*/1.log")
        return sum("ready" in log.read_text() for log in logs) == len(TREES)

    wait_until(ready, 60)
    terminal.press("\x03")
    wait_until(lambda: "nothing more is started" in terminal.said, 30)
    terminal.press("\x03")
    terminal.wait()
    wait_until(lambda: not marked(mark), 30)
    assert "running" not in home.states("1")
