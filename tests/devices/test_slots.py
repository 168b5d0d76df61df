"""What names of slots mean: cards that are known by them, and nothing at all."""

from __future__ import annotations

import pytest

from scheduler.core.model import HOST, KnownBy, Placement, Purpose
from scheduler.devices.allocation import Seen
from scheduler.devices.host import HostDevices
from scheduler.devices.slots import Slot, SlotPool, read_slots
from scheduler.errors import UsageError
from scheduler.units import GIB

NODE = [
    Seen(number, f"GPU-{number}{number}{number}{number}-x", "A", f"0:{9 - number}", 24 * GIB) for number in range(3)
]
NUMBERS = {"GPU-2222-x": 0, "GPU-1111-x": 1, "GPU-0000-x": 2}
"""CUDA counts by the bus, where they lie the other way round."""


def cards(name: str) -> tuple[str, ...]:
    return read_slots([name], NODE, NUMBERS)[0].cards


def test_a_number_is_what_cuda_calls_it() -> None:
    assert cards("0") == ("GPU-2222-x",)
    assert cards("0,1") == ("GPU-2222-x", "GPU-1111-x")


def test_a_uuid_or_its_beginning_is_a_card() -> None:
    assert cards("GPU-1111") == ("GPU-1111-x",)


def test_the_same_card_twice_in_one_slot_is_one() -> None:
    assert cards("1,1") == ("GPU-1111-x",)


@pytest.mark.parametrize("name", ["a", "", "-1", "MIG-1/2", "GPU-9999"])
def test_any_other_name_is_taken_and_names_no_card(name: str) -> None:
    assert cards(name) == ()


def test_a_number_that_no_gpu_has_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="there is no GPU 7 here: this machine has 0, 1, 2; list one of these"):
        read_slots(["0", "1,7"], NODE, NUMBERS)


def test_where_there_is_no_gpu_every_number_is_a_name() -> None:
    assert read_slots(["0", "7"], [], {}) == (Slot("0"), Slot("7"))


def test_a_task_is_told_the_name_as_it_was_given_and_nothing_else() -> None:
    pool = SlotPool(HostDevices(), None, [Slot("0"), Slot(" b"), Slot("0")], environ={})
    keys = [device.key for device in pool.discover() if device.is_slot]
    assert len(set(keys)) == 3
    told = pool.environment_for(Placement(1, 1, Purpose.RUN, {keys[1]: 0, HOST: 0}, 1.0, KnownBy.LIVE))
    assert told == {"CUDA_VISIBLE_DEVICES": " b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
