"""Clocks that are set in mid-run, for the scheduler, its shims and its tasks."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.standin.box import HERE, NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason=NO_COMPILER),
]
DAY = 86400
UNTIL_GO = "sh -c 'date +%s >>told; until [ -e go ]; do sleep 0.02; done; exit 3'"


class Clocks(Home):
    """A home whose commands see a time that the test sets."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._file, library = root / "clock", root / "clock.so"
        self.set()
        words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "clock.c")]
        subprocess.run(words, check=True)
        self.env |= {"LD_PRELOAD": str(library), "STANDIN_CLOCK": str(self._file)}

    def set(self, wall: int = 0, boot: int = 0) -> None:
        """Set the clocks this many seconds ahead from now on."""
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("qq", wall, boot))

    def told(self) -> list[int]:
        """Return the times that the tasks' own clocks had as they began."""
        path = self.root / "told"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def seconds(said: str) -> float:
    """Return the seconds of a time in results."""
    return datetime.strptime(said, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Clocks]:
    made = Clocks(tmp_path)
    yield made
    made.end()


@fault(43)
def test_a_jump_of_the_wall_clock_times_no_task_out_and_changes_no_duration(home: Clocks) -> None:
    home.write("jobs.csv", "Command,Timeout", [UNTIL_GO, "1h"], ["sleep 60", "3s"], [UNTIL_GO, "1h"], [UNTIL_GO, "1h"])
    with home.start(
        "run", "jobs.csv", "--devices", "host", "-j", "3", "--max-load", "1000", "--keep-going"
    ) as scheduler:
        wait_until(lambda: len(home.told()) == 2, 60)
        home.set(wall=DAY)
        wait_until(lambda: len(home.told()) == 3, 60)  # the last one starts when the second one's time is over
        home.set(wall=-DAY)
        assert home.states("1") == ["running", "timeout", "running", "running"]
        (home.root / "go").touch()
        assert scheduler.wait(60) == 1
    assert max(home.told()) - min(home.told()) > DAY - 300, "the clock did not jump"
    tasks = home.tasks("1")
    assert [(task["state"], task["attempts"]) for task in tasks] == [
        ("failed", 1), ("timeout", 1), ("failed", 1), ("failed", 1),
    ]  # fmt: skip
    assert all(0 <= task[name] < 300 for task in tasks for name in ("ran_s", "waited_s")), tasks
    assert all(0 <= seconds(task["ended"]) - seconds(task["started"]) < 300 for task in tasks)


@fault(44)
def test_a_suspend_times_no_task_out_and_the_run_goes_on(home: Clocks) -> None:
    rows = [[UNTIL_GO, "1h"], [UNTIL_GO, "1h"], ["sleep 60", "2s"]]
    home.write("jobs.csv", "Command,Timeout", *rows)
    with home.start("run", "jobs.csv", "--devices", "host", "-j", "2", "--keep-going") as scheduler:
        wait_until(lambda: len(home.told()) == 2, 60)
        home.set(wall=DAY, boot=DAY)
        assert home.states("1") == ["running", "running", "waiting"]
        (home.root / "go").touch()
        assert scheduler.wait(90) == 1
    tasks = home.tasks("1")
    assert [task["state"] for task in tasks] == ["failed", "failed", "timeout"]
    assert [task["exit_code"] for task in tasks][:2] == [3, 3]
    assert [task["attempts"] for task in tasks] == [1, 1, 1]


@fault(112)
def test_a_release_after_a_hold_applies_although_the_clock_was_set_back(home: Clocks) -> None:
    home.commands("false", "true")
    home.call("run", "jobs.csv", "-j", "1", "--devices", "host", "--max-failures", "1", code=1)
    assert home.states() == ["failed", "waiting"]
    waiting = str(home.tasks()[1]["id"])
    home.call("hold", "--task", waiting, code=0)
    home.set(-DAY)
    home.call("release", "--task", waiting, code=0)
    home.call("resume", "r1")
    assert home.states() == ["failed", "succeeded"]
