"""A waiting task, as a scheduling pass examines it."""

from __future__ import annotations

from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Terms
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.queue.task_group import Rank
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A waiting task with all that a pass needs to know about it."""

    number: int
    rank: Rank
    terms: Terms
    kind: int
    """The number that stands for the task's class; 0 while the class is not determined."""
    tried: TaskState | None
    """The details of the task if it has had an attempt or a request; else None."""
    gpus: int
    """The number of GPUs that the task requests."""
    need: ResourceRequest
