"""The procedure of the older batch-by-batch tool: profile each task of a batch, one by one, then pack them by peak.

The simulator compares other policies with this one, and a real run uses it with `--profile sequential`.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.core.model import Decision, Machine, Placement
from scheduler.core.placement.device_capacity import DeviceCapacity, is_called, usable
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.queue.task_group import TaskGroup
from scheduler.core.run_state import RunState


def decide(brain: RunState, machine: Machine) -> Decision:
    """Decide with a barrier between batches; every task is profiled separately, and nothing is learned from other
    tasks.
    """
    return BatchPass(brain, machine).decide()


class BatchPass(SchedulingPass):
    """One pass over the first batch that has not ended, with the leases, quotas, turns and MPS of the packer."""

    def __init__(self, brain: RunState, machine: Machine) -> None:
        super().__init__(brain, machine)
        self._living = brain.living()
        self._batch, tasks = _current(brain)
        self._tasks = tasks if self.starts is None else self.starts.in_order(tasks)
        self._before = min((brain.batch_of(task.id) for task in self._living), default=self._batch)
        """The first batch with a living task; without such tasks, the batch of this pass."""
        self._profiling = next((task for task in self._tasks if self._must_be_profiled(task)), None)
        """The task whose profiling run is next; None: every task of the batch that can start was profiled."""

    def decide(self) -> Decision:
        """Place the next profiling run. If none is left, place real runs in order until one does not fit; then the rest
        waits.
        """
        tasks = self._tasks if self._profiling is None else [self._profiling]
        for task in map(self._find, tasks):
            if self.left <= 0:
                self._refuse(self.one_too_many(task.number), task)
                break
            if self.queue is not None:
                self._give_way(self.queue, task.number)
            tried = self._try_last(task)
            if isinstance(tried, Placement):
                self._take(tried, task)
            elif tried.reason.is_final:
                self.impossible.append(tried)
            else:
                self._refuse(tried, task)
                if tried.reason.keeps_devices:
                    break
        found = Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible), self._ticket_shown())
        return found if self.queue is None else self.queue.named(found)

    def _held_back(self, task: WaitingTask) -> Refusal | None:
        """Return why a task is not even tried: its directory cannot be entered, its nodes end too soon, an earlier
        batch must end first, or another task is being profiled.
        """
        number = task.number
        if (away := self._away(number) or self._too_long(task)) is not None:
            return away
        if min(self._batch, self._before) < self.brain.batch_of(number):
            return Refusal(number, Reason.LATER_BATCH, wanted=min(self._batch, self._before))
        if self._profiling is not None and self._living:
            return Refusal(number, Reason.PROFILING, wanted=self._living[0].id)
        if self._profiling not in (None, number):
            return Refusal(number, Reason.PROFILING, wanted=self._profiling or 0)
        return None

    def _must_be_profiled(self, task: int) -> bool:
        """Tell whether a task has had no profiling run yet and can have one now: its directory can be entered."""
        touched = self.brain.task(task)
        return (touched is None or touched.probed is None) and self._away(task) is None

    def _candidates(self, task: WaitingTask) -> list[DeviceCapacity]:
        """Return as many GPUs as a task requests: the first ones on which it may run, preferred ones before others."""
        terms = task.terms
        rooms = [self.scratch.rooms.now(key) for key in self.scratch.gpus]
        mine = usable(rooms, terms)
        first = sorted(mine, key=lambda room: bool(terms.prefer) and not is_called(room.device, terms.prefer))
        return first[: task.gpus]


def _current(brain: RunState) -> tuple[int, list[int]]:
    """Return the first batch with waiting tasks, and those tasks by priority and id."""
    tasks = [task for group in brain.wait_queue.groups() for task in _first_of(group, brain)]
    number = min((brain.batch_of(task) for task in tasks), default=0)
    mine = (task for task in tasks if brain.batch_of(task) == number)
    return number, sorted(mine, key=lambda task: (brain.terms_of(task).priority, task))


def _first_of(group: TaskGroup, brain: RunState) -> Iterator[int]:
    """Yield the tasks of a group that are in the group's first batch."""
    first = group.peek()
    for place in range(len(group)):
        task = group.peek(place)
        if task is None or first is None or brain.batch_of(task) != brain.batch_of(first):
            return
        yield task
