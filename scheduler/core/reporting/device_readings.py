"""The devices of a run as its scheduler last measured them.

They are published so that views need no sampler of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.model import Device, DeviceBudget, UnmanagedUse
from scheduler.core.ports import Key
from scheduler.values import dataclass, field

FORMAT = 3


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """The state of a run's devices at one moment, and the memory of all process trees that the scheduler knows."""

    at: float
    """The time of the measurement, in seconds since the machine was booted."""
    budgets: Sequence[DeviceBudget]
    used: Mapping[int, Mapping[str, int]]
    """The bytes that the process tree of each shim uses, by device."""
    attempts: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """In a run on nodes, the bytes that each attempt uses by device; devices are named as on the attempt's node."""

    def to_dict(self) -> dict[str, Any]:
        """Return the readings as JSON values."""
        used = {str(shim): {**by_device} for shim, by_device in self.used.items()}
        attempts = [[*key, {**by_device}] for key, by_device in self.attempts.items()]
        devices = [_said(budget) for budget in self.budgets]
        return {"format": FORMAT, "at": self.at, "devices": devices, "used": used, "attempts": attempts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceReadings:
        """Return the readings that `to_dict` described; raise KeyError, TypeError or ValueError for anything else."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']} of device readings is unknown here")
        used = {int(shim): {str(key): int(held) for key, held in by.items()} for shim, by in data["used"].items()}
        attempts = {(task, attempt): dict(by) for task, attempt, by in data["attempts"]}
        return cls(float(data["at"]), [_budget(one) for one in data["devices"]], used, attempts)


def _said(budget: DeviceBudget) -> dict[str, Any]:
    device = budget.device
    return {
        "key": device.key, "label": device.label, "total": device.total, "load_capacity": device.load_capacity,
        "index": device.index, "part": device.part, "model": device.model,
        "cards": None if device.cards is None else [*device.cards], "free": budget.free, "cap": budget.cap,
        "unmanaged": [one.to_dict() for one in budget.unmanaged],
        "unreclaimed": budget.unreclaimed, "closed": budget.closed, "busy": budget.busy, "age": budget.age,
        "celsius": budget.celsius, "watts": budget.watts, "node": device.node, "away": budget.away,
    }  # fmt: skip


def _budget(said: Mapping[str, Any]) -> DeviceBudget:
    cards = said["cards"]
    device = Device(
        said["key"], said["label"], said["total"], said["load_capacity"], said["index"], said["model"],
        part=said["part"], cards=None if cards is None else tuple(cards), node=said["node"],
    )  # fmt: skip
    unmanaged = tuple(UnmanagedUse(one["bytes"], one["user"], one["pid"]) for one in said["unmanaged"])
    return DeviceBudget(
        device, said["free"], said["cap"], unmanaged, said["unreclaimed"], said["closed"], busy=said["busy"],
        age=said["age"], celsius=said["celsius"], watts=said["watts"], away=said["away"],
    )  # fmt: skip
