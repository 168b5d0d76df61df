"""A run belongs to one machine: another machine names it and leaves it unchanged; and the removal of runs."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.processes.test_signals import UNTIL_GO, running
from tests.support.faults import fault
from tests.support.journals import put_facts
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NOTE = "sh -c 'echo x >>ran; touch here; until [ -e go ]; do sleep 0.01; done'"
GPU2 = {"host": "gpu2", "boot": "another-boot", "machine": "another-machine"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def seen_from_elsewhere(home: Home, run: int = 1) -> None:
    """Change the state into what a machine sees of a run of `gpu2` over a network: no lock, another identity."""
    theirs = home.state
    home.state = home.root / "mounted"
    home.env["SCHEDULER_STATE"] = str(home.state)
    settled = shutil.ignore_patterns("__pycache__")  # the samplers of the living run are just filling theirs
    for folder in ("tasks", "code"):
        shutil.copytree(theirs / f"runs/{run}/{folder}", home.state / f"runs/{run}/{folder}", ignore=settled)
    shutil.copy(theirs / "counter", home.state / "counter")
    copied = home.state / f"runs/{run}/journal.db"
    with closing(sqlite3.connect(theirs / f"runs/{run}/journal.db")) as live, closing(sqlite3.connect(copied)) as copy:
        live.backup(copy)
    put_facts(copied, **GPU2)


class TestRunOfAnotherMachine:
    def test_resume_and_stop_refuse_a_run_of_another_machine(self, home: Home) -> None:
        scheduler = running(home, NOTE, NOTE)
        seen_from_elsewhere(home)
        refused = home.call("resume", "r1", code=2)
        assert refused.stderr.startswith("scheduler: run 1 belongs to gpu2, this is ")
        assert "nothing was started" in refused.stderr
        assert "--takeover" in refused.stderr
        assert "run 1  jobs.csv: belongs to gpu2: not resumed" in home.call("resume", "--all", "-d", code=0).stdout
        assert "run 1 belongs to gpu2: stop it there" in home.call("stop", "r1", code=1).stderr
        assert "run 1 belongs to gpu2" in home.call("resume", "-d", code=2).stderr
        (home.root / "go").touch()
        assert scheduler.wait(30) == 0
        assert (home.root / "ran").read_text() == "x\nx\n"

    def test_views_show_a_run_of_another_machine(self, home: Home) -> None:
        running(home, UNTIL_GO, "true")
        seen_from_elsewhere(home)
        assert home.states() == ["running", "waiting"]
        assert "unfinished: belongs to gpu2" in home.call("status", code=0).stdout
        run = json.loads(home.call("runs", "--json", code=0).stdout)["runs"][0]
        assert (run["host"], run["elsewhere"], run["over"]) == ("gpu2", "gpu2", False)

    def test_a_run_of_another_machine_does_not_hide_one_of_this_machine(self, home: Home) -> None:
        running(home, UNTIL_GO)
        seen_from_elsewhere(home)
        home.commands("false", name="mine.csv")
        home.call("run", "mine.csv", code=1)
        shutil.move(home.state / "runs/1", home.state / "runs/7")
        assert "mine.csv" in home.call("list", code=0).stdout

    def test_resume_takeover_continues_a_run_of_a_machine_that_is_gone(self, home: Home) -> None:
        scheduler = running(home, NOTE, NOTE)
        seen_from_elsewhere(home)
        home.end()
        scheduler.wait(30)
        (home.root / "go").touch()
        home.call("resume", "r1", "--takeover", code=0)
        assert [(task["state"], task["attempts"]) for task in home.tasks()] == [("succeeded", 2), ("succeeded", 1)]
        assert "nothing to do" in home.call("resume", "r1", code=0).stdout  # from now on it belongs here
        assert "gpu2" not in home.call("runs", code=0).stdout

    def test_a_run_of_another_machine_is_named_where_each_machine_has_its_own_state(self, home: Home) -> None:
        running(home, UNTIL_GO)
        seen_from_elsewhere(home)
        shared = home.root / "shared/gpu-batch-scheduler"
        shared.mkdir(parents=True)
        shutil.move(home.state, shared / "gpu2")
        home.env["XDG_STATE_HOME"] = str(shared.parent)
        del home.env["SCHEDULER_STATE"]
        refused = home.call("resume", "r1", code=2).stderr
        assert "run 1 belongs to gpu2, not to this machine" in refused
        assert f"--state {shared / 'gpu2'}" in refused
        assert "unfinished: belongs to gpu2" in home.call("runs", code=0).stdout

    @fault(6)
    def test_a_run_belongs_to_its_machine_after_a_reboot(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO)
        scheduler.send_signal(signal.SIGQUIT)
        scheduler.wait(30)
        put_facts(home.state / "runs/1/journal.db", boot="the boot before")
        (home.root / "go").touch()
        home.call("resume", code=0)

    def test_takeover_of_a_run_of_this_machine_gets_a_note_that_it_has_no_effect(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        assert (
            "this machine and its journal is whole: --takeover has no effect"
            in home.call("resume", "--takeover", code=0).stderr
        )


class TestRemoving:
    def test_runs_rm_removes_an_ended_run_and_prints_the_freed_bytes(self, home: Home) -> None:
        home.call("run", home.commands("echo hello"), "--name", "first", code=0)
        home.call("run", "jobs.csv", code=0)
        gone = json.loads(home.call("runs", "rm", "first", "--json", code=0).stdout)["removed"]
        assert [(run["number"], run["freed_bytes"] > 4096) for run in gone] == [(1, True)]
        assert [path.name for path in (home.state / "runs").iterdir()] == ["2"]
        assert "there is no run 1" in home.call("results", "r1", code=2).stderr
        home.call("run", "jobs.csv", code=0)
        assert (home.state / "runs/3").exists()  # a number is never given away again

    def test_runs_rm_with_a_living_run_removes_nothing(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        running(home, UNTIL_GO)
        assert "run 2 is alive, so nothing was removed" in home.call("runs", "rm", "r1", "r2", code=2).stderr
        home.call("runs", "rm", "--older-than", "0s", code=0)
        assert [run.name for run in (home.state / "runs").iterdir()] == ["2"]

    def test_runs_rm_refuses_an_unfinished_run(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO, "true")
        scheduler.send_signal(signal.SIGQUIT)
        scheduler.wait(30)
        assert "run 1 is not over (1 waiting, 1 running), so nothing" in home.call("runs", "rm", "r1", code=1).stderr
        assert home.call("runs", "rm", "--older-than", "0s", code=0).stdout == "0 removed, 0MiB freed\n"
        (home.root / "go").touch()
        home.call("resume", code=0)

    def test_runs_rm_removes_runs_by_age(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        assert home.call("runs", "rm", "--older-than", "30d", code=0).stdout.startswith("0 removed")
        wait_until(
            lambda: home.call("runs", "rm", "--older-than", "10ms").stdout.startswith("run 1  jobs.csv: removed")
        )

    @pytest.mark.parametrize("words", ["rm", "rm r1 --older-than 3d", "list r3", "rm --older-than 3"])
    def test_runs_rm_refuses_incomplete_arguments(self, home: Home, words: str) -> None:
        home.call("runs", *words.split(), code=2)

    def test_runs_rm_finishes_a_removal_that_was_killed(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        home.call("run", "jobs.csv", code=0)
        (home.state / "runs/1").rename(home.state / "runs/.removed-1")
        home.call("runs", "rm", "r2", code=0)
        assert [*(home.state / "runs").iterdir()] == []
