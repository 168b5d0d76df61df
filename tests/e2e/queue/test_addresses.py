"""Runs as `r3`, rows of runs as `r3.12`, and runs that are given up in one step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE = 60.0
STAY = "trap 'echo stopped >> ended; exit 1' TERM; touch here; while :; do sleep 0.01; done"
"""A line for a shell that runs until it is stopped."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    yield made
    made.end()


@pytest.fixture
def over(home: Home) -> Home:
    """Return a home with two ended runs: tasks 0 to 2, by priority not in the order of the list, and task 3."""
    home.write("a.csv", "Command,Name,Priority", "true,first,3", "false,second,2", "true,third,1")
    home.call("run", "a.csv", "--keep-going", code=1)
    home.call("run", home.commands("false"), code=1)
    return home


class TestAddresses:
    def test_a_run_is_found_by_its_number_after_r(self, over: Home) -> None:
        assert over.call("list", "r1", code=0).stdout.startswith("run 1  a.csv")

    @pytest.mark.parametrize("verb", ["list", "results", "report", "resume", "stop", "top", "runs rm"])
    def test_a_number_alone_is_no_run_for_any_verb(self, over: Home, verb: str) -> None:
        said = over.call(*verb.split(), "2", code=2).stderr
        assert said == "scheduler: 2 is a task (of run r1); run 2 is written r2\n"
        assert "a number is a task; run 77 is written r77" in over.call(*verb.split(), "77", code=2).stderr

    def test_a_number_alone_is_a_task_for_verbs_that_take_both(self, over: Home) -> None:
        assert over.call("why", "1", code=0).stdout.startswith("task 1 failed")
        assert "run 1: 3 tasks" not in over.call("retry", "2", code=1).stdout
        over.call("run", over.commands("true", name="c.csv"), "--new", code=0)
        over.call("runs", "rm", "r1", code=0)
        assert "there is no task 2 in" in (said := over.call("why", "2", code=2).stderr)
        assert said.endswith("run 2 is written r2\n")

    def test_a_flag_that_takes_only_runs_takes_their_numbers(self, over: Home) -> None:
        assert over.call("why", "--run", "1", code=0).stdout == over.call("why", "r1", code=0).stdout

    def test_tasks_and_runs_may_be_named_together(self, over: Home) -> None:
        assert over.call("wait", "r2", "0-1", code=1).stdout.splitlines() == [
            "run 2  jobs.csv: task 3 failed",
            "run 1  a.csv: 1 succeeded, 1 failed",
        ]

    def test_a_name_is_a_task_where_only_one_has_it(self, over: Home) -> None:
        assert json.loads(over.call("logs", "second", "--json", code=0).stdout)["task"] == 1
        assert over.call("why", "second", code=0).stdout == over.call("why", "1", code=0).stdout
        assert "'absent' is not a task: write an id like 17" in over.call("cancel", "absent", code=2).stderr
        said = over.call("cancel", "r1", code=2).stderr
        assert "'r1' is not a task" in said
        assert said.endswith("; it is run 1, and scheduler stop r1 stops all of it\n")
        assert "no run and no task here is called 'absent': scheduler" in over.call("why", "absent", code=2).stderr
        over.call("run", "a.csv", "--new", "--keep-going", code=1)
        assert over.call("why", "second", code=2).stderr == (
            "scheduler: 2 tasks are called 'second': write the id: 1, 5\n"
        )

    def test_a_name_of_several_runs_is_refused_with_their_numbers(self, home: Home) -> None:
        for _ in range(2):
            home.call("run", home.commands("true"), "--name", "twice", "--new", code=0)
        said = home.call("results", "twice", code=2).stderr
        assert said == "scheduler: 2 runs are called 'twice': name one by its number: r2, r1\n"

    def test_a_number_after_r_is_a_run_where_it_is_a_task_too(self, over: Home) -> None:
        said = over.call("retry", "r1", code=0).stdout
        assert said.splitlines()[1] == "task 1: queued again (was failed)"

    def test_rows_of_a_run_count_in_the_order_of_its_list(self, over: Home) -> None:
        tasks = [json.loads(over.call("logs", f"r1.{row}", "--json", code=0).stdout)["task"] for row in (1, 2, 3)]
        assert tasks == [2, 1, 0]
        assert "task 1" in over.call("retry", "r1.2-3,3", code=1).stdout

    def test_last_is_the_newest_task_also_where_its_queue_is_older_than_another_run(self, home: Home) -> None:
        for newest in (("submit", "--hold", "--", "true"), ("run", home.commands("true"))):
            home.call(*newest, code=0)
        assert home.call("why", "last", code=0).stdout.startswith("task 1 ")
        home.call("submit", "--hold", "--", "true", code=0)
        assert home.call("why", "last", code=0).stdout.startswith("task 2 ")

    @pytest.mark.parametrize(
        ("word", "sentence"),
        [
            ("r1.4", "r1.4: run 1 has 3 tasks, r1.1 is the first"),
            ("r1.0", "r1.0: run 1 has 3 tasks, r1.1 is the first"),
            ("r7.1", "there is no run 7 in"),
            ("r7", "there is no run 7 in"),
        ],
    )
    def test_an_address_of_nothing_is_refused(self, over: Home, word: str, sentence: str) -> None:
        assert sentence in over.call("retry", word, code=2).stderr

    def test_a_run_may_not_be_called_like_a_number_of_a_run(self, home: Home) -> None:
        said = home.call("run", home.commands("true"), "--name", "r5", code=2).stderr
        why = "a name must not be a number, with or without r: numbers already name runs"
        assert said == f"scheduler: --name r5: {why}\n"


class TestAbandon:
    def start(self, home: Home) -> None:
        """Start a run with a task that stays and one that waits."""
        home.call("run", "-d", home.write("b.csv", "Command", [f'sh -c "{STAY}"'], ["touch never"]), "-j", "1", code=0)
        wait_until((home.root / "here").exists, PATIENCE)

    def gone(self, home: Home) -> None:
        """Check that the task was stopped, the other one cancelled, and that nothing is left."""
        wait_until(lambda: not home.living(), PATIENCE)
        assert home.states("1") == ["cancelled", "cancelled"]
        assert (home.root / "ended").read_text() == "stopped\n"
        assert not (home.root / "never").exists()

    def test_abandon_gives_up_a_run_whose_scheduler_lives(self, home: Home) -> None:
        self.start(home)
        said = home.call("stop", "r1", "--abandon", code=0).stdout
        assert said == "run 1  b.csv: abandoned: 1 running task being stopped, 1 task cancelled\n"
        self.gone(home)

    def test_abandon_gives_up_a_run_whose_scheduler_was_killed(self, home: Home) -> None:
        self.start(home)
        kill(home.scheduler())
        said = home.call("stop", "r1", "--abandon", code=0).stdout
        assert said == "run 1  b.csv: abandoned: 1 running task being stopped, 1 task cancelled\n"
        self.gone(home)
        assert (
            home.call("stop", "r1", "--abandon", code=0).stdout
            == "run 1  b.csv: abandoned: it had no unfinished task\n"
        )

    def test_abandon_gives_up_a_queue_and_the_next_submit_begins_a_new_one(self, home: Home) -> None:
        home.call("submit", STAY, code=0)
        wait_until((home.root / "here").exists, PATIENCE)
        kill(home.scheduler())
        home.call("stop", "queue", "--abandon", code=0)
        wait_until(lambda: not home.living(), PATIENCE)
        home.call("submit", "true", code=0)
        assert home.call("list", "queue", code=0).stdout.startswith("run 2  queue")
