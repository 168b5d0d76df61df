"""What a sample of a living attempt comes to: events, from what the Brain knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scheduler.core import estimate
from scheduler.core.events import Event, Peaked, Resized
from scheduler.core.lifecycle import Task
from scheduler.core.model import HOST, KnownBy, Placement, Purpose

if TYPE_CHECKING:
    from scheduler.core.brain import Brain


def watch(
    brain: Brain, living: Task, placement: Placement, used: Mapping[str, int], now: float, busy: float | None
) -> list[Event]:
    """A new peak, a promise that must grow or may shrink; it changes nothing."""
    task, attempt, rules = living.id, living.attempts, brain.rules
    events: list[Event] = []
    news = {k: b for k, b in used.items() if estimate.is_new_peak(living.peak.get(k, 0), b, rules)}
    if news:
        events.append(Peaked(task, attempt, news))
    growth = estimate.grown(placement.promise, used, rules)
    seen = {key: max(used.get(key, 0), living.peak.get(key, 0)) for key in {*used, *living.peak}}
    if growth is not None:
        events.append(Resized(task, attempt, growth, _why_grown(living, placement, used)))
    elif (less := _known_meanwhile(brain, living, placement, seen)) is not None:
        events.append(Resized(task, attempt, less, "known"))
    elif not any(key in placement.devices for key in news) and _may_settle(brain, living, placement, now, busy == 0.0):
        known = placement.known_by is not KnownBy.LIVE and placement.purpose is Purpose.RUN
        less = dict(placement.promise) if known else estimate.cut(placement, seen, rules)
        if less is not None:
            events.append(Peaked(task, attempt, seen))
            events.append(Resized(task, attempt, less, "settled", busy or 0.0))
    return events


def _why_grown(living: Task, placement: Placement, used: Mapping[str, int]) -> str:
    """Whether it was seen above what it was promised, or nobody had promised anything there."""
    above = [key for key, bytes_ in used.items() if bytes_ > placement.promise.get(key, 0)]
    nothing = not any(placement.promise.get(key, 0) for key in above)
    beside = HOST in above and len(above) == 1 and bool(placement.gpus) and not living.settled
    return "seen" if nothing or beside else "grew"


def _known_meanwhile(
    brain: Brain, living: Task, placement: Placement, seen: Mapping[str, int]
) -> dict[str, int] | None:
    """The promise of an attempt on GPUs, once another of its kind has shown what they need.

    An unsettled one is promised that much less; any is promised more before it takes it and its neighbours fail.
    """
    gpus, rules = placement.gpus, brain.rules
    if not gpus or placement.known_by is KnownBy.DECLARED:
        return None
    asked = brain.need(living.id, len(gpus), untouched=True)
    if asked.unknown or rules.slots is not None or not all(seen.get(key) for key in gpus):
        return None
    unsettled = estimate.is_watched(placement, living.settled)
    promise = dict(placement.promise)
    for key, ask in zip(gpus, asked.gpus, strict=True):
        need = max(ask.bytes or 0, estimate.with_margin(seen[key], rules))
        if (unsettled and need < promise[key]) or estimate.is_new_peak(promise[key], ask.bytes or 0, rules):
            promise[key] = need
    return promise if promise != placement.promise else None


def _may_settle(brain: Brain, living: Task, placement: Placement, now: float, idle: bool) -> bool:
    """Only an unknown one is promised more than it needs; it has settled when it held still for long enough."""
    rules = brain.rules
    if living.settled or rules.slots is not None or living.last_peak_at == 0.0:
        return False
    unknown = placement.known_by is KnownBy.LIVE or placement.purpose is Purpose.PROBE
    if not unknown and not (placement.gpus and brain.is_unsure(living.id)):
        return False
    settle = rules.gpu_settle if placement.gpus else rules.settle
    settle *= rules.idle_patience if idle else _slowed(brain, placement)
    return now - living.last_peak_at >= settle


def _slowed(brain: Brain, placement: Placement) -> float:
    """How many times later everything comes on a GPU that is asked for more than all its time."""
    return max([1.0, *(load + placement.busy for load in brain.load_beside(placement).values())])
