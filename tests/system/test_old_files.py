"""Journals and profiles of every released format load for ever."""

from __future__ import annotations

import shutil
from pathlib import Path

from scheduler.core.model import HOST
from scheduler.paths import Places
from scheduler.store.profiles import Profiles
from scheduler.store.rundir import Runs
from scheduler.wiring.reading import Telling
from tests.faults import fault

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
