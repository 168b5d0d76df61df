"""Slots: places for one task each, by names that the user gave and that tasks are told as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from scheduler.core.model import NAMED, Budget, Device, Placement
from scheduler.devices.allocation import CUDA, ORDER, Seen, starting_with
from scheduler.devices.host import HostDevices
from scheduler.devices.nvml import NvmlDevices
from scheduler.devices.pool import Pool
from scheduler.errors import UsageError
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """One of them; `name` is what CUDA_VISIBLE_DEVICES becomes, `cards` the UUIDs of what it names."""

    name: str
    cards: tuple[str, ...] = ()


def read_slots(names: Sequence[str], node: Sequence[Seen], numbers: Mapping[str, int]) -> tuple[Slot, ...]:
    """Slots by their names; `numbers` are those that CUDA knows the GPUs by, in the order of the bus.

    A name may be anything: what names no GPU is still told to the task. Only a number is refused where there are GPUs
    and none has it, since its task would silently run without one.
    """
    return tuple(Slot(name, _cards(name, node, numbers)) for name in names)


def _cards(name: str, node: Sequence[Seen], numbers: Mapping[str, int]) -> tuple[str, ...]:
    by_number = {str(number): uuid for uuid, number in numbers.items()}
    found: list[str] = []
    for item in (item.strip() for item in name.split(",")):
        if item.isdecimal() and by_number and str(int(item)) not in by_number:
            there = ", ".join(sorted(by_number, key=int))
            raise UsageError(f"there is no GPU {item} here: this machine has {there}; list one of these")
        uuids = [by_number[str(int(item))]] if item.isdecimal() and by_number else _by_uuid(item, node)
        found += [uuid for uuid in uuids if uuid not in found]
    return tuple(found)


def _by_uuid(item: str, node: Sequence[Seen]) -> list[str]:
    found = starting_with(item, node) if item.startswith("GPU-") else []
    return [found[0].uuid] if len(found) == 1 else []


class SlotPool(Pool):
    """The slots of a run, the cards they name where somebody knows these, and the host."""

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
        """`usable` are the UUIDs that `gpus` looks at."""
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
        """Its slots, then what lies under them."""
        return (*self._slots, *super().discover())

    def snapshot(self) -> tuple[Budget, ...]:
        """What lies under the slots has free; a slot has nothing of its own."""
        return (*(Budget(device, 0) for device in self._slots), *super().snapshot())

    @property
    def usual(self) -> int:
        """As many GPUs as the largest slot has."""
        return max(len(device.cards or ()) for device in self._slots)

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """The slot's name as it was given; everything else is as the user has it."""
        return {CUDA: self._names[placement.slot], ORDER: "PCI_BUS_ID"}
