"""Refusals as sentences."""

from __future__ import annotations

from scheduler.core.model import Refusal
from scheduler.units import count, size


def why(refusal: Refusal) -> str:
    """One sentence with the numbers that keep a task waiting."""
    device = refusal.device
    if refusal.reason == "memory":
        return f"wants {size(refusal.wanted)}, {device} has room for {size(refusal.room)} of {size(refusal.total)} now"
    if refusal.reason == "never":
        return f"wants {size(refusal.wanted)}, the largest device ({device}) has {size(refusal.total)}"
    if refusal.reason == "slots":
        return f"all {count(refusal.total, 'slot')} on {device} are taken"
    if refusal.reason == "alone":
        return f"{device} is held by a task that runs alone, or this one must and {count(refusal.room, 'task')} run there"
    if refusal.reason == "load":
        return f"wants {refusal.wanted / 100:g} cores, {device} has {refusal.room / 100:g} not promised"
    if refusal.reason == "jobs":
        return f"{count(refusal.total, 'task')} of this run may run at once, and they do"
    if refusal.reason == "behind":
        return f"waits behind task {refusal.wanted}, which was overtaken {refusal.total} times"
    return refusal.reason
