"""The forecast of a living run in the verbs of another terminal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL = "sh -c 'until [ -e go ]; do sleep 0.05; done'"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Start a run with an ended, a running and a waiting task."""
    made = Home(tmp_path)
    made.commands("sleep 0.1", UNTIL, "sleep 0.2")
    made.call("run", "-d", "jobs.csv", "-j", "1", code=0)
    wait_until(lambda: made.states() == ["succeeded", "running", "waiting"], 60)
    yield made
    made.end()


def listed(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(home.call("list", "r1", "--json", code=0).stdout)
    return found


def test_every_view_shows_the_time_left(home: Home) -> None:
    found = wait_until(lambda: (said := listed(home))["run"]["expected"] and said, 60)
    assert set(found["run"]["expected"]["end"]) == {"likely", "early", "late"}
    over, runs, waits = found["tasks"]
    assert over["expected"] is None
    assert runs["expected"]["start"] is None
    assert waits["expected"]["start"]["likely"] < waits["expected"]["end"]["likely"]
    assert " left" in home.call("list", code=0).stdout.splitlines()[0]
    assert "running, about " in home.call("status", code=0).stdout
    assert "about " in home.call("why", "--run", "1", code=0).stdout
    assert "it is expected to start in about " in home.call("why", "--task", "2", code=0).stdout
    assert "left" in home.call("top", "--plain", code=0).stdout.splitlines()[2]
    (home.root / "go").touch()
    wait_until(lambda: home.states() == ["succeeded"] * 3, 60)
    wait_until(lambda: not (home.state / "runs/1/forecast.json").exists(), 60)
    assert listed(home)["run"]["expected"] is None


def test_held_tasks_are_left_out_of_the_time_left_and_counted_apart(home: Home) -> None:
    home.write("more.csv", "Command,Hold", ["sleep 0.1", ""], [UNTIL, ""], ["sleep 0.2", ""], *[["sleep 60", "1"]] * 2)
    home.call("run", "-d", "more.csv", "-j", "1", code=0)
    assert wait_until(lambda: home.states("2")[1] == "running", 60)

    def said() -> dict[str, Any]:
        return json.loads(home.call("list", "r2", "--json", code=0).stdout)

    found = wait_until(lambda: (one := said())["run"]["expected"] and one["run"]["expected"]["end"] and one, 60)
    assert found["run"]["expected"]["held"] == 2
    assert [task["expected"] is None for task in found["tasks"]] == [True, False, False, True, True]
    apart = " without 2 held tasks"
    assert apart in home.call("list", "r2", code=0).stdout.splitlines()[0]
    assert apart in home.call("status", code=0).stdout
    assert apart in home.call("why", "--run", "r2", code=0).stdout.splitlines()[1]
    assert "2 held" in home.call("top", "r2", "--plain", code=0).stdout
    (home.root / "go").touch()
    wait_until(lambda: home.states("2") == ["succeeded"] * 3 + ["held"] * 2, 60)
    home.call("stop", "r2", code=0)
    wait_until(lambda: not (home.state / "runs/2/forecast.json").exists(), 60)
    assert "2 tasks unfinished, 2 of them held: scheduler resume r2" in home.log(2)


def test_run_without_a_scheduler_has_no_forecast(home: Home) -> None:
    wait_until((home.state / "runs/1/forecast.json").exists, 60)
    os.kill(home.scheduler(), signal.SIGKILL)
    wait_until(lambda: listed(home)["run"]["expected"] is None, 60)
    (home.root / "go").touch()


def test_dry_run_shows_a_timeline_once_durations_are_known(tmp_path: Path) -> None:
    home = Home(tmp_path)
    listing = home.commands("sleep 0.1", "sleep 0.2", "sleep 0.3")
    first = home.call("run", listing, "--dry-run", code=0).stdout
    assert "timeline         unknown until a similar task has finished" in first
    home.call("run", listing, code=0)
    said = home.call("run", listing, "--dry-run", code=0).stdout
    assert "timeline         ends in about 5s" in said
    assert "row  device  starts  ends  name" in said
    told = json.loads(home.call("run", listing, "--dry-run", "--json", code=0).stdout)
    assert {one["row"] for one in told["timeline"]} == {2, 3, 4}
    assert told["over_in_s"]["early"] <= told["over_in_s"]["likely"] <= told["over_in_s"]["late"]
    assert home.call("runs", code=0).stdout.count("jobs.csv") == 1
    home.end()
