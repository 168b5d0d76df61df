"""Sentences on why tasks wait. The subject of each is "it", the task: `task 12 waits: it needs 11.3GiB; …`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from scheduler.core.control.wait_reason import DeviceState, RequestedResources, WaitReason
from scheduler.core.model import HOST, EstimateSource
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.site_policy import GPUS, TASKS
from scheduler.units import count, duration, size

MOST_DEVICES = 4
MOST_HOLDERS = 4
"""How many devices and holders are named; the others are counted."""


def why(refusal: Refusal) -> str:
    """Return one sentence, without its subject, on what keeps a task waiting."""
    return _SENTENCES[refusal.reason](refusal)


def _on(refusal: Refusal) -> str:
    return "host RAM" if refusal.device == HOST else refusal.device


def _owner(refusal: Refusal) -> str:
    return f" of {refusal.text}" if refusal.text else ""


def _free(refusal: Refusal) -> str:
    return f"{_on(refusal)} has {size(max(refusal.room, 0))} of {size(refusal.total)} free"


def _need(refusal: Refusal, amount: int) -> str:
    """Return what a task needs of what a quota limits."""
    return "may not start" if refusal.device == TASKS else f"needs {_amount(refusal, amount)}"


def _amount(refusal: Refusal, amount: int) -> str:
    if refusal.device in (TASKS, GPUS):
        return count(amount, refusal.device.removesuffix("s"))
    return f"{size(amount)} of {_on(refusal)}"


def _quota(refusal: Refusal) -> str:
    """Return the quota and where it is set."""
    number = f"{refusal.total:,}" if refusal.device in (TASKS, GPUS) else size(refusal.total)
    return f"{number} ({refusal.text})"


def _all_slots_taken(refusal: Refusal) -> str:
    all_ = f"all {refusal.total} slots of {refusal.device} are" if refusal.total > 1 else f"{refusal.device} is"
    return f"needs a slot; {all_} taken"


_SENTENCES: dict[Reason, Callable[[Refusal], str]] = {
    Reason.MEMORY: lambda r: f"needs {size(r.wanted)}; {_free(r)}",
    Reason.UNKNOWN: lambda r: (
        f"needs an unknown amount of memory and starts on a GPU with at least {size(r.wanted)} free; {_free(r)}"
    ),
    Reason.SPENT: lambda r: (
        f"needs an unknown amount of host RAM and starts with at least {size(r.wanted)} free; {_free(r)}"
    ),
    Reason.NEVER: lambda r: (
        f"{_need(r, r.wanted)}; the quota of its user is {_quota(r)}"
        if r.text
        else f"needs {size(r.wanted)}; the largest device ({r.device}) has {size(r.total)}"
    ),
    Reason.SLOTS: _all_slots_taken,
    Reason.CLIENTS: lambda r: f"needs a place under MPS; {r.device} has {r.room} tasks of at most {r.total}",
    Reason.ALONE: lambda r: f"must have {_on(r)} alone, or a task there must; {count(r.room, 'task')} there now",
    Reason.LOAD: lambda r: (
        f"needs {r.wanted / 100:g} core{'s' * (r.wanted != 100)}; {r.device} has {r.room / 100:g} free"
    ),
    Reason.BUSY: lambda r: f"needs {r.wanted}% of the load of a GPU; {r.device} has {r.room}% free",
    Reason.JOBS: lambda r: (
        f"may not start: {count(r.total, 'task')} of this run may run at once (-j {r.total})"
        if r.total
        else "may not start: the run is paused (-j 0); scheduler set -j N continues it"
    ),
    Reason.DISABLED: lambda r: f"may not start on {r.device}: disabled for this run (scheduler devices enable)",
    Reason.PROBING: lambda r: f"waits for the probe of task {r.wanted}, which is of the same class",
    Reason.WATCHED: lambda r: f"waits until the memory of task {r.wanted}, which is similar, was measured",
    Reason.UNLOOKED: lambda r: "is far back in the queue and was not examined yet",
    Reason.LEARNED: lambda r: "does not start: this run only learns profiles",
    Reason.KEPT: lambda r: f"waits behind {r.text or 'a task'}, which was bypassed too often: {_on(r)} is kept for it",
    Reason.UNMANAGED: lambda r: (
        f"needs {size(r.wanted)}; if all tasks there ended, {_on(r)} would have {size(max(r.room, 0))} of "
        f"{size(r.total)} free beside unmanaged memory{f' ({r.text})' if r.text else ''}, its headroom and the buffer; "
        "it starts once enough of that is free, and keeps no device from other tasks until then"
    ),
    Reason.CLOSED_DEVICE: lambda r: f"may not start on {r.device}: {r.text}",
    Reason.UNREADABLE: lambda r: (
        f"may not start on {r.device}: the lease of a running task of {r.text} cannot be read (damaged, or of a newer "
        "version); the device is available again when that task ends, or after an update of this scheduler"
    ),
    Reason.QUOTA: lambda r: f"{_need(r, r.wanted)}; its user holds {_amount(r, r.room)}, the quota is {_quota(r)}",
    Reason.AVOIDED: lambda r: f"may not start on {r.device}: unmanaged processes{_owner(r)} use {size(r.room)} there",
    Reason.YOUNG: lambda r: (
        f"waits {duration(r.wanted)}: {size(r.room)} of unmanaged memory{_owner(r)} on {r.device} is new or has grown"
    ),
    Reason.GPUS: lambda r: f"needs {count(r.wanted, 'GPU')}; {r.total} of this run's can be used",
    Reason.DEVICE: lambda r: f"needs {r.device}, which is not a device of this run",
    Reason.DRAINING: lambda r: (
        "does not start: the run starts no more tasks; scheduler resume continues it once it has ended"
    ),
    Reason.FULL_DISK: lambda r: f"does not start: {r.text}",
    Reason.SUSPENDED: lambda r: f"does not start for now, because starts fail: {r.text}; the scheduler tries again",
    Reason.AWAY: lambda r: (
        f"does not start for now, because its directory is not available: {r.text}; the scheduler tries again"
    ),
    Reason.NEXT: lambda r: "fits and starts in the next pass",
}


def waits(found: WaitReason) -> str:
    """Return a paragraph: what a task needs, what there is and who holds it, when it may start, how often it was
    bypassed.
    """
    refusal, wants = found.refusal, found.wants
    parts = [_head(refusal), *([need(wants)] if refusal.reason.depends_on_need else [])]
    if refusal.reason.is_for_capacity:
        parts += devices(found.devices) if not refusal.reason.is_count else []
        parts.append(_expected(found))
    if refusal.reason is Reason.UNMANAGED:
        parts += devices(found.devices)
    if refusal.reason in (Reason.MEMORY, Reason.UNKNOWN) and refusal.text:
        parts.append(f"capacity there is kept for {refusal.text}, whose turn comes first")
    if found.at_most:
        times = "once" if found.bypassed == 1 else f"{found.bypassed} times"
        parts.append(f"bypassed {times}, at most {found.at_most}")
    return "; ".join(parts)


def _head(refusal: Refusal) -> str:
    """Return what a task waits for; for memory the numbers follow, device by device."""
    if refusal.reason is Reason.MEMORY:
        return "waits for host RAM" if refusal.device == HOST else "waits for GPU memory"
    if refusal.reason is Reason.UNKNOWN:
        return f"waits for a GPU with at least {size(refusal.wanted)} free, because its memory is not known yet"
    return why(refusal)


def need(wants: RequestedResources) -> str:
    """Return what a task requests, with the source of that estimate."""
    each = " on each of its GPUs" if wants.gpus > 1 else ""
    ooms = f", after {count(wants.ooms, 'out-of-memory error')}" if wants.ooms else ""
    if wants.bytes is None:
        return f"its memory is not known yet{ooms}"
    has_margin = wants.share and wants.source is not EstimateSource.DECLARED
    made = f": peak {size(wants.peak)} + {wants.share:.0%} + {size(wants.margin)}" if has_margin else ""
    return f"needs {size(wants.bytes)}{each} ({wants.source}{made}{ooms})"


def devices(states: Iterable[DeviceState]) -> list[str]:
    """Return what is free on each device, and who holds the rest."""
    all_ = list(states)
    sentences = [_device(state) for state in all_[:MOST_DEVICES]]
    rest = all_[MOST_DEVICES:]
    if rest:
        most = max(state.room for state in rest)
        sentences.append(f"{count(len(rest), 'more device')} with at most {size(most)} free")
    return sentences


def _device(state: DeviceState) -> str:
    first, rest = state.held[:MOST_HOLDERS], state.held[MOST_HOLDERS:]
    held = [f"{holder.who} {size(holder.bytes)}" for holder in first]
    if rest:
        held.append(f"{len(rest)} more {size(sum(holder.bytes for holder in rest))}")
    holders = f" ({', '.join(held)})" if held else ""
    name = "host RAM" if state.device == HOST else state.device
    return f"{name} has {size(state.room)} of {size(state.total)} free{holders}"


def _expected(found: WaitReason) -> str:
    if found.room_in is None:
        return "no ETA: it is not known how long the tasks there take"
    if found.room_in <= 0:
        return f"expected at any moment: task {found.after} has run as long as expected"
    return f"expected in about {duration(found.room_in)}, when task {found.after} ends"


def waiting(reasons: Mapping[str, int]) -> str:
    """Return how many tasks of a run wait for what, the most first."""
    ranked = sorted(reasons.items(), key=lambda one: -one[1])
    words = dict[str, int]()
    for reason, number in ranked:
        word = _waits_for(reason)
        words[word] = words.get(word, 0) + number
    return ", ".join(f"{number:,} {word}" for word, number in words.items())


def _waits_for(reason: str) -> str:
    """Return what tasks wait for; `@host` behind a reason says that its device is the host."""
    word, _, place = reason.partition("@")
    known = Reason(word)
    return known.waits_on_host if place else known.waits
