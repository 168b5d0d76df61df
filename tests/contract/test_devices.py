"""The contract of every source of devices: the host's RAM, GPUs and simulated devices answer alike."""

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
from scheduler.core.model import HOST, Device, EstimateSource, Placement, Purpose
from scheduler.core.ports import Devices, Watched, Watcher
from scheduler.devices.gpu.nvml_devices import NvmlDevices
from scheduler.devices.host.host_memory import HostDevices
from scheduler.devices.host.sampler_client import HostWatcher
from scheduler.simulation.devices import SimulatedDevices, SimulatedWatcher
from scheduler.simulation.machine import SimulatedMachine
from scheduler.units import GIB, MIB
from tests.support.standin.box import NO_COMPILER, Box
from tests.support.waiting import wait_until

OPENED = ExitStack()
"""The resources that a test has to close."""


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
    """Make devices, with a budget where one is given."""
    made: Make = request.param
    return made


def placement(*keys: str) -> Placement:
    return Placement(1, 1, Purpose.RUN, dict.fromkeys(keys, GIB), 2.0, EstimateSource.DECLARED)


class TestDevices:
    def test_there_is_at_least_one_device_and_each_has_a_unique_name(self, make: Make) -> None:
        devices = make().discover()
        assert len({device.key for device in devices}) == len(devices) > 0

    def test_each_device_has_memory_and_load_capacity(self, make: Make) -> None:
        assert all(device.total > 0 and device.load_capacity > 0 for device in make().discover())

    def test_devices_are_constant_for_a_run(self, make: Make) -> None:
        devices = make()
        assert devices.discover() == devices.discover()

    def test_a_snapshot_has_all_devices_in_the_same_order(self, make: Make) -> None:
        devices = make()
        assert tuple(budget.device for budget in devices.snapshot()) == devices.discover()

    def test_free_is_between_zero_and_the_total(self, make: Make) -> None:
        assert all(0 <= budget.free <= budget.device.total for budget in make().snapshot())

    def test_there_is_no_budget_unless_one_is_given(self, make: Make) -> None:
        assert {budget.cap for budget in make().snapshot()} == {None}

    def test_a_budget_is_returned_beside_the_free_bytes(self, make: Make) -> None:
        assert {budget.cap for budget in make(GIB).snapshot()} == {GIB}
        assert all(budget.device.total > GIB for budget in make(GIB).snapshot())

    def test_an_environment_has_names_and_texts(self, make: Make) -> None:
        devices = make()
        for device in devices.discover():
            told = devices.environment_for(placement(device.key))
            assert all(isinstance(name, str) and (text is None or isinstance(text, str)) for name, text in told.items())

    def test_asking_for_the_environment_changes_nothing(self, make: Make) -> None:
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

    def test_no_shim_uses_memory_before_it_was_measured(self, watcher: Watcher) -> None:
        watcher.watch({}, {os.getpid(): 0})
        assert not any(watcher.used_by(os.getpid()).values())

    def test_an_unnamed_shim_cannot_be_seen(self, watcher: Watcher) -> None:
        assert not any(watcher.used_by(4711).values())

    def test_a_watcher_has_no_troubles_while_all_is_well(self, watcher: Watcher) -> None:
        watcher.watch({(7, 1): Watched(os.getpid())}, {})
        assert list(watcher.troubles()) == []

    def test_watching_the_same_attempts_again_changes_nothing(self, watcher: Watcher) -> None:
        for _ in range(3):
            watcher.watch({(7, 1): Watched(os.getpid(), reservation={"GPU-0": GIB})}, {1: 0})
        watcher.watch({}, {})
        assert list(watcher.troubles()) == []


def test_use_of_other_schedulers_is_measured_before_an_attempt_of_this_run_lives() -> None:
    watcher = host_watcher()
    watcher.watch({}, {os.getpid(): 0})

    def used() -> int:
        watcher.collect()
        return watcher.used_by(os.getpid(), "0.a.7.1").get(HOST, 0)

    assert wait_until(used) > MIB


def test_use_of_a_shim_under_an_earlier_lease_does_not_count() -> None:
    """A shim takes one attempt after another: the next has used nothing yet, and the memory of the last is free
    already.
    """
    watcher = host_watcher()
    tree = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    OPENED.callback(tree.wait)
    OPENED.callback(os.killpg, tree.pid, signal.SIGKILL)
    watcher.watch({(7, 1): Watched(os.getpid())}, {tree.pid: 0})

    def used(whose: str) -> int:
        watcher.collect()
        return watcher.used_by(tree.pid, whose)[HOST]

    wait_until(lambda: used("0.a.7.1"))
    assert used("0.a.8.1") == 0
    wait_until(lambda: used("0.a.8.1"))
