"""Nothing is lost, nothing runs twice and no exit code is wrong, whatever is killed and however full the disk is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault
from tests.support.killing import Home, children, kill, murder
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@fault(1, 2, 3)
@contract("S3-D1")
def test_no_task_is_lost_or_run_twice_after_twenty_kills_of_the_scheduler(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    verdict = murder(tmp_path, tasks=200, kills=20, seed=seed)
    assert verdict.good, verdict.report()
    assert verdict.count.schedulers >= 15, f"it was over too early: {verdict.line()}"


@fault(4)
def test_no_task_is_lost_after_kills_of_schedulers_and_shims(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    verdict = murder(tmp_path, tasks=60, kills=5, seed=seed, seconds=0.15, shims=0.5)
    assert verdict.good, verdict.report()


def test_a_fork_server_that_dies_after_every_third_task_costs_nothing(home: Home) -> None:
    home.commands(*["sh -c 'echo x >>told; sleep 0.1; exit 7'"] * 30)
    told = home.root / "told"
    killed = 0
    with home.start("run", "jobs.csv", "--slots", "3") as scheduler:
        for lines in range(3, 30, 3):
            wait_until(lambda lines=lines: told.exists() and len(told.read_text()) >= 2 * lines, 30)
            killed += sum(kill(pid) for pid in children(scheduler.pid, "shim.py"))
    assert killed > 5
    assert [task["exit_code"] for task in home.tasks()] == [7] * 30
    assert told.read_text() == "x\n" * 30


@fault(3)
def test_the_end_of_a_task_without_a_scheduler_is_known_after_resume(home: Home) -> None:
    home.commands("sh -c 'touch here; until [ -e go ]; do sleep 0.01; done; exit 3'", "true")
    dead = scheduler_killed_once(home, "here", "-j", "1")
    assert dead.returncode == -signal.SIGKILL
    (home.root / "go").touch()
    wait_until(lambda: not home.living())
    assert home.states() == ["running", "waiting"]
    home.call("resume", code=1)
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(3, 1), (0, 1)]


@contract("S3-D10")
def test_a_task_that_runs_without_a_scheduler_is_adopted_and_not_started_again(home: Home) -> None:
    home.commands("sh -c 'echo x >>here; until [ -e go ]; do sleep 0.01; done; exit 3'")
    scheduler_killed_once(home, "here")
    with home.start("resume") as second:
        wait_until(lambda: "taken over; 0 ended, 1 ran" in home.log())
        home.call("set", "--run", "1", "-j", "2", code=0)  # it answers once it has adopted the task
        (home.root / "go").touch()
    assert second.returncode == 1
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(3, 1)]
    assert (home.root / "here").read_text() == "x\n"


class FullDisk:
    """A run whose scheduler cannot write a byte any more, while its first task still waits for a file."""

    def __init__(self, home: Home) -> None:
        home.commands("sh -c 'touch here; until [ -e go ]; do sleep 0.01; done; exit 3'", "sh -c 'exit 4'")
        self.said = ""
        self.scheduler = home.start("run", "jobs.csv", "-j", "1", stdout=subprocess.PIPE)
        assert self.scheduler.stdout is not None
        self._out = self.scheduler.stdout.fileno()
        os.set_blocking(self._out, False)
        wait_until((home.root / "here").exists, 30)
        wait_until(lambda: home.states() == ["running", "waiting"])
        resource.prlimit(self.scheduler.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        (home.root / "go").touch()
        wait_until(lambda: "nothing starts until that ends" in self.read(), 30)

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self.said += os.read(self._out, 1 << 16).decode()
        return self.said

    def end(self) -> int:
        """Give back the space and return the exit code of the scheduler."""
        resource.prlimit(self.scheduler.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return self.scheduler.wait(30)


@fault(22, 23)
def test_a_disk_that_is_full_for_a_while_loses_no_task(home: Home) -> None:
    disk = FullDisk(home)
    assert disk.end() == 1
    assert "the journal can be written again: the run goes on" in disk.read()
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(3, 1), (4, 1)]


@fault(23)
def test_a_scheduler_that_cannot_write_ends_on_ctrl_c(home: Home) -> None:
    disk = FullDisk(home)
    disk.scheduler.send_signal(signal.SIGINT)
    assert disk.scheduler.wait(30) == 1
    home.call("resume", code=1)
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(3, 1), (4, 1)]


@fault(55)
def test_a_lease_directory_that_stays_locked_stops_no_running_task(home: Home) -> None:
    home.commands("sh -c 'touch here; until [ -e go ]; do sleep 0.01; done; exit 3'", "sh -c 'exit 4'")
    home.leases.mkdir(mode=0o1777)
    home.leases.chmod(0o1777)
    directory = os.open(home.leases, os.O_RDONLY)
    with home.start("run", "jobs.csv", "-j", "1") as scheduler:
        wait_until(lambda: os.listdir(directory), 30, pause=0)
        fcntl.flock(directory, fcntl.LOCK_EX)
        wait_until((home.root / "here").exists)
        wait_until(lambda: f"has been locked for 5s by process {os.getpid()} of user" in home.log(), 30)
        (home.root / "go").touch()
        os.close(directory)
    assert scheduler.returncode == 1
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(3, 1), (4, 1)]


def test_a_resume_of_an_ended_run_changes_nothing(home: Home) -> None:
    home.commands("true", "false")
    home.call("run", "jobs.csv", code=1)
    before = home.tasks()
    home.call("resume", code=1)
    assert home.tasks() == before


def scheduler_killed_once(home: Home, file: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a run and kill its scheduler as soon as one of its tasks has made a file."""
    with home.start("run", "jobs.csv", *arguments) as scheduler:
        wait_until((home.root / file).exists)
        scheduler.kill()
    return scheduler
