"""Copies of a process that work something out aside: they end with it, hear no Ctrl-C, and never last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler.processes import ask_aside, start_aside, wait_for
from tests.system.killing import is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ENDLESS = """
import os, sys, time
from scheduler.processes import start_aside, ask_aside

def rest():
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    time.sleep(600)

def nested():
    ask_aside(rest, 60)
    return b""

start_aside(nested, 60)
time.sleep(600)
"""


def test_they_work_on_a_copy() -> None:
    kept = [1]

    def change() -> list[int]:
        kept.append(2)
        return kept

    assert ask_aside(change, 5) == [1, 2]
    assert kept == [1]


def test_one_that_fails_has_no_answer() -> None:
    assert ask_aside(lambda: 1 // 0, 5) is None


def test_one_that_works_for_too_long_is_ended() -> None:
    def endless() -> None:
        while True:
            pass

    assert ask_aside(endless, 1) is None


def test_they_have_nothing_of_ours_open(tmp_path: Path) -> None:
    with (tmp_path / "mine").open("w") as mine:
        said = ask_aside(lambda: [os.path.exists(f"/proc/self/fd/{fd}") for fd in (1, mine.fileno())], 5)
    assert said == [True, False]


def test_they_end_with_whoever_started_them_and_theirs_too(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(told)])
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), 60)
    pid = int(told.read_text())
    assert is_alive(pid)
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), 60)


def test_who_ignores_the_ends_of_children_gets_answers_all_the_same() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert ask_aside(lambda: 7, 5) == 7
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_ctrl_c_in_front_of_us_is_not_theirs() -> None:
    def rest() -> bytes:
        time.sleep(0.3)
        return b"done"

    pid, read = start_aside(rest, 5)
    assert os.getsid(pid) == pid or wait_until(lambda: os.getsid(pid) == pid, 30)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"done"
    assert wait_for(pid) == 0
