"""Durability: what is on the disk before it is acknowledged, and files of other versions."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from scheduler.core.model import HOST
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.task_class import TaskClass
from scheduler.errors import StateError
from scheduler.store.profiles import ProfileStore
from scheduler.store.run import schema
from scheduler.store.run.counter import Counter
from scheduler.store.run.journal import Journal
from scheduler.units import GIB
from tests.support.builders import exited
from tests.support.killing import ROOT


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which each file is added that is synced."""
    files: list[str] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (files.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    return files


def test_ids_are_on_the_disk_before_they_are_used(tmp_path: Path, synced: list[str]) -> None:
    with Counter(tmp_path / "counter").held() as held:
        held.advance(task=5, run=2)
        assert synced == [str(tmp_path / "counter")]


def test_events_that_may_be_late_are_synced_with_the_next_that_may_not(tmp_path: Path, synced: list[str]) -> None:
    journal = Journal.create(tmp_path / "journal.db")
    journal.record([exited(1)], 1.0, later=True)
    journal.record([], 2.0, later=True)
    assert synced == []
    journal.record([], 3.0)
    journal.record([], 4.0)
    assert synced == [str(tmp_path / "journal.db-wal")]
    journal.close()


def test_a_journal_that_is_closed_twice_closes_no_other_file(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal.db")
    journal.close()
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(4)]  # one of them has the number of the closed file
    journal.close()
    for fd in others:
        os.close(fd)


def test_a_journal_that_need_not_last_waits_for_no_disk_and_claims_no_reach(tmp_path: Path, synced: list[str]) -> None:
    journal = Journal.create(tmp_path / "journal.db")
    journal.lasting = False
    before = (tmp_path / "journal.reach").read_bytes() if (tmp_path / "journal.reach").exists() else b""
    journal.record([exited(1)], 1.0)
    journal.record([exited(2)], 2.0, later=True)
    journal.record([], 3.0)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (1,)
    assert synced == []
    after = (tmp_path / "journal.reach").read_bytes() if (tmp_path / "journal.reach").exists() else b""
    assert after == before
    journal.close()


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Return the path of profiles of three classes, learned one after the other."""
    store = ProfileStore(tmp_path / "profiles.db")
    for number in range(3):
        store.learn(
            TaskClass(f"k{number}", "a.py", probes=False),
            "host 24GiB",
            Observation({HOST: GIB}, seconds=5.0),
            float(number),
        )
    store.close()
    return tmp_path / "profiles.db"


def kept(path: Path) -> list[str]:
    store = ProfileStore(path)
    try:
        return sorted(store.known())
    finally:
        store.close()


LEARNS = """\
import os, signal, sys
from pathlib import Path
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.profiling.class_profile import Observation
from scheduler.store.profiles import ProfileStore
os.read(0, 1)
store = ProfileStore(Path(sys.argv[1]))
task_class = TaskClass(sys.argv[2], "a.py", probes=False)
store.learn(task_class, "host 24GiB", Observation({"host": 1 << 30}, seconds=5.0), 1.0)
print(store.trouble, end="", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_profiles_that_many_processes_learn_at_once_are_kept_although_all_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "profiles.db"
    keys = [f"k{number}" for number in range(6)]
    heard, tell = os.pipe()
    many = [
        subprocess.Popen([sys.executable, "-c", LEARNS, path, key], cwd=ROOT, stdin=heard, stdout=PIPE) for key in keys
    ]
    os.close(heard)
    os.write(tell, b"!" * len(many))
    os.close(tell)
    assert [one.communicate(timeout=60)[0] for one in many] == [b""] * len(many)
    assert [one.returncode for one in many] == [-signal.SIGKILL] * len(many)
    assert kept(path) == keys
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_learning_does_not_wait_for_the_disk(profiles: Path) -> None:
    """Each write would wait three times where SQLite keeps the pages that were there before, as it does by default."""
    base = sqlite3.connect(profiles)
    assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    base.close()


@pytest.mark.slow
def test_profiles_are_used_while_an_older_version_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "profiles.db"
    older = sqlite3.connect(path, isolation_level=None)
    for statement in schema.CREATE_PROFILES:
        older.execute(statement)
    older.execute(schema.PUT_PROFILES_META, ("format", str(schema.PROFILES_VERSION)))
    older.execute(schema.BEGIN_TO_READ)
    older.execute(schema.GET_PROFILES_META).fetchall()
    store = ProfileStore(path)
    older.execute(schema.COMMIT)
    store.learn(TaskClass("k", "a.py", probes=False), "host 24GiB", Observation({HOST: GIB}, seconds=5.0), 1.0)
    assert (store.trouble, sorted(store.known())) == ("", ["k"])
    store.close()
    older.close()


def test_the_newest_profiles_are_kept_if_there_are_too_many(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PRUNE_PROFILES", schema.PRUNE_PROFILES.replace(str(schema.MOST_PROFILES), "2"))
    store = ProfileStore(profiles)
    store.learn(TaskClass("k3", "a.py", probes=False), "host 24GiB", Observation({HOST: GIB}, seconds=5.0), 3.0)
    store.close()
    assert kept(profiles) == ["k2", "k3"]


def test_profiles_that_cannot_be_opened_now_stay_as_they_are(tmp_path: Path) -> None:
    place = tmp_path / "profiles.db"
    place.mkdir()  # any file that SQLite cannot open
    store = ProfileStore(place)
    assert store.trouble == (
        f"the profiles {place} cannot be used now (unable to open database file): this run starts without profiles and "
        "stores none"
    )
    store.learn(TaskClass("k", "a.py", probes=False), "host 24GiB", Observation({HOST: GIB}, seconds=5.0), 1.0)
    assert sorted(store.known()) == ["k"]
    store.close()
    assert list(tmp_path.iterdir()) == [place]


def test_a_profile_that_cannot_be_forgotten_is_named(profiles: Path) -> None:
    with sqlite3.connect(profiles) as base:
        base.execute("CREATE TRIGGER no BEFORE DELETE ON profiles BEGIN SELECT RAISE(FAIL, 'disk I/O error'); END")
    base.close()
    store = ProfileStore(profiles)
    with pytest.raises(StateError, match=f"the profiles {profiles} cannot be written: disk I/O error"):
        store.forget(["k1"])
    store.close()


REST = {"whole_seconds": 1.0, "busy": 0.0, "family": "", "slots": []}


@pytest.mark.parametrize("full", [[0], [-5], "many", None])
def test_an_invalid_profile_is_learned_again(profiles: Path, full: object) -> None:
    part = {"full": full, "lower": 0, "lower_by": "profile", "above": 0}
    text = json.dumps({"parts": {HOST: part}, "epoch_seconds": 1.0, "cores": 1.0, **REST})
    with sqlite3.connect(profiles) as base:
        base.execute("UPDATE profiles SET data = ? WHERE key = 'k1'", (text,))
    base.close()
    assert kept(profiles) == ["k0", "k2"]
