"""The live view on a real terminal: keys, Ctrl-C, ends of all kinds, and terminals that get lines instead."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home
from tests.support.terminal import USUAL, Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL_GO = "sh -c 'touch here; until [ -e go ]; do sleep 0.05; done'"
ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"
Opened = Callable[..., Terminal]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture
def opened(home: Home) -> Iterator[Opened]:
    made: list[Terminal] = []

    def start(*arguments: str, **how: str) -> Terminal:
        made.append(Terminal(home, *arguments, **how))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def watched(home: Home, opened: Opened, *arguments: str, **env: str) -> Terminal:
    """Start a run in the live view; its running task waits for the file `go`."""
    home.commands(UNTIL_GO, "true")
    terminal = opened("run", "jobs.csv", "-j", "1", *arguments, **env)
    wait_until(lambda: "1 running" in terminal.said, 60)
    return terminal


def test_q_leaves_the_view_and_the_run_continues(home: Home, opened: Opened) -> None:
    terminal = watched(home, opened)
    assert ENTERED in terminal.said
    assert terminal.modes == 0
    terminal.press("q")
    wait_until(lambda: "left the live view; the run continues" in terminal.said, 30)
    assert terminal.modes == USUAL
    (home.root / "go").touch()
    assert terminal.wait() == 0
    lines = terminal.said.rpartition(LEFT)[2]
    assert "done " in lines
    assert "run 1: 2 tasks: 2 succeeded" in lines
    assert home.states() == ["succeeded", "succeeded"]


def test_ctrl_c_lets_running_tasks_end_and_a_second_one_stops_them(home: Home, opened: Opened) -> None:
    terminal = watched(home, opened)
    terminal.press("\x03")
    wait_until(lambda: "starts nothing new" in terminal.said, 30)
    assert LEFT not in terminal.said
    terminal.press("\x03")
    assert terminal.wait() == 130
    assert terminal.modes == USUAL
    assert LEFT in terminal.said
    assert home.states() == ["interrupted", "waiting"]


def test_end_of_the_run_restores_the_terminal_before_the_last_lines(home: Home, opened: Opened) -> None:
    terminal = watched(home, opened)
    (home.root / "go").touch()
    assert terminal.wait() == 0
    wait_until(lambda: "run 1: 2 tasks: 2 succeeded" in terminal.said.rpartition(LEFT)[2], 30)
    assert terminal.modes == USUAL
    assert "start " in home.log()


def test_terminal_is_restored_after_the_scheduler_was_killed(home: Home, opened: Opened) -> None:
    terminal = watched(home, opened)
    terminal.process.kill()
    wait_until(lambda: LEFT in terminal.said and terminal.modes == USUAL, 30)
    (home.root / "go").touch()


def test_hang_up_ends_the_view_and_the_run_continues(home: Home, opened: Opened) -> None:
    terminal = watched(home, opened)
    terminal.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "hung up: the run continues" in home.log(), 30)
    (home.root / "go").touch()
    assert terminal.wait() == 0
    assert home.states() == ["succeeded", "succeeded"]


def test_no_color_removes_colours_from_the_view(home: Home, opened: Opened) -> None:
    terminal = watched(home, opened, NO_COLOR="1")
    wait_until(lambda: "q leave" in terminal.said, 30)
    assert "\x1b[32m" not in terminal.said
    assert "\x1b[36m" not in terminal.said
    (home.root / "go").touch()
    assert terminal.wait() == 0


@pytest.mark.parametrize(("arguments", "term"), [(["--plain"], "xterm"), ([], "dumb")])
def test_run_prints_plain_lines_with_plain_or_a_dumb_terminal(
    home: Home, opened: Opened, arguments: list[str], term: str
) -> None:
    home.commands("true")
    terminal = opened("run", "jobs.csv", *arguments, TERM=term)
    assert terminal.wait() == 0
    wait_until(lambda: "run 1: 1 task: 1 succeeded" in terminal.said, 30)
    assert "start " in terminal.said
    assert "\x1b" not in terminal.said


def test_run_without_rich_prints_plain_lines_and_a_hint(home: Home, opened: Opened) -> None:
    home.commands("true")
    (home.root / "rich.py").write_text("raise ImportError('not here')")
    terminal = opened("run", "jobs.csv", PYTHONPATH=f"{home.root}{os.pathsep}{home.env['PYTHONPATH']}")
    assert terminal.wait() == 0
    wait_until(lambda: "run 1: 1 task: 1 succeeded" in terminal.said, 30)
    assert "no live view: the package rich is missing" in terminal.said
    assert "\x1b" not in terminal.said


class TestTop:
    def test_top_shows_a_run_of_another_terminal_until_its_end(self, home: Home, opened: Opened) -> None:
        home.commands(UNTIL_GO, "true")
        with home.start("run", "jobs.csv", "-j", "1") as run:
            wait_until((home.root / "here").exists, 60)
            terminal = opened("top")
            wait_until(lambda: "1 running" in terminal.said and "host" in terminal.said, 60)
            (home.root / "go").touch()
            assert terminal.wait() == 0
            assert run.wait(60) == 0
        wait_until(lambda: "run 1: 2 tasks: 2 succeeded" in terminal.said.rpartition(LEFT)[2], 30)
        assert terminal.modes == USUAL

    def test_q_and_ctrl_c_leave_top_and_the_run_continues(self, home: Home, opened: Opened) -> None:
        home.commands(UNTIL_GO)
        with home.start("run", "jobs.csv") as run:
            wait_until((home.root / "here").exists, 60)
            for key, code, words in (("q", 0, ["r1"]), ("\x03", 130, ["r1"]), ("q", 0, ["--all"])):
                terminal = opened("top", *words)
                wait_until(lambda terminal=terminal: re.search("q:? leave", terminal.said) is not None, 60)
                terminal.press(key)
                assert terminal.wait() == code
                assert terminal.modes == USUAL
                assert "Traceback" not in terminal.said
            assert run.poll() is None
            (home.root / "go").touch()
            assert run.wait(60) == 0

    def test_top_into_a_pipe_prints_its_lines_once(self, home: Home) -> None:
        home.commands("true")
        home.call("run", "jobs.csv", code=0)
        done = home.call("top", code=0)
        assert "1 succeeded" in done.stdout
        assert "\x1b" not in done.stdout
        assert done.stderr == "hint:   run 1 is over: scheduler results r1\n"
        assert '"run": 1' in home.call("top", "--json", code=0).stdout
        assert "host" in home.call("top", "--all", code=0).stdout

    def test_top_refuses_options_that_exclude_each_other(self, home: Home) -> None:
        home.commands("true")
        assert "leave one of them out" in home.call("top", "r1", "--all", code=2).stderr
        assert "there is no run yet" in home.call("top").stderr
