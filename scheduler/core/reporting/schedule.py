"""The parts of the schedule that an ETA is read from: waiting tasks at their places, attempts with their ends."""

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
    """The state of the machine and of living attempts, as far as the Brain does not contain it."""

    budgets: Sequence[DeviceBudget]
    leases: Sequence[Lease] = ()
    """The leases of other schedulers."""
    used: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """The bytes that each living attempt uses, by device."""
    progress: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    """The epochs that each living attempt has completed, and its seconds per epoch."""
    overhead: float = 0.0
    """The seconds for which a device is reserved before a task starts and after it has ended."""
    uid: int = -1
    """The user of this run."""
    others: Sequence[PublishedForecast] = ()
    """The forecasts that other schedulers have published."""
    since: float = 0.0
    """The time since which this run has waited for its turn."""


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Equal waiting tasks: their request, and how long each takes."""

    need: ResourceRequest
    seconds: float
    deviation: float
    """Standard deviation of the duration, in seconds."""
    terms: Terms
    least_bytes: int
    """The fewest bytes that it requests on a GPU; 0 on the host."""
    least_load: float
    shape: int
    """A number that is equal for all groups with equal requests."""
    is_known: bool = True
    """True if something is known about the duration."""


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A waiting task at its place in the queue."""

    task: int
    rank: int
    group: WaitingGroup
    bypassed: int
    """The number of later tasks that have started before it so far."""


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    """An attempt in the schedule: a living one of any scheduler, or one that was placed."""

    start: float | None
    """Its start in the schedule; None: it is already alive."""
    end: float
    reserved: Mapping[str, int]
    load: Mapping[str, float]
    used: Mapping[str, int]
    """The bytes that it uses now."""
    deviation: float = 0.0
    """Standard deviation of its duration, in seconds."""
    weight: int = 1
    """The number of GPUs that it occupies, at least 1."""
    uid: int = -1
    """The user that it belongs to."""
    run: str = ""
    """The other run that it belongs to; empty: this run."""


def planned(
    what: Placement | Lease,
    start: float | None,
    end: float,
    used: Mapping[str, int] = MappingProxyType({}),
    **more: Any,
) -> PlannedAttempt:
    """Return the attempt of a placement or a lease, with what it holds by the keys of the run's devices."""
    reserved = what.reservation if isinstance(what, Placement) else what.reserved
    load: Mapping[str, float] = what.load
    if what.node:
        reserved, used = _there(reserved, what.node), _there(used, what.node)
        load = _there(load, what.node)
    return PlannedAttempt(start, end, reserved, load, used, **more)


def _there(by_device: Mapping[str, Amount], node: str) -> Mapping[str, Amount]:
    return {on_node(key, node): amount for key, amount in by_device.items()}
