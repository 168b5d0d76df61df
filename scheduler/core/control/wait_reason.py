"""The reason why a task waits, as data: its request, the state of each device, and the expected start."""

from __future__ import annotations

from typing import Any

from scheduler.core.model import EstimateSource
from scheduler.core.placement.refusal import Refusal
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class HolderUse:
    """The bytes that one holder uses or has reserved on a device."""

    who: str
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the holder as JSON values."""
        return {"who": self.who, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The state of one device on which a task may run, as decisions see it."""

    device: str
    room: int
    total: int
    held: tuple[HolderUse, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the device as JSON values."""
        held = [holder.to_dict() for holder in self.held]
        return {"device": self.device, "room": self.room, "total": self.total, "held": held}


@dataclass(frozen=True, slots=True)
class RequestedResources:
    """The memory that a task requests on each of its devices, with the source of that estimate."""

    bytes: int | None
    """The bytes on each device, with the margin; None: unknown."""
    peak: int
    """The declared or measured part of the request; the rest is margin."""
    gpus: int
    source: EstimateSource
    share: float = 0.0
    """The margin as a share of `peak`; 0 if the request was not computed as a peak with a margin."""
    margin: int = 0
    """The part of the margin that is a fixed number of bytes; 0 if `share` is 0."""
    ooms: int = 0
    """The number of earlier attempts that ran out of memory."""
    no_gpu: bool = False
    """True if attempts of the task's class have shown that the task needs no GPU, though it would see one."""
    is_expected: bool = False
    """True if the task's memory is unknown, and `bytes` was derived from the needs of other task classes."""
    classes: int = 0
    """The number of task classes from which `bytes` was derived."""
    starts_with: int = 0
    """The bytes with which the task may start although it requests more. A task of unknown memory may start with them
    if no other such task on the device is at its beginning; a task of known memory, if other tasks on the device share
    its margin."""
    expect: float = 0.0
    """The share of tasks of unknown memory that need at most `bytes`."""
    enough: float = 0.0
    """The share of tasks of unknown memory that need at most `starts_with`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the request as JSON values."""
        return {
            "bytes": self.bytes, "peak": self.peak, "gpus": self.gpus, "source": self.source, "share": self.share,
            "margin": self.margin, "ooms": self.ooms, "no_gpu": self.no_gpu, "is_expected": self.is_expected,
            "classes": self.classes, "starts_with": self.starts_with, "expect": self.expect, "enough": self.enough,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitReason:
    """The reason why one task does not start now."""

    refusal: Refusal
    wants: RequestedResources
    devices: tuple[DeviceState, ...] = ()
    bypassed: int = 0
    """The number of later tasks that started while it waited."""
    at_most: int = 0
    """The bypass limit: the most later tasks that may start while the task waits."""
    room_in: float | None = None
    """Seconds until the task may find enough capacity; None: unknown."""
    after: int = 0
    """The task of this run whose end frees capacity in `room_in` seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values of `scheduler why --json`."""
        return {
            "refusal": self.refusal.to_dict(),
            "wants": self.wants.to_dict(),
            "devices": [device.to_dict() for device in self.devices],
            "bypassed": self.bypassed,
            "at_most": self.at_most,
            "room_in": self.room_in,
            "after": self.after,
        }
