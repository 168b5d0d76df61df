"""The policy of one task per GPU: no task shares a device, so none needs profiling."""

from __future__ import annotations

from scheduler.core.model import Decision, EstimateSource, Machine, Purpose
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.queue.task_group import Rank
from scheduler.core.run_state import RunState
from scheduler.values import replace


def decide(brain: RunState, machine: Machine) -> Decision:
    """Decide with the packer's order and bypass limit, but start tasks on empty devices only."""
    return ExclusivePass(brain, machine).decide()


class ExclusivePass(SchedulingPass):
    """One pass in which no task shares a device."""

    def _look_up(self, number: int, rank: Rank, terms: int, kind: int) -> WaitingTask:
        task = super()._look_up(number, rank, terms, kind)
        source = EstimateSource.MEASURED if task.need.purpose is Purpose.PROBE else task.need.source
        return replace(task, need=replace(task.need, alone=True, purpose=Purpose.RUN, source=source))

    def _held_back(self, task: WaitingTask) -> Refusal | None:
        """Return a refusal only if a task's directory cannot be entered; no task waits for the measurement of
        another.
        """
        return self._away(task.number)
