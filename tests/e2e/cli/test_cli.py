"""The command line as users type it: each verb, each format, what runs when, and what is refused."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.main import ELSEWHERE, VERBS
from scheduler.core.causes import Action
from scheduler.core.events import Asked
from scheduler.core.reporting.columns import COLUMNS
from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault
from tests.support.journals import append_event
from tests.support.killing import ROOT, Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NOTE = "sh -c 'echo $SCHEDULER_NAME >>order'"
UNTIL_GO = "sh -c 'touch here; until [ -e go ]; do sleep 0.01; done'"
CROWD = """\
sh -c 'touch alive.$$; ls | grep -c ^alive >>crowd; sleep 0.1; rm alive.$$'"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Yield a home in which a run has ended: one success with a result and one failure."""
    made = Home(tmp_path_factory.mktemp("done"))
    result = """sh -c 'printf %s "{\\"loss\\": 0.25, \\"best\\": true}" >"$SCHEDULER_RESULT"; exit 0'"""
    made.write(
        "jobs.csv", "Command,Color,id,Priority", [result, "=1+1", "mine", 2], ["sh -c 'exit 7'", "red|blue", "", 1]
    )
    made.call("run", "jobs.csv", "--name", "pair", code=1)
    yield made
    made.end()


def runs_left(home: Home) -> list[str]:
    """Return the names of the run directories."""
    return sorted(os.listdir(home.state / "runs")) if (home.state / "runs").exists() else []


def lines(home: Home, name: str) -> list[str]:
    return (home.root / name).read_text().splitlines()


ABRIDGED = ("run", "grid")


class TestVerbs:
    @pytest.mark.parametrize("verb", VERBS)
    def test_help_has_an_example(self, done: Home, verb: str) -> None:
        said = done.call(verb, "--help-all" if verb in ABRIDGED else "--help", code=0).stdout
        assert f"example: scheduler {verb}" in said
        assert "--json" in said

    @pytest.mark.parametrize("verb", ABRIDGED)
    def test_help_of_a_verb_with_many_flags_shows_the_ones_that_matter_and_the_way_to_all(
        self, done: Home, verb: str
    ) -> None:
        said = done.call(verb, "--help", code=0).stdout
        assert f"example: scheduler {verb}" in said
        shown = {word.rstrip(",") for word in said.split() if word.startswith("--")}
        assert {"--dry-run", "--detach", "--jobs", "--devices", "--gpus", "--memory", "--stop-when"} <= shown
        assert "--help-all" in shown
        assert "--margin" not in said
        assert len(said.splitlines()) <= 50
        assert "--margin" in done.call(verb, "--help-all", code=0).stdout

    def test_help_after_the_command_is_the_commands_own(self, home: Home) -> None:
        home.write("one.csv", "n", "1")
        home.call("run", "one.csv", "--", "sh", "-c", "true", "--help", "{n}", code=0)

    def test_scheduler_alone_names_the_devices_the_latest_run_and_five_lines_to_try(self, done: Home) -> None:
        said = done.call(code=0).stdout
        assert "none found: tasks share the host's RAM" in said or re.search(r"^GPUs +\d+ x", said, re.MULTILINE)
        assert "latest  run 1  jobs.csv: not running; 1 succeeded, 1 failed" in said
        to_try = [line.split()[:2] for line in said.splitlines() if line.startswith("  scheduler ")]
        assert to_try == [["scheduler", verb] for verb in ("run", "results", "run", "grid", "submit")]
        assert len(said.splitlines()) <= 14

    def test_scheduler_alone_says_what_to_try_where_nothing_has_run(self, home: Home) -> None:
        said = home.call(code=0).stdout
        assert "scheduler run --sample" in said
        assert "latest" not in said

    def test_scheduler_alone_on_a_damaged_state_says_so_and_what_to_try(self, home: Home) -> None:
        home.state.write_text("no directory")
        said = home.call(code=0).stdout
        assert "scheduler run --sample" in said

    @pytest.mark.parametrize("verb", ["frobnicate", "ru", "--frob", "--resume", "-x", "run.csv"])
    def test_an_unknown_verb_is_refused_in_one_line(self, done: Home, verb: str) -> None:
        assert (
            done.call(verb, code=2).stderr
            == f"scheduler: there is no verb {verb!r}: scheduler --help lists the verbs\n"
        )

    @pytest.mark.parametrize("verb", ELSEWHERE)
    def test_a_verb_of_another_tool_is_answered_with_the_verb_to_use(self, done: Home, verb: str) -> None:
        refused = done.call(verb, "12", code=2)
        assert refused.stderr == f"scheduler: there is no verb {verb!r}: use scheduler {ELSEWHERE[verb]}\n"
        assert ELSEWHERE[verb].split()[0] in VERBS

    @pytest.mark.parametrize("flags", ["--dev host", "--slot 2", "--js", "--dry", "--numb 3"])
    def test_flags_are_not_abbreviated(self, done: Home, flags: str) -> None:
        assert "unrecognized arguments" in done.call("run", "jobs.csv", *flags.split(), code=2).stderr

    @pytest.mark.parametrize("verb", ["results", "stop", "pause", "resume"])
    def test_a_task_in_place_of_a_run_is_refused_with_the_name_of_its_run(self, done: Home, verb: str) -> None:
        assert "r1.1 is a task; its run is written r1\n" in done.call(verb, "r1.1", code=2).stderr

    def test_no_run_is_no_traceback(self, home: Home) -> None:
        for verb in ("list", "results", "resume"):
            assert "there is no run yet" in home.call(verb, code=2).stderr
            assert "there is no run 7" in home.call(verb, "r7", code=2).stderr
            assert "no run here is called 'x'" in home.call(verb, "x", code=2).stderr
        assert "no runs yet" in home.call("status", code=0).stdout


class TestLatestRun:
    def test_last_names_the_latest_run_where_a_run_is_asked_for(self, done: Home) -> None:
        for verb in ("results", "list"):
            said = done.call(verb, "last", "--json", code=0).stdout
            assert said == done.call(verb, "r1", "--json", code=0).stdout
        report = done.root / "report.html"
        done.call("report", "last", "-o", str(report), code=0)
        assert report.exists()


class TestResults:
    def test_results_json_has_format_run_and_tasks(self, done: Home) -> None:
        said = json.loads(done.call("results", "--json", code=0).stdout)
        assert said["format"] == 1
        assert said["run"]["number"] == 1
        assert said["run"]["states"] == {"succeeded": 1, "failed": 1}
        bad, good = said["tasks"]
        assert [*bad][: len(COLUMNS)] == list(COLUMNS)
        assert (good["state"], good["exit_code"], bad["state"], bad["exit_code"]) == ("succeeded", 0, "failed", 7)
        assert (bad["row"], bad["priority"], good["row"], good["priority"]) == (3, 1, 2, 2)
        assert (good["result.loss"], good["result.best"]) == (0.25, True)
        assert (good["Color"], good["file.id"]) == ("=1+1", "mine")
        assert good["log"] == str(done.state / f"runs/1/tasks/{good['id']}/1.log")

    def test_results_csv_has_the_columns_of_json_and_defuses_formulas(self, done: Home) -> None:
        bad, good = csv.DictReader(io.StringIO(done.call("results", "pair", "--csv", code=0).stdout))
        assert [*good] == [*COLUMNS, "Color", "file.id", "result.loss", "result.best"]
        assert (good["exit_code"], good["result.loss"], bad["exit_code"], bad["result.loss"]) == ("0", "0.25", "7", "")
        assert good["Color"] == "'=1+1"  # a spreadsheet would compute it

    def test_results_markdown_escapes_bars_in_cells(self, done: Home) -> None:
        table = done.call("results", "r1", "--md", code=0).stdout.splitlines()
        assert len(table) == 4
        columns = len(COLUMNS) + 4
        assert {line.replace("\\|", "").count("|") for line in table} == {columns + 1}

    def test_results_without_a_format_are_a_table(self, done: Home) -> None:
        assert "run 1: 2 tasks: 1 failed, 1 succeeded" in done.call("results", code=0).stdout

    def test_list_state_shows_only_tasks_in_these_states(self, done: Home) -> None:
        tasks = json.loads(done.call("list", "pair", "--state", "failed,oom", "--json", code=0).stdout)["tasks"]
        assert [task["exit_code"] for task in tasks] == [7]
        assert "the states are waiting, blocked, held" in done.call("list", "--state", "bogus", code=2).stderr

    def test_status_shows_an_ended_run(self, done: Home) -> None:
        said = json.loads(done.call("status", "--json", code=0).stdout)
        assert said["format"] == 1
        assert said["leases"] == []
        assert [(run["number"], run["over"], run["alive"]) for run in said["runs"]] == [(1, True, False)]
        assert "ended" in done.call("status", code=0).stdout

    def test_an_ended_run_is_shown_without_reading_its_events_until_more_are_added(self, home: Home) -> None:
        home.commands("true", "sh -c 'exit 3'")
        home.call("run", "jobs.csv", code=1)
        before = [json.loads(home.call(*verb, "--json", code=0).stdout)["runs"] for verb in (("runs",), ("status",))]
        assert [run["states"] for runs in before for run in runs] == [{"succeeded": 1, "failed": 1}] * 2
        path = home.state / "runs/1/journal.db"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as journal:
            journal.execute("DELETE FROM events WHERE seq < (SELECT max(seq) FROM events)")
        after = [json.loads(home.call(*verb, "--json", code=0).stdout)["runs"] for verb in (("runs",), ("status",))]
        assert after == before
        append_event(path, Asked(Action.RESUME))
        assert "cannot be read" in home.call("runs", code=0).stdout

    def test_status_shows_the_lease_of_a_running_task(self, home: Home) -> None:
        home.commands(UNTIL_GO)
        with home.start("run", "jobs.csv", "--memory", "300MiB"):
            wait_until((home.root / "here").exists, 30)
            lease = wait_until(lambda: json.loads(home.call("status", "--json", code=0).stdout)["leases"])[0]
            assert (lease["run"], lease["task"], lease["reserved"]) == ("1", home.tasks()[0]["id"], {"host": 300 << 20})
            (home.root / "go").touch()

    @fault(27)
    def test_views_name_a_damaged_run_and_show_the_others(self, home: Home) -> None:
        home.commands("true")
        for _ in range(2):
            home.call("run", "jobs.csv", code=0)
        journal = home.state / "runs/1/journal.db"
        journal.write_bytes(journal.read_bytes()[:5000])
        assert "is damaged" in home.call("results", "r1", code=1).stderr
        said = home.call("status", code=0).stdout
        assert "run 1 cannot be read" in said
        assert "1 succeeded" in said

    def test_results_that_are_not_flat_json_objects_are_left_out(self, home: Home) -> None:
        home.commands(
            'sh -c \'head -c 60000 /dev/zero | tr "\\0" "[" >"$SCHEDULER_RESULT"\'',
            'sh -c \'printf %s "{\\"half\\": \\"\\ud800\\"}" >"$SCHEDULER_RESULT"\'',
            "sh -c 'mkfifo \"$SCHEDULER_RESULT\"'",
            "sh -c 'mkdir \"$SCHEDULER_RESULT\"'",
            'sh -c \'printf "{\\"n\\": NaN, \\"k\\": 1}" >"$SCHEDULER_RESULT"\'',
        )
        home.call("run", "jobs.csv", code=0)
        told = [{k: v for k, v in task.items() if k.startswith("result.")} for task in home.tasks()]
        assert told == [{}, {}, {}, {}, {"result.n": None, "result.k": 1}]
        for how in ("--csv", "--md"):
            home.call("results", how, code=0)

    def test_verbs_succeed_in_an_encoding_that_lacks_a_letter(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Name", "true,größe😀")
        home.env["PYTHONIOENCODING"] = "latin-1"
        for verb in (["run", "jobs.csv"], ["results"], ["results", "--csv"], ["list"]):
            home.call(*verb, code=0, encoding="latin-1")

    @pytest.mark.parametrize("verb", ["list", "results --json", "status", "--help"])
    def test_views_name_an_output_device_that_is_full(self, done: Home, verb: str) -> None:
        with open("/dev/full", "w") as full:
            said = done.call(*verb.split(), code=1, stdout=full).stderr
        assert said.startswith("scheduler: the disk is full, or a quota is used up: free some space")


class TestRun:
    @contract("S3-27")
    def test_run_exits_with_0_if_all_tasks_succeed_1_if_one_fails_and_2_for_bad_input(self, home: Home) -> None:
        home.call("run", home.commands("true", "true"), code=0)
        home.call("run", home.commands("true", "false"), code=1)
        home.call("run", home.write("jobs.csv", "Command,Priority", "true,first"), code=2)
        home.call("run", "jobs.csv", "--num", "none", code=2)

    @contract("S3-28")
    def test_a_header_alone_is_nothing_to_run(self, home: Home) -> None:
        assert "nothing to run" in home.call("run", home.commands(), code=0).stdout
        assert runs_left(home) == []

    @pytest.mark.parametrize("row", ["no-such-program", "true,,", "'true"])
    def test_a_refused_list_leaves_no_run(self, home: Home, row: str) -> None:
        home.write("jobs.csv", "Command", "true", row)
        assert "jobs.csv, row 3" in home.call("run", "jobs.csv", code=2).stderr
        assert runs_left(home) == []
        assert home.living() == []

    def test_a_refused_list_uses_up_no_number(self, home: Home) -> None:
        home.call("run", home.commands("no-such-program"), code=2)
        home.call("run", home.commands("true"), code=0)
        assert [task["id"] for task in home.tasks("1")] == [0]

    def test_a_need_above_the_machine_is_refused_with_both_numbers(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Memory", "true,9GiB")
        refused = home.call("run", "jobs.csv", "--devices", "host:4GiB", code=2).stderr
        assert "row 2, column Memory: needs 9.0GiB" in refused
        assert "4.0GiB" in refused
        assert runs_left(home) == []

    def test_a_list_is_refused_where_leases_cannot_be_written(self, home: Home) -> None:
        home.leases.write_text("a file")
        assert str(home.leases) in home.call("run", home.commands("true"), code=1).stderr
        assert runs_left(home) == []

    def test_verbs_name_the_flag_state_where_the_state_cannot_be_written(self, home: Home) -> None:
        home.state.write_text("a file")
        for verb in (["run", home.commands("true")], ["status"], ["list"], ["results"], ["resume"]):
            assert "--state DIR" in home.call(*verb, code=1).stderr

    def test_the_flag_state_comes_before_the_variable(self, home: Home) -> None:
        home.call("run", home.commands("true"), "--state", str(home.root / "elsewhere"), code=0)
        assert (home.root / "elsewhere/runs/1/journal.db").is_file()
        assert not home.state.exists()

    def test_run_json_prints_results_on_stdout_and_all_else_on_stderr(self, home: Home) -> None:
        done = home.call("run", home.commands("true", "false"), "--json", code=1)
        assert [task["exit_code"] for task in json.loads(done.stdout)["tasks"]] == [0, 1]
        assert "run 1" in done.stderr

    def test_a_dry_run_starts_nothing_and_leaves_nothing(self, home: Home) -> None:
        said = home.call("run", home.commands("touch here", "touch here"), "--dry-run", code=0).stdout
        assert "2 tasks" in said
        assert "would start now" in said
        assert not (home.root / "here").exists()
        assert runs_left(home) == []

    def test_a_misspelled_column_is_refused_unless_the_user_means_it(self, home: Home) -> None:
        listing = home.write("jobs.csv", "Command,Memroy", "true,8GiB")
        for verb in (["run"], ["run", "--dry-run"], ["simulate", "--assume", "1min,1GiB", "--devices", "host:8GiB"]):
            assert "did you mean Memory?" in home.call(*verb, listing, code=2).stderr
            home.call(*verb, listing, "--my-columns", "Memroy", code=0)
        assert len(runs_left(home)) == 1

    def test_a_python_file_in_place_of_a_list_is_refused_with_the_verb_for_it(self, home: Home) -> None:
        home.write("train.py", "print(1)")
        said = home.call("run", "train.py", code=2).stderr
        assert said.startswith("scheduler: train.py: it is a Python file, not a list of tasks: scheduler exec -- ")

    def test_a_command_in_place_of_a_list_is_refused_with_the_verb_for_it(self, home: Home) -> None:
        said = home.call("run", "sh train.sh --lr 0.1", code=2).stderr
        cure = "scheduler exec 'sh train.sh --lr 0.1' runs it as one task"
        assert said == f"scheduler: sh train.sh --lr 0.1: it is a command, not a list of tasks: {cure}\n"
        assert "cannot be read: no such file" in home.call("run", "my list.csv", code=2).stderr

    def test_exec_refuses_shell_syntax_in_a_quoted_command(self, home: Home) -> None:
        said = home.call("exec", "echo a > b", code=2).stderr
        assert said.startswith("scheduler: > is shell syntax, and a command is not read by a shell: for a shell write ")
        assert not (home.root / "b").exists()

    def test_a_buffer_that_leaves_nothing_is_refused(self, home: Home) -> None:
        said = home.call("run", home.commands("true"), "--buffer", "900TiB", code=2).stderr
        assert said.startswith("scheduler: --buffer 921600.0GiB: the largest device (host) has ")
        assert said.endswith(", so nothing is left to reserve: lower it\n")
        assert runs_left(home) == []

    def test_a_removed_current_directory_is_named_by_every_verb(self, home: Home) -> None:
        listing = str(home.root / home.commands("true"))
        home.command = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "-", *home.command]
        for words in (("run", listing), ("run", "../jobs.csv"), ("exec", "--", "true")):
            said = home.call(*words, code=1).stderr
            assert said == "scheduler: the current directory was removed: cd to one that exists\n"

    def test_run_sample_unpacks_the_sample_into_the_current_directory(self, home: Home) -> None:
        said = home.call("run", "--sample", "--dry-run", code=0).stdout
        listing = home.root / "scheduler_samples/sweep.csv"
        assert f"{len(lines(home, str(listing))) - 1} tasks" in said
        assert runs_left(home) == []

    @contract("S3-19", "S3-D12")
    def test_ids_go_on_over_runs_and_begin_above_the_old_counter(self, home: Home) -> None:
        (home.root / "scheduler_files").mkdir()
        (home.root / "scheduler_files/counter.txt").write_text("41\n")
        home.commands("true", "true")
        ids = []
        for _ in range(2):
            home.call("run", "jobs.csv", code=0)
            ids += [task["id"] for task in home.tasks()]
        assert ids == [41, 42, 43, 44]

    @contract("S3-01", "S3-02")
    def test_scheduler_py_takes_the_flags_of_the_original_tool(self, home: Home) -> None:
        file = home.root / home.commands(*["true"] * 3)
        home.command = [sys.executable, str(ROOT / "scheduler.py")]
        for where in (home.root, ROOT):
            home.call("--csv", str(file), "--num", "2", "--mps", "False", code=0, cwd=where)
        home.command = [sys.executable, "-m", "scheduler"]
        for run in "12":
            assert [task["batch"] for task in home.tasks(run)] == [1, 1, 2]

    def test_parallel_runs_share_only_the_counter_of_ids(self, home: Home) -> None:
        home.commands(*["true"] * 10)
        schedulers = [home.start("run", "jobs.csv", "--new") for _ in range(4)]
        assert [scheduler.wait(60) for scheduler in schedulers] == [0] * 4
        ids = sorted(task["id"] for run in "1234" for task in home.tasks(run))
        assert ids == list(range(ids[0], ids[0] + 40))


class TestOrder:
    LIST = ("b,5", "a,1", "d,9", "c,0")

    @contract("S3-16")
    @pytest.mark.parametrize(
        ("order", "names"), [((), "abcd"), (("--order", "batch"), "abcd"), (("--order", "global"), "cabd")]
    )
    def test_priority_orders_within_batches_or_over_the_whole_list(
        self, home: Home, order: tuple[str, ...], names: str
    ) -> None:
        home.write("jobs.csv", "Command,Name,Priority", *[f"{NOTE},{row}" for row in self.LIST])
        home.call("run", "jobs.csv", "--num", "2", "-j", "1", *order, code=0)
        assert lines(home, "order") == [*names]

    @pytest.mark.parametrize(
        ("header", "row", "names"),
        [("Command", "sh order.sh", "cbad"), ("Directory,Executable,Filename,Args,Epochs", ".,sh,order.sh,,1", "dcba")],
    )
    def test_only_lists_with_five_columns_are_ranked_inside_batches_by_default(
        self, home: Home, header: str, row: str, names: str
    ) -> None:
        (home.root / "order.sh").write_text('echo "$SCHEDULER_NAME" >> order\n')
        fill = [f"{row},x,9" for _ in range(19)]
        rows = [f"{row},d,5", *fill, f"{row},c,0", f"{row},b,1", f"{row},a,2"]
        home.write("jobs.csv", f"{header},Name,Priority", *rows)
        home.call("run", "jobs.csv", "-j", "1", "--slots", "1", code=0)
        assert "".join(name for name in lines(home, "order") if name != "x") == names

    @pytest.mark.parametrize(
        ("flags", "most"),
        [("-j 1", 1), ("-j 2 --slots 9", 2), ("--slots 3", 3), ("--max-per-device 2 --max-load 9", 2)],
    )
    def test_limits_of_jobs_and_slots_bound_the_tasks_that_run_together(
        self, home: Home, flags: str, most: int
    ) -> None:
        home.commands(*[CROWD] * 12)
        home.call("run", "jobs.csv", *flags.split(), "--memory", "10MiB", code=0)
        assert max(int(line) for line in lines(home, "crowd")) == most

    def test_a_budget_is_kept(self, home: Home) -> None:
        home.commands(*[CROWD] * 8)
        home.call(
            "run",
            "jobs.csv",
            "--devices",
            "host:1GiB",
            "--buffer",
            "100MiB",
            "--memory",
            "400MiB",
            "--max-load",
            "9",
            code=0,
        )
        assert max(int(line) for line in lines(home, "crowd")) == 2

    def test_exclusive_tasks_run_alone(self, home: Home) -> None:
        home.commands(*[CROWD] * 4)
        home.call("run", "jobs.csv", "--memory", "10MiB", "--exclusive", "yes", "--max-load", "9", code=0)
        assert {*lines(home, "crowd")} == {"1"}


class TestAGrowingFile:
    def growing(self, home: Home, *more: str) -> None:
        """Start a run of one task that waits, and append `more` to its file."""
        home.commands(UNTIL_GO)
        self.scheduler = home.start("run", "jobs.csv")
        wait_until((home.root / "here").exists, 30)
        self.append(home, "".join(more))

    def append(self, home: Home, text: str) -> None:
        with open(home.root / "jobs.csv", "a") as file:
            file.write(text)

    def end(self, home: Home) -> list[str]:
        (home.root / "go").touch()
        self.scheduler.wait(30)
        return [f"{task['command']} {task['state']}" for task in home.tasks()[1:]]

    @contract("S3-18", "S3-D18")
    def test_appended_rows_join_the_run_as_a_new_batch(self, home: Home) -> None:
        self.growing(home, "true\n", "false\n")
        wait_until(lambda: "added    2 tasks as batch 2" in home.log(), 10)
        before = (home.root / "jobs.csv").read_bytes()
        assert self.end(home) == ["true succeeded", "false failed"]
        assert (home.root / "jobs.csv").read_bytes() == before

    def test_an_unended_row_joins_once_nothing_else_is_left(self, home: Home) -> None:
        self.growing(home, "true\nfal")
        wait_until(lambda: "added    1 task as batch 2" in home.log(), 10)
        self.append(home, "se")
        assert self.end(home) == ["true succeeded", "false failed"]

    @fault(50)
    def test_an_edit_is_named_and_changes_nothing(self, home: Home) -> None:
        self.growing(home)
        home.commands("true", "true")
        wait_until(lambda: "were accepted and have been" in home.log(), 10)
        assert self.end(home) == []

    def test_a_bad_row_is_named_and_waits_until_it_is_mended(self, home: Home) -> None:
        self.growing(home, "true\nno-such-program\n")
        wait_until(lambda: "row 4, column Command: 'no-such-program'" in home.log(), 10)
        assert self.end(home) == ["true succeeded"]
        never = "PATH (a Command is not read by a shell); this row and the rows after it were not accepted: "
        never += "correct it, then "
        assert f"{never}scheduler resume r1 runs them\n" in home.log()

    def test_a_bad_row_that_was_removed_again_is_not_named_at_the_end(self, home: Home) -> None:
        self.growing(home)
        before = (home.root / "jobs.csv").read_text()
        self.append(home, "no-such-program\n")
        wait_until(lambda: "row 3, column Command: 'no-such-program'" in home.log(), 10)
        (home.root / "jobs.csv").write_text(before)
        assert self.end(home) == []
        assert "were not accepted" not in home.log()

    def test_an_appended_row_that_fits_no_device_is_named_at_the_end(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Memory", [UNTIL_GO, "10MiB"])
        self.scheduler = home.start("run", "jobs.csv")
        wait_until((home.root / "here").exists, 30)
        self.append(home, "true,1000TiB\n")
        wait_until(lambda: "needs 1024000.0GiB" in home.log(), 10)
        assert self.end(home) == []
        assert "lower it; this row and the rows after it were not accepted" in home.log()

    def test_a_followed_file_that_is_removed_is_named(self, home: Home) -> None:
        self.growing(home)
        (home.root / "jobs.csv").unlink()
        wait_until(lambda: "it cannot be read any more" in home.log(), 10)
        assert self.end(home) == []

    def test_rows_appended_while_no_scheduler_runs_join_with_resume(self, home: Home) -> None:
        self.growing(home)
        self.scheduler.kill()
        self.scheduler.wait()
        self.append(home, "true\nfalse\n")
        self.scheduler = home.start("resume")
        assert self.end(home) == ["true succeeded", "false failed"]


class TestTaskEnvironment:
    SHOW = """\
import json, os, sys
json.dump([dict(os.environ), os.getcwd(), sys.stdin.read(), os.readlink("/proc/self/fd/0"), sys.argv[1:]],
          open(os.path.join(os.environ["SCHEDULER_TASK_DIR"], "told"), "w"))
"""

    @pytest.fixture(scope="class")
    @classmethod
    def told(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
        """Return the environment, directory, input and arguments of a task with every field set, and its result row."""
        home = Home(tmp_path_factory.mktemp("told"))
        (home.root / "work").mkdir()
        (home.root / "work/show.py").write_text(cls.SHOW)
        header = "Directory,Executable,Filename,Args,Epochs,Priority,Name,Env,HostMemory,Color"
        home.write("jobs.csv", header, "work,-1,show.py,--color {Color},4,1,shown,\"A=b C='d e'\",300MiB,red")
        home.call("run", "jobs.csv", code=0)
        (task,) = home.tasks()
        yield [*json.loads((home.state / f"runs/1/tasks/{task['id']}/told").read_text()), task, home]
        home.end()

    @contract("S3-25")
    def test_a_task_gets_the_documented_variables(self, told: list[Any]) -> None:
        env, task, home = told[0], told[5], told[6]
        folder = home.state / f"runs/1/tasks/{task['id']}"
        wanted = {
            "SCHEDULER_TASK_ID": str(task["id"]),
            "SCHEDULER_ATTEMPT": "1",
            "SCHEDULER_KEY": task["key"],
            "SCHEDULER_NAME": "shown",
            "SCHEDULER_RUN": "1",
            "SCHEDULER_PURPOSE": "run",
            "SCHEDULER_EPOCHS": "4",
            "SCHEDULER_HOST_MEMORY_BYTES": str(300 << 20),
            "SCHEDULER_GPU_INDICES": "",
            "CUDA_VISIBLE_DEVICES": "",
            "SCHEDULER_TASK_DIR": str(folder),
        }
        assert {name: env.get(name) for name in wanted} == wanted
        assert {"SCHEDULER_MEMORY_BYTES", "SCHEDULER_RESULT", "SCHEDULER_PROGRESS"} <= env.keys()

    def test_a_task_gets_the_variables_of_its_column_env(self, told: list[Any]) -> None:
        assert (told[0]["A"], told[0]["C"]) == ("b", "d e")

    @contract("S3-11")
    def test_a_task_runs_in_its_directory_with_epochs_and_id_appended(self, told: list[Any]) -> None:
        assert told[1] == str(told[6].root / "work")
        assert told[4][-2:] == ["--epochs=4", f"--id={told[5]['id']}"]

    def test_a_task_gets_an_empty_standard_input(self, told: list[Any]) -> None:
        assert told[2:4] == ["", "/dev/null"]

    def test_the_task_directory_keeps_the_files_of_the_task_and_none_of_the_shim(self, told: list[Any]) -> None:
        assert os.listdir(told[6].state / f"runs/1/tasks/{told[5]['id']}") == ["told"]
