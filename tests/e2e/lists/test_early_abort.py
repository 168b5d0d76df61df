"""A list whose rows all fail alike stops before all of it has failed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import scheduler
from scheduler import Task
from tests.support.killing import ROOT, Home

pytestmark = pytest.mark.slow

SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
for name in ("--epochs", "--id", "--lr"):
    parser.add_argument(name)
parser.parse_args()
"""
UNKNOWN = "train.py: error: unrecognized arguments: --rate"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    yield made
    made.end()


def listing(home: Home, number: int, argument: str = "--rate") -> str:
    """Write a list of this many rows, each with another value of an argument."""
    header = "Directory,Executable,Filename,Epochs,Priority"
    return home.write("jobs.csv", header, *[f".,-1,train.py {argument} 0.{row},2,0" for row in range(number)])


def mend(home: Home) -> None:
    (home.root / "train.py").write_text(SCRIPT.replace("--lr", "--rate"))


def counts(home: Home, *run: str) -> dict[str, int]:
    return dict(Counter(home.states(*run)))


class TestFailuresFromTheFirstRowOn:
    def test_a_list_of_300_failing_rows_stops_after_five_and_the_running_ones(self, home: Home) -> None:
        done = home.call("run", listing(home, 300), "-j", "3", "--profile", "live", code=1)
        started = sum(task["attempts"] for task in home.tasks())
        assert 5 <= started <= 5 + 3
        assert counts(home) == {"failed": started, "waiting": 300 - started}
        assert "the first 5 tasks that ended all failed within a minute with the same error" in done.stdout
        assert UNKNOWN in done.stdout
        assert f"    command  {sys.executable} train.py --rate 0." in done.stdout
        assert f"    log      {home.state}/runs/1/tasks/" in done.stdout
        assert "scheduler resume r1 --keep-going" in done.stdout
        assert "the first 5 tasks that ended" in home.log()

    def test_failed_probes_stop_a_list(self, home: Home) -> None:
        home.call("run", listing(home, 40), "-j", "2", "--profile", "probe", code=1)
        assert counts(home)["failed"] <= 5 + 2

    def test_resume_runs_the_rest_once_the_script_is_corrected(self, home: Home) -> None:
        home.call("run", listing(home, 10), "-j", "1", code=1)
        assert counts(home) == {"failed": 5, "waiting": 5}
        mend(home)
        home.call("resume", code=1)
        assert counts(home) == {"failed": 5, "succeeded": 5}

    def test_an_uncorrected_list_stops_again_after_resume_unless_keep_going_is_given(self, home: Home) -> None:
        home.call("run", listing(home, 16), "-j", "1", code=1)
        home.call("resume", code=1)
        assert counts(home) == {"failed": 10, "waiting": 6}
        home.call("resume", "--keep-going", code=1)
        assert counts(home) == {"failed": 16}

    def test_keep_going_runs_all_failing_rows(self, home: Home) -> None:
        home.call("run", listing(home, 8), "--keep-going", code=1)
        assert counts(home) == {"failed": 8}

    def test_scheduler_py_runs_all_failing_rows(self, home: Home) -> None:
        listing(home, 8)
        home.command = [sys.executable, str(ROOT / "scheduler.py")]
        home.call("--csv", "jobs.csv", code=1)
        home.command = [sys.executable, "-m", "scheduler"]
        assert counts(home) == {"failed": 8}

    def test_rows_that_fail_with_different_lines_all_run(self, home: Home) -> None:
        (home.root / "fail.py").write_text("import sys; raise KeyError(chr(65 + int(sys.argv[1])))")
        home.commands(*[f"{sys.executable} fail.py {row}" for row in range(7)])
        home.call("run", "jobs.csv", code=1)
        assert counts(home) == {"failed": 7}

    def test_a_program_that_cannot_be_started_stops_a_list(self, home: Home) -> None:
        (home.root / "broken").write_text("#!/no/such/interpreter\n")
        (home.root / "broken").chmod(0o755)
        home.commands(*[f"./broken {row}" for row in range(8)])
        said = home.call("run", "jobs.csv", "-j", "1", code=1).stdout
        assert counts(home) == {"failed": 5, "waiting": 3}
        assert "the first 5 tasks that ended" in said


class TestLaterRows:
    def test_a_list_whose_later_rows_fail_alike_stops_and_retry_and_resume_run_them(self, home: Home) -> None:
        """A file that all rows need is away for a while."""
        (home.root / "data").touch()
        home.commands(*["cat data"] * 3, "rm data", *["cat data"] * 56)
        said = home.call("run", "jobs.csv", "-j", "1", code=1).stdout
        assert counts(home) == {"succeeded": 4, "failed": 20, "waiting": 36}
        assert "the last 20 tasks that ended all failed within a minute with the same error" in said
        assert "scheduler retry --run r1" in said
        (home.root / "data").touch()
        home.call("retry", "--run", "1", code=0)
        home.call("resume", code=0)
        assert counts(home) == {"succeeded": 60}


class TestMaxFailures:
    def test_max_failures_stops_a_list_at_this_many_failed_tasks(self, home: Home) -> None:
        home.commands("true", "false", "sh -c 'exit 3'", "true", "false", "true")
        said = home.call("run", "jobs.csv", "-j", "1", "--max-failures", "2", code=1).stdout
        assert home.states() == ["succeeded", "failed", "failed", "waiting", "waiting", "waiting"]
        assert "3 tasks left waiting: 2 tasks failed, as many as --max-failures allows" in said
        home.call("resume", code=1)
        assert home.states() == ["succeeded", "failed", "failed", "succeeded", "failed", "succeeded"]

    @pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
    def test_max_failures_refuses_a_text_that_is_no_count(self, home: Home, text: str) -> None:
        said = home.call("run", home.commands("true"), f"--max-failures={text}", code=2).stderr
        assert f"--max-failures {text}: give a whole number of at least 1" in said


class TestFromPython:
    @pytest.fixture(autouse=True)
    def _own_leases(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))

    def test_python_runs_of_a_file_stop_early_and_runs_of_tasks_do_not(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.csv").write_text("Command\n" + "sh -c 'echo wrong; exit 1'\n" * 7)
        state = str(tmp_path / "state")
        assert scheduler.run(tmp_path / "jobs.csv", state=state, jobs_at_once=1).counts == {"failed": 5, "waiting": 2}
        again = scheduler.run(tmp_path / "jobs.csv", state=state, new=True, keep_going=True)
        assert again.counts == {"failed": 7}
        assert scheduler.run([Task(command="sh -c 'echo wrong; exit 1'")] * 7, state=state).counts == {"failed": 7}


class TestOrderHint:
    def test_better_priorities_in_later_batches_get_a_hint_when_they_wait(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Priority", "true,2", "true,2", "true,1", "true,1", "true,1")
        rows = "3 rows with priority 1 are in later batches than rows with a worse priority"
        hint = f"hint:   {rows}: --order global starts them first"
        assert hint in home.call("run", "jobs.csv", "--num", "2", code=0).stdout.splitlines()
        assert hint in home.call("run", "jobs.csv", "--num", "2", "--dry-run", code=0).stdout.splitlines()
        for flags in (["--order", "global"], ["--num", "5"]):
            assert "in later batches" not in home.call("run", "jobs.csv", *flags, code=0).stdout
