"""One task per GPU, as without a packer: no task shares a device, so none needs profiling."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model import Decision, EstimateSource, Machine, Purpose
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.scheduling_state import SchedulingState


def decide(brain: SchedulingState, machine: Machine) -> Decision:
    """Decide like the packer, with the same order and bypass limit, but use only empty devices."""
    return ExclusivePass(brain, machine).decide()


class ExclusivePass(SchedulingPass):
    """One pass in which no task shares a device."""

    def _need(self, task: int) -> ResourceRequest:
        need = super()._need(task)
        source = EstimateSource.MEASURED if need.purpose is Purpose.PROBE else need.source
        return replace(need, alone=True, purpose=Purpose.RUN, source=source)

    def _held_back(self, task: int) -> Refusal | None:
        """Return a refusal only for a directory that cannot be entered; no task waits for the measurement of
        another.
        """
        return self._away(task)
