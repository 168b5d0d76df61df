"""Copies of a process that work beside it: they end with it, hear no Ctrl-C, and never last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler.runtime.processes import (
    answer,
    end_aside,
    reap_aside,
    start_aside,
    wait_for,
)
from tests.support.faults import fault
from tests.support.killing import is_alive, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ENDLESS = """
import os, sys, time
from scheduler.runtime.processes import start_aside

def rest():
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    time.sleep(600)

start_aside(rest, 60)
time.sleep(600)
"""


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


def test_copy_changes_nothing_in_its_parent() -> None:
    numbers = [1]

    def change() -> bytes:
        numbers.append(2)
        return bytes(numbers)

    pid, read = start_aside(change, 5)
    assert _read_all(read) == bytes([1, 2])
    assert reap_aside(pid) == 0
    assert numbers == [1]


def test_copy_that_fails_has_no_answer() -> None:
    pid, read = start_aside(lambda: bytes(1 // 0), 5)
    assert _read_all(read) == b""
    assert reap_aside(pid) == 1


def test_copy_that_works_for_too_long_is_killed() -> None:
    def endless() -> bytes:
        while True:
            pass

    pid, read = start_aside(endless, 1)
    assert _read_all(read) == b""
    assert reap_aside(pid) > 128


def test_copy_has_no_file_of_its_parent_open(tmp_path: Path) -> None:
    with (tmp_path / "mine").open("w") as mine:
        fds = (1, mine.fileno())
        pid, read = start_aside(lambda: bytes(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds), 5)
        assert _read_all(read) == bytes([True, False])
    assert reap_aside(pid) == 0


def test_copy_of_a_process_that_ignores_sigchld_gives_its_answer() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        pid, read = start_aside(lambda: b"7", 5)
        assert _read_all(read) == b"7"
        assert reap_aside(pid) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_copy_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(told)])
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), 60)
    pid = int(told.read_text())
    assert is_alive(pid)
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), 60)


def test_copy_leads_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it() -> None:
    def rest() -> bytes:
        time.sleep(0.3)
        return b"done"

    pid, read = start_aside(rest, 5)
    assert os.getsid(pid) == pid or wait_until(lambda: os.getsid(pid) == pid, 30)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"done"
    assert wait_for(pid) == 0


def _stop_itself() -> bytes:
    os.kill(os.getpid(), signal.SIGSTOP)
    return b"late"


@fault(88)
def test_copy_that_cannot_die_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a system call that cannot be interrupted."""
    pid, read = start_aside(_stop_itself, 60)
    wait_until(lambda: state_of(pid) == "T")
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda *_: None)
        patched.setattr(os, "kill", lambda *_: None)
        assert end_aside(pid) == 128 + signal.SIGKILL
    os.close(read)
    assert end_aside(pid) == 128 + signal.SIGKILL
    assert not is_alive(pid)


def test_exit_code_of_a_copy_that_is_done_is_its_own() -> None:
    pid, read = start_aside(lambda: b"x", 60)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"x"
    assert reap_aside(pid) == 0


@fault(88)
def test_program_that_cannot_die_keeps_its_asker_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[subprocess.Popen[bytes]] = []

    def survive(child: subprocess.Popen[bytes]) -> None:
        killed.append(child)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", survive)
        began = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            answer(["sleep", "600"], patience=0.1)
        assert time.monotonic() - began < 5
    killed[0].kill()
    killed[0].wait()
