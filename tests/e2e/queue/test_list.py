"""`scheduler list`: all tasks of a user over all runs and queues, with chosen columns and order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    yield made
    made.end()


@pytest.fixture
def several(home: Home) -> Home:
    """Return a home with an ended run, a queue with a running and a waiting task, and a run without a scheduler."""
    home.call("run", home.write("a.csv", "Command,lr", "true,0.5", "false,0.01"), "--keep-going", code=1)
    stay = "until [ -e go ]; do sleep 0.01; done"
    for name in ("first", "second"):
        home.call("submit", "--name", name, "--cpus", "2", "--memory", "1MiB", "--exclusive", "yes", stay, code=0)
    home.call("run", "-d", home.write("b.csv", "Command,Name", [f"sh -c '{stay}'", "third"]), code=0)
    kill(home.scheduler(3))
    return home


def blocks(said: str) -> list[list[str]]:
    return [block.splitlines() for block in said.split("\n\n")]


class TestAllMyTasks:
    def test_list_shows_every_run_that_is_not_over_or_ended_lately(self, several: Home) -> None:
        runs = blocks(several.call("list", code=0).stdout)
        assert [run[0].split()[:3] for run in runs] == [
            ["run", "3", "b.csv"],
            ["run", "2", "queue"],
            ["run", "1", "a.csv"],
        ]
        assert runs[0][1] == (
            "its scheduler has ended: scheduler resume r3 continues it, scheduler stop r3 --abandon gives it up"
        )
        assert [line.split()[1] for line in runs[1][-2:]] == ["first", "second"]

    def test_list_leaves_out_what_ended_before_the_given_time(self, several: Home) -> None:
        runs = blocks(several.call("list", "--since", "1ms", code=0).stdout)
        assert [run[0].split()[1] for run in runs] == ["3", "2"]

    def test_list_filters_by_state_over_all_runs(self, several: Home) -> None:
        found = json.loads(several.call("list", "--state", "failed,waiting", "--json", code=0).stdout)["runs"]
        states = {run["run"]["number"]: {task["state"] for task in run["tasks"]} for run in found}
        assert states[1] == {"failed"}
        assert "waiting" in states[2]

    def test_list_shows_and_sorts_by_commands_only_where_they_are_named(self, several: Home) -> None:
        shown = several.call("list", "r1", "-c", "command,key", code=0).stdout.splitlines()[2:]
        assert [line.split()[0] for line in shown] == ["true", "false"]
        assert all(len(line.split()[1]) == 16 for line in shown)
        down = several.call("list", "r1", "--sort", "command", code=0).stdout.splitlines()[2:]
        assert [line.split()[1] for line in down] == ["false", "true"]

    def test_list_says_that_nothing_is_left(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        said = home.call("list", "--since", "1ms", code=0).stdout
        assert said == "you have no unfinished task, and none ended in the last 1ms: scheduler runs lists all runs\n"
        assert json.loads(home.call("list", "--since", "1ms", "--json", code=0).stdout) == {"format": 1, "runs": []}

    def test_list_shows_how_long_a_running_task_has_run(self, home: Home) -> None:
        home.call("run", home.commands("sleep 600"), "-d", code=0)
        wait_until(lambda: [*home.root.glob("state/runs/1/tasks/0/1.log")], 30)

        def shown() -> list[str]:
            return home.call("list", "-c", "state,ran", code=0).stdout.splitlines()[2].split()

        wait_until(lambda: shown()[0] == "running" and shown()[1] >= "1.0s", 30)


class TestColumns:
    @pytest.fixture
    def table(self, home: Home) -> Home:
        rows = ("echo,0.5", "false,0.01", "echo,10", "echo,")
        home.call("run", home.write("a.csv", "Command,lr", *rows), "--keep-going", "-j", "1", code=1)
        return home

    def test_columns_are_chosen_by_their_names_or_titles(self, table: Home) -> None:
        said = table.call("list", "r1", "-c", "id,state,lr,exit", code=0).stdout.splitlines()
        assert [line.split() for line in said[1:3]] == [["id", "state", "lr", "exit"], ["0", "succeeded", "0.5", "0"]]

    def test_rows_are_sorted_by_numbers_with_empty_cells_last(self, table: Home) -> None:
        tasks = json.loads(table.call("list", "r1", "--sort", "lr", "-c", "lr", "--json", code=0).stdout)["tasks"]
        assert [task["lr"] for task in tasks] == ["0.01", "0.5", "10", ""]

    def test_a_limit_keeps_the_latest_ended_and_names_the_rest(self, table: Home) -> None:
        said = table.call("list", "--limit", "2", "-c", "id", code=0).stdout.splitlines()
        assert [line.split() for line in said[1:]] == [
            ["id"],
            ["2"],
            ["3"],
            ["and", "2", "tasks", "more:", "scheduler", "list", "r1"],
        ]

    def test_a_limit_of_sorted_tasks_keeps_the_first_ones(self, table: Home) -> None:
        said = table.call("list", "--sort", "-lr", "--limit", "2", "-c", "lr", code=0).stdout.splitlines()
        assert [line.split()[0] for line in said[2:4]] == ["10", "0.5"]
        assert said[4] == "and 2 tasks more: scheduler list r1"

    @pytest.mark.parametrize("flag", ["-c", "--sort"])
    def test_an_unknown_column_is_refused_with_those_there_are(self, table: Home, flag: str) -> None:
        said = table.call("list", flag, "nothere", code=2).stderr
        assert said.startswith("scheduler: there is no column 'nothere'; there are id, ")
        assert "lr" in said


def test_a_listed_run_goes_on_once_its_scheduler_is_back(several: Home) -> None:
    several.call("resume", "r3", "-d", code=0)
    runs = blocks(several.call("list", code=0).stdout)
    assert "its scheduler has ended" not in "".join(runs[0])
    (several.root / "go").touch()
    wait_until(lambda: several.states("3") == ["succeeded"], PATIENCE)
