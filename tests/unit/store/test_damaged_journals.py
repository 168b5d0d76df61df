"""Journals that were damaged, cut short, or written by another version are read as written, or refused."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.app.control import retention
from scheduler.app.observe.run_reader import RunReader
from scheduler.core import events
from scheduler.core.causes import Action
from scheduler.core.events import Asked
from scheduler.core.model import Outcome, Terms
from scheduler.core.tasks.fields import RowForm, pack_terms
from scheduler.errors import Newer, StateError
from scheduler.runtime.paths import StatePaths
from scheduler.runtime.settings import Settings
from scheduler.store.run import schema
from scheduler.store.run.catalog import RunCatalog
from scheduler.store.run.journal import Journal
from tests.support.builders import exited, placed
from tests.support.faults import fault

TASKS = 60
SEED = int(os.environ.get("FUZZ_SEED", "1"))
SETTINGS = '{"order": "batch", "buffer": 0}'

Whole = list[tuple[object, ...]]


def filled(run: Path, *, close: bool) -> Path:
    """Make a run of which half the tasks ended; its log is left behind, or folded into the journal."""
    run.mkdir(parents=True)
    (run / "run.log").touch()
    journal = Journal.create(run / "journal.db")
    form = RowForm(("Command", "Seed"))
    with journal.transaction():
        journal.put_form(0, form.pack())
        journal.put_terms(0, pack_terms(Terms()))
        journal.put_rows((task, 1, task, 0, 0, 0, f"true\x1f{task}") for task in range(1, TASKS + 1))
        journal.put_meta({"accepted": "1.0", "settings": SETTINGS, "file": "jobs.csv", "python": "", "directory": "/"})
    for task in range(1, TASKS // 2 + 1):
        journal.record([placed(task)], float(task))
        journal.record([exited(task, Outcome.FAILED, code=task)], task + 0.5)
    if close:
        journal.checkpoint()
        journal.close()
    else:  # as if it was killed: the files as they are
        kept = run.with_name("kept")
        shutil.copytree(run, kept)
        journal.close()
        shutil.rmtree(run)
        kept.rename(run)
    return run


def told(home: Path) -> Whole | str:
    """Return all rows and states of a run, or the sentence of its refusal."""
    try:
        info = RunCatalog(StatePaths(home)).find("r1")
        if info.lost:
            return info.lost
        reader = RunReader(info)
        rows = [tuple(row.values()) for row in reader.rows(secrets=True)]
        reader.close()
        counts = RunReader(info, only_states=True)
        counts.close()
        return [*rows, tuple(counts.brain.state_counts.items())]
    except StateError as exc:
        return str(exc)


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def zero(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    length = min(chance.choice((16, 512, 4096)), len(data) - start)
    data[start : start + length] = bytes(length)


def swap(data: bytearray, chance: random.Random) -> None:
    one, other = (4096 * chance.randrange(max(1, len(data) // 4096)) for _ in range(2))
    data[one : one + 4096], data[other : other + 4096] = data[other : other + 4096], data[one : one + 4096]


@fault(27, 107)
@pytest.mark.slow
@pytest.mark.parametrize(("file", "close"), [("journal.db", True), ("journal.db-wal", False)])
@pytest.mark.parametrize("harm", [flip, cut, zero, swap])
def test_a_damaged_journal_is_shown_as_it_was_or_refused_in_one_sentence(
    tmp_path: Path, harm: Callable[[bytearray, random.Random], None], file: str, close: bool
) -> None:
    chance = random.Random(f"{SEED} {harm.__name__} {file}")
    run = filled(tmp_path / "runs/1", close=close)
    whole = {path.name: path.read_bytes() for path in run.iterdir()}  # before a look folds its log into it
    right = told(tmp_path)
    assert isinstance(right, list)
    for case in range(60):
        for path in run.iterdir():
            path.unlink()
        for name, data in whole.items():
            (run / name).write_bytes(data)
        (run / "journal.db-shm").unlink(missing_ok=True)
        harmed = bytearray(whole[file])
        harm(harmed, chance)
        (run / file).write_bytes(harmed)
        found = told(tmp_path)
        assert found == right or (isinstance(found, str) and "run" in found), f"seed {SEED}, case {case}: {found}"


@fault(27)
def test_a_run_with_a_damaged_row_hides_no_other_run(tmp_path: Path) -> None:
    for number in (1, 2):
        filled(tmp_path / f"runs/{number}", close=True)
    journal = tmp_path / "runs/1/journal.db"
    journal.write_bytes(journal.read_bytes().replace(b'"code":7', b'"code":8').replace(b'"code": 7', b'"code": 8'))
    damaged, whole = sorted(retention.runs(Settings(state=str(tmp_path))), key=lambda run: run["number"])
    assert "the journal of run 1 is damaged" in damaged["trouble"]
    assert whole["states"] == {"failed": TASKS // 2, "waiting": TASKS // 2}


@fault(107)
def test_a_journal_that_lost_its_end_names_the_lost_events(tmp_path: Path) -> None:
    run = filled(tmp_path / "runs/1", close=False)
    log = run / "journal.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    said = told(tmp_path)
    assert isinstance(said, str)
    assert re.search(r"run 1 lost its end .*60 events of 60 tasks were on the disk, \d+ events up to task 60", said)


@fault(107)
def test_a_loss_is_reported_until_it_is_accepted(tmp_path: Path) -> None:
    run = filled(tmp_path / "runs/1", close=False)
    log = run / "journal.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    for _ in range(2):
        journal = Journal.open(run / "journal.db")
        assert journal.lost
        journal.record([Asked(Action.RESUME)], 99.0)
        journal.checkpoint()
        journal.close()
    journal = Journal.open(run / "journal.db")
    journal.accept_loss()
    journal.record([Asked(Action.RESUME)], 99.0)
    journal.close()
    assert not RunCatalog(StatePaths(tmp_path)).find("r1").lost


def test_rows_that_were_given_other_ids_are_no_loss(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal.db")
    with journal.transaction():
        journal.put_form(0, "{}")
        journal.put_terms(0, "{}")
        journal.put_rows((task, 1, task, 0, 0, 0, "true") for task in range(1, 4))
        journal.move_rows(1, 2)
    journal.close()
    moved = Journal.open(tmp_path / "journal.db")
    assert ([task for task, *_ in moved.rows()], moved.lost) == ([3, 4, 5], "")
    moved.close()


@fault(107)
def test_events_that_were_not_durable_yet_are_no_loss(tmp_path: Path) -> None:
    """A power cut may remove them, and then nothing is missing."""
    journal = Journal.create(tmp_path / "journal.db")
    journal.record([placed(1)], 1.0)
    said = (tmp_path / "journal.reach").read_bytes()
    journal.record([exited(1)], 2.0, later=True)
    journal.record([], 2.0, later=True)
    assert (tmp_path / "journal.reach").read_bytes() == said
    journal.record([], 3.0)
    assert (tmp_path / "journal.reach").read_bytes() != said
    journal.close()


@pytest.fixture
def run_written_with(tmp_path: Path) -> Callable[[str, tuple[object, ...]], Path]:
    """Make run 1 and change its journal with a statement, as another version would have written it."""

    def made(statement: str, values: tuple[object, ...]) -> Path:
        journal = filled(tmp_path / "runs/1", close=True) / "journal.db"
        with sqlite3.connect(journal) as database:
            database.execute(statement, values)
        database.close()
        return tmp_path

    return made


@fault(108)
def test_a_run_of_a_newer_format_is_named_and_not_called_missing(
    run_written_with: Callable[[str, tuple[object, ...]], Path],
) -> None:
    home = run_written_with("UPDATE meta SET value = ? WHERE name = 'format'", (str(schema.VERSION + 1),))
    said = (
        f"run 1 was written by a newer version (format {schema.VERSION + 1}; this one reads {schema.VERSION}): "
        "use that version"
    )
    for word in ("r1", None):
        with pytest.raises(Newer, match=re.escape(said)):
            RunCatalog(StatePaths(home)).find(word)
    assert [run["trouble"] for run in retention.runs(Settings(state=str(home)))] == [said]
    with pytest.raises(Newer, match=re.escape(said)):
        retention.remove(Settings(state=str(home)), ["r1"])


@fault(9)
def test_a_run_of_an_older_format_is_refused_by_name(
    run_written_with: Callable[[str, tuple[object, ...]], Path],
) -> None:
    home = run_written_with("UPDATE meta SET value = ? WHERE name = 'format'", (str(schema.VERSION - 1),))
    said = f"run 1 was written by an older version (format {schema.VERSION - 1}; this one reads {schema.VERSION})"
    with pytest.raises(StateError, match=re.escape(said)):
        RunCatalog(StatePaths(home)).find("r1")


@fault(108)
def test_an_event_of_a_newer_version_is_not_called_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    filled(tmp_path / "runs/1", close=True)
    monkeypatch.delitem(events._BY_NAME, "exited")
    assert told(tmp_path) == (
        "run 1 was written by a newer version (its event 2, exited, is unknown here): use that version"
    )
