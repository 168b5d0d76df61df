"""The command line as people use it: runs, lists, results, plans, old spellings, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cli.main import ELSEWHERE, VERBS
from tests.system.killing import ROOT, Home
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
HEADER = "Directory,Executable,Filename,Epochs,Priority"
UNTIL_GO = "sh -c 'touch here; until [ -e go ]; do sleep 0.01; done'"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "say.py").write_text("import sys; print(*sys.argv[1:])\n")
    yield made
    made.end()


def said(home: Home, task: dict[str, object]) -> str:
    return Path(str(task["log"])).read_text().strip()


class TestRun:
    def test_five_columns_become_the_old_command_line(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, [home.root, "-1", "say.py --lr 0.1", 10, 2], [".", "", "say.py", 3, 1])
        home.call("run", "jobs.csv", code=0)
        first, second = home.tasks()
        assert said(home, first) == "--epochs=3 --id=0"
        assert said(home, second) == "--lr 0.1 --epochs=10 --id=1"

    def test_batches_sort_inside_and_global_order_over_all(self, home: Home) -> None:
        for order, rows in (("batch", [3, 2, 4]), ("global", [4, 3, 2])):
            home.write("jobs.csv", "Command,Priority", "true,5", "true,4", "true,1")
            home.call("run", "jobs.csv", "--num", "2", "-j", "1", "--order", order, code=0)
            assert [t["row"] for t in sorted(home.tasks(), key=lambda t: t["started"])] == rows

    def test_ids_go_on_over_runs_and_start_above_the_old_counter(self, home: Home) -> None:
        (home.root / "scheduler_files").mkdir()
        (home.root / "scheduler_files/counter.txt").write_text("41\n")
        home.commands("true", "true")
        ids = []
        for _ in range(2):
            home.call("run", "jobs.csv", code=0)
            ids += [task["id"] for task in home.tasks()]
        assert ids == [41, 42, 43, 44]

    def test_own_columns_and_results_come_back(self, home: Home) -> None:
        report = 'sh -c \'echo "{\\""loss\\"": 0.25}" > "$SCHEDULER_RESULT"\''
        with open(home.root / "jobs.csv", "w", newline="") as file:
            csv.writer(file).writerows([["Command", "lr"], [report.replace('\\""', '\\"'), "007"]])
        home.call("run", "jobs.csv", code=0)
        (task,) = home.tasks()
        assert (task["lr"], task["result.loss"]) == ("007", 0.25)

    def test_what_a_task_is_told(self, home: Home) -> None:
        home.commands("env")
        home.call("run", "jobs.csv", "--memory", "300MiB", "--env", "MINE=a b", code=0)
        (task,) = home.tasks()
        told = dict(line.split("=", 1) for line in said(home, task).splitlines() if "=" in line)
        assert told["SCHEDULER_TASK_ID"] == str(task["id"])
        assert told["SCHEDULER_KEY"] == task["key"]
        assert told["SCHEDULER_MEMORY_BYTES"] == str(300 << 20)
        assert told["SCHEDULER_PURPOSE"] == "run"
        assert told["SCHEDULER_TASK_DIR"] == str(Path(task["log"]).parent)
        assert told["MINE"] == "a b"

    def test_stdin_is_empty_and_output_keeps_its_order(self, home: Home) -> None:
        home.commands("sh -c 'cat; echo one; echo two >&2; echo three'")
        home.call("run", "jobs.csv", code=0)
        assert said(home, home.tasks()[0]) == "one\ntwo\nthree"

    def test_slots_count_tasks_and_not_memory(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Memory", *["sleep 0.3,20GiB"] * 4)
        home.call("run", "jobs.csv", "--slots", "4", code=0)
        assert max(task["neighbours_max"] for task in home.tasks()) == 3
        assert "grew" not in home.log()

    def test_a_failed_task_is_tried_again_as_often_as_said(self, home: Home) -> None:
        home.commands("sh -c 'exit 3'", "true")
        answer = home.call("run", "jobs.csv", "--retries", "2", code=1)
        assert [task["attempts"] for task in home.tasks()] == [3, 1]
        assert "failed: task 0, row 2" in answer.stdout

    def test_a_timeout_is_one(self, home: Home) -> None:
        home.commands("sleep 60")
        home.call("run", "jobs.csv", "--timeout", "200ms", "--grace", "1s", code=1)
        assert home.states() == ["timeout"]

    def test_rows_appended_while_it_runs_join(self, home: Home) -> None:
        home.commands(UNTIL_GO)
        scheduler = home.start("run", "jobs.csv")
        wait_until((home.root / "here").exists, 30)
        with open(home.root / "jobs.csv", "a") as file:
            file.write("true\nsh -c 'echo half")
        wait_until(lambda: "added    1 task" in home.log(), 30)
        with open(home.root / "jobs.csv", "a") as file:
            file.write("; exit 0'\n")
        wait_until(lambda: home.log().count("added    1 task") == 2, 30)
        (home.root / "go").touch()
        assert scheduler.wait(30) == 0
        assert [(task["batch"], task["state"]) for task in home.tasks()] == [(n, "succeeded") for n in (1, 2, 3)]

    def test_an_edit_of_what_was_accepted_is_named_and_changes_nothing(self, home: Home) -> None:
        home.commands(UNTIL_GO, "true")
        scheduler = home.start("run", "jobs.csv", "-j", "1")
        wait_until((home.root / "here").exists, 30)
        home.commands(UNTIL_GO, "false")
        wait_until(lambda: "have been changed since" in home.log(), 30)
        (home.root / "go").touch()
        assert scheduler.wait(30) == 0
        assert home.states() == ["succeeded", "succeeded"]

    def test_a_need_that_nothing_can_hold_is_refused_with_the_numbers(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Memory", "true,900GiB")
        answer = home.call("run", "jobs.csv", code=2)
        assert "jobs.csv, row 2, column Memory: wants 900.0GiB, the largest device (host) has" in answer.stderr
        assert not list((home.state / "runs").iterdir())

    def test_a_dry_run_shows_and_starts_nothing(self, home: Home) -> None:
        home.commands("touch canary", "true")
        answer = home.call("run", "jobs.csv", "--dry-run", code=0)
        assert "2 tasks, 1 batch; nothing was started" in answer.stdout
        assert "would start now" in answer.stdout
        assert not (home.root / "canary").exists()
        assert not home.state.exists() or not list(home.state.glob("runs/*"))

    def test_the_sample_is_copied(self, home: Home) -> None:
        answer = home.call("run", "--sample", "--dry-run", code=0)
        assert "scheduler_samples/commands.csv: 40 tasks, 2 batches" in answer.stdout
        assert (home.root / "scheduler_samples/train_mlp.py").is_file()

    def test_without_a_file_it_says_what_it_looked_for(self, home: Home) -> None:
        assert "scheduler_files/commands_1.csv" in home.call("run", code=2).stderr

    @pytest.mark.parametrize(
        ("flags", "word"),
        [
            (["--num", "0"], "--num"),
            (["--num", "x"], "--num"),
            (["--header", "x"], "--header"),
            (["--devices", "gpu7"], "host"),
            (["--devices", "host:4"], "no unit"),
            (["--devices", "host:100MiB"], "buffer"),
            (["--memory", "8"], "--memory"),
            (["-j", "-1"], "-j"),
            (["--order", "x"], "--order"),
            (["--margin", "x"], "--margin"),
            (["--settle", "5"], "--settle"),
            (["--profile", "x"], "--profile"),
            (["--name", "12"], "--name"),
            (["--nu", "3"], "--nu"),
        ],
    )
    def test_a_bad_flag_is_named(self, home: Home, flags: list[str], word: str) -> None:
        home.commands("touch canary")
        answer = home.call("run", "jobs.csv", *flags, code=2)
        assert word in answer.stderr
        assert not (home.root / "canary").exists()


class TestOldSpellings:
    @pytest.mark.parametrize("launcher", [[str(ROOT / "scheduler.py"), "--csv"], ["-m", "scheduler", "run"]])
    def test_the_launchers(self, home: Home, launcher: list[str]) -> None:
        home.write("jobs.csv", HEADER, [home.root, "-1", "say.py", 1, 1])
        command = [sys.executable, *launcher, "jobs.csv", "--num", "1"]
        done = subprocess.run(command, cwd=home.root, env=home.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "1 task: 1 succeeded" in done.stdout

    def test_mps_off_is_off_and_on_is_not_there_yet(self, home: Home) -> None:
        home.commands("true")
        launcher = [sys.executable, str(ROOT / "scheduler.py"), "--csv", "jobs.csv"]
        codes = [
            subprocess.run(
                [*launcher, *flags], cwd=home.root, env=home.env, capture_output=True, check=False
            ).returncode
            for flags in (["--mps", "False"], ["--mps", "0"], ["--thr", "50"], ["-m"], ["--mps", "maybe"])
        ]
        assert codes == [0, 0, 0, 2, 2]


class TestLooking:
    def test_results_in_every_format(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Note", "true,=1+1", "sh -c 'exit 3',\"a|b\"")
        home.call("run", "jobs.csv", code=1)
        table = list(csv.DictReader(io.StringIO(home.call("results", "--csv", code=0).stdout)))
        assert [(row["exit_code"], row["Note"]) for row in table] == [("0", "'=1+1"), ("3", "a|b")]
        told = json.loads(home.call("results", "--json", code=0).stdout)
        assert told["format"] == 1
        assert told["run"]["states"] == {"succeeded": 1, "failed": 1}
        assert "a\\|b" in home.call("results", "--md", code=0).stdout
        assert "1 failed, 1 succeeded" in home.call("results", code=0).stdout

    def test_list_shows_a_state(self, home: Home) -> None:
        home.commands("true", "sh -c 'exit 3'")
        home.call("run", "jobs.csv", "--name", "mine", code=1)
        assert len(json.loads(home.call("list", "mine", "--state", "failed", "--json", code=0).stdout)["tasks"]) == 1
        assert "a task is" in home.call("list", "--state", "nonsense", code=2).stderr

    def test_status_shows_leases_and_runs(self, home: Home) -> None:
        home.commands(UNTIL_GO)
        scheduler = home.start("run", "jobs.csv", "--memory", "300MiB")
        wait_until((home.root / "here").exists, 30)
        told = json.loads(home.call("status", "--json", code=0).stdout)
        assert [lease["promised"] for lease in told["leases"]] == [{"host": 300 << 20}]
        assert [(run["number"], run["alive"]) for run in told["runs"]] == [(1, True)]
        assert "300MiB" in home.call("status", code=0).stdout
        (home.root / "go").touch()
        scheduler.wait(30)
        assert json.loads(home.call("status", "--json", code=0).stdout)["leases"] == []

    def test_runs_that_are_not_there(self, home: Home) -> None:
        for verb in ("results", "list", "resume"):
            assert "there is no run" in home.call(verb, code=2).stderr
            assert "scheduler" in home.call(verb, "77", code=2).stderr

    def test_the_command_alone_names_its_verbs_and_the_latest_run(self, home: Home) -> None:
        home.commands("true")
        home.call("run", "jobs.csv", code=0)
        answer = home.call(code=0).stdout
        assert all(verb in answer for verb in VERBS)
        assert "latest run 1  jobs.csv: not running; 1 succeeded" in answer

    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_has_an_example(self, home: Home, verb: str) -> None:
        assert f"example: scheduler {verb}" in home.call(verb, "--help", code=0).stdout

    @pytest.mark.parametrize("verb", [*ELSEWHERE, "nonsense"])
    def test_another_tools_verb_answers_with_ours(self, home: Home, verb: str) -> None:
        answer = home.call(verb, code=2)
        assert f"there is no verb '{verb}': scheduler " in answer.stderr
