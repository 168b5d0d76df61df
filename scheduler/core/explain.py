"""Refusals as sentences."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.model import HOST, Refusal
from scheduler.units import count, duration, size


def why(refusal: Refusal) -> str:
    """One sentence with the numbers that keep a task waiting."""
    return _SENTENCES[refusal.reason](refusal)


def _on(refusal: Refusal) -> str:
    return "host RAM" if refusal.device == HOST else refusal.device


def _whose(refusal: Refusal) -> str:
    return f" of {refusal.text}" if refusal.text else ""


_SENTENCES: dict[str, Callable[[Refusal], str]] = {
    "memory": lambda r: f"wants {size(r.wanted)}, {_on(r)} has room for {size(r.room)} of {size(r.total)} now",
    "unknown": lambda r: (
        f"starts, since nobody knows what it needs, where at least {size(r.wanted)} are free; "
        f"{_on(r)} has room for {size(max(r.room, 0))} of {size(r.total)} now"
    ),
    "spent": lambda r: f"needs host RAM beside its GPUs, and none is left above the buffer ({size(r.total)} in all)",
    "never": lambda r: f"wants {size(r.wanted)}, the largest device ({r.device}) has {size(r.total)}",
    "slots": lambda r: f"finds all {count(r.total, 'slot')} on {r.device} taken",
    "clients": lambda r: f"finds {r.device} full: MPS takes {r.total} tasks on a GPU, {r.room} are there now",
    "alone": lambda r: f"must run alone on {r.device}, or what runs there must ({count(r.room, 'task')} there now)",
    "load": lambda r: f"wants {r.wanted / 100:g} cores, {r.device} has {r.room / 100:g} not promised",
    "busy": lambda r: f"keeps a GPU {r.wanted}% busy, {r.device} has {r.room}% not promised",
    "jobs": lambda r: (
        f"may not start beside the {count(r.total, 'task')} of this run that run"
        if r.total
        else "may not start: the run is paused (-j 0), and scheduler set with a larger -j lets it go on"
    ),
    "disabled": lambda r: f"finds {r.device} disabled for this run: scheduler devices enable opens it",
    "probing": lambda r: f"waits until task {r.wanted}, of the same kind, has been probed",
    "watched": lambda r: f"waits until task {r.wanted}, which is like it, has shown what it needs",
    "unlooked": lambda r: "stands far behind: nobody has looked at it yet",
    "learned": lambda r: "is not started, because only profiles are learned",
    "closed": lambda r: f"stands behind a task that was overtaken too often, and {r.device} is kept for that one",
    "closed-device": lambda r: f"finds {r.device} closed: {r.text}",
    "foreign": lambda r: f"leaves {r.device} alone: {size(r.room)}{_whose(r)} are in use there without a lease",
    "young": lambda r: (
        f"waits {duration(r.wanted)}: {size(r.room)}{_whose(r)} came to {r.device} or grew there just now"
    ),
    "gpus": lambda r: f"wants {count(r.wanted, 'GPU')}, it may use {r.total} of this run's",
    "device": lambda r: f"wants {r.device}, which is none of this run's devices",
}
