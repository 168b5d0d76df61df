"""Runs whose devices are the user's own slots, on stand-in GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.store.machine.lease_records import living
from tests.support.gpu_home import PATIENCE, GpuHome, holding
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    yield made
    made.end()


def told(home: GpuHome, task: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES in a task."""
    return home.told(task)[1]["CUDA_VISIBLE_DEVICES"]


def peaks(home: GpuHome) -> list[int | None]:
    """Return the observed peaks of the tasks, by id."""
    return [row["peak_bytes"] for row in home.tasks()]


def test_slots_reach_tasks_unchanged_and_are_leased_on_their_gpus(home: GpuHome) -> None:
    home.jobs(*[holding("3GiB") for _ in range(4)])
    with home.start("run", "jobs.csv", "--devices", "slots:1;1;0,1") as process:
        wait_until(lambda: [home.box.used(0), home.box.used(1)] == [3 << 30, 6 << 30], PATIENCE)
        wait_until(lambda: peaks(home)[:3] == [3 << 30] * 3, PATIENCE, pause=0.05)
        leases = living(home.root / "leases")
        assert len(leases) == 3
        assert all(home.box.uuids[1] in one.reserved for one in leases)
        home.go()
        assert process.wait(PATIENCE) == 0
    assert [told(home, task) for task in range(3)] == ["1", "1", "0,1"]
    assert [row["device"] for row in home.tasks()][:3] == ["slot 1", "slot 1", "slot 0,1"]


def test_slot_number_without_a_gpu_is_refused_before_anything_starts(home: GpuHome) -> None:
    home.jobs(holding())
    answer = home.call("run", "jobs.csv", "--devices", "slots:0;7", code=2)
    assert "there is no GPU 7 here: this machine has 0, 1; list one of these" in answer.stderr


def test_a_run_of_slots_is_taken_over_with_its_slots(home: GpuHome) -> None:
    home.jobs(*[holding() for _ in range(3)])
    with home.start("run", "jobs.csv", "--devices", "slots:0;1") as process:
        wait_until(
            lambda: (home.root / "began").exists() and len((home.root / "began").read_text().split()) == 2, PATIENCE
        )
        process.kill()
        process.wait(PATIENCE)
    home.go()
    assert home.call("resume", code=0).returncode == 0
    assert home.states() == ["succeeded"] * 3
    assert sorted(told(home, task) for task in range(2)) == ["0", "1"]
