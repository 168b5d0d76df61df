"""`scheduler grid`: commands that are printed, written to a list, or run."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.older_tools.contracts import contract
from tests.support.killing import Home

pytestmark = pytest.mark.slow

GRID = ("echo {lr} {memory} | cat >> out", "-p", "lr", "0.1", "-1e-3", "-p", "memory", "low", "--sampling-mode", "grid")
ON_HOST = ("--devices", "host", "--slots", "4")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def test_grid_prints_one_command_on_each_line(home: Home) -> None:
    out = home.call("grid", *GRID, code=0).stdout
    assert out == "echo 0.1 low | cat >> out\necho -1e-3 low | cat >> out\n"


def test_grid_json_prints_a_list_of_json_lines(home: Home) -> None:
    out = home.call("grid", *GRID, "--json", code=0).stdout
    first = {"Command": "echo 0.1 low | cat >> out", "lr": "0.1", "memory": "low"}
    assert json.loads(out.splitlines()[0]) == first


def test_grid_run_has_its_parameters_in_the_results(home: Home) -> None:
    home.call("grid", *GRID, "--run", "--priority", "3", *ON_HOST, code=0)
    assert sorted((home.root / "out").read_text().splitlines()) == ["-1e-3 low", "0.1 low"]
    tasks = home.tasks()
    assert [(task["lr"], task["line"], task["priority"]) for task in tasks] == [
        ("0.1", "echo 0.1 low | cat >> out", 3),
        ("-1e-3", "echo -1e-3 low | cat >> out", 3),
    ]


def test_grid_submit_prints_ids_and_has_its_parameters_in_the_results(home: Home) -> None:
    home.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    assert home.call("submit", "--", "true", code=0).stdout == "0\n"
    assert home.call("grid", *GRID, "--submit", "--priority", "3", code=0).stdout == "1-2\n"
    home.call("wait", "0-2", code=0)
    assert sorted((home.root / "out").read_text().splitlines()) == ["-1e-3 low", "0.1 low"]
    assert [(task["lr"], task["priority"]) for task in home.tasks("queue")[1:]] == [("0.1", 3), ("-1e-3", 3)]


def test_grid_submit_json_names_the_queue_its_run_and_the_tasks(home: Home) -> None:
    home.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    said = home.call("grid", "echo {a}", "-p", "a", "1", "2", "--submit", "--queue", "night", "--json", code=0).stdout
    assert json.loads(said) == {"format": 1, "run": 1, "queue": "night", "tasks": [0, 1]}


def test_grid_submit_that_the_queue_refuses_names_the_flag_and_uses_no_id(home: Home) -> None:
    home.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    said = home.call("grid", "echo {a}", "-p", "a", "1", "2", "--submit", "--memory", "900TiB", code=2).stderr
    assert said.startswith("scheduler: --memory: needs 921600.0GiB; the largest device (host) has ")
    assert home.call("submit", "--", "true", code=0).stdout == "0\n"


def test_an_empty_grid_submits_nothing_and_says_so(home: Home) -> None:
    done = home.call("grid", "echo {a}", "-p", "a", "1", "--n-samples", "0", "--submit", code=0)
    assert (done.stdout, done.stderr) == ("", "hint:   nothing was submitted: the grid has no task\n")
    assert not [*home.state.glob("runs/*")]


@contract("H-10")
def test_a_grid_command_of_several_lines_is_one_task(home: Home) -> None:
    home.call("grid", "echo {a} >> out\necho {a}{a} >> out", "-p", "a", "1", "--run", *ON_HOST, code=0)
    assert (home.root / "out").read_text() == "1\n11\n"
    assert len(home.tasks()) == 1


def test_grid_run_with_a_failed_task_exits_with_1(home: Home) -> None:
    done = home.call("grid", "exit {a}", "-p", "a", "0", "3", "--run", *ON_HOST, code=1)
    assert "1 failed, 1 succeeded" in done.stdout


def test_grid_run_tries_all_commands_that_fail_alike(home: Home) -> None:
    home.call("grid", "echo no; exit {a}", "-p", "a", *["1"] * 8, "--run", *ON_HOST, code=1)
    assert home.states() == ["failed"] * 8


def test_grid_out_writes_a_list_that_runs(home: Home) -> None:
    said = home.call("grid", *GRID, "--out", "f.csv", code=0).stdout
    assert said == "f.csv: 2 rows written; scheduler run f.csv runs the list\n"
    home.call("run", "f.csv", *ON_HOST, code=0)
    assert sorted((home.root / "out").read_text().splitlines()) == ["-1e-3 low", "0.1 low"]
    assert [task["lr"] for task in home.tasks()] == ["0.1", "-1e-3"]


def test_grid_out_adds_a_shell_only_where_one_is_needed(home: Home) -> None:
    home.call("grid", "touch {a}", "-p", "a", "x", "{id}", "--sampling-mode", "grid", "--out", "f.csv", code=0)
    with open(home.root / "f.csv", newline="") as file:
        assert [row["Command"] for row in csv.DictReader(file)] == ["touch x", "/bin/sh -c 'touch {{id}}'"]
    home.call("run", "f.csv", *ON_HOST, code=0)
    assert (home.root / "{id}").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("p", "-p", "a"), "-p a: no values given"),
        (("p {a}", "-p", "a", "1", "--memory", "4GiB"), "--memory has an effect only with --run or --submit: add one"),
        (("p {a}", "-p", "a", "1", "--queue", "q"), "--queue has an effect only with --submit: add --submit"),
        (("p {a}", "-p", "a", "1", "--run", "--queue", "q"), "--queue has an effect only with --submit: add --submit"),
        (("p {a}", "-p", "a", "1", "--submit", "-j", "2"), "-j has an effect only with --run: add --run"),
        (("p {a}", "-p", "a", "1", "--submit", "--queue", "7"), "--queue 7: write a name"),
        (("p {a}", "-p", "a", "1", "--submit", "--memory", "4"), "--memory: '4' has no unit"),
        (("p {a}", "-p", "a", "1", "--submit", "--run"), "--run runs the commands here and --submit gives them to"),
        (("p {a}", "-p", "a", "1", "--submit", "--out", "f.csv"), "--out writes a list and --submit submits its rows"),
        (("p {a}", "-p", "a", "1", "--dryrun", "--run"), "-p a: '--dryrun' is no flag of grid"),
        (("p {a}", "-p", "a", "1", "--run", "--out", "f.csv"), "--out writes a list and --run runs it"),
        (("p {a}", "-p", "a", "1", "--json", "--out", "f.csv"), "--json prints the commands and --out writes them"),
        (("p {a}", "-p", "a", "1", "--out", "there.csv"), "there.csv: it exists already"),
        (("p {a}", "-p", "a", "1", "--out", "no/f.csv"), "cannot be written (no such file or directory)"),
        (("p {a}", "-p", "a", "1", "--out", "there.csv/f.csv"), "cannot be written (not a directory)"),
        (("p {a}", "-p", "a", "1", "--run", "--gpus", "2", "--devices", "host"), "needs 2 GPUs"),
        (("p {a}", "-p", "a", "1", "--run", "--memory", "4"), "write 4GiB or 4MiB"),
        (("p {a}", "-p", "a", "1", "--run", "--devices", "host", "--mps"), "--mps: this run has no GPU"),
        (("p {a}", "--mps", "-p", "a", "1", "--run", "--devices", "host"), "--mps: this run has no GPU"),
    ],
)
def test_grid_refuses_bad_arguments_in_one_sentence(home: Home, words: tuple[str, ...], said: str) -> None:
    (home.root / "there.csv").write_text("mine")
    done = home.call("grid", *words, code=2)
    assert said in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert (home.root / "there.csv").read_text() == "mine"


def test_grid_value_that_begins_with_two_minus_signs_follows_a_blank(home: Home) -> None:
    assert home.call("grid", "train {amp}", "-p", "amp", " --amp", code=0).stdout == "train  --amp\n"
