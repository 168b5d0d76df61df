"""What an ended attempt teaches of its kind."""

from __future__ import annotations

from scheduler.core import estimate
from scheduler.core.events import Exited
from scheduler.core.knowledge import Evidence
from scheduler.core.lifecycle import Task
from scheduler.core.model import Outcome, Placement, Purpose
from scheduler.core.rules import Rules


def peaks(task: Task, placement: Placement, event: Exited) -> dict[str, int]:
    """The most that an attempt was seen to hold, by part."""
    known = {key: max(event.peak.get(key, 0), task.peak.get(key, 0)) for key in {*event.peak, *task.peak}}
    return placement.by_part(known)


def evidence(task: Task, placement: Placement, epochs: int | None, event: Exited, rules: Rules) -> Evidence:
    """Peaks, times and load; of an attempt at a task of so many epochs."""
    probe = placement.purpose is Purpose.PROBE
    good = event.outcome is Outcome.SUCCEEDED
    return Evidence(
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


def _taught(task: Task, placement: Placement, event: Exited) -> dict[str, int]:
    """What an attempt was seen to need: what it held, and where that ran out what it asked for besides.

    Of several GPUs it is the one that held least, where nobody says which; it never needs that on top of the most.
    """
    held = peaks(task, placement, event)
    short = estimate.short_of(placement, event) if event.outcome is Outcome.OOM else ()
    least = min((held.get(part, 0) for part in short), default=0)
    return {part: max(peak, least + event.asked) if part in short else peak for part, peak in held.items()}
