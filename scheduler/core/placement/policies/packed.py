"""The default policy: continuous packing by rank, with backfill and a limit on bypassing."""

from __future__ import annotations

from scheduler.core.model import Decision, Machine
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.run_state import RunState


def decide(brain: RunState, machine: Machine) -> Decision:
    """Go through the queue by rank until the queue ends or the machine is full."""
    return SchedulingPass(brain, machine).decide()
