"""The part of a run's forecast that other schedulers read: when its attempts end, and what its tasks request."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.placement.request import ResourceRequest
from scheduler.values import dataclass, field

MOST_DEMANDS = 12
"""The most different requests of one run that are published. All further tasks are assumed to request as much as the
last of them."""
MOST_ENDS = 48
"""The most living attempts of one run whose ends are published: those that end first."""


@dataclass(frozen=True, slots=True)
class WaitingDemand:
    """Waiting tasks of a run with equal requests."""

    tasks: int
    seconds: float | None
    """The mean duration of one task; None: unknown."""
    need: ResourceRequest
    device: str = ""
    """The devices on which the tasks may run, as their rows name them; empty: all devices of the run."""


@dataclass(frozen=True, slots=True)
class PublishedForecast:
    """The forecast of one run for other schedulers. Its waiting tasks are in the order of the queue."""

    uid: int
    run: str
    since: float = 0.0
    """The time since which the run has waited for its turn."""
    devices: tuple[str, ...] = ()
    """The keys of the run's devices; empty: unknown, so that all devices count."""
    jobs: int | None = None
    """The largest number of attempts that the run may have at once; None: unlimited."""
    ends: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """The time at which each living attempt is expected to end, by (task, attempt). Attempts whose end is unknown are
    left out."""
    waiting: tuple[WaitingDemand, ...] = ()
    name: str = ""
    """The name of the file with this forecast; empty: not published yet."""

    @property
    def tasks(self) -> int:
        """The number of waiting tasks."""
        return sum(demand.tasks for demand in self.waiting)
