"""Refusals: why a task does not start now, each reason with its properties."""

from __future__ import annotations

from enum import StrEnum

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class _Properties:
    """The properties of a reason, as they stand behind its name below."""

    word: str
    waits: str
    waits_on_host: str = ""
    ends_free_it: bool = False
    is_for_memory: bool = False
    is_count: bool = False
    is_device_closed: bool = False
    keeps_devices: bool = True
    depends_on_need: bool = True
    hope: int = 3


class Reason(StrEnum):
    """The reasons for which a task does not start now."""

    waits: str
    """The words for what a waiting task waits for, behind the number of tasks: `12 for GPU memory`."""
    waits_on_host: str
    """The words for what a task waits for where the device is the host."""
    ends_free_it: bool
    """True if the end of a running task makes the capacity that is missing."""
    is_for_memory: bool
    """True if bytes are missing, whether they are in use or kept for another task."""
    is_count: bool
    """True if as many tasks are on the device as may be, whatever they need."""
    is_device_closed: bool
    """True if the device takes no task at all."""
    keeps_devices: bool
    """True if devices are kept for the task after it was bypassed too often."""
    depends_on_need: bool
    """True if a smaller request could change the reason."""
    hope: int
    """How likely the task fits on the device some day; of several devices the refusal with the most hope is shown."""

    def __new__(cls, properties: _Properties | str) -> Reason:
        """Create a member from its properties; a string finds the member of that value."""
        assert isinstance(properties, _Properties)
        reason = str.__new__(cls, properties.word)
        reason._value_ = properties.word
        reason.waits, reason.waits_on_host = properties.waits, properties.waits_on_host or properties.waits
        reason.ends_free_it, reason.is_for_memory = properties.ends_free_it, properties.is_for_memory
        reason.is_count, reason.is_device_closed = properties.is_count, properties.is_device_closed
        reason.keeps_devices, reason.depends_on_need = properties.keeps_devices, properties.depends_on_need
        reason.hope = properties.hope
        return reason

    MEMORY = _Properties("memory", "for GPU memory", "for host RAM", ends_free_it=True, is_for_memory=True)
    UNKNOWN = _Properties(
        "unknown",
        "for a GPU that is free enough to learn on",
        ends_free_it=True,
        is_for_memory=True,
        depends_on_need=False,
    )
    SPENT = _Properties("spent", "for host RAM beside their GPUs", ends_free_it=True, is_for_memory=True)
    KEPT = _Properties("closed", "behind a task that was bypassed too often", is_for_memory=True)
    UNMANAGED = _Properties("unmanaged", "for memory that belongs to no task")
    NEVER = _Properties("never", "to be refused: no device is large enough", hope=0)
    SLOTS = _Properties("slots", "for a slot", ends_free_it=True, is_count=True, depends_on_need=False)
    CLIENTS = _Properties("clients", "for a place under MPS", ends_free_it=True, is_count=True)
    ALONE = _Properties("alone", "for a GPU of their own", "for a machine of their own", ends_free_it=True)
    LOAD = _Properties("load", "for cores", ends_free_it=True)
    BUSY = _Properties("busy", "for GPUs that are less busy", ends_free_it=True)
    JOBS = _Properties("jobs", "because of -j", depends_on_need=False)
    QUOTA = _Properties("cap", "for the user's other tasks to end, because of the quota", depends_on_need=False)
    DISABLED = _Properties(
        "disabled",
        "for devices that are disabled",
        is_device_closed=True,
        keeps_devices=False,
        depends_on_need=False,
        hope=1,
    )
    CLOSED_DEVICE = _Properties("closed-device", "for a device that takes no task", is_device_closed=True, hope=1)
    UNREADABLE = _Properties(
        "unreadable", "for tasks to end whose reservations cannot be read", is_device_closed=True, hope=1
    )
    AVOIDED = _Properties("avoided", "for unmanaged processes to end", hope=2)
    YOUNG = _Properties("young", "for unmanaged processes to settle")
    GPUS = _Properties("gpus", "for more GPUs than the run may use", keeps_devices=False)
    DEVICE = _Properties("device", "for a device that the run does not have", keeps_devices=False)
    PROBING = _Properties("probing", "for a probe of their class")
    WATCHED = _Properties("watched", "for a similar task to show what it needs")
    UNLOOKED = _Properties("unlooked", "far behind in the queue", keeps_devices=False, depends_on_need=False)
    LEARNED = _Properties(
        "learned", "for more than learning: this run does nothing else", keeps_devices=False, depends_on_need=False
    )
    DRAINING = _Properties("draining", "for the run to be resumed", depends_on_need=False)
    FULL_DISK = _Properties("full", "for free space on the disk", depends_on_need=False)
    SUSPENDED = _Properties("suspended", "for starts to work again", keeps_devices=False, depends_on_need=False)
    AWAY = _Properties("away", "for their directory to be there again", keeps_devices=False, depends_on_need=False)
    NEXT = _Properties("next", "for the next look")

    @property
    def is_for_capacity(self) -> bool:
        """True if capacity is missing that other tasks use, or that is kept for another task."""
        return self.ends_free_it or self is Reason.KEPT

    def is_of_one_task(self, *, together: bool) -> bool:
        """Tell whether the equals of a task may start all the same; `together`: they may be in other directories."""
        return self is Reason.SUSPENDED or (self is Reason.AWAY and together)

    @property
    def takes_turns(self) -> bool:
        """True if the schedulers of a machine take turns for what is missing."""
        return self.is_for_capacity and not self.is_count


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a task does not start now, with its numbers; `control/messages` makes the sentence."""

    task: int
    reason: Reason
    device: str = ""
    """The name of the device, as users see it."""
    wanted: int = 0
    room: int = 0
    total: int = 0
    text: str = ""
    """Detail on the device, where that is the reason."""
