"""Runs whose own files are removed, replaced or were never completed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.store.run.journal import Journal
from tests.support.faults import fault
from tests.support.killing import Home, Started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
UNTIL_GO = "sh -c 'echo x >>told; until [ -e go ]; do sleep 0.02; done; exit 3'"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture
def run(home: Home) -> Path:
    return home.state / "runs/1"


def begun(home: Home) -> Started:
    """Start a run of two tasks: the first one has ended, the second one runs until it may go."""
    home.commands("true", UNTIL_GO)
    scheduler = home.start("run", "jobs.csv", "--slots", "1", "--plain", stderr=subprocess.PIPE)
    wait_until((home.root / "told").exists, 30)
    return scheduler


def said_at_its_end(scheduler: Started) -> str:
    _, said = scheduler.communicate(timeout=30)
    assert "Traceback" not in said
    assert scheduler.returncode == 1
    return said


def told(home: Home) -> str:
    return (home.root / "told").read_text()


@fault(7)
def test_resume_refuses_a_living_run_whatever_file_was_removed(home: Home, run: Path) -> None:
    scheduler = begun(home)
    for path in run.iterdir():
        if path.is_file() and not path.name.startswith("journal.db"):
            path.unlink()
    assert f"run 1 is alive (process {scheduler.pid})" in home.call("resume", "r1", code=2).stderr
    (home.root / "go").touch()
    scheduler.communicate(timeout=30)
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(0, 1), (3, 1)]


@fault(7)
def test_a_scheduler_whose_run_directory_was_replaced_ends_and_its_task_goes_on(home: Home, run: Path) -> None:
    scheduler = begun(home)
    run.rename(home.root / "aside")
    shutil.copytree(home.root / "aside", run, ignore=shutil.ignore_patterns("bell"))
    assert f"its directory {run} was removed or moved while it ran" in said_at_its_end(scheduler)
    assert len([pid for pid in home.living() if pid != scheduler.pid]) >= 1
    assert told(home) == "x\n"


@fault(105)
@pytest.mark.parametrize(
    "gone", [["journal.db"], ["journal.db-wal"], ["journal.db", "journal.db-wal", "journal.db-shm"]]
)
def test_a_scheduler_whose_journal_was_removed_writes_it_again_and_ends(home: Home, run: Path, gone: list[str]) -> None:
    scheduler = begun(home)
    for name in gone:
        (run / name).unlink()
    said = said_at_its_end(scheduler)
    assert f"{run / gone[0]} was removed or replaced while it ran" in said
    assert "the journal is whole again: scheduler resume r1 continues the run" in said
    (home.root / "go").touch()
    home.call("resume", "r1", code=1)
    assert [(task["exit_code"], task["attempts"]) for task in home.tasks()] == [(0, 1), (3, 1)]
    assert told(home) == "x\n"


@fault(105)
def test_a_replaced_journal_is_kept_beside_the_new_one(home: Home, run: Path) -> None:
    scheduler = begun(home)
    (run / "other").write_text("no database")
    (run / "other").rename(run / "journal.db")
    assert f"is kept as {run / 'journal.saved'}" in said_at_its_end(scheduler)
    assert (run / "journal.db").read_text() == "no database"
    with sqlite3.connect(run / "journal.saved") as saved:
        assert saved.execute("SELECT count(*) FROM submitted").fetchone() == (2,)


def nothing(run: Path) -> None:
    """Leave what a start leaves that was killed before it made the journal."""


def an_empty_journal(run: Path) -> None:
    (run / "journal.db").touch()


def a_journal_without_tables(run: Path) -> None:
    with sqlite3.connect(run / "journal.db") as database:
        database.execute("PRAGMA journal_mode = WAL")


def a_journal_without_a_list(run: Path) -> None:
    Journal.create(run / "journal.db").close()


@fault(106)
@pytest.mark.parametrize("leave", [nothing, an_empty_journal, a_journal_without_tables, a_journal_without_a_list])
def test_a_start_that_was_killed_leaves_no_run_behind(home: Home, leave: Callable[[Path], None]) -> None:
    run = home.state / "runs/7"
    (run / "tasks").mkdir(parents=True)
    leave(run)
    assert json.loads(home.call("runs", "--json", code=0).stdout)["runs"] == []
    assert "run 7" not in home.call("status", code=0).stdout
    home.call("run", home.commands("true"), "--devices", "host", code=0)
    assert [path.name for path in (home.state / "runs").iterdir()] == ["1"]


@fault(106)
def test_runs_rm_removes_what_a_killed_start_left(home: Home, run: Path) -> None:
    (run / "tasks").mkdir(parents=True)
    an_empty_journal(run)
    assert "run 1  (unreadable): removed" in home.call("runs", "rm", "r1", code=0).stdout
    assert not run.exists()


@fault(27)
def test_runs_rm_removes_a_damaged_run_once_no_attempt_of_it_lives(home: Home, run: Path) -> None:
    scheduler = begun(home)
    scheduler.kill()
    scheduler.communicate()
    (run / "journal.db").write_bytes(bytes(8192))
    (run / "journal.db-wal").unlink()
    assert "1 attempt of it still run" in home.call("runs", "rm", "r1", code=2).stderr
    (home.root / "go").touch()
    wait_until(lambda: not home.living(), 30)
    assert "removed" in home.call("runs", "rm", "r1", code=0).stdout
    assert not os.path.lexists(run)


@fault(27)
def test_a_run_without_its_journal_is_named_and_hides_no_other_run(home: Home, run: Path) -> None:
    for _ in range(2):
        home.call("run", home.commands("true"), "--devices", "host", code=0)
    (run / "journal.db").unlink()
    for verb in ("runs", "status"):
        said = " ".join(home.call(verb, code=0).stdout.split())
        assert "run 1 has no journal any more" in said
        assert "1 succeeded" in said
    assert "run 1 has no journal any more" in home.call("results", "r1", code=1).stderr


@fault(107)
def test_no_task_of_a_run_whose_journal_lost_its_end_starts_without_consent(home: Home, run: Path) -> None:
    home.commands("sh -c 'touch first; until [ -e on ]; do sleep 0.02; done'", UNTIL_GO)
    scheduler = home.start("run", "jobs.csv", "--slots", "1", "--plain")
    wait_until((home.root / "first").exists, 30)
    log = run / "journal.db-wal"
    size = log.stat().st_size
    (home.root / "on").touch()
    wait_until((home.root / "told").exists, 30)
    scheduler.kill()
    scheduler.wait()
    os.truncate(log, size)

    assert "nothing was started" in home.call("resume", "r1", code=1).stderr
    assert "run 1 lost its end" in " ".join(home.call("status", code=0).stdout.split())
    shown = home.call("list", "r1", code=0)
    assert ("waiting" in shown.stdout, "run 1 lost its end" in shown.stderr) == (True, True)
    living = home.call("resume", "r1", "--takeover", code=2).stderr
    assert "its journal has lost the start of 1 task that still runs (1)" in living
    (home.root / "go").touch()
    wait_until(lambda: not home.living(), 30)
    assert "nothing was started" in home.call("resume", "r1", code=1).stderr
    assert told(home) == "x\n"
    home.call("resume", "r1", "--takeover", code=1)
    assert [task["exit_code"] for task in home.tasks()] == [0, 3]
    assert told(home) == "x\nx\n"


@fault(108)
@pytest.mark.parametrize("kept", ["choices", "settings"])
def test_a_run_with_a_choice_or_setting_of_a_newer_version_is_refused_in_one_sentence(
    home: Home, run: Path, kept: str
) -> None:
    home.call("run", home.commands("true", "false"), "--devices", "host", code=1)
    journal = Journal.open(run / "journal.db")
    with journal.transaction():
        journal.put_meta({kept: json.dumps({**json.loads(journal.meta()[kept]), "of_tomorrow": 1})})
    journal.close()
    said = home.call("resume", "r1", code=1).stderr
    assert "run 1 was written by a newer version" in said
    assert "of_tomorrow" in said
    assert said.rstrip().endswith("use that version")
