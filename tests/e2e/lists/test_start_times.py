"""Times before which nothing starts: begins of tasks, pauses, windows and holds, also across a killed scheduler."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ON_HOST = ("--devices", "host", "--slots", "4")

SAVES = """\
test -e saved && exec touch done
trap "touch saved; exit 75" TERM
touch began
sleep 60 & wait
"""
"""A task that saves when it is asked to end, and ends at once in its next turn."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def says(home: Home, *words: str, code: int = 0) -> str:
    ran = home.call(*words, code=code)
    return ran.stdout + ran.stderr


def far_window() -> str:
    """Return a window that is closed now, and for the next hours."""
    opens, closes = (datetime.now() + timedelta(hours=hours) for hours in (6, 7))  # noqa: DTZ005 - local, as users write
    return f"{opens:%H:%M}-{closes:%H:%M}"


class TestBegin:
    def test_tasks_start_at_their_times_from_a_column_and_from_a_flag(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Begin", ["sh -c 'date +%s.%N >late'", "+4s"], ["sh -c 'date +%s.%N >now'", ""])
        before = time.time()
        said = says(home, "run", "jobs.csv", "--begin", "+2s", *ON_HOST)
        late, now = (float((home.root / name).read_text()) - before for name in ("late", "now"))
        assert 2 <= now < late
        assert late >= 4
        assert "1 task begins at" in said

    def test_a_task_that_waits_for_its_time_says_when_it_begins(self, home: Home) -> None:
        home.call("submit", "--begin", "+3h12m30s", "--", "echo", "hello", code=0)
        wait_until(lambda: home.states("r1") == ["blocked"], 20)
        assert "(in 3h12m)" in says(home, "why", "0")
        assert "begins at" in says(home, "why", "0")
        assert "1 blocked: 1 for a start time (Begin), at" in says(home, "why", "r1")

    def test_a_killed_scheduler_keeps_the_time(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Begin", ["sh -c 'date +%s.%N >began'", "+6s"])
        before = time.time()
        home.call("run", "jobs.csv", "-d", *ON_HOST, code=0)
        wait_until(lambda: home.states("r1") == ["blocked"], 20)
        os.kill(home.scheduler(), signal.SIGKILL)
        home.call("resume", "r1", code=0)
        assert float((home.root / "began").read_text()) >= before + 6

    def test_a_time_can_be_changed_while_the_task_waits_for_it(self, home: Home) -> None:
        home.call("submit", "--begin", "+3h", "--", "touch", "began", code=0)
        wait_until(lambda: home.states("r1") == ["blocked"], 20)
        home.call("set", "--task", "0", "--begin", "", code=0)
        wait_until((home.root / "began").exists, 30)

    @pytest.mark.parametrize(
        ("column", "says_"),
        [
            ("25:00", "jobs.csv, row 2, column Begin: '25:00' is not a time of day: it goes from 00:00 to 23:59"),
            ("2020-01-01T08:00", "jobs.csv, row 2, column Begin: '2020-01-01T08:00' is past: it is "),
        ],
    )
    def test_a_bad_time_is_refused_with_its_row(self, home: Home, column: str, says_: str) -> None:
        home.write("jobs.csv", "Command,Begin", ["true", column])
        assert says_ in says(home, "run", "jobs.csv", *ON_HOST, code=2)

    @pytest.mark.parametrize("verb", [("run", "jobs.csv"), ("submit",), ("exec",), ("exec", "-d")])
    def test_a_bad_time_is_refused_with_its_flag(self, home: Home, verb: tuple[str, ...]) -> None:
        home.commands("true")
        words = () if verb[0] == "run" else ("--", "true")
        said = says(home, *verb, "--begin", "25:00", *words, code=2)
        assert "--begin: '25:00' is not a time of day: it goes from 00:00 to 23:59" in said


class TestPause:
    def test_nothing_starts_during_a_pause_and_everything_after_it(self, home: Home) -> None:
        home.call("submit", "--", "touch", "first", code=0)
        wait_until((home.root / "first").exists, 30)
        assert "paused: running tasks finish, no more tasks start" in says(home, "pause", "r1")
        assert "paused" in says(home, "status")
        home.call("submit", "--", "touch", "second", code=0)
        wait_until(lambda: "the run is paused; scheduler unpause" in says(home, "why", "--task", "1"), 30)
        os.kill(home.scheduler(), signal.SIGKILL)
        home.call("resume", "r1", "-d", code=0)
        wait_until(lambda: "the run is paused" in says(home, "why", "--task", "1"), 30)
        assert not (home.root / "second").exists()
        assert "run 1  queue  paused\n" in says(home, "list")
        assert "paused  1 waiting" in says(home, "top", "r1", "--plain")
        home.call("unpause", "--all", code=0)
        assert "paused" not in says(home, "status")
        wait_until((home.root / "second").exists, 30)

    def test_a_pause_for_a_time_ends_by_itself(self, home: Home) -> None:
        home.commands("touch began")
        home.call("run", "jobs.csv", "-d", "-j", "0", *ON_HOST, code=0)
        wait_until(lambda: "the run is paused (-j 0)" in says(home, "why", "0"), 30)
        assert "paused until" in says(home, "pause", "r1", "--for", "10s")
        home.call("set", "r1", "-j", "2", code=0)
        wait_until(lambda: "paused until" in says(home, "why", "0"), 30)
        wait_until((home.root / "began").exists, 30)

    def test_unpause_after_a_pause_that_ended_by_itself_says_that_nothing_is_paused(self, home: Home) -> None:
        home.call("submit", "--", "true", code=0)
        assert "paused until" in says(home, "pause", "r1", "--for", "1h")
        assert "unpaused: tasks may start again" in says(home, "unpause", "r1")
        home.call("pause", "--all", "--for", "100ms", code=0)
        wait_until(lambda: "paused" not in says(home, "status"), 30)
        assert "is not paused" in says(home, "unpause", "r1")

    def test_resumable_tasks_save_for_a_pause_and_come_back(self, home: Home) -> None:
        (home.root / "saves.sh").write_text(SAVES)
        home.write("jobs.csv", "Command,Resumable", ["sh saves.sh", "yes"], ["sh -c 'touch other; sleep 3'", ""])
        home.call("run", "jobs.csv", "-d", *ON_HOST, code=0)
        wait_until(lambda: (home.root / "began").exists() and (home.root / "other").exists(), 30)
        said = says(home, "pause", "--stop", "--for", "4s")
        assert "task 0: is asked to save, and goes on in its next turn" in said
        assert "1 running task is not Resumable: it goes on to the end" in said
        wait_until((home.root / "saved").exists, 30)
        assert not (home.root / "done").exists()
        wait_until((home.root / "done").exists, 30)
        wait_until(lambda: home.states("r1") == ["succeeded", "succeeded"], 20)

    def test_a_pause_of_no_time_is_refused(self, home: Home) -> None:
        assert "--for 0s: give a time above 0, such as 1h" in says(home, "pause", "--for", "0s", code=2)


class TestWindow:
    def test_a_run_waits_for_its_window_until_it_gets_another_one(self, home: Home) -> None:
        home.commands("touch began")
        window = far_window()
        home.call("run", "jobs.csv", "-d", "--window", window, *ON_HOST, code=0)
        wait_until(lambda: f"the run starts tasks only within {window} (--window)" in says(home, "why", "0"), 30)
        assert f"(window {window})" in says(home, "list").splitlines()[0]
        assert not (home.root / "began").exists()
        assert f"window {window} → any time" in says(home, "set", "r1", "--window", "")
        wait_until((home.root / "began").exists, 30)

    def test_a_dry_run_starts_nothing_outside_of_the_window_or_before_a_time(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Begin", ["true", "+2h"], ["true", ""])
        said = says(home, "run", "jobs.csv", "--dry-run", *ON_HOST)
        assert "1 task begins at" in said
        assert said.count("would start now") == 1
        window = far_window()
        said = says(home, "run", "jobs.csv", "--dry-run", "--window", window, *ON_HOST)
        assert "would start now" not in said
        assert f"the run starts tasks only within {window} (--window)" in said

    def test_a_window_without_length_is_refused(self, home: Home) -> None:
        home.commands("true")
        said = says(home, "run", "jobs.csv", "--window", "20:00-20:00", *ON_HOST, code=2)
        assert "--window: '20:00-20:00' has no length: all day is 00:00-24:00" in said


class TestHold:
    def test_a_dry_run_says_how_many_tasks_would_be_held(self, home: Home) -> None:
        home.commands("true", "false")
        said = says(home, "run", "jobs.csv", "--hold", "--dry-run", *ON_HOST)
        assert "2 tasks would be held until scheduler release" in said
        assert "all unfinished tasks are held" in said

    @pytest.mark.parametrize("verb", ["run", "submit"])
    def test_tasks_that_are_held_from_the_start_run_once_they_are_released(self, home: Home, verb: str) -> None:
        home.commands("touch first", "touch second")
        home.call(verb, "jobs.csv", "--hold", *(("-d", *ON_HOST) if verb == "run" else ()), code=0)
        wait_until(lambda: home.states("r1") == ["held", "held"], 20)
        home.call("release", "--task", "0", code=0)
        wait_until((home.root / "first").exists, 30)
        assert home.states("r1")[1] == "held"
