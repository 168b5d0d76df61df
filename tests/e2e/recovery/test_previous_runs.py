"""A list that is started again: it is run once, and on request only what is not done."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import scheduler
from scheduler import StateError, UsageError
from scheduler.app.run.previous_runs import PreviousRuns, RerunOptions
from scheduler.core.tasks.fields import RowForm
from scheduler.runtime.paths import StatePaths
from scheduler.store.run.counter import Counter
from scheduler.store.run.run_store import SqliteRunStore
from tests.support.killing import Home, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL_GO = "sh -c 'touch here; until [ -e go ]; do sleep 0.01; done'"
NOTE = """sh -c 'echo "$0" >>order; test "$0" != bad || test -e mended'"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def noted(home: Home) -> list[str]:
    """Return the words that the rows have written since the last call, in no order."""
    path = home.root / "order"
    words = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(words)


def listing(home: Home, *rows: str) -> str:
    """Write a list of rows `NAME,Memory` that record their names as they run; `bad` fails until a file exists."""
    cells = [(f"{NOTE} {name}", rest) for name, _, rest in (row.partition(",") for row in rows)]
    return home.write("jobs.csv", "Command,Memory", *cells)


def left_unfinished(home: Home) -> None:
    """Leave run 1 of jobs.csv without a scheduler and with one row waiting."""
    home.commands("false", "true")
    home.call("run", "jobs.csv", "-j", "1", "--max-failures", "1", code=1)
    assert home.states("1") == ["failed", "waiting"]


def waits_for_the_counter(home: Home, process: subprocess.Popen[str]) -> bool:
    """Tell whether a scheduler has the counter's file open, which it does no longer than it needs its lock."""
    try:
        files = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
    except OSError:
        return False
    return str(home.state / "counter") in files


class TestSkipDone:
    def test_skip_done_runs_failed_edited_and_appended_rows_only(self, home: Home) -> None:
        rows = ["bad,", "a,", "b,", "c,", "d,", "e,", "f,", "g,"]
        home.call("run", listing(home, *rows), code=1)
        assert noted(home) == ["a", "b", "bad", "c", "d", "e", "f", "g"]
        (home.root / "mended").touch()
        rows = ["bad,", "A,", "b,300MiB", "c,", "D,", "e,", "f,", "g,", "h,", "i,"]
        said = home.call("run", listing(home, *rows), "--skip-done", code=0).stdout
        assert noted(home) == ["A", "D", "b", "bad", "h", "i"]
        assert "skipped 4 of 10 rows that succeeded before (4 in run 1); 6 run" in said
        done_by = {task["row"]: task["done_by"] for task in home.tasks("2") if task["state"] == "skipped"}
        assert done_by == {5: 1, 7: 1, 8: 1, 9: 1}
        assert "skipped (run 1)" in home.call("results", "r2", code=0).stdout

    def test_skip_done_names_the_run_that_did_each_row_at_the_third_time(self, home: Home) -> None:
        home.call("run", listing(home, "a,", "b,"), code=0)
        home.call("run", listing(home, "a,", "b,", "c,"), "--skip-done", code=0)
        shutil.rmtree(home.state / "runs/1")
        noted(home)
        home.call("run", listing(home, "c,", "b,", "a,"), "--skip-done", code=0)
        assert noted(home) == []
        assert {task["name"][-1]: task["done_by"] for task in home.tasks("3")} == {"a": 1, "b": 1, "c": 2}

    def test_skip_done_counts_equal_rows(self, home: Home) -> None:
        home.call("run", listing(home, "a,", "a,"), code=0)
        noted(home)
        home.call("run", listing(home, "a,", "b,", "a,", "a,"), "--skip-done", code=0)
        assert noted(home) == ["a", "b"]

    def test_a_list_without_skip_done_runs_all_rows_with_a_hint(self, home: Home) -> None:
        home.call("run", listing(home, "a,", "bad,"), code=1)
        said = home.call("run", "jobs.csv", code=1).stdout
        assert "hint:   1 of 2 rows already succeeded (1 in run 1): --skip-done runs only the failed, changed" in said
        assert noted(home) == ["a", "a", "bad", "bad"]

    def test_a_dry_run_with_skip_done_names_the_skipped_rows_and_writes_nothing(self, home: Home) -> None:
        home.call("run", listing(home, "a,", "bad,"), code=1)
        said = home.call("run", "jobs.csv", "--skip-done", "--dry-run", code=0).stdout
        assert "skipped 1 of 2 rows that succeeded before (1 in run 1); 1 run" in said
        assert said.count("would start now") == 1
        assert os.listdir(home.state / "runs") == ["1"]

    def test_skip_done_of_a_detached_run_prints_its_hint(self, home: Home) -> None:
        home.call("run", listing(home, "a,", "b,"), code=0)
        told = home.call("run", "jobs.csv", "-d", "--skip-done", code=0)
        assert "hint:   skipped 2 of 2 rows that succeeded before (2 in run 1); 0 run" in told.stdout + told.stderr

    def test_skip_done_names_the_newest_run_that_did_a_row(self, home: Home) -> None:
        for _ in range(2):
            home.call("run", listing(home, "a,"), "--new", code=0)
        said = home.call("run", "jobs.csv", "--skip-done", "--dry-run", code=0).stdout
        assert "skipped 1 of 1 row that succeeded before (1 in run 2); 0 run" in said

    def test_skipped_rows_stay_skipped_after_a_resume(self, home: Home) -> None:
        home.call("run", listing(home, "a,", "b,"), code=0)
        noted(home)
        home.write(
            "jobs.csv", "Command,Memory", *(home.root / "jobs.csv").read_text().splitlines()[1:], f'"{UNTIL_GO}",'
        )
        with home.start("run", "jobs.csv", "--skip-done") as process:
            wait_until((home.root / "here").exists, 30)
            process.kill()
        (home.root / "go").touch()
        home.call("resume", "r2", code=0)
        assert (home.states("2"), noted(home)) == (["skipped", "skipped", "succeeded"], [])

    def test_skip_done_runs_all_rows_of_a_new_list(self, home: Home) -> None:
        said = home.call("run", listing(home, "a,"), "--skip-done", code=0).stdout
        assert "skipped 0 of 1 row that succeeded before (none did); 1 run" in said


class TestOneRunPerList:
    def test_one_of_two_simultaneous_starts_of_a_list_runs(self, home: Home) -> None:
        home.commands(UNTIL_GO)
        home.state.mkdir(mode=0o700)
        piped = {"stderr": subprocess.PIPE}
        with open(home.state / "counter", "a") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            both = [home.start("run", "jobs.csv", **piped) for _ in range(2)]
            wait_until(lambda: all(waits_for_the_counter(home, process) for process in both), 30)
        wait_until((home.root / "here").exists, 30)
        refused = wait_until(lambda: [process for process in both if process.poll() is not None], 30)[0]
        said = refused.communicate()[1]
        (home.root / "go").touch()
        (other,) = (process for process in both if process is not refused)
        assert (refused.returncode, other.wait(30)) == (2, 0)
        assert "of jobs.csv is alive, so nothing is started" in said
        (number,) = os.listdir(home.state / "runs")
        assert home.states(number) == ["succeeded"]

    def test_a_start_that_dies_before_acceptance_prevents_no_other(self, home: Home) -> None:
        home.commands("true")
        home.state.mkdir(mode=0o700)
        with open(home.state / "counter", "a") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            dying = home.start("run", "jobs.csv")
            wait_until(lambda: waits_for_the_counter(home, dying), 30)
            kill(dying.pid)
            dying.wait()
        home.call("run", "jobs.csv", code=0)

    def test_a_list_with_a_living_run_is_refused_with_the_next_step(self, home: Home) -> None:
        home.commands(UNTIL_GO)
        with home.start("run", "jobs.csv"):
            wait_until((home.root / "here").exists, 30)
            os.symlink("jobs.csv", home.root / "link.csv")
            for name in ("jobs.csv", "./link.csv", str(home.root / "jobs.csv")):
                said = home.call("run", name, code=2).stderr
                assert "run 1 of jobs.csv is alive" in said
                assert all(word in said for word in ("scheduler list r1", "scheduler resume r1", "--new"))
            home.call("run", home.commands("true", name="other.csv"), code=0)
            assert home.call("run", "jobs.csv", "-d", code=2).stderr.startswith("scheduler: run 1 of jobs.csv is alive")
            plan = home.call("run", "jobs.csv", "--dry-run", code=0).stdout
            assert "would be refused: run 1 of jobs.csv is alive" in plan
            (home.root / "go").touch()
            home.call("run", "jobs.csv", "--new", code=0)

    def test_a_list_with_an_unfinished_run_is_refused_until_that_has_ended(self, home: Home) -> None:
        left_unfinished(home)
        said = home.call("run", "jobs.csv", code=2).stderr
        assert "run 1 of jobs.csv is unfinished (1 waiting), so nothing is started: scheduler resume r1" in said
        home.call("resume", "r1", code=1)
        home.call("run", "jobs.csv", code=1)

    def test_an_unfinished_run_does_not_prevent_a_start_after_a_newer_one_has_ended(self, home: Home) -> None:
        left_unfinished(home)
        home.call("run", "jobs.csv", "--new", code=1)
        home.call("run", "jobs.csv", code=1)
        assert home.states("3") == ["failed", "succeeded"]

    def test_profiles_learn_works_beside_an_unfinished_run_of_its_list(self, home: Home) -> None:
        left_unfinished(home)
        home.call("profiles", "learn", "jobs.csv", code=0)

    def test_a_list_from_a_pipe_is_a_new_list_each_time(self, home: Home) -> None:
        for _ in range(2):
            read, write = os.pipe()
            os.write(write, b"Command\nfalse\ntrue\n")
            os.close(write)
            with os.fdopen(read) as stdin:
                home.call("run", "/dev/stdin", "-j", "1", "--max-failures", "1", stdin=stdin, code=1)


class TestCheckUnderLock:
    """The second check for earlier runs, under the counter's lock, decides."""

    def again(self, home: Home, file: str = "jobs.csv") -> PreviousRuns:
        return PreviousRuns(StatePaths(home.state), str(home.root / file), RerunOptions())

    def begin(self, home: Home, file: str = "jobs.csv") -> SqliteRunStore:
        """Return the store of a run of a file whose scheduler lives."""
        places = StatePaths(home.state)
        book = SqliteRunStore.create(places, Counter(places.counter), ())
        form = RowForm(("Command",))
        facts = {"accepted": "1", "path": str(home.root / file), "file": file}
        book.accept(form, [[(2, ["true"], form.terms(["true"]), 0)]], lambda terms, row: None, lambda count: facts)
        return book

    def test_the_second_check_finds_a_run_that_was_accepted_after_the_first(self, home: Home) -> None:
        again = self.again(home)
        again.refuse()
        book = self.begin(home)
        with pytest.raises(StateError, match=r"run 1 of jobs\.csv is alive"):
            again.refuse()
        book.close()

    def test_the_second_check_finds_a_run_whose_journal_was_incomplete_at_the_first(self, home: Home) -> None:
        again = self.again(home)
        half = home.state / "runs/1/journal.db"
        half.parent.mkdir(parents=True)
        half.touch()
        again.refuse()
        half.unlink()
        half.parent.rmdir()
        book = self.begin(home)
        with pytest.raises(StateError, match=r"run 1 of jobs\.csv is alive"):
            again.refuse()
        assert again.words() == []
        book.close()

    def test_the_second_check_ignores_a_run_of_another_file(self, home: Home) -> None:
        again, book = self.again(home), self.begin(home, "other.csv")
        again.refuse()
        again.refuse()
        book.close()


class TestDamagedRuns:
    def test_a_damaged_run_is_named_and_prevents_no_new_run(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        journal = home.state / "runs/1/journal.db"
        journal.write_bytes(journal.read_bytes()[:-1])
        said = home.call("run", "jobs.csv", "--skip-done", code=0).stdout
        assert "hint:   run 1 cannot be read" in said
        assert home.states("2") == ["succeeded"]

    def test_several_damaged_runs_are_named_in_one_sentence(self, home: Home) -> None:
        jobs = home.commands("true")
        for number in (1, 2):
            home.call("run", jobs, code=0)
            journal = home.state / f"runs/{number}/journal.db"
            journal.write_bytes(journal.read_bytes()[:-1])
        said = home.call("run", jobs, code=0).stdout
        assert said.count("cannot be read") == 1
        assert "runs 1-2 cannot be read, so it is unknown which rows of this list they completed: " in said


class TestFromPython:
    @pytest.fixture(autouse=True)
    def _own_leases(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))

    def test_a_file_is_run_once_from_python_too(self, tmp_path: Path) -> None:
        file, state = tmp_path / "jobs.csv", str(tmp_path / "state")
        file.write_text("Command\nfalse\ntrue\n")
        first = scheduler.run(file, state=state, jobs_at_once=1, max_failures=1)
        assert first.counts == {"failed": 1, "waiting": 1}
        with pytest.raises(StateError, match=r"run 1 of .*jobs\.csv is unfinished"):
            scheduler.run(file, state=state)
        assert scheduler.run(file, state=state, new=True).counts == {"failed": 1, "succeeded": 1}
        last = scheduler.run(file, state=state, skip_done=True)
        assert last.counts == {"failed": 1, "skipped": 1}
        assert [task["done_by"] for task in last.tasks] == [None, 2]

    @pytest.mark.parametrize("wish", [{"new": True}, {"skip_done": True}])
    def test_tasks_from_python_refuse_the_options_of_files(self, tmp_path: Path, wish: dict[str, bool]) -> None:
        with pytest.raises(UsageError, match="the jobs are a list of tasks"):
            scheduler.run([scheduler.Task(command="true")], state=str(tmp_path / "state"), **wish)
