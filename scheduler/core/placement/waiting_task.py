"""A waiting task as a pass sees it."""

from __future__ import annotations

from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Terms
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.queue.task_group import Rank
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A waiting task with all that a pass asks about it."""

    number: int
    rank: Rank
    terms: Terms
    kind: int
    """The number of its class; 0 while that is not determined."""
    tried: TaskState | None
    """Its details, if it was tried before."""
    gpus: int
    """The number of its GPUs."""
    need: ResourceRequest
