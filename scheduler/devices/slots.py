"""Slots: places for one task each, whose names come from the user and are passed to tasks unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from scheduler.core.model import NAMED, Device, DeviceBudget, Placement
from scheduler.devices.gpu.allocation import CUDA, ORDER, starting_with
from scheduler.devices.gpu.inventory import InstalledGpu
from scheduler.devices.gpu.nvml_devices import NvmlDevices
from scheduler.devices.host.host_memory import HostDevices
from scheduler.devices.pool import DevicePool
from scheduler.errors import UsageError
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot; `name` becomes CUDA_VISIBLE_DEVICES, `cards` are the UUIDs of the GPUs that it names."""

    name: str
    cards: tuple[str, ...] = ()


def read_slots(names: Sequence[str], node: Sequence[InstalledGpu], numbers: Mapping[str, int]) -> tuple[Slot, ...]:
    """Return slots by their names; `numbers` are CUDA's numbers of the GPUs, in bus order.

    A name may be any text; a name that names no GPU is passed to the task as well. If there are GPUs, a number that no
    GPU has is refused, because a task in that slot would silently run without a GPU.
    """
    return tuple(Slot(name, _cards(name, node, numbers)) for name in names)


def _cards(name: str, node: Sequence[InstalledGpu], numbers: Mapping[str, int]) -> tuple[str, ...]:
    by_number = {str(number): uuid for uuid, number in numbers.items()}
    found: list[str] = []
    for item in (item.strip() for item in name.split(",")):
        if item.isdecimal() and by_number and str(int(item)) not in by_number:
            there = ", ".join(sorted(by_number, key=int))
            raise UsageError(f"there is no GPU {item} here: this machine has {there}; list one of these")
        uuids = [by_number[str(int(item))]] if item.isdecimal() and by_number else _by_uuid(item, node)
        found += [uuid for uuid in uuids if uuid not in found]
    return tuple(found)


def _by_uuid(item: str, node: Sequence[InstalledGpu]) -> list[str]:
    found = starting_with(item, node)
    return [found[0].uuid] if len(found) == 1 else []


class SlotPool(DevicePool):
    """The slots of a run, the GPUs that they name (if known), and the host."""

    def __init__(
        self,
        host: HostDevices,
        gpus: NvmlDevices | None,
        slots: Sequence[Slot],
        usable: Collection[str] = (),
        *,
        notes: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Join slots, GPUs and host; `usable` are the UUIDs that `gpus` samples."""
        super().__init__(host, gpus, notes=notes, environ=environ)
        self._names: dict[str, str] = {}
        self._slots: list[Device] = []
        totals = {device.key: device.total for device in gpus.discover()} if gpus else {}
        for place, slot in enumerate(slots):
            cards = tuple(uuid for uuid in slot.cards if uuid in usable)
            total = sum(totals[uuid] for uuid in cards) or host.discover()[0].total
            device = Device(f"{NAMED}{place}:{slot.name}", f"slot {slot.name}", total, 1.0, cards=cards)
            self._names[device.key] = slot.name
            self._slots.append(device)

    def discover(self) -> tuple[Device, ...]:
        """Return the slots, then the GPUs that they name, and the host."""
        self.labels.update({device.key: device.label for device in self._slots})
        return (*self._slots, *super().discover())

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return the free memory of the GPUs that the slots name and of the host; a slot has no memory of its own."""
        return (*(DeviceBudget(device, 0) for device in self._slots), *super().snapshot())

    @property
    def usual(self) -> int:
        """The number of GPUs of the slot that names most GPUs."""
        return max(len(device.cards or ()) for device in self._slots)

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return CUDA_VISIBLE_DEVICES with the slot's name, unchanged, and the order by PCI bus; all other variables
        stay as the user has set them.
        """
        return {CUDA: self._names[placement.slot], ORDER: "PCI_BUS_ID"}

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the positions of the entries of the slot's name in CUDA_VISIBLE_DEVICES."""
        return range(len(self._names[placement.slot].split(",")))
