"""The devices of a run as one pool: their names, also of those that join later."""

from __future__ import annotations

from typing import Any, cast

from scheduler.core.model import Device, DeviceBudget
from scheduler.devices.pool import DevicePool
from scheduler.units import GIB


class Port:
    """Devices that are replaced by others."""

    def __init__(self, *devices: Device) -> None:
        self.devices = devices

    def discover(self) -> tuple[Device, ...]:
        return self.devices

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        return tuple(DeviceBudget(device, device.total) for device in self.devices)


def test_gpu_that_takes_the_place_of_one_that_could_not_be_read_has_a_name() -> None:
    gpus = Port(Device("GPU-unread-1", "GPU 1", GIB, 1.0, 1))
    pool = DevicePool(cast("Any", Port(Device("host", "host", GIB, 2.0))), cast("Any", gpus))
    pool.discover()
    gpus.devices = (Device("GPU-2b18", "GPU 1", GIB, 1.0, 1),)
    pool.snapshot()
    assert pool.labels["GPU-2b18"] == "GPU 1"
