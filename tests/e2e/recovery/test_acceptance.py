"""A list that arrives slowly, or whose start is stopped, keeps no other run of its user from starting."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import Home, Started, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@contextmanager
def reading(home: Home) -> Iterator[Started]:
    """Yield a start in the middle of its list, which arrives through a pipe; it is run 1."""
    with home.start("run", "/dev/stdin", "--devices", "host", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("Command\n" + "true\n" * 20_000)
        process.stdin.flush()
        pipe = process.stdin.fileno()
        wait_until(lambda: array("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0] == 0)
        yield process


@fault(110)
@pytest.mark.parametrize("stopped", [True, False])
def test_another_run_starts_while_a_start_is_stopped_in_its_list(home: Home, stopped: bool) -> None:
    home.commands("true", "true")
    with reading(home) as process:
        if stopped:
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: state_of(process.pid) == "T")
        home.call("run", "jobs.csv", "--devices", "host", code=0)
        home.call("exec", "--devices", "host", "true", code=0)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    ids = [task["id"] for run in ("2", "3") for task in home.tasks(run)]
    assert len(set(ids)) == 3


def test_a_list_that_was_read_slowly_gets_ids_of_its_own(home: Home) -> None:
    home.commands("true", "true")
    with home.start("run", "/dev/stdin", "--devices", "host", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("Command\nfalse\n")
        process.stdin.flush()
        wait_until((home.state / "runs/1/journal.db").exists)
        home.call("run", "jobs.csv", "--devices", "host", code=0)
        process.communicate("true\n", timeout=60)
    ids = [[task["id"] for task in home.tasks(run)] for run in ("1", "2")]
    assert [len(some) for some in ids] == [2, 2]
    assert not set(ids[0]) & set(ids[1])
    assert home.states("1") == ["failed", "succeeded"]


@fault(111)
def test_a_start_that_cannot_lock_the_counter_names_its_holder(home: Home) -> None:
    home.commands("true")
    home.state.mkdir()
    with open(home.state / "counter", "a") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        refused = home.call("run", "jobs.csv", "--devices", "host")
        said = home.call("doctor").stdout
    assert refused.returncode != 0
    assert f"has been locked for 5s by process {os.getpid()}" in refused.stderr
    assert f"is locked by process {os.getpid()}" in " ".join(said.split())
    home.call("run", "jobs.csv", "--devices", "host", code=0)


@fault(111)
def test_a_living_run_takes_lines_once_the_counter_can_be_locked_again(home: Home) -> None:
    with home.start("run", "-", "--devices", "host", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("true\n")
        process.stdin.flush()
        wait_until(lambda: (home.state / "runs/1/journal.db").exists() and home.states("1") == ["succeeded"])
        with open(home.state / "counter", "a") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            process.stdin.write("true again\n")
            process.stdin.flush()
            wait_until(lambda: "has been locked for 0.2s" in home.log())
        process.communicate(timeout=60)
    assert home.states("1") == ["succeeded", "succeeded"]
