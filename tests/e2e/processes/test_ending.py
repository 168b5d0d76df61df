"""The command that a shim runs before it signals its task, and the descriptor that it keeps open as long as the task
lives."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from scheduler.runtime import shim
from tests.e2e import conftest
from tests.e2e.conftest import Driver
from tests.support.faults import fault


def ending(root: Path, script: str) -> tuple[str, ...]:
    """Return a command that writes what it finds to the file `ended`."""
    return ("/bin/sh", "-c", f"cd {root}; {script}")


LOOK = "kill -0 $(cat pid) && echo alive >>ended; rm -f hold"
TASK = "trap 'echo TERM >>ended; exit 0' TERM; echo $$ >pid; echo up; while :; do sleep 0.01; done"


@pytest.mark.parametrize(("kill", "said"), [(False, ["alive", "TERM"]), (True, ["alive"])])
def test_task_is_signalled_only_after_the_ending_command(driver: Driver, kill: bool, said: list[str]) -> None:
    task = driver.sh(TASK, ending=ending(driver.root, LOOK), grace=60.0)
    driver.wait_for_line("up", task)
    driver.engine.stop(task, 1, kill=kill)
    assert driver.exited(task).outcome is Outcome.INTERRUPTED
    assert (driver.root / "ended").read_text().split() == said


@fault(40)
def test_task_that_saves_is_asked_to_stop_before_the_ending_command(driver: Driver) -> None:
    """Under MPS a task that was asked to make room had lost its GPU before it could save."""
    saves = "trap 'echo TERM >>ended; until grep -q alive ended; do sleep 0.01; done; exit 75' TERM"
    task = driver.sh(
        TASK.replace("trap 'echo TERM >>ended; exit 0' TERM", saves),
        ending=ending(driver.root, LOOK),
        saves=True,
        grace=0.3,
    )
    driver.wait_for_line("up", task)
    driver.engine.stop(task, 1)
    assert driver.exited(task).outcome is Outcome.INTERRUPTED
    assert (driver.root / "ended").read_text().split()[:2] == ["TERM", "alive"]


def test_time_limit_waits_for_the_ending_command(driver: Driver) -> None:
    exited = driver.run_sh(TASK, ending=ending(driver.root, LOOK), timeout=0.5)
    assert exited.outcome is Outcome.TIMEOUT
    assert (driver.root / "ended").read_text().split() == ["alive", "TERM"]


def test_ending_command_is_not_run_for_a_task_that_ends_by_itself(driver: Driver) -> None:
    assert driver.run("true", ending=ending(driver.root, "touch ended")).outcome is Outcome.SUCCEEDED
    assert not (driver.root / "ended").exists()


def test_leftovers_are_signalled_after_the_ending_command(driver: Driver) -> None:
    left = "echo $$ >pid; while :; do sleep 0.01; done"
    exited = driver.run_sh(f"(sh -c '{left}' &); while [ ! -s pid ]; do :; done", ending=ending(driver.root, LOOK))
    assert exited.outcome is Outcome.SUCCEEDED
    assert (driver.root / "ended").read_text().split() == ["alive"]


def test_ending_command_that_cannot_be_started_is_skipped(driver: Driver) -> None:
    exited = driver.run_sh(TASK, ending=("/no/such/program",), timeout=0.2)
    assert exited.outcome is Outcome.TIMEOUT


def test_ending_command_that_hangs_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drivers: Callable[..., Driver]
) -> None:
    impatient = tmp_path / "shim.py"
    impatient.write_text(Path(shim.__file__).read_text().replace("ENDING = 20.0", "ENDING = 0.2"))
    monkeypatch.setattr(conftest, "SHIM", impatient)
    exited = drivers().run_sh(TASK, ending=("/bin/sleep", "600"), timeout=0.2)
    assert exited.outcome is Outcome.TIMEOUT
    assert (tmp_path / "ended").read_text().split() == ["TERM"]


def test_kept_descriptor_stays_open_until_the_tree_is_empty(driver: Driver) -> None:
    path = driver.root / "a-lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    task = driver.sh("echo up; while [ ! -e go ]; do sleep 0.01; done", kept_fd=fd)
    driver.wait_for_line("up", task)
    os.close(fd)
    assert not is_free(path)
    (driver.root / "go").touch()
    driver.exited(task)
    assert is_free(path)


def test_kept_descriptor_stays_open_in_what_outlives_a_killed_shim(driver: Driver) -> None:
    path = driver.root / "a-lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    script = "import os; print(sum('a-lock' in os.path.realpath(f'/proc/self/fd/{n}') for n in range(64)))"
    task = driver.launch(sys.executable, "-c", script, kept_fd=fd)
    driver.exited(task)
    os.close(fd)
    assert driver.log(task).split() == ["1"]


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
