"""`scheduler why` of a living run, of a dead one, and of unknown runs and tasks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL = "sh -c 'until [ -e go ]; do sleep 0.02; done'"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Start a run: one task uses nearly all of its budget, one has failed, one waits for memory."""
    made = Home(tmp_path)
    made.write(
        "jobs.csv", "Command,Memory", [UNTIL, "300MiB"], ["sh -c 'echo bad; exit 3'", "1MiB"], ["true", "300MiB"]
    )
    made.call("run", "-d", "jobs.csv", "--devices", "host:1GiB", "--keep-going", code=0)
    wait_until(lambda: made.states() == ["running", "failed", "waiting"], 30)
    yield made
    made.end()


def test_why_names_what_a_waiting_task_waits_for(home: Home) -> None:
    said = home.call("why", "2", code=0).stdout
    assert said.startswith("task 2 waits for host RAM; needs 300MiB (declared); host RAM has ")
    assert "free (task 0 300MiB, " in said


def test_why_json_has_the_figures(home: Home) -> None:
    (run,) = json.loads(home.call("why", "0-2", "--json", code=0).stdout)["runs"]
    assert [task["state"] for task in run["tasks"]] == ["running", "failed", "waiting"]
    waits = run["tasks"][2]["waits"]
    assert waits["refusal"]["reason"] == "memory"
    assert waits["wants"]["bytes"] == 300 << 20
    assert waits["devices"][0]["held"][0] == {"who": "task 0", "bytes": 300 << 20}


def test_why_explains_a_failed_task_and_a_whole_run(home: Home) -> None:
    assert "exit code 3" in home.call("why", "--task", "1", code=0).stdout
    lines = home.call("why", "--run", "1", code=0).stdout.splitlines()
    assert lines[0] == "run 1  jobs.csv: 1 waiting, 1 running, 1 failed"
    assert "1 waiting: 1 for host RAM" in lines


def test_why_changes_nothing(home: Home) -> None:
    for _ in range(3):
        home.call("why", code=0)
    (home.root / "go").touch()
    wait_until(lambda: home.states() == ["succeeded", "failed", "succeeded"], 30)
    assert not list((home.state / "runs/1/requests").glob("*.request"))


def test_why_without_a_scheduler_reads_the_journal(home: Home) -> None:
    os.kill(home.scheduler(), signal.SIGKILL)
    said = wait_until(lambda: "no scheduler" in (out := home.call("why", "2", code=0).stdout) and out, 30)
    assert said == ("task 2 is waiting; run 1 has no scheduler: scheduler resume r1 continues it\n")
    assert "nothing measures the task" in home.call("why", "0", code=0).stdout
    assert not list((home.state / "runs/1/requests").glob("*.request"))


def test_why_of_an_unknown_task_is_refused_in_one_sentence(home: Home) -> None:
    assert "there is no task 77" in home.call("why", "77", code=2).stderr
    assert "no run and no task here is called 'unknown'" in home.call("why", "unknown", code=2).stderr
