"""The observations of a task class: from the end of an attempt, and from its growth."""

from __future__ import annotations

from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Outcome, Placement, Purpose
from scheduler.core.profiling import estimator
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.profile_index import ProfileIndex


def note_growth(profiles: ProfileIndex, kind: int, task: TaskState, rules: SchedulingConfig) -> bool:
    """Note the GPU memory that an attempt of unknown need uses as the need of its class, if it exceeds a CUDA context.
    Return whether that changed anything.

    The estimates for other tasks can then use this need before the attempt has settled.
    """
    placement = task.placement
    if not kind or placement is None or not placement.gpus or not estimator.is_watched(placement, task.settled):
        return False
    most = max(task.peak.get(key, 0) for key in placement.gpus)
    return most > rules.context and profiles.note_growth(kind, most, len(placement.gpus))


def peaks(task: TaskState, placement: Placement, event: Exited) -> dict[str, int]:
    """Return the highest measured use of an attempt, by part."""
    known = {key: max(event.peak.get(key, 0), task.peak.get(key, 0)) for key in {*event.peak, *task.peak}}
    return placement.by_part(known)


def evidence(
    task: TaskState, placement: Placement, epochs: int | None, event: Exited, rules: SchedulingConfig
) -> Observation:
    """Return the observation from an ended attempt: peaks, times and load; `epochs` is the number of epochs of its
    task.
    """
    probe = placement.purpose is Purpose.PROBE
    good = event.outcome is Outcome.SUCCEEDED
    return Observation(
        _taught(task, placement, event),
        seconds=event.seconds,
        epochs=min(rules.profile_epochs, epochs or 0) if probe else epochs,
        epoch_seconds=event.epoch_seconds,
        cpu_seconds=event.cpu_seconds,
        busy=event.busy,
        whole=good and not probe and event.watched >= 1.0,
        probe=probe and good,
        broken=not good,
    )


def _taught(task: TaskState, placement: Placement, event: Exited) -> dict[str, int]:
    """Return the need that an attempt has shown, by part: its use, plus its last request if memory ran out.

    If it is unknown which GPU ran out, the request is added to the least use of a GPU, never to the highest.
    """
    held = peaks(task, placement, event)
    short = estimator.short_of(placement, event) if event.outcome is Outcome.OOM else ()
    least = min((held.get(part, 0) for part in short), default=0)
    return {**held, **{part: max(held.get(part, 0), least + event.asked) for part in short}}  # even if never sampled
