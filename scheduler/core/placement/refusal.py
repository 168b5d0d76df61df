"""Refusals: why a task does not start now, each reason with its properties."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from scheduler.values import dataclass, names_of


@dataclass(frozen=True, slots=True)
class _Properties:
    """The properties of a reason, in the order in which the members of `Reason` list them."""

    word: str
    sentence: str
    waits: str
    waits_on_host: str = ""
    ends_free_it: bool = False
    is_for_memory: bool = False
    is_count: bool = False
    is_device_closed: bool = False
    keeps_devices: bool = True
    depends_on_need: bool = True
    is_final: bool = False
    hope: int = 3


class Reason(StrEnum):
    """The reasons why a task does not start now."""

    sentence: str
    """The sentence for one task, without its subject; `control/messages` fills in the numbers."""
    waits: str
    """The words that follow a number of tasks to say what these wait for, as in `12 for GPU memory`."""
    waits_on_host: str
    """The words that replace `waits` if the device is the host."""
    ends_free_it: bool
    """True if the missing capacity becomes free when a running task ends."""
    is_for_memory: bool
    """True if bytes are missing, whether they are in use or kept for another task."""
    is_count: bool
    """True if the number of tasks on the device has reached its limit, whatever they need."""
    is_device_closed: bool
    """True if the device accepts no task at all."""
    keeps_devices: bool
    """True if devices are kept for a task that was bypassed too often and is refused for this reason."""
    depends_on_need: bool
    """True if the task could start with a smaller request."""
    is_final: bool
    """True if the task can never start."""
    hope: int
    """How likely a task with this refusal is to fit on the device some day; the refusal with the highest value is
    shown."""

    def __new__(cls, properties: _Properties | str) -> Reason:
        """Create a member with its properties; `Reason(word)` finds it."""
        assert isinstance(properties, _Properties)
        reason = str.__new__(cls, properties.word)
        reason._value_ = properties.word
        for name in names_of(_Properties)[1:]:
            setattr(reason, name, getattr(properties, name))
        reason.waits_on_host = properties.waits_on_host or properties.waits
        return reason

    # fmt: off
    MEMORY = _Properties(
        "memory", "needs {need}; {where_has}", "for GPU memory", "for host RAM", ends_free_it=True, is_for_memory=True)
    UNKNOWN = _Properties(
        "unknown", "needs an unknown amount of memory and starts on a GPU with at least {need} free; {where_has}",
        "for a GPU that is free enough to learn on", ends_free_it=True, is_for_memory=True, depends_on_need=False)
    SPENT = _Properties(
        "spent", "needs an unknown amount of host RAM and starts with at least {need} free; {where_has}",
        "for host RAM in addition to their GPUs", ends_free_it=True, is_for_memory=True)
    KEPT = _Properties(
        "kept", "waits behind {other}, which was bypassed too often: {where} is kept for it",
        "behind a task that was bypassed too often", is_for_memory=True)
    UNMANAGED = _Properties(
        "unmanaged",
        "needs {need}; if all tasks there ended, {where} would have {room} of {total} free beside unmanaged "
        "memory{owners}, its headroom and the buffer; it starts once enough of that is free, and keeps no device from "
        "other tasks until then", "for memory that belongs to no task")
    NEVER = _Properties(
        "never", "needs {need}; the largest device ({device}) has {total}",
        "to be refused: no device is large enough", is_final=True, hope=0)
    ABOVE_QUOTA = _Properties(
        "above-quota", "{needs_quota}; the quota of its user is {quota}",
        "to be refused: the quota of their user is too small", is_final=True, hope=0)
    SLOTS = _Properties(
        "slots", "needs a slot; {slots} taken", "for a slot", ends_free_it=True, is_count=True, depends_on_need=False)
    CLIENTS = _Properties(
        "clients", "needs a place under MPS; {device} has {tasks} of at most {limit}",
        "for a place under MPS", ends_free_it=True, is_count=True)
    ALONE = _Properties(
        "alone", "must have {where} alone, or a task there must; {tasks} there now",
        "for a GPU of their own", "for a machine of their own", ends_free_it=True)
    LOAD = _Properties("load", "needs {cores}; {device} has {free_cores} free", "for cores", ends_free_it=True)
    BUSY = _Properties(
        "busy", "needs {wanted}% of the load of a GPU; {device} has {free_load}% free",
        "for GPUs that are less busy", ends_free_it=True)
    JOBS = _Properties(
        "jobs", "may not start: {limit_tasks} of this run may run at once (-j {limit})",
        "because of -j", depends_on_need=False)
    PAUSED = _Properties(
        "paused", "may not start: the run is paused (-j 0); scheduler set -j N continues it",
        "because of -j", depends_on_need=False)
    ON_PAUSE = _Properties(
        "on-pause", "may not start: the run is paused{text}; scheduler unpause continues it",
        "for the run to be unpaused", depends_on_need=False)
    OUTSIDE = _Properties(
        "outside", "may start at {text}: the run starts tasks only within {device} (--window)",
        "for the window of the run to open", depends_on_need=False)
    QUOTA = _Properties(
        "quota", "{needs_quota}; its user holds {held_quota}, the quota is {quota}",
        "for the user's other tasks to end, because of the quota", depends_on_need=False)
    DISABLED = _Properties(
        "disabled", "may not start on {device}: disabled for this run (scheduler devices enable)",
        "for devices that are disabled", is_device_closed=True, keeps_devices=False, depends_on_need=False, hope=1)
    CLOSED_DEVICE = _Properties(
        "closed-device", "may not start on {device}: {text}",
        "for a device that takes no task", is_device_closed=True, hope=1)
    SILENT_NODE = _Properties(
        "silent-node", "may not start on {device}: {text}",
        "for a node that does not answer", is_device_closed=True, keeps_devices=False, depends_on_need=False, hope=1)
    UNREADABLE = _Properties(
        "unreadable",
        "may not start on {device}: the lease of a running task of {text} cannot be read (damaged, or of a newer "
        "version); the device is available again when that task ends, or after an update of this scheduler",
        "for tasks to end whose reservations cannot be read", is_device_closed=True, hope=1)
    AVOIDED = _Properties(
        "avoided", "may not start on {device}: unmanaged processes{of_owner} use {room} there",
        "for unmanaged processes to end", hope=2)
    YOUNG = _Properties(
        "young",
        "may not start on {device} for another {seconds}: {room} of unmanaged memory{of_owner} there is new or has "
        "grown",
        "for unmanaged processes to settle")
    GPUS = _Properties(
        "gpus", "needs {gpus}; {limit} of this run's can be used",
        "for more GPUs than the run may use", keeps_devices=False)
    DEVICE = _Properties(
        "device", "needs {device}, which is not a device of this run",
        "for a device that the run does not have", keeps_devices=False)
    PROBING = _Properties(
        "probing", "waits for the probe of task {wanted}, which is of the same class", "for a probe of their class")
    WATCHED = _Properties(
        "watched", "waits until the memory of task {wanted}, which is similar, was measured",
        "for a similar task to show what it needs")
    BEGINNING = _Properties(
        "beginning", "waits until task {wanted}, whose memory is unknown, has grown on {where}",
        "for a task of unknown memory to grow first")
    LARGER = _Properties(
        "larger", "needs an unknown amount of memory, and waits until that of task {wanted} was measured on {where}: "
        "the free GPUs are smaller than most", "for a larger GPU, where the memory of another task is being measured")
    PROFILING = _Properties(
        "profiling", "waits for task {wanted} to end: with --profile sequential the tasks of a batch are profiled one "
        "after the other, before the batch is packed", "for the profiling runs of their batch", depends_on_need=False)
    LATER_BATCH = _Properties(
        "later-batch", "waits for batch {wanted} to end: with --profile sequential one batch runs after the other",
        "for the batch before theirs", depends_on_need=False)
    UNLOOKED = _Properties(
        "unlooked", "is far back in the queue and was not examined yet",
        "far behind in the queue", keeps_devices=False, depends_on_need=False)
    LEARNED = _Properties(
        "learned", "does not start: this run only learns profiles",
        "for more than learning: this run does nothing else", keeps_devices=False, depends_on_need=False)
    TOO_LONG = _Properties(
        "too-long", "waits for a longer allocation: it {text}, and the nodes of this one end in {left}; scheduler "
        "resume continues the run in the next one", "for a longer allocation", keeps_devices=False,
        depends_on_need=False)
    DRAINING = _Properties(
        "draining", "does not start: the run starts no more tasks; scheduler resume continues it once it has ended",
        "for the run to be resumed", depends_on_need=False)
    FULL_DISK = _Properties("full", "does not start: {text}", "for free space on the disk", depends_on_need=False)
    SUSPENDED = _Properties(
        "suspended", "does not start for now, because starts fail: {text}; the scheduler tries again",
        "for starts to work again", keeps_devices=False, depends_on_need=False)
    AWAY = _Properties(
        "away", "does not start for now, because its directory is not available: {text}; the scheduler tries again",
        "for their directory to be there again", keeps_devices=False, depends_on_need=False)
    NEXT = _Properties("next", "fits and starts in the next pass", "for the next pass")
    # fmt: on

    @property
    def is_for_time(self) -> bool:
        """True if the run starts no task at all for now, however much capacity is free."""
        return self in (Reason.PAUSED, Reason.ON_PAUSE, Reason.OUTSIDE)

    @property
    def is_for_capacity(self) -> bool:
        """True if the missing capacity is used by other tasks, or kept for another task."""
        return self.ends_free_it or self is Reason.KEPT

    def is_of_one_task(self, *, together: bool) -> bool:
        """Tell whether equal tasks may start although this one may not. `together` is True if the equal tasks may be in
        other directories.
        """
        return self is Reason.SUSPENDED or (self is Reason.AWAY and together)

    @property
    def takes_turns(self) -> bool:
        """True if the schedulers of the machine take turns in getting the missing capacity."""
        return self.is_for_capacity and not self.is_count


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a task does not start now, with its numbers; `control/messages` makes the sentence."""

    task: int
    reason: Reason
    device: str = ""
    """The name of the device for users."""
    wanted: int = 0
    room: int = 0
    total: int = 0
    text: str = ""
    """Details for the sentence, for reasons that have some."""

    def to_dict(self) -> dict[str, Any]:
        """Return the refusal as JSON values."""
        return {
            "task": self.task, "reason": self.reason, "device": self.device, "wanted": self.wanted, "room": self.room,
            "total": self.total, "text": self.text,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Refusal:
        """Return the refusal that `to_dict` described; raise KeyError, TypeError or ValueError for anything else."""
        return cls(**{**data, "reason": Reason(data["reason"])})


def too_many_jobs(task: int, jobs: int | None) -> Refusal:
    """Return the refusal of a task because its run has reached its maximum number of attempts."""
    return Refusal(task, Reason.JOBS, total=jobs or 0)
