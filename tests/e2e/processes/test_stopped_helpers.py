"""Fork server and shims that a signal has stopped: no task is lost, and nothing waits without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from scheduler.runtime import shim
from tests.e2e.conftest import Driver
from tests.e2e.processes.test_engine import kill, scheduler
from tests.support.faults import fault
from tests.support.killing import is_alive, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def stop(pid: int) -> None:
    """Stop a process for good."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")


@fault(87)
def test_stopped_shim_is_continued_and_reports_its_task(driver: Driver) -> None:
    task = driver.sh("until [ -e go ]; do sleep 0.01; done; exit 7")
    stop(driver.started(task).shim)
    (driver.root / "go").touch()
    assert driver.exited(task, deadline=20).code == 7
    (sentence,) = driver.engine.troubles()
    assert "was stopped by a signal (SIGSTOP) and has been continued" in sentence


@fault(87)
@pytest.mark.parametrize("kill", [False, True])
def test_task_whose_shim_is_stopped_can_be_stopped_at_once(driver: Driver, *, kill: bool) -> None:
    task = driver.sh("sleep 600")
    stop(driver.started(task).shim)
    driver.engine._stopped._next = float("inf")  # the request alone continues it
    driver.engine.stop(task, 1, kill=kill)
    assert driver.exited(task).outcome is Outcome.INTERRUPTED


@fault(87)
def test_time_limit_holds_although_the_shim_was_stopped(driver: Driver) -> None:
    task = driver.launch("sleep", "600", timeout=0.5)
    stop(driver.started(task).shim)
    assert driver.exited(task, deadline=20).outcome is Outcome.TIMEOUT


@fault(87)
def test_adopted_attempt_whose_shim_is_stopped_is_reported(driver: Driver) -> None:
    dead = scheduler(driver, "echo up; until [ -e go ]; do sleep 0.01; done; exit 5")
    driver.wait_for_line("up", 1)
    kill(dead)
    driver.engine.adopt(1, 1)
    os.kill(driver.started(1).shim, signal.SIGSTOP)  # its server continues it at once
    (driver.root / "go").touch()
    assert driver.exited(1, deadline=20).code == 5


@fault(87)
def test_idle_shim_that_is_stopped_takes_the_next_order(driver: Driver) -> None:
    driver.run("true")
    idle = driver.started(1).shim
    stop(idle)
    assert driver.exited(driver.sh("exit 3"), deadline=20).code == 3
    assert driver.started(2).shim == idle


@fault(87)
def test_server_that_is_stopped_starts_what_it_was_asked_for(driver: Driver) -> None:
    task = driver.launch("true", once=True)
    driver.started(task)
    server = driver.server_of(task)
    driver.exited(task)
    stop(server)
    late = driver.sh("exit 4", once=True)
    assert driver.exited(late, deadline=20).code == 4


@fault(87)
def test_shim_that_is_stopped_before_it_answered_is_continued(drivers: Callable[..., Driver]) -> None:
    """The pid of the shim is not known yet, so it is found among the children of the server."""
    driver = drivers()
    driver.engine.warm()
    server = driver.engine._server.pid
    task = driver.sh("exit 6")
    (new,) = wait_until(lambda: shim.shims(server))
    os.kill(new, signal.SIGSTOP)
    assert driver.exited(task, deadline=20).code == 6


@fault(87)
def test_stopped_server_and_idle_shim_end_with_their_run(tmp_path: Path) -> None:
    driver = Driver(tmp_path, uuid.uuid4().hex)
    driver.run("true")
    server, idle = driver.engine._server.pid, driver.started(1).shim
    stop(server)
    stop(idle)
    driver.engine.close()
    wait_until(lambda: not is_alive(server) and not is_alive(idle))


@fault(87)
def test_stopped_server_and_shim_of_a_killed_scheduler_are_continued_by_the_next_one(
    drivers: Callable[..., Driver],
) -> None:
    """Each of the two would continue the other one, and no process is left that does it for both."""
    driver = drivers()
    dead = scheduler(driver, "echo up; until [ -e go ]; do sleep 0.01; done; exit 5")
    driver.wait_for_line("up", 1)
    claim = shim.read_claim(shim.claim_path(str(driver.tasks / "1"), 1))
    assert claim is not None
    kill(dead)
    stop(claim.server)
    stop(claim.shim)
    (driver.root / "go").touch()
    following = drivers(server_note=driver.root / "server")
    following.engine.adopt(1, 1)
    assert following.exited(1, deadline=20).code == 5
    wait_until(lambda: (following.collect(), not is_alive(claim.server) and not is_alive(claim.shim))[1])


@fault(87)
def test_server_that_is_stopped_again_while_its_run_ends_does_not_outlast_it(tmp_path: Path) -> None:
    driver = Driver(tmp_path, uuid.uuid4().hex)
    driver.run("true")
    server = driver.engine._server.pid
    stopper = subprocess.Popen(
        ["sh", "-c", f"while kill -STOP {server} 2>/dev/null; do sleep 0.2; done"], stderr=subprocess.DEVNULL
    )
    wait_until(lambda: state_of(server) == "T")
    driver.engine.close()
    assert not is_alive(server)
    assert stopper.wait(10) == 0


STOPPED_AT_ONCE = """
import os, signal, sys
from scheduler.runtime.processes import start_child
child = start_child([sys.executable, "-c", "import time; time.sleep(600)"], tied=True)
print(child.pid, flush=True)
os.kill(child.pid, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


@fault(85)
def test_sampler_that_is_stopped_at_its_start_ends_with_its_scheduler() -> None:
    """The program of the sampler has had no time to do anything, and may not stand still yet when its parent dies."""
    for _ in range(5):
        parent = subprocess.run([sys.executable, "-c", STOPPED_AT_ONCE], stdout=subprocess.PIPE, text=True, check=False)
        pid = int(parent.stdout)
        wait_until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]


def test_no_helper_outlasts_a_run_whose_attempts_have_ended(tmp_path: Path) -> None:
    driver = Driver(tmp_path, uuid.uuid4().hex)
    for _ in range(3):
        driver.run("true")
    helpers = [driver.engine._server.pid, *driver.engine._helpers(0.0)]
    driver.engine.close()
    assert [pid for pid in helpers if is_alive(pid)] == []


@fault(87)
def test_stopped_server_and_shim_of_a_killed_scheduler_go_on(driver: Driver) -> None:
    dead = scheduler(driver, "echo up; until [ -e go ]; do sleep 0.01; done; exit 5")
    driver.wait_for_line("up", 1)
    claim = shim.read_claim(shim.claim_path(str(driver.tasks / "1"), 1))
    assert claim is not None
    stop(claim.shim)
    stop(claim.server)
    kill(dead)
    (driver.root / "go").touch()
    record = wait_until(lambda: shim.read_record(shim.claim_path(str(driver.tasks / "1"), 1)))
    assert record.code == 5
    wait_until(lambda: not is_alive(claim.server) and not is_alive(claim.shim))


@fault(87)
@pytest.mark.parametrize("which", ["server", "shim"])
def test_helper_that_is_stopped_after_its_scheduler_was_killed_ends_with_the_task(driver: Driver, which: str) -> None:
    dead = scheduler(driver, "echo up; until [ -e go ]; do sleep 0.01; done; exit 5")
    driver.wait_for_line("up", 1)
    claim = shim.read_claim(shim.claim_path(str(driver.tasks / "1"), 1))
    assert claim is not None
    kill(dead)
    os.kill(getattr(claim, which), signal.SIGSTOP)
    (driver.root / "go").touch()
    record = wait_until(lambda: shim.read_record(shim.claim_path(str(driver.tasks / "1"), 1)))
    assert record.code == 5
    wait_until(lambda: not is_alive(claim.server) and not is_alive(claim.shim))


def test_process_that_a_task_has_stopped_stays_stopped(driver: Driver) -> None:
    """A user may stop a task on purpose, so only the processes of the scheduler are continued."""
    task = driver.sh("sh -c 'echo $$ >pid; kill -STOP $$; echo on >>went'; exit 3")
    pid = int(wait_until(lambda: (driver.root / "pid").exists() and (driver.root / "pid").read_text().strip()))
    wait_until(lambda: state_of(pid) == "T")
    for _ in range(3):
        driver.engine._stopped.look(driver.engine._helpers(0.0), 0.0)
        driver.collect()
    assert state_of(pid) == "T"
    os.kill(pid, signal.SIGCONT)
    assert driver.exited(task).code == 3
    assert Path(driver.root / "went").exists()
