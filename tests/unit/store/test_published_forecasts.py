"""Published forecasts: the files by which forecasts of different schedulers know of each other."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import EstimateSource
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.core.reporting.published_forecast import PublishedForecast, WaitingDemand
from scheduler.runtime.shim import pack_block
from scheduler.store.machine import published_forecasts
from scheduler.store.machine.lease_directory import make_directory
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.units import GIB

BOOT = "a boot"
NEED = ResourceRequest(MemoryRequest(GIB, GIB), 2.0, EstimateSource.DECLARED, (MemoryRequest(8 * GIB, 7 * GIB),), 0.5)
SAID = PublishedForecast(
    os.getuid(), "1-a", 1e9, ("GPU-0", "host"), 4, {(3, 1): 1e9 + 60}, (WaitingDemand(5, 12.5, NEED, "0"),)
)


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return make_directory(str(tmp_path / "leases"))


def seen(leases: Path) -> list[PublishedForecast]:
    return published_forecasts.others(leases, os.getuid(), "2-b")


def test_a_forecast_is_read_as_it_was_published(leases: Path) -> None:
    registry = FileLeaseRegistry(leases, "1-a", BOOT)
    registry.publish(SAID)
    (found,) = seen(leases)
    assert replace(found, name="") == SAID
    assert published_forecasts.others(leases, os.getuid(), "1-a") == [], "a run does not read its own"


def test_a_forecast_is_replaced_in_its_file(leases: Path) -> None:
    registry = FileLeaseRegistry(leases, "1-a", BOOT)
    registry.publish(SAID)
    names = os.listdir(leases)
    registry.publish(replace(SAID, jobs=7))
    assert os.listdir(leases) == names
    assert [one.jobs for one in seen(leases)] == [7]


def test_a_forecast_is_removed_with_its_scheduler_and_once_there_is_nothing_to_do(leases: Path) -> None:
    registry = FileLeaseRegistry(leases, "1-a", BOOT)
    registry.publish(SAID)
    registry.publish(None)
    assert os.listdir(leases) == []
    registry.publish(SAID)
    registry.close()
    assert os.listdir(leases) == []


def test_a_forecast_is_made_again_after_its_file_was_removed(leases: Path) -> None:
    registry = FileLeaseRegistry(leases, "1-a", BOOT)
    registry.publish(SAID)
    for path in leases.iterdir():
        path.unlink()
    registry.publish(SAID)
    assert [one.run for one in seen(leases)] == ["1-a"]


def test_the_forecast_of_a_killed_scheduler_does_not_count_and_the_next_one_removes_it(leases: Path) -> None:
    registry, other = FileLeaseRegistry(leases, "1-a", BOOT), FileLeaseRegistry(leases, "2-b", BOOT)
    registry.publish(SAID)
    os.close(registry._forecast._fd)
    registry._forecast._fd = -1
    assert seen(leases) == []
    other.publish(SAID)
    assert [name.split(".")[2] for name in os.listdir(leases)] == ["2-b"]


def test_a_large_forecast_is_shortened_until_it_fits_its_file(leases: Path) -> None:
    registry = FileLeaseRegistry(leases, "1-a", BOOT)
    demands = tuple(WaitingDemand(1000 + n, 1e6 / 7, replace(NEED, gpus=NEED.gpus * 8), "0") for n in range(12))
    ends = {(10**6 + n, 1): 1e9 + n for n in range(48)}
    registry.publish(replace(SAID, waiting=demands, ends=ends, devices=tuple(f"GPU-{n:036}" for n in range(16))))
    (found,) = seen(leases)
    assert found.tasks == sum(demand.tasks for demand in demands)
    assert 0 < len(found.waiting) < 12
    assert list(found.ends) == list(ends)[: len(found.ends)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"ends": {"x": 1.0}},
        {"waiting": [{"tasks": 1}]},
        {"since": "nan"},
        {"jobs": 1 << 70},
        {"devices": None},
    ],
)
def test_nonsense_of_another_scheduler_is_left_out(leases: Path, wrong: dict[str, Any]) -> None:
    registry = FileLeaseRegistry(leases, "1-a", BOOT)
    registry.publish(SAID)
    said = {**published_forecasts.to_dict(SAID), **wrong}
    os.pwrite(registry._forecast._fd, pack_block(said), 0)
    assert seen(leases) == []
