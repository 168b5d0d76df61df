"""The parts of the schedule that an ETA is computed from: waiting tasks at their places, attempts with their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget, Placement, Terms, on_node
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.ports import Key
from scheduler.core.reporting.published_forecast import PublishedForecast
from scheduler.values import dataclass, field

Amount = TypeVar("Amount", int, float)


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """The state of the machine and of living attempts that a forecast needs besides the Brain."""

    budgets: Sequence[DeviceBudget]
    leases: Sequence[Lease] = ()
    """The leases of other schedulers."""
    used: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """The bytes that each living attempt uses, by device."""
    progress: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    """For each living attempt, the number of completed epochs and the seconds per epoch."""
    overhead: float = 0.0
    """Seconds for which a device is reserved for a task in addition to its duration: before its start and after its
    end."""
    uid: int = -1
    """The user id of this run."""
    others: Sequence[PublishedForecast] = ()
    """The forecasts that other schedulers have published."""
    since: float = 0.0
    """The time since which this run has waited for its turn."""


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Equal waiting tasks: their request, and how long each one takes."""

    need: ResourceRequest
    seconds: float
    deviation: float
    """The standard deviation of the duration, in seconds."""
    terms: Terms
    least_bytes: int
    """The fewest bytes that a task of the group requests on a GPU; 0 if it needs no GPU."""
    least_load: float
    shape: int
    """A number that is equal for all groups with equal requests."""
    is_known: bool = True
    """True if anything is known about the duration."""


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A waiting task at its place in the queue."""

    task: int
    rank: int
    group: WaitingGroup
    bypassed: int
    """The number of later tasks that had started before it when the estimate was made."""


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    """An attempt in the schedule: a living attempt of any scheduler, or one that the schedule has placed."""

    start: float | None
    """The start of the attempt in the schedule; None: it is alive already."""
    end: float
    reserved: Mapping[str, int]
    load: Mapping[str, float]
    used: Mapping[str, int]
    """The bytes that the attempt uses at present, by device."""
    deviation: float = 0.0
    """The standard deviation of its duration, in seconds."""
    weight: int = 1
    """The number of GPUs that the attempt occupies, at least 1."""
    uid: int = -1
    """The user id of the attempt's user."""
    run: str = ""
    """The other run that has this attempt; empty: this run."""


def planned(
    what: Placement | Lease,
    start: float | None,
    end: float,
    used: Mapping[str, int] = MappingProxyType({}),
    **more: Any,
) -> PlannedAttempt:
    """Return the attempt of a placement or a lease for a schedule, with its devices named by the keys of the run."""
    reserved = what.reservation if isinstance(what, Placement) else what.reserved
    load: Mapping[str, float] = what.load
    if what.node:
        reserved, used = _there(reserved, what.node), _there(used, what.node)
        load = _there(load, what.node)
    return PlannedAttempt(start, end, reserved, load, used, **more)


def _there(by_device: Mapping[str, Amount], node: str) -> Mapping[str, Amount]:
    return {on_node(key, node): amount for key, amount in by_device.items()}
