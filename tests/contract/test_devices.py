"""What every source of devices promises: the host's RAM and simulated devices are asked in the same way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.core.model import HOST, Device, KnownBy, Placement, Purpose
from scheduler.core.ports import Devices
from scheduler.core.simulation import SimulatedMachine
from scheduler.devices.host import HostDevices
from scheduler.devices.simulated import SimulatedDevices
from scheduler.units import GIB


def real(cap: int | None = None) -> Devices:
    return HostDevices(cap)


def simulated(cap: int | None = None) -> Devices:
    caps = {} if cap is None else {HOST: cap}
    return SimulatedDevices(SimulatedMachine([Device(HOST, HOST, 64 * GIB, 8.0)], caps=caps))


def simulated_gpus(cap: int | None = None) -> Devices:
    devices = [Device(f"GPU-{number}", f"GPU {number}", 24 * GIB, 1.0) for number in range(4)]
    return SimulatedDevices(SimulatedMachine(devices, caps={d.key: cap for d in devices} if cap else None))


Make = Callable[..., Devices]


@pytest.fixture(params=[real, simulated, simulated_gpus], ids=lambda make: make.__name__)
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
