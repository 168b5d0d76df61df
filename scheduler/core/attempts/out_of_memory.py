"""The consequences of an out-of-memory: how much the next attempt of the task is reserved at least."""

from __future__ import annotations

from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Placement
from scheduler.core.profiling import estimator, observation


def raise_floors(task: TaskState, placement: Placement, event: Exited, rules: SchedulingConfig) -> None:
    """Raise the floors of a task after an out-of-memory, only for the memory that ran out."""
    reserved, peaks = placement.by_part(placement.reservation), observation.peaks(task, placement, event)
    short = estimator.short_of(placement, event)
    least = min(peaks.get(part, 0) for part in short)
    for part in short:
        held, said = peaks.get(part, 0) if not event.asked else least, reserved.get(part, 0)
        task.seen[part] = max(task.seen.get(part, 0), peaks.get(part, 0))
        if event.asked:
            task.wanted[part] = (said, held + event.asked)
        floor = estimator.after_oom(said, held, rules, event.asked)
        task.floors[part] = max(task.floors.get(part, 0), floor)
