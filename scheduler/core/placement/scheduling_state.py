"""The part of a Brain that policies read, as a Protocol; policies cannot import the Brain, because it imports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scheduler.core.attempts.backoff import Backoff
from scheduler.core.config import SchedulingConfig
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Placement, Terms
from scheduler.core.placement.capacity import CapacityView
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.queue.task_table import TaskTable
from scheduler.core.queue.wait_queue import Rank, WaitQueue
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


class SchedulingState(Protocol):
    """The state of a run as its policy sees it; a policy must not change it."""

    rules: SchedulingConfig
    terms: list[Terms]
    task_table: TaskTable
    profiles: ProfileIndex
    wait_queue: WaitQueue
    backoff: Backoff
    capacity: CapacityView
    freed: dict[str, None]
    """Slots in the order in which they became free again."""

    @property
    def some_without_gpus(self) -> bool:
        """True if some tasks request no GPU on a machine with GPUs."""

    def terms_of(self, task: int) -> Terms:
        """Return the terms of a task."""

    def batch_of(self, task: int) -> int:
        """Return the number of the batch to which a task belongs, from 1."""

    def kind_of(self, task: int) -> int:
        """Return the number of a task's class; 0 while the class is not determined yet."""

    def task(self, task: int) -> TaskState | None:
        """Return the details of a task that was placed and has not ended."""

    def placements(self) -> Sequence[Placement]:
        """Return all live reservations of this run."""

    def living(self) -> list[TaskState]:
        """Return all tasks with an attempt that is placed or running."""

    def learning(self) -> list[TaskState]:
        """Return the living tasks whose attempts can show something new about their class."""

    @property
    def enough_to_start(self) -> int:
        """Return the free bytes that a GPU must have for a task of unknown memory to start there; 0 while that is
        unknown.
        """

    def is_unsure(self, task: int) -> bool:
        """Tell whether the profile of a task's class rests on one observation of an attempt that still runs."""

    def knows(self, task: int, gpus: int) -> bool:
        """Tell whether a task's need follows from the profile of its own class."""

    def need(self, task: int, gpus: int, *, untouched: bool = False) -> ResourceRequest:
        """Return the request of a task; with `untouched` that of an equal task without any attempt."""

    def need_of(self, terms: int, kind: int, gpus: int, tried: TaskState | None) -> ResourceRequest:
        """Return the request of a task with these terms and this class; `tried`: what its attempts showed."""
