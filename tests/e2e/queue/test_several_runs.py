"""`results` and `logs` of several tasks and runs, and the sentence about a run whose scheduler died."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE = 60.0
DIED = "its scheduler has ended: scheduler resume r1 continues it, scheduler stop r1 --abandon gives it up\n"
UNTIL = "sh -c 'until [ -e go ]; do sleep 0.05; done'"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Return a home with two ended runs: tasks 0 to 2, of which the second failed, and task 3."""
    made = Home(tmp_path_factory.mktemp("several"))
    made.write(
        "a.csv", "Command,Name,run",
        ["seq 30", "long", "x"], ["sh -c 'echo last words; exit 3'", "bad", "y"], ["printf no-newline", "short", "z"],
    )  # fmt: skip
    made.call("run", "a.csv", "--keep-going", code=1)
    made.call("run", made.write("b.csv", "Command,lr", "true,0.1"), code=0)
    yield made
    made.end()


class TestResults:
    def test_csv_of_several_runs_has_the_number_of_each_run_first(self, home: Home) -> None:
        text = home.call("results", "r1", "r2", "--csv", code=0).stdout
        rows = [*csv.DictReader(io.StringIO(text))]
        assert text.startswith("run,id,")
        assert [(row["run"], row["id"], row["file.run"], row["lr"]) for row in rows] == [
            ("1", "0", "x", ""), ("1", "1", "y", ""), ("1", "2", "z", ""), ("2", "3", "", "0.1"),
        ]  # fmt: skip

    def test_tables_of_several_runs_stand_one_below_the_other(self, home: Home) -> None:
        first, second = home.call("results", "r2", "r1", code=0).stdout.split("\n\n")
        assert (first.splitlines()[0], second.splitlines()[0]) == ("run 2  b.csv", "run 1  a.csv")
        assert [line.split()[0] for line in second.splitlines()[2:]] == ["0", "1", "2"]
        assert "compare the tasks of one run" in home.call("results", "r1", "r2", "--best", "lr", code=2).stderr

    def test_since_leaves_out_tasks_that_ended_before(self, home: Home) -> None:
        said = json.loads(home.call("results", "--since", "1h", "--json", code=0).stdout)["runs"]
        assert [(part["run"]["number"], len(part["tasks"])) for part in said] == [(2, 1), (1, 3)]
        assert home.call("results", "--since", "1ms", code=0).stdout == (
            "no task ended in the last 1ms: scheduler list shows unfinished tasks\n"
        )

    def test_a_limit_of_results_names_the_number_of_the_others(self, home: Home) -> None:
        others = "and 2 tasks more: scheduler results r1"
        assert home.call("results", "r1", "--limit", "1", code=0).stdout.splitlines()[2] == others
        assert others in home.call("results", "--since", "1h", "--limit", "1", code=0).stdout.splitlines()
        assert "more" not in home.call("results", "r1", "--limit", "3", code=0).stdout
        assert len(home.call("results", "r1", "--limit", "1", "--csv", code=0).stdout.splitlines()) == 2


class TestLogs:
    def test_logs_of_one_task_have_all_lines_or_the_last_ones(self, home: Home) -> None:
        assert home.call("logs", "0", code=0).stdout.split() == [str(one) for one in range(1, 31)]
        assert home.call("logs", "long", "-n", "2", code=0).stdout == "29\n30\n"
        assert home.call("logs", "2", "-n", "1", code=0).stdout == "no-newline"

    def test_logs_of_a_run_have_the_last_lines_of_each_task(self, home: Home) -> None:
        assert home.call("logs", "r1", "-n", "2", code=0).stdout == (
            "==> task 0  long  succeeded\n29\n30\n"
            "\n==> task 1  bad  failed\nlast words\n"
            "\n==> task 2  short  succeeded\nno-newline\n"
        )
        assert home.call("logs", "r1", code=0).stdout.startswith("==> task 0  long  succeeded\n21\n22\n")

    def test_logs_of_failed_tasks_leave_out_the_others(self, home: Home) -> None:
        assert home.call("logs", "r1", "--failed", code=0).stdout == "==> task 1  bad  failed\nlast words\n"
        assert home.call("logs", "--failed", code=0).stderr == "hint:   none of these tasks failed\n"
        (one,) = json.loads(home.call("logs", "0-3", "--failed", "--json", code=0).stdout)["tasks"]
        assert (one["run"], one["task"], one["state"], one["text"]) == (1, 1, "failed", "last words\n")


def test_every_view_says_first_that_the_scheduler_of_a_run_died(tmp_path: Path) -> None:
    home = Home(tmp_path)
    try:
        home.call("run", "-d", home.commands(UNTIL, UNTIL), "-j", "1", code=0)
        wait_until(lambda: home.states("1") == ["running", "waiting"], PATIENCE)
        kill(home.scheduler())
        assert home.call("list", code=0).stdout.splitlines(keepends=True)[1] == DIED
        assert home.call("results", code=0).stdout.startswith(DIED)
        assert home.call("why", "r1", code=0).stdout.splitlines(keepends=True)[1] == DIED
        for verb in ("status", "runs"):
            assert DIED.strip() in home.call(verb, code=0).stdout
        assert home.call("top", code=0).stderr == f"hint:   run 1 is not over, and {DIED}"
        home.call("stop", "r1", "--abandon", code=0)
        wait_until(lambda: not home.living(), PATIENCE)
        assert "its scheduler has ended" not in home.call("list", code=0).stdout
    finally:
        home.end()
