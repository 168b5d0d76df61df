"""The facts that a scheduler keeps as it ends, from which readers know a run without opening its journal."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.app.observe.run_facts import facts_of_run
from scheduler.runtime.paths import RunPaths, find_places
from scheduler.store.run.catalog import RunCatalog
from scheduler.store.run.journal import Journal
from tests.support.killing import Home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = Home(tmp_path_factory.mktemp("kept"))
    made.commands("true", "true")
    made.call("run", "jobs.csv", "--devices", "host", code=0)
    return made


def catalog(home: Home) -> RunCatalog:
    """Return the runs of a home."""
    return RunCatalog(find_places(str(home.state)))


@pytest.fixture
def run(home: Home) -> RunPaths:
    """Return the paths of the ended run, whose kept facts are put back in order."""
    places = catalog(home).places.run(1)
    places.facts.write_text(json.dumps({**json.loads(places.facts.read_text()), "journal": stamp(places)}))
    return places


def stamp(places: RunPaths) -> list[int]:
    """Return the inode, the size and the time of change of a journal."""
    found = os.stat(places.journal)
    return [found.st_ino, found.st_size, found.st_mtime_ns]


@pytest.mark.slow
def test_a_run_that_has_ended_is_known_without_its_journal(home: Home, run: RunPaths) -> None:
    info, journal = catalog(home).look(1)
    assert (info.kept, journal) == (True, None)
    opened, journal = catalog(home).open(1)
    assert journal is not None
    journal.close()
    assert info.meta == opened.meta
    assert facts_of_run(info) == facts_of_run(opened)
    assert facts_of_run(info)["states"] == {"succeeded": 2}
    assert facts_of_run(info)["over"]


def garbled(run: RunPaths) -> None:
    """Cut the facts, as a power failure may."""
    run.facts.write_bytes(run.facts.read_bytes()[:-20])


def of(**changed: Any) -> Callable[[RunPaths], None]:
    """Return a function that changes members of the facts."""

    def change(run: RunPaths) -> None:
        run.facts.write_text(json.dumps({**json.loads(run.facts.read_text()), **changed}))

    return change


def written_on(run: RunPaths) -> None:
    """Add a fact to the journal, as a later scheduler does."""
    journal = Journal.open(run.journal)
    with journal.transaction():
        journal.put_meta({"later": "yes"})
    journal.checkpoint()
    journal.close()


def unmerged(run: RunPaths) -> None:
    """Leave changes in the log beside the journal, as a killed scheduler does."""
    Path(f"{run.journal}-wal").write_bytes(b"x")


def touched(run: RunPaths) -> None:
    """Change the journal at another time than the facts say."""
    os.utime(run.journal)


def linked(run: RunPaths) -> None:
    """Put a link in the place of the facts."""
    kept = run.root / "kept"
    kept.write_bytes(run.facts.read_bytes())
    run.facts.unlink()
    run.facts.symlink_to(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        garbled, touched, written_on, unmerged, linked, of(version=2), of(meta={}), of(meta={"format": "7"}),
        of(meta=[1]), of(journal=None),
    ],
)  # fmt: skip
def test_facts_that_do_not_fit_the_journal_are_not_believed(
    home: Home, run: RunPaths, change: Callable[[RunPaths], None]
) -> None:
    before = run.facts.read_bytes()
    try:
        change(run)
        info, journal = catalog(home).look(1)
        assert journal is not None
        journal.close()
        assert not info.kept
        assert info.meta["file"] == "jobs.csv"
        assert facts_of_run(info)["states"] == {"succeeded": 2}
    finally:
        Path(f"{run.journal}-wal").unlink(missing_ok=True)
        run.facts.unlink(missing_ok=True)
        run.facts.write_bytes(before)


@pytest.mark.slow
def test_the_journal_of_a_living_run_is_opened(home: Home, run: RunPaths) -> None:
    fd = os.open(run.root, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        info, journal = catalog(home).look(1)
    finally:
        os.close(fd)
    assert journal is not None
    journal.close()
    assert (info.alive, info.kept) == (True, False)


@pytest.mark.slow
def test_a_removed_journal_is_missed_all_the_same(home: Home, run: RunPaths) -> None:
    away = run.journal.with_name("away")
    run.journal.rename(away)
    try:
        done = home.call("runs", code=0)
    finally:
        away.rename(run.journal)
    assert "has no journal any more" in done.stdout + done.stderr
