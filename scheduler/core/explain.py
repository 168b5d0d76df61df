"""Refusals as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from scheduler.core.house import GPUS, TASKS
from scheduler.core.model import HOST, KnownBy, Refusal
from scheduler.units import count, duration, size

if TYPE_CHECKING:
    from scheduler.core.reasons import Stand, Waits, Wants

MOST_DEVICES = 4
MOST_HOLDERS = 4
"""So many are named; the others are counted."""


def why(refusal: Refusal) -> str:
    """One sentence with the numbers that keep a task waiting."""
    return _SENTENCES[refusal.reason](refusal)


def _on(refusal: Refusal) -> str:
    return "host RAM" if refusal.device == HOST else refusal.device


def _whose(refusal: Refusal) -> str:
    return f" of {refusal.text}" if refusal.text else ""


def _of_cap(refusal: Refusal, amount: int) -> str:
    """What a task asks for of what is capped."""
    if refusal.device == TASKS:
        return "may not start"
    return f"wants {_amount(refusal, amount)}"


def _amount(refusal: Refusal, amount: int) -> str:
    if refusal.device in (TASKS, GPUS):
        return count(amount, refusal.device.removesuffix("s"))
    return f"{size(amount)} of {'host RAM' if refusal.device == HOST else refusal.device}"


def _cap(refusal: Refusal) -> str:
    """The cap, and who says so."""
    number = f"{refusal.total:,}" if refusal.device in (TASKS, GPUS) else size(refusal.total)
    return f"{number} that {refusal.text} allows"


_SENTENCES: dict[str, Callable[[Refusal], str]] = {
    "memory": lambda r: f"wants {size(r.wanted)}, {_on(r)} has room for {size(r.room)} of {size(r.total)} now",
    "unknown": lambda r: (
        f"starts, since nobody knows what it needs, where at least {size(r.wanted)} are free; "
        f"{_on(r)} has room for {size(max(r.room, 0))} of {size(r.total)} now"
    ),
    "spent": lambda r: f"needs host RAM beside its GPUs, and none is left above the buffer ({size(r.total)} in all)",
    "never": lambda r: (
        f"{_of_cap(r, r.wanted)}, and a user may never hold more than the {_cap(r)}"
        if r.text
        else f"wants {size(r.wanted)}, the largest device ({r.device}) has {size(r.total)}"
    ),
    "slots": lambda r: f"finds all {count(r.total, 'slot')} on {r.device} taken",
    "clients": lambda r: f"finds {r.device} full: MPS takes {r.total} tasks on a GPU, {r.room} are there now",
    "alone": lambda r: f"must run alone on {r.device}, or what runs there must ({count(r.room, 'task')} there now)",
    "load": lambda r: (
        f"wants {r.wanted / 100:g} core{'s' * (r.wanted != 100)}, {r.device} has {r.room / 100:g} not promised"
    ),
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
    "unreadable": lambda r: (
        f"finds {r.device} closed: a running task of {r.text} has a promise there that cannot be read, it is damaged "
        "or of a newer version; it opens when that task ends, or is read once this scheduler is as new"
    ),
    "cap": lambda r: f"{_of_cap(r, r.wanted)}, and its user holds {_amount(r, r.room)} of the {_cap(r)}",
    "foreign": lambda r: f"leaves {r.device} alone: {size(r.room)}{_whose(r)} are in use there without a lease",
    "young": lambda r: (
        f"waits {duration(r.wanted)}: {size(r.room)}{_whose(r)} came to {r.device} or grew there just now"
    ),
    "gpus": lambda r: f"wants {count(r.wanted, 'GPU')}, it may use {r.total} of this run's",
    "device": lambda r: f"wants {r.device}, which is none of this run's devices",
    "draining": lambda r: (
        "is not started, because nothing more of this run is: scheduler resume goes on once it is over"
    ),
    "full": lambda r: f"is not started: {r.text}",
    "next": lambda r: "has room and is among those that start with the next look",
}

_FOR = {
    "memory": "for GPU memory",
    "memory@host": "for host RAM",
    "unknown": "for a GPU that is free enough to learn on",
    "spent": "for host RAM beside their GPUs",
    "slots": "for a slot",
    "slots@host": "for a slot",
    "clients": "for a place under MPS",
    "alone": "for a GPU of their own",
    "alone@host": "for a machine of their own",
    "load": "for cores",
    "busy": "for GPUs that are less busy",
    "jobs": "because of -j",
    "disabled": "for devices that are disabled",
    "cap": "for the user's other tasks to end, because of caps",
    "cap@host": "for the user's other tasks to end, because of caps",
    "unreadable": "for tasks to end whose promises cannot be read",
    "unreadable@host": "for tasks to end whose promises cannot be read",
    "probing": "for a probe of their kind",
    "watched": "for a task like them to show what it needs",
    "unlooked": "far behind",
    "closed": "behind a task that was overtaken too often",
    "closed@host": "behind a task that was overtaken too often",
    "closed-device": "for a device that takes nobody",
    "foreign": "for people without a lease to go",
    "young": "for people without a lease to settle",
    "draining": "for the run to be resumed",
    "full": "for room on the disk",
    "next": "for the next look",
    "gpus": "for more GPUs than the run may use",
    "device": "for a device that the run has not",
    "learned": "for more than learning: this run does nothing else",
    "never": "to be refused: no device is large enough",
}


def waits(found: Waits) -> str:
    """A paragraph: what it needs, what there is and who has it, when that may change, how often it was overtaken."""
    refusal, wants = found.refusal, found.wants
    parts = [_head(refusal), *([need(wants)] if refusal.reason not in _WHATEVER else [])]
    if refusal.reason in _ABOUT_ROOM:
        parts += stands(found.devices) if refusal.reason not in ("slots", "clients") else []
        parts.append(_room_in(found))
    if found.at_most:
        passed = (
            f"{count(found.overtaken, 'task')} behind it {'was' if found.overtaken == 1 else 'were'} started before"
        )
        parts.append(f"{passed} it, at most {found.at_most} may be")
    return "; ".join(parts)


def _head(refusal: Refusal) -> str:
    """What is missing; of memory the numbers follow, device by device."""
    if refusal.reason == "memory":
        return "waits for host RAM" if refusal.device == HOST else "waits for GPU memory"
    if refusal.reason == "unknown":
        least = size(refusal.wanted)
        return f"waits for a GPU to learn on: nobody knows what it needs, so it starts where {least} are free"
    return why(refusal)


_WHATEVER = frozenset({"unknown", "jobs", "draining", "full", "learned", "unlooked", "disabled", "slots", "cap"})
"""Refusals to which it does not matter what a task needs."""
_ABOUT_ROOM = frozenset({"memory", "unknown", "spent", "alone", "load", "busy", "slots", "clients", "closed"})


def need(wants: Wants) -> str:
    """What a task asks for, and what that is made of."""
    each = " on each of its GPUs" if wants.gpus > 1 else ""
    if wants.bytes is None:
        return f"nobody knows yet what it needs{_after_ooms(wants)}"
    made = _HOW.get(wants.known_by, str(wants.known_by))
    if wants.share and wants.known_by is not KnownBy.DECLARED:
        made = f"peak {size(wants.peak)} + {wants.share:.0%} + {size(wants.margin)}, known by {made}"
    return f"needs {size(wants.bytes)}{each} ({made}{_after_ooms(wants)})"


_HOW = {
    KnownBy.DECLARED: "as its row says",
    KnownBy.PROFILE: "earlier runs of its kind",
    KnownBy.FAMILY: "runs of tasks like it",
    KnownBy.INTERPOLATED: "a smaller and a larger one",
    KnownBy.PROBE: "a short run of its kind",
    KnownBy.LIVE: "watching it",
}


def _after_ooms(wants: Wants) -> str:
    return f", after {count(wants.ooms, 'out-of-memory')}" if wants.ooms else ""


def stands(devices: Iterable[Stand]) -> list[str]:
    """What each device has, and who holds the rest."""
    all_ = list(devices)
    said = [_stand(one) for one in all_[:MOST_DEVICES]]
    rest = all_[MOST_DEVICES:]
    if rest:
        most = max(one.room for one in rest)
        said.append(f"{count(len(rest), 'more device')} with room for at most {size(most)}")
    return said


def _stand(one: Stand) -> str:
    first, rest = one.held[:MOST_HOLDERS], one.held[MOST_HOLDERS:]
    held = [f"{holder.who} {size(holder.bytes)}" for holder in first]
    if rest:
        held.append(f"{len(rest)} more {size(sum(holder.bytes for holder in rest))}")
    because = f" because of {', '.join(held)}" if held else ""
    name = "host RAM" if one.device == HOST else one.device
    return f"{name} has {size(one.room)} free of {size(one.total)}{because}"


def _room_in(found: Waits) -> str:
    if found.room_in is None:
        return "nobody knows when there will be room: how long those take that run there was never seen"
    if found.room_in <= 0:
        return f"room at any moment: task {found.after} has taken as long as it was expected to"
    return f"next room in about {duration(found.room_in)}, when task {found.after} ends"


def waiting(reasons: Mapping[str, int]) -> str:
    """For what the tasks of a run wait, the most first."""
    ranked = sorted(reasons.items(), key=lambda one: -one[1])
    words = dict[str, int]()
    for reason, number in ranked:
        word = _FOR.get(reason) or _FOR.get(reason.removesuffix("@host"), f"({reason})")
        words[word] = words.get(word, 0) + number
    return ", ".join(f"{number:,} {word}" for word, number in words.items())
