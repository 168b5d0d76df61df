"""Journals and profiles of every released format load for ever."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler import shim
from scheduler.core.model import HOST, Outcome
from scheduler.engines.local import LocalEngine
from scheduler.paths import Places
from scheduler.store.profiles import Profiles
from scheduler.store.rundir import Runs
from scheduler.wiring.reading import Telling
from tests.faults import fault
from tests.system.conftest import Driver
from tests.system.killing import command_line

DATA = Path(__file__).parents[1] / "data"


@fault(9)
def test_a_journal_of_format_1(tmp_path: Path) -> None:
    run = tmp_path / "runs/1"
    run.mkdir(parents=True)
    shutil.copy(DATA / "run-1/journal.db", run / "journal.db")
    telling = Telling(Runs(Places(tmp_path)).find("1"))
    rows = list(telling.rows())
    telling.close()
    assert [(row["state"], row["exit_code"], row["attempts"]) for row in rows] == [
        ("failed", 3, 1),
        ("succeeded", 0, 1),
        ("succeeded", 0, 1),
    ]
    assert [row["need_known_by"] for row in rows] == ["live", "live", "declared"]
    assert [row["Seed"] for row in rows] == ["2", "3", "1"]
    assert all(row["peak_bytes"] > 0 for row in rows)


def test_profiles_of_format_1(tmp_path: Path) -> None:
    shutil.copy(DATA / "profiles-1.db", tmp_path / "profiles.db")
    profiles = Profiles(tmp_path / "profiles.db")
    kept = {one.what: one.profile for one in profiles.all()}
    profiles.close()
    assert not profiles.said
    assert len(kept["sleep 0.2"].part(HOST).full) == 1
    assert kept["sh -c exit 3"].part(HOST).full == []
    assert all(profile.knows(gpus=0) for profile in kept.values())


def test_a_journal_of_format_1_with_gpus(tmp_path: Path) -> None:
    run = tmp_path / "runs/1"
    run.mkdir(parents=True)
    shutil.copy(DATA / "run-1-gpus/journal.db", run / "journal.db")
    telling = Telling(Runs(Places(tmp_path)).find("1"))
    rows = list(telling.rows())
    telling.close()
    assert [row["state"] for row in rows] == ["succeeded", "succeeded", "succeeded", "refused", "succeeded"]
    assert [row["device"] for row in rows] == ["GPU 0", "GPU 1", "GPU 0,GPU 1", "GPU 1", "host"]
    assert [row["ooms"] for row in rows] == [0, 0, 0, 1, 0]
    assert all(row["peak_bytes"] > 0 for row in rows)


def test_profiles_of_format_2(tmp_path: Path) -> None:
    shutil.copy(DATA / "profiles-2.db", tmp_path / "profiles.db")
    profiles = Profiles(tmp_path / "profiles.db")
    kept = {one.what.split("--seconds")[0]: one.profile for one in profiles.all()}
    profiles.close()
    assert not profiles.said
    assert kept["train.py --peak 2GiB "].peaks.keys() == {"0", HOST}
    assert kept["train.py --peak 3GiB,1GiB "].knows(gpus=2)
    assert not kept["train.py --peak 30GiB "].knows(gpus=1)
    assert kept["train.py --peak 30GiB "].part("0").above > 0


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    """A task that was started by the first version there was, whose scheduler has gone since."""
    shim_of_then = tmp_path / "shim.py"
    shutil.copy(DATA / "shim-1.txt", shim_of_then)
    drivers: list[Driver] = []

    def begin(script: str) -> Driver:
        older, newer = Driver(tmp_path, "run"), Driver(tmp_path, "run")
        drivers.append(newer)
        older.engine = LocalEngine(older.tasks, shim_of_then, {"PATH": os.environ["PATH"]}, "run")
        task = older.sh(script)
        assert "shim.py" in command_line(older.started(task).shim)
        older.wait_for_line("up")
        older.engine.close()
        return newer

    yield begin
    for driver in drivers:
        driver.end()


@fault(9)
def test_a_task_that_an_older_version_started_is_adopted_and_its_end_is_known(
    begun: Callable[[str], Driver], tmp_path: Path
) -> None:
    newer = begun(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.01; done; exit 6")
    newer.engine.adopt(1, 1)
    assert newer.started(1).pid
    (tmp_path / "go").touch()
    ended = newer.exited(1, deadline=60)
    assert (ended.outcome, ended.code) == (Outcome.FAILED, 6)
    assert ended.peak[HOST] > 0


@fault(9)
def test_a_task_that_an_older_version_started_can_be_stopped(begun: Callable[[str], Driver]) -> None:
    newer = begun("echo up; sleep 600")
    newer.engine.adopt(1, 1)
    newer.started(1)
    newer.engine.stop(1, 1)
    assert newer.exited(1, deadline=60).outcome is Outcome.INTERRUPTED


@fault(9)
def test_claim_record_and_promise_of_format_1() -> None:
    """The three blocks that shims and schedulers of several versions leave each other."""
    claim = shim.read_claim(str(DATA / "claim-1"))
    record = shim.read_record(str(DATA / "record-1"))
    lease = shim.unpack_block((DATA / "lease-1").read_bytes())
    assert claim is not None
    assert record is not None
    assert lease is not None
    assert (claim.task, claim.attempt, claim.shim, claim.pid, claim.fence) == (3, 2, 4100, 4101, False)
    assert (record.outcome, record.code, record.seconds, record.max_rss) == ("exited", 7, 1.25, 8 << 20)
    assert (lease["version"], lease["bytes"], lease["shim"]) == (1, {"GPU-1": 2 << 30, "host": 1 << 20}, 4100)
