"""The meaning of slot names: the GPUs that they name, and names without a GPU."""

from __future__ import annotations

import pytest

from scheduler.core.model import HOST, EstimateSource, Placement, Purpose
from scheduler.devices.gpu.inventory import InstalledGpu
from scheduler.devices.host.host_memory import HostDevices
from scheduler.devices.slots import Slot, SlotPool, read_slots
from scheduler.errors import UsageError
from scheduler.units import GIB

NODE = [
    InstalledGpu(number, f"GPU-{number}{number}{number}{number}-x", "A", f"0:{9 - number}", 24 * GIB)
    for number in range(3)
]
NUMBERS = {"GPU-2222-x": 0, "GPU-1111-x": 1, "GPU-0000-x": 2}
"""CUDA's numbers; it counts by the bus, where the GPUs lie the other way round."""


def cards(name: str) -> tuple[str, ...]:
    return read_slots([name], NODE, NUMBERS)[0].cards


def test_slot_number_is_cudas_number() -> None:
    assert cards("0") == ("GPU-2222-x",)
    assert cards("0,1") == ("GPU-2222-x", "GPU-1111-x")


def test_slot_may_be_a_uuid_or_its_beginning() -> None:
    assert cards("GPU-1111") == ("GPU-1111-x",)


def test_slot_that_names_a_gpu_twice_has_it_once() -> None:
    assert cards("1,1") == ("GPU-1111-x",)


@pytest.mark.parametrize("name", ["a", "", "-1", "MIG-1/2", "GPU-9999"])
def test_slot_with_another_name_has_no_gpu(name: str) -> None:
    assert cards(name) == ()


def test_slot_number_without_a_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no GPU 7 here: this machine has 0, 1, 2; list one of these"):
        read_slots(["0", "1,7"], NODE, NUMBERS)


def test_slot_number_is_a_name_where_there_is_no_gpu() -> None:
    assert read_slots(["0", "7"], [], {}) == (Slot("0"), Slot("7"))


def test_task_gets_the_slot_name_unchanged_and_nothing_else() -> None:
    pool = SlotPool(HostDevices(), None, [Slot("0"), Slot(" b"), Slot("0")], environ={})
    keys = [device.key for device in pool.discover() if device.is_slot]
    assert len(set(keys)) == 3
    told = pool.environment_for(Placement(1, 1, Purpose.RUN, {keys[1]: 0, HOST: 0}, 1.0, EstimateSource.MEASURED))
    assert told == {"CUDA_VISIBLE_DEVICES": " b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
