"""Refusals as sentences."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.model import Refusal
from scheduler.units import count, size


def why(refusal: Refusal) -> str:
    """One sentence with the numbers that keep a task waiting."""
    return _SENTENCES[refusal.reason](refusal)


_SENTENCES: dict[str, Callable[[Refusal], str]] = {
    "memory": lambda r: f"wants {size(r.wanted)}, {r.device} has room for {size(r.room)} of {size(r.total)} now",
    "never": lambda r: f"wants {size(r.wanted)}, the largest device ({r.device}) has {size(r.total)}",
    "slots": lambda r: f"finds all {count(r.total, 'slot')} on {r.device} taken",
    "alone": lambda r: f"must run alone on {r.device}, or what runs there must ({count(r.room, 'task')} there now)",
    "load": lambda r: f"wants {r.wanted / 100:g} cores, {r.device} has {r.room / 100:g} not promised",
    "jobs": lambda r: f"may not start beside the {count(r.total, 'task')} of this run that run",
    "probing": lambda r: f"waits until task {r.wanted}, of the same kind, has been probed",
    "unlooked": lambda r: "stands far behind: nobody has looked at it yet",
    "learned": lambda r: "is not started, because only profiles are learned",
    "closed": lambda r: f"stands behind a task that was overtaken too often, and {r.device} is kept for that one",
}
