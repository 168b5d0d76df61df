"""The file with the devices of a run: what is written is read again, and nothing old or of other devices counts."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.app.observe.device_readings import (
    RECENT,
    VISIBLE,
    ReadingsWriter,
    of_leases,
    readings_of,
    readings_of_all,
)
from scheduler.app.observe.machine_status import _node
from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget, UnmanagedUse
from scheduler.core.ports import Sample
from scheduler.core.reporting.device_readings import DeviceReadings
from scheduler.runtime.clock import since_boot
from scheduler.runtime.paths import RunPaths
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.verbs.status import node_lines
from scheduler.units import GIB
from scheduler.values import replace
from tests.support import builders as b

GPU = replace(
    b.gpu(0, free="20GiB"), unmanaged=(UnmanagedUse(GIB, "ben", 7),), busy=0.5, celsius=61, watts=240.5, closed="away"
)
USED = {98: {"GPU-0": 2 * GIB}}


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)


def write(places: RunPaths, devices: str | None = None) -> None:
    """Write the readings of a run with this choice of devices."""
    gpus = SimpleNamespace(used_by_shims=lambda: USED)
    pool = SimpleNamespace(gpus=gpus, snapshot=lambda: (GPU, b.host("64GiB", "50GiB")))
    meta = {"choices": json.dumps({} if devices is None else {"devices": devices})}
    brain = SimpleNamespace(task_table=SimpleNamespace(living=1))
    session: Any = SimpleNamespace(places=places, devices=pool, meta=meta, brain=brain)
    ReadingsWriter(session).draw()


def info(places: RunPaths, *, alive: bool = True) -> RunInfo:
    return RunInfo(1, places, {}, alive=alive)


def test_readings_survive_their_file(tmp_path: Path) -> None:
    places = RunPaths(tmp_path, 1)
    write(places)
    found = readings_of(info(places))
    assert found is not None
    first, host = found.budgets
    assert (first.device.label, first.free, first.busy, first.celsius, first.watts) == (
        GPU.device.label, GPU.free, 0.5, 61, 240.5,
    )  # fmt: skip
    assert [(one.user, one.pid, one.bytes) for one in first.unmanaged] == [("ben", 7, GIB)]
    assert (first.closed, first.device.is_gpu, host.device.is_gpu) == ("away", True, False)
    assert found.used == USED


def test_readings_of_a_dead_scheduler_do_not_count(tmp_path: Path) -> None:
    places = RunPaths(tmp_path, 1)
    write(places)
    assert readings_of(info(places, alive=False)) is None


def test_old_and_damaged_readings_do_not_count(tmp_path: Path) -> None:
    places = RunPaths(tmp_path, 1)
    assert readings_of(info(places)) is None
    write(places)
    said = json.loads(places.readings.read_bytes())
    places.readings.write_text(json.dumps({**said, "at": since_boot() - RECENT - 1}))
    assert readings_of(info(places)) is None
    for text in ("", "[]", '{"format": 1}', json.dumps({**said, "format": 99}), json.dumps({**said, "devices": [1]})):
        places.readings.write_text(text)
        assert readings_of(info(places)) is None


@pytest.mark.parametrize(("devices", "visible", "counts"), [
    (None, None, True), ("auto", None, True), ("0", None, False), (None, "1", False),
])  # fmt: skip
def test_machine_uses_the_readings_of_a_run_that_sees_all_devices(
    tmp_path: Path, devices: str | None, visible: str | None, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = RunPaths(tmp_path, 1)
    write(places, devices)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    assert (readings_of_all([places]) is not None) is counts


def test_lease_gets_the_use_of_its_shim() -> None:
    lease = replace(b.hold("6GiB", "1GiB"), shim=98)
    (budget, *_), (found,) = of_leases(DeviceReadings(since_boot(), [GPU], USED), [lease])
    assert found.used == {**lease.used, "GPU-0": 2 * GIB}
    assert budget.free == GPU.free


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 4"):
        DeviceReadings.from_dict({"format": 4})


def test_budget_without_samples_survives_as_well() -> None:
    bare = DeviceBudget(GPU.device, 5)
    again = DeviceReadings.from_dict(json.loads(json.dumps(DeviceReadings(1.0, [bare], {}).to_dict()))).budgets[0]
    assert (again.free, again.busy, again.watts, again.unmanaged, again.cap) == (5, None, None, (), None)


@pytest.mark.parametrize("leases", [[], [replace(b.hold("6GiB", "1GiB"), shim=98, since=inf)]])
def test_memory_of_an_attempt_that_has_just_ended_is_free_and_not_used_by_others(leases: list[Lease]) -> None:
    """Its shim may work on for an attempt that began after the measurement."""
    (budget, *_), found = of_leases(DeviceReadings(since_boot(), [GPU], USED), leases)
    assert budget.free == GPU.free + 2 * GIB
    assert all("GPU-0" not in one.used for one in found)


NODES = (*b.node("n1", b.gpu(0, free="20GiB"), b.host("64GiB")), *b.node("n2", b.gpu(0), b.host("64GiB")))


def test_readings_of_a_run_on_nodes_have_nodes_and_the_use_of_its_attempts(tmp_path: Path) -> None:
    budgets = (*NODES[:2], *(replace(one, away="silent") for one in NODES[2:]))
    tasks = [SimpleNamespace(id=1, attempts=2)]
    brain = SimpleNamespace(task_table=SimpleNamespace(living=0), living=lambda: tasks)
    pool = SimpleNamespace(gpus=None, snapshot=lambda: budgets)
    session: Any = SimpleNamespace(places=RunPaths(tmp_path, 1), devices=pool, meta={"nodes": "[]"}, brain=brain)
    writer = ReadingsWriter(session)
    for key in ((1, 1), (1, 2)):
        writer.see(Sample(*key, {"GPU-n1-0": GIB, "host": 5}, {}))
    writer.draw()
    found = readings_of(info(session.places))
    assert found is not None
    assert dict(found.attempts) == {(1, 2): {"GPU-n1-0": GIB, "host": 5}}, "an attempt that has ended is left out"
    assert [(one.device, one.away) for one in found.budgets] == [(one.device, one.away) for one in budgets]
    assert readings_of_all([session.places]) is None, "they are no devices of this machine"


def test_status_shows_the_nodes_of_a_run_with_what_it_reserves_there() -> None:
    placed = [replace(b.placed(task, "2GiB", device="GPU-n1-0"), node="n1") for task in (7, 3)]
    shown = [
        {"run": 4, "node": "n1", **_node(NODES[:2], placed)},
        {"run": 4, "node": "n2", **_node([replace(one, away="silent for 4 s") for one in NODES[2:]], [])},
    ]
    assert shown[0]["tasks"] == [3, 7]
    assert [line.split() for line in node_lines(shown)[1:]] == [
        ["n1", "4", "up", "1", "24.0GiB", "4.0GiB", "64.0GiB", "0MiB", "4", "2"],
        ["n2", "4", "away:", "silent", "for", "4", "s", "1", "24.0GiB", "0MiB", "64.0GiB", "0MiB", "4", "0"],
    ]
