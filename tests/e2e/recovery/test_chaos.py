"""Chaos for a while: everything that can break is broken; and lists that were accepted just before a kill."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import ROOT, Home
from tests.support.standin.box import NO_COMPILER, build
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
ROWS = 40


@fault(1, 2, 3, 4, 5, 22, 23, 31, 32, 36, 37)
@pytest.mark.long
@pytest.mark.skipif(build() is None, reason=NO_COMPILER)
def test_no_task_is_lost_or_run_twice_in_a_short_chaos() -> None:
    """The chaos can be longer by hand: `python scripts/bench/chaos.py --minutes 10`."""
    command = [sys.executable, "scripts/bench/chaos.py", "--minutes", "0.35"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


class TestAcknowledgement:
    """The first lines of a run are an acknowledgement: after a kill the moment they appear, every task is there."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Iterator[Home]:
        made = Home(tmp_path)
        made.commands(*["true"] * ROWS)
        yield made
        made.end()

    def begun(self, home: Home) -> subprocess.Popen[str]:
        return home.start("run", "jobs.csv", "--new", "--devices", "host", stdout=subprocess.PIPE)

    @fault(1, 6)
    @pytest.mark.parametrize("_", range(3))
    def test_every_task_is_there_after_a_kill_at_the_first_line(self, home: Home, _: int) -> None:
        with self.begun(home) as scheduler:
            assert scheduler.stdout is not None
            assert scheduler.stdout.read(1)
            scheduler.kill()
        assert scheduler.returncode == -signal.SIGKILL
        home.call("resume", "r1", code=0)
        assert home.states("1") == ["succeeded"] * ROWS

    @fault(1, 6)
    @pytest.mark.parametrize("_", range(4))
    def test_all_tasks_or_none_are_there_after_a_kill_before_the_first_line(self, home: Home, _: int) -> None:
        seed = random.SystemRandom().randrange(10**6)
        files = random.Random(seed).randrange(1, 9)
        with self.begun(home) as scheduler:
            # how far it has come is told by the files it has made; none of them is its acknowledgement
            wait_until(lambda: len([*home.state.rglob("*")]) >= files, 30, pause=0)
            scheduler.kill()
            assert scheduler.stdout is not None
            said = scheduler.stdout.read()
        there = home.call("results", "r1", "--json")
        if there.returncode == 0:
            home.call("resume", "r1", code=0)
            assert home.states("1") == ["succeeded"] * ROWS, f"seed {seed}"
        else:
            assert said == "", f"seed {seed}"
