"""What every source of devices promises: the host's RAM, GPUs and simulated devices are asked in the same way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import scheduler
from scheduler.core.model import HOST, Device, KnownBy, Placement, Purpose
from scheduler.core.ports import Devices, Watched, Watcher
from scheduler.core.simulation import SimulatedMachine
from scheduler.devices.host import HostDevices
from scheduler.devices.nvml import NvmlDevices
from scheduler.devices.simulated import SimulatedDevices, SimulatedWatcher
from scheduler.devices.watcher import HostWatcher
from scheduler.units import GIB
from tests.standin.box import NO_COMPILER, Box
from tests.waiting import wait_until

OPENED = ExitStack()
"""What a test has to close again."""


def real(cap: int | None = None) -> Devices:
    return HostDevices(cap)


def simulated(cap: int | None = None) -> Devices:
    caps = {} if cap is None else {HOST: cap}
    return SimulatedDevices(SimulatedMachine([Device(HOST, HOST, 64 * GIB, 8.0)], caps=caps))


def simulated_gpus(cap: int | None = None) -> Devices:
    devices = [Device(f"GPU-{number}", f"GPU {number}", 24 * GIB, 1.0) for number in range(4)]
    return SimulatedDevices(SimulatedMachine(devices, caps={d.key: cap for d in devices} if cap else None))


def gpus(cap: int | None = None) -> NvmlDevices:
    if not shutil.which("cc"):
        pytest.skip(NO_COMPILER)
    folder = OPENED.enter_context(tempfile.TemporaryDirectory())
    box = OPENED.enter_context(Box(Path(folder) / "box", gpus=2))
    devices = NvmlDevices(env={**os.environ, **box.env})
    OPENED.callback(devices.close)
    devices.use(box.uuids, {} if cap is None else dict.fromkeys(box.uuids, cap))
    devices.discover()
    return devices


Make = Callable[..., Devices]


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    with OPENED:
        yield


@pytest.fixture(params=[real, gpus, simulated, simulated_gpus], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes devices, with a budget where one is given."""
    made: Make = request.param
    return made


def placement(*keys: str) -> Placement:
    return Placement(1, 1, Purpose.RUN, dict.fromkeys(keys, GIB), 2.0, KnownBy.DECLARED)


class TestDevices:
    def test_there_is_at_least_one_and_each_has_a_name_of_its_own(self, make: Make) -> None:
        devices = make().discover()
        assert len({device.key for device in devices}) == len(devices) > 0

    def test_each_has_memory_and_can_be_kept_busy(self, make: Make) -> None:
        assert all(device.total > 0 and device.load_capacity > 0 for device in make().discover())

    def test_they_are_the_same_for_a_runs_life(self, make: Make) -> None:
        devices = make()
        assert devices.discover() == devices.discover()

    def test_a_snapshot_has_each_of_them_in_the_same_order(self, make: Make) -> None:
        devices = make()
        assert tuple(budget.device for budget in devices.snapshot()) == devices.discover()

    def test_free_is_between_nothing_and_all(self, make: Make) -> None:
        assert all(0 <= budget.free <= budget.device.total for budget in make().snapshot())

    def test_there_is_no_budget_unless_one_is_given(self, make: Make) -> None:
        assert {budget.cap for budget in make().snapshot()} == {None}

    def test_a_budget_is_told_beside_what_is_free(self, make: Make) -> None:
        assert {budget.cap for budget in make(GIB).snapshot()} == {GIB}
        assert all(budget.device.total > GIB for budget in make(GIB).snapshot())

    def test_an_environment_is_names_and_texts(self, make: Make) -> None:
        devices = make()
        for device in devices.discover():
            told = devices.environment_for(placement(device.key))
            assert all(isinstance(name, str) and (text is None or isinstance(text, str)) for name, text in told.items())

    def test_asking_for_it_changes_nothing(self, make: Make) -> None:
        devices = make()
        key = devices.discover()[0].key
        assert devices.environment_for(placement(key)) == devices.environment_for(placement(key))


def host_watcher() -> HostWatcher:
    watcher = HostWatcher(Path(scheduler.__file__).parent.parent)
    OPENED.callback(watcher.close)
    return watcher


def simulated_watcher() -> Watcher:
    return SimulatedWatcher(SimulatedMachine([Device("GPU-0", "GPU 0", 24 * GIB, 1.0)]))


class TestWatcher:
    @pytest.fixture(params=[host_watcher, gpus, simulated_watcher], ids=lambda make: make.__name__)
    def watcher(self, request: pytest.FixtureRequest) -> Watcher:
        made: Watcher = request.param()
        return made

    def test_nobody_holds_anything_before_it_was_looked_at(self, watcher: Watcher) -> None:
        watcher.watch({}, frozenset({os.getpid()}))
        assert not any(watcher.used_by(os.getpid()).values())

    def test_who_was_never_named_cannot_be_seen(self, watcher: Watcher) -> None:
        assert not any(watcher.used_by(4711).values())

    def test_it_has_nothing_to_say_while_all_is_well(self, watcher: Watcher) -> None:
        watcher.watch({(7, 1): Watched(os.getpid())}, frozenset())
        assert list(watcher.troubles()) == []

    def test_being_told_the_same_again_changes_nothing(self, watcher: Watcher) -> None:
        for _ in range(3):
            watcher.watch({(7, 1): Watched(os.getpid(), promise={"GPU-0": GIB})}, frozenset({1}))
        watcher.watch({}, frozenset())
        assert list(watcher.troubles()) == []


def test_what_a_shim_held_for_another_lease_before_counts_for_nothing() -> None:
    """It takes one attempt after another: the next has taken nothing yet, and what the last held is free already."""
    watcher = host_watcher()
    tree = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    OPENED.callback(tree.wait)
    OPENED.callback(os.killpg, tree.pid, signal.SIGKILL)
    watcher.watch({(7, 1): Watched(os.getpid())}, frozenset({tree.pid}))

    def used(whose: str) -> int:
        watcher.collect()
        return watcher.used_by(tree.pid, whose)[HOST]

    wait_until(lambda: used("0.a.7.1"))
    assert used("0.a.8.1") == 0
    wait_until(lambda: used("0.a.8.1"))
