"""Processes that left everything of their task, whose shim is killed, where there are no control groups."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from scheduler.runtime import shim
from tests.e2e.conftest import Driver, is_zombie, marked
from tests.e2e.sharing.test_two_users import USERS, User, common, users  # noqa: F401 - fixtures
from tests.support.faults import fault
from tests.support.killing import Home, is_alive, kill, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DAEMON = "(env -i setsid sh -c 'sleep 600; : {}' </dev/null >/dev/null 2>&1 &); echo up; sleep 600; : {}"


def begin(driver: Driver, mark: str) -> int:
    """Start a task with such a process, and return its shim."""
    task = driver.sh(DAEMON.format(mark, mark))
    driver.wait_for_line("up", task)
    wait_until(lambda: len(marked(mark)) >= 2)
    return driver.started(task).shim


@fault(4, 10)
def test_a_process_that_left_everything_is_killed_before_the_attempt_of_a_killed_shim_is_over(
    drivers: Callable[..., Driver], mark: str
) -> None:
    driver = drivers(cgroups=False)
    os.kill(begin(driver, mark), signal.SIGKILL)
    assert driver.exited(1).outcome is Outcome.LOST
    assert marked(mark) == []


@fault(4)
def test_tasks_of_other_shims_live_when_the_orphans_of_a_killed_shim_are_killed(
    drivers: Callable[..., Driver], mark: str
) -> None:
    driver = drivers(cgroups=False)
    killed = begin(driver, mark)
    neighbour = driver.sh("sleep 600")
    living = driver.started(neighbour)
    os.kill(killed, signal.SIGKILL)
    driver.exited(1)
    assert shim.start_time(living.pid) == living.start
    assert driver.server_of(neighbour) > 0


@fault(4)
def test_processes_that_a_loosened_task_leaves_behind_live_when_a_shim_is_killed(
    drivers: Callable[..., Driver], mark: str
) -> None:
    driver = drivers(cgroups=False)
    driver.engine.loosen()
    driver.run_sh(f"setsid sh -c 'sleep 600; : {mark}' </dev/null >/dev/null 2>&1 & echo up")
    left = wait_until(lambda: marked(mark))[:1]  # it may just have forked the process that becomes `sleep`
    killed = driver.sh("sleep 600")
    os.kill(driver.started(killed).shim, signal.SIGKILL)
    assert driver.exited(killed).outcome is Outcome.LOST
    assert marked(mark) == left
    os.killpg(os.getpgid(left[0]), signal.SIGKILL)


@fault(4)
def test_a_task_that_ended_while_its_shim_was_stopped_is_lost_when_that_is_killed(
    drivers: Callable[..., Driver],
) -> None:
    """Only its parent, the shim, could have read its exit code."""
    driver = drivers(cgroups=False)
    task = driver.sh("until [ -e go ]; do sleep 0.01; done; exit 7")
    living = driver.started(task)
    os.kill(living.shim, signal.SIGSTOP)
    wait_until(lambda: state_of(living.shim) == "T")
    (driver.root / "go").touch()
    wait_until(lambda: is_zombie(living.pid))
    os.kill(living.shim, signal.SIGKILL)
    ended = driver.exited(task)
    assert (ended.outcome, ended.code, ended.reason) == (Outcome.LOST, None, "its shim was killed")


SCRIPT = """
env -i setsid sh -c 'sleep 600; : MARK-'$SCHEDULER_ATTEMPT </dev/null >/dev/null 2>&1 &
until [ -e go.$SCHEDULER_ATTEMPT ]; do touch up.$SCHEDULER_ATTEMPT; sleep 0.05; done
"""


def prepare(home: Home, mark: str) -> None:
    """Write a list of one task; each of its attempts starts a process that leaves everything."""
    (home.root / "job").write_text(SCRIPT.replace("MARK", mark))
    home.commands("sh job")
    home.env["SCHEDULER_CGROUP"] = "never"


def shim_and_server(home: Home) -> tuple[int, int]:
    """Return the pids of the shim of attempt 1 and of its fork server."""
    claim = wait_until(lambda: shim.read_claim(str(home.state / "runs/1/tasks/0/.claim.1")), 60)
    assert claim is not None
    return claim.shim, claim.server


def judge_second_attempt(home: Home, mark: str) -> None:
    """Check that attempt 2 runs, and nothing of attempt 1 beside it."""
    wait_until((home.root / "up.2").exists, 60)
    assert marked(f"{mark}-1") == []
    wait_until(lambda: marked(f"{mark}-2"))
    (home.root / "go.2").touch()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@fault(4, 10)
def test_no_process_of_attempt_1_lives_beside_attempt_2_of_an_ordinary_user(
    users: list[User],  # noqa: F811 - the fixture
    mark: str,
) -> None:
    user = users[0]
    user.root.mkdir()
    os.chown(user.root, user.uid, user.uid)
    prepare(user, mark)
    with user.start("run", "jobs.csv", "--devices", "host") as scheduler:
        wait_until(lambda: (user.root / "up.1").exists() and marked(mark), 60)
        kill(shim_and_server(user)[0])
        judge_second_attempt(user, mark)
        assert scheduler.wait(60) == 0


@fault(5, 10)
def test_no_process_of_attempt_1_lives_beside_attempt_2_when_scheduler_and_shim_are_killed(
    tmp_path: Path, mark: str
) -> None:
    home = Home(tmp_path)
    prepare(home, mark)
    with home.start("run", "jobs.csv", "--devices", "host") as scheduler:
        wait_until(lambda: (home.root / "up.1").exists() and marked(mark), 60)
        scheduler.kill()
    killed, server = shim_and_server(home)
    kill(killed)
    with home.start("resume", "r1") as scheduler:
        judge_second_attempt(home, mark)
        assert scheduler.wait(60) == 0
    wait_until(lambda: not is_alive(server))


def test_the_fork_server_ends_with_the_last_shim_when_the_scheduler_is_killed(tmp_path: Path, mark: str) -> None:
    home = Home(tmp_path)
    prepare(home, mark)
    with home.start("run", "jobs.csv", "--devices", "host") as scheduler:
        wait_until((home.root / "up.1").exists, 60)
        scheduler.kill()
    server = shim_and_server(home)[1]
    assert is_alive(server)
    (home.root / "go.1").touch()
    wait_until(lambda: not is_alive(server))
    assert home.call("resume", "r1").returncode == 0
