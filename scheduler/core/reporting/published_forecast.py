"""The part of a run's forecast that other schedulers read: when its attempts end, and what its tasks request."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.placement.request import ResourceRequest
from scheduler.values import dataclass, field

MOST_DEMANDS = 12
"""The number of different requests of one run; the tasks beyond them are assumed to be like the last one."""
MOST_ENDS = 48
"""The number of living attempts of one run whose ends are published, the next ones first."""


@dataclass(frozen=True, slots=True)
class WaitingDemand:
    """Waiting tasks of a run with equal requests."""

    tasks: int
    seconds: float | None
    """The mean duration of one task; None: unknown."""
    need: ResourceRequest
    device: str = ""
    """The word for the devices on which they may run; empty: all of the run."""


@dataclass(frozen=True, slots=True)
class PublishedForecast:
    """The forecast of one run as other schedulers read it, in the order of its queue."""

    uid: int
    run: str
    since: float = 0.0
    """The time since which it has waited for its turn."""
    devices: tuple[str, ...] = ()
    """The devices of the run; empty: unknown, so all."""
    jobs: int | None = None
    """The largest number of its tasks at a time."""
    ends: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """The time at which a living attempt is expected to end, by task and attempt; unknown ones are left out."""
    waiting: tuple[WaitingDemand, ...] = ()
    name: str = ""
    """The name of its file; empty: not published yet."""

    @property
    def tasks(self) -> int:
        """The number of waiting tasks."""
        return sum(demand.tasks for demand in self.waiting)
