"""Metrics of real tasks, from their output and their result files to every view."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import Home

pytestmark = pytest.mark.slow

SCRIPT = """\
import json, os, sys, time
said = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
lr, bs = float(said["lr"]), int(said["bs"])
for epoch in range(1, 5):
    loss = (lr - 0.03) ** 2 * 100 + bs / 1000 + 1 / epoch
    if "pause" in said:
        time.sleep(float(said["pause"]))
    print(f"epoch {epoch}/4 loss {loss:.4f} val_acc {1 - loss / 4:.4f} throughput={bs}", flush=True)
"""
TABLE = "lr,bs\n0.01,64\n0.03,64\n0.1,64\n0.03,128\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Yield a home in which a sweep over two parameters has ended."""
    made = Home(tmp_path_factory.mktemp("swept"))
    (made.root / "train.py").write_text(SCRIPT)
    (made.root / "sweep.csv").write_text(TABLE)
    made.call("run", "sweep.csv", "--", sys.executable, "-u", "train.py", "--lr={lr}", "--bs={bs}", code=0)
    yield made
    made.end()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (made.root / "train.py").write_text(SCRIPT)
    yield made
    made.end()


def rows(home: Home, *more: str) -> list[dict[str, Any]]:
    """Return the tasks of the latest run, as `results --json` has them."""
    found: list[dict[str, Any]] = json.loads(home.call("results", "--json", *more, code=0).stdout)["tasks"]
    return found


def test_numbers_of_epoch_lines_are_columns_of_results(swept: Home) -> None:
    first = rows(swept)[0]
    assert first["result.loss"] == 0.354
    assert first["result.val_acc"] == 0.9115
    assert "result.throughput" not in first


def test_named_metrics_are_read_in_place_of_the_usual_ones(home: Home) -> None:
    (home.root / "one.csv").write_text("lr,bs\n0.1,32\n")
    words = [sys.executable, "train.py", "lr={lr}", "bs={bs}"]
    home.call("run", "one.csv", "--metrics", "throughput", "--", *words, code=0)
    assert {name: value for name, value in rows(home)[0].items() if name.startswith("result.")} == {
        "result.throughput": 32.0
    }


def test_lines_of_a_result_file_are_a_curve_of_which_the_last_one_is_the_result(home: Home) -> None:
    lines = r"""printf '{"id": 3, "x": 1}\n{"id": 4, "x": NaN}\n{"id": 5, "note": "<b>"}\n' >"$SCHEDULER_RESULT" """
    (home.root / "one.csv").write_text("note\nx\n")
    home.call("run", "one.csv", "--", "sh", "-c", lines.replace("{", "{{").replace("}", "}}"), code=0)
    first = rows(home)[0]
    assert (first["id"], first["result.id"], first["result.x"], first["result.note"]) == (0, 5, None, "<b>")


def test_result_that_is_too_large_is_named_in_its_row_in_why_and_in_the_log(home: Home) -> None:
    write = "import json, os; json.dump({'text': 'x' * 99_000}, open(os.environ['SCHEDULER_RESULT'], 'w'))"
    (home.root / "large.py").write_text(write)
    home.write("jobs.csv", "Command", [f"{sys.executable} large.py"])
    log = home.call("run", "jobs.csv", code=0).stdout
    said = "its result file was ignored: it has 97KiB, and one JSON object may have 64KiB"
    assert rows(home)[0]["reason"] == said
    assert said in home.call("why", "0", code=0).stdout
    assert said in log


def test_names_that_a_task_reports_are_bounded_and_without_control_characters(home: Home) -> None:
    (home.root / "hard.py").write_text(
        "import json, os\n"
        "said = {'\\x1b[31mred': 1, 'a\\nb': 2, '': 3, 'x' * 500: 4, 'id': 7, '<b>': 0.5}\n"
        "json.dump(said, open(os.environ['SCHEDULER_RESULT'], 'w'))\n"
    )
    home.write("jobs.csv", "Command", f"{sys.executable} hard.py")
    home.call("run", "jobs.csv", code=0)
    (row,) = rows(home)
    found = {name: value for name, value in row.items() if name.startswith("result.")}
    assert found == {
        "result.?[31mred": 1, "result.a?b": 2, f"result.{'x' * 64}": 4, "result.id": 7, "result.<b>": 0.5,
    }  # fmt: skip
    assert row["id"] != 7
    for form in ("--csv", "--md"):
        assert "\x1b" not in home.call("results", form, code=0).stdout
    assert "\x1b" not in home.call("list", "last", "-c", "id,result.?[31mred", code=0).stdout


class TestColumns:
    def test_tasks_are_called_by_their_script_and_what_varies(self, swept: Home) -> None:
        assert [row["name"] for row in rows(swept)] == [
            "train lr=0.01 bs=64", "train lr=0.03 bs=64", "train lr=0.1 bs=64", "train lr=0.03 bs=128",
        ]  # fmt: skip

    def test_plan_calls_tasks_as_their_run_does(self, swept: Home) -> None:
        plan = swept.call(
            "run", "sweep.csv", "--dry-run", "--", sys.executable, "-u", "train.py", "--lr={lr}", "--bs={bs}", code=0
        )
        assert "row     3  train lr=0.03 bs=64 " in plan.stdout

    def test_parameters_and_last_values_are_columns_of_list_and_results(self, swept: Home) -> None:
        for verb in ("list", "results"):
            lines = swept.call(verb, "r1", code=0).stdout.splitlines()
            header = next(line.split() for line in lines if line.startswith("id"))
            assert header[:7] == ["id", "name", "lr", "bs", "state", "val_acc", "loss"]
            task = next(line.split() for line in lines if line.split()[:1] == ["1"])
            assert task[:7] == ["1", "train", "0.03", "64", "succeeded", "0.9215", "0.314"]

    def test_metric_is_a_column_by_its_own_name(self, swept: Home) -> None:
        said = swept.call("list", "r1", "-c", "id,lr,val_acc", "--sort", "-val_acc", code=0).stdout.splitlines()
        assert [line.split()[0] for line in said[2:]] == ["1", "0", "3", "2"]
        said = swept.call("results", "--sort", "-result.loss", "--limit", "1", code=0).stdout.splitlines()
        assert said[1].split()[0] == "2"

    def test_arguments_that_vary_are_columns_too(self, home: Home) -> None:
        command = f"{sys.executable} -u train.py --lr={{}} --bs=8 --out=runs/{{}}"
        home.write("jobs.csv", "Command", *([command.format(lr, lr)] for lr in (0.1, 0.2)))
        home.call("run", "jobs.csv", code=0)
        assert [(row["name"], row["lr"]) for row in rows(home)] == [("train lr=0.1", "0.1"), ("train lr=0.2", "0.2")]

    def test_grid_is_named_by_its_parameters(self, home: Home) -> None:
        home.call(
            "grid", "--run", f"{sys.executable} train.py lr={{lr}} bs={{bs}}", "-p", "lr", "1", "2", "-p", "bs", "4"
        )
        assert sorted(row["name"] for row in rows(home)) == ["train lr=1", "train lr=2"]

    def test_row_of_five_columns_is_called_as_the_older_tools_call_it(self, home: Home) -> None:
        header = "Directory,Executable,Filename,Args,Epochs,Priority"
        home.write("jobs.csv", header, *([".", "-1", "train.py", f"--lr={lr} --bs=8", 1, 1] for lr in (1, 2)))
        home.call("run", "jobs.csv", "--append", "none", code=0)
        assert [row["name"] for row in rows(home)] == ["train --lr=1 --bs=8", "train --lr=2 --bs=8"]


class TestBest:
    def test_best_task_is_named_with_its_parameters(self, swept: Home) -> None:
        said = swept.call("results", "--best", "val_acc", code=0).stdout.splitlines()
        assert said[0].split() == ["id", "lr", "bs", "best", "val_acc", "step", "last", "state", "ran"]
        assert [line.split()[0] for line in said[1:5]] == ["1", "0", "3", "2"]
        assert said[-1] == "highest val_acc 0.9215 at step 4: train lr=0.03 bs=64 (task 1)"

    def test_an_unknown_goal_is_refused_with_the_goals_there_are(self, swept: Home) -> None:
        said = swept.call("results", "--best", "loss", "--goal", "low", code=2).stderr
        assert "(choose from min, max)" in said.replace("'", "")

    def test_lowest_loss_is_the_best_one_unless_the_goal_is_given(self, swept: Home) -> None:
        assert swept.call("results", "--best", "loss", code=0).stdout.splitlines()[-1].startswith("lowest loss 0.314")
        said = swept.call("results", "--best", "loss", "--goal", "max", code=0).stdout.splitlines()[-1]
        assert said == "highest loss 1.554 at step 1: train lr=0.1 bs=64 (task 2)"

    def test_best_tasks_as_data_are_in_order_with_the_step(self, swept: Home) -> None:
        found = rows(swept, "--best", "LOSS", "--limit", "2")
        assert [(row["id"], row["best"], row["best_step"]) for row in found] == [(1, 0.314, 4.0), (0, 0.354, 4.0)]

    def test_groups_have_the_best_and_the_mean_of_their_tasks(self, swept: Home) -> None:
        said = json.loads(swept.call("results", "--group-by", "lr", "--best", "loss", "--json", code=0).stdout)
        assert (said["metric"], said["goal"]) == ("loss", "min")
        assert said["groups"][0] == {
            "lr": "0.03", "tasks": 2, "best": 0.314, "mean": pytest.approx(0.346), "median": pytest.approx(0.346),
            "task": 1,
        }  # fmt: skip
        lines = swept.call("results", "--group-by", "bs", code=0).stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [["bs", "tasks"], ["64", "3"], ["128", "1"]]

    @pytest.mark.parametrize(("words", "sentence"), [
        (["--best", "bleu"], "there is no metric 'bleu': there are val_acc, loss"),
        (["--group-by", "nope"], "there is no column 'nope'; there are id,"),
        (["--goal", "min"], "--goal has an effect only with --best: add --best METRIC"),
        (["--best", "loss", "--sort", "id"], "leave --sort out"),
    ])  # fmt: skip
    def test_question_without_an_answer_is_refused_in_one_line(
        self, swept: Home, words: list[str], sentence: str
    ) -> None:
        done = swept.call("results", *words, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
