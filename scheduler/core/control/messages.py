"""Sentences about why tasks wait. Their subject "it" is the task: `task 12 waits: it needs 11.3GiB; …`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.core.causes import DependencyStep
from scheduler.core.control.wait_reason import DeviceState, RequestedResources, WaitReason
from scheduler.core.events import Depended, Preempted
from scheduler.core.model import HOST, EstimateSource, State
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.reporting.forecast import NO_ETA
from scheduler.core.site_policy import GPUS, TASKS
from scheduler.core.tasks.after import parent_name, parent_word
from scheduler.units import count, duration, ranges, size

MOST_DEVICES = 4
MOST_HOLDERS = 4
"""The most devices, and the most holders, that one paragraph names; the others are only counted."""


def why(refusal: Refusal) -> str:
    """Return the part of a sentence that says what keeps a task waiting; the sentence has the task as its subject."""
    return refusal.reason.sentence.format(**_words(refusal))


def line(refusal: Refusal) -> str:
    """Return a whole sentence about what keeps a task waiting: `task 3 waits: it needs …`, `task 3 waits for …`."""
    reason = why(refusal)
    return f"task {refusal.task} {reason if reason.startswith('waits ') else f'waits: it {reason}'}"


def _words(refusal: Refusal) -> dict[str, object]:
    """Return the values for the placeholders in the sentence of a refusal."""
    r, where = refusal, _place(refusal.device)
    wanted, room, total = size(r.wanted), size(max(r.room, 0)), size(r.total)
    counted = r.device in (TASKS, GPUS)
    return {
        "device": r.device, "where": where, "text": r.text, "other": r.text or "a task",
        "need": wanted, "room": room, "total": total, "where_has": f"{where} has {room} of {total} free",
        "of_owner": f" of {r.text}" if r.text else "", "owners": f" ({r.text})" if r.text else "",
        "tasks": count(r.room, "task"), "limit_tasks": count(r.total, "task"), "limit": r.total,
        "slots": f"all {r.total} slots of {r.device} are" if r.total > 1 else f"{r.device} is",
        "cores": f"{r.wanted / 100:g} core{'s' * (r.wanted != 100)}", "free_cores": f"{r.room / 100:g}",
        "wanted": r.wanted, "free_load": r.room, "gpus": count(r.wanted, "GPU"), "seconds": duration(r.wanted),
        "left": duration(r.room),
        "needs_quota": "may not start" if r.device == TASKS else f"needs {_amount(r, r.wanted)}",
        "held_quota": _amount(r, r.room), "quota": f"{f'{r.total:,}' if counted else total} ({r.text})",
    }  # fmt: skip


def _amount(refusal: Refusal, amount: int) -> str:
    """Return an amount in the unit of the quota: tasks, GPUs or bytes."""
    if refusal.device in (TASKS, GPUS):
        return count(amount, refusal.device.removesuffix("s"))
    return f"{size(amount)} of {_place(refusal.device)}"


def is_host_label(label: str) -> bool:
    """Tell whether a label is that of a host: `host`, or `n1 host` for the host of the node `n1`."""
    return label == HOST or label.endswith(f" {HOST}")


def _place(label: str) -> str:
    """Return the name of a device for sentences about memory."""
    return f"{label} RAM" if is_host_label(label) else label


def waits(found: WaitReason) -> str:
    """Return a paragraph: the task's request, the free memory and its holders, the expected start, the number of
    bypasses.
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
    if found.at_most and not refusal.reason.is_for_time:
        times = "once" if found.bypassed == 1 else f"{found.bypassed} times"
        parts.append(f"bypassed {times}, at most {found.at_most}")
    return "; ".join(parts)


def _head(refusal: Refusal) -> str:
    """Return what a task waits for. If the task waits for memory, another part of the paragraph has the numbers for
    each device.
    """
    if refusal.reason is Reason.MEMORY:
        return "waits for host RAM" if is_host_label(refusal.device) else "waits for GPU memory"
    if refusal.reason is Reason.UNKNOWN:
        return f"waits for a GPU with at least {size(refusal.wanted)} free, because its memory is not known yet"
    return why(refusal)


def need(wants: RequestedResources) -> str:
    """Return what a task requests, with the source of that estimate."""
    each = " on each of its GPUs" if wants.gpus > 1 else ""
    ooms = f", after {count(wants.ooms, 'out-of-memory error')}" if wants.ooms else ""
    if wants.bytes is None:
        return f"its memory is not known yet{ooms}"
    if wants.is_expected:
        return f"its memory is not known yet{ooms}: {_expectation(wants, each)}"
    has_margin = wants.share and wants.source is not EstimateSource.DECLARED
    where = "others on its GPU share this margin"
    if wants.source is EstimateSource.EARLIER:
        where = "no other task there has still to settle"
    shared = wants.starts_with and f", or {size(wants.starts_with)} if {where}"
    made = f": peak {size(wants.peak)} + {wants.share:.0%} + {size(wants.margin)}{shared or ''}" if has_margin else ""
    what = f"no GPU, and {size(wants.bytes)} of host RAM" if wants.no_gpu else f"{size(wants.bytes)}{each}"
    return f"needs {what} ({wants.source}{made}{ooms})"


def _expectation(wants: RequestedResources, each: str) -> str:
    """Return what is reserved for a task of unknown memory, the evidence for that amount, and the risk of a start with
    less memory.
    """
    bytes_, enough = size(wants.bytes or 0), size(wants.starts_with)
    reserved = f"{bytes_}{each} are reserved for it until it has settled ("
    classes = f"{count(wants.classes, 'known task class')} {'shows' if wants.classes == 1 else 'show'}"
    evidence = f"{classes} that {wants.expect:.0%} of such tasks need no more)"
    if wants.starts_with >= (wants.bytes or 0):
        return f"{reserved}{evidence}"
    return (
        f"{reserved}{evidence}. It starts with {enough} (enough for {wants.enough:.0%}) where every other such task "
        "has used more than a CUDA context. If it then needs more, it runs out of memory in its first seconds, and "
        "starts again"
    )


def devices(states: Iterable[DeviceState]) -> list[str]:
    """Return sentences about what is free on each device, and who uses the rest."""
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
    return f"{_place(state.device)} has {size(state.room)} of {size(state.total)} free{holders}"


def _expected(found: WaitReason) -> str:
    if found.room_in is None:
        return NO_ETA
    if found.room_in <= 0:
        return f"expected at any moment: task {found.after} has run as long as expected"
    return f"expected in about {duration(found.room_in)}, when task {found.after} ends"


def waiting(reasons: Mapping[str, int]) -> str:
    """Return a sentence that counts the waiting tasks by what they wait for, the most frequent reason first."""
    ranked = sorted(reasons.items(), key=lambda one: -one[1])
    words = dict[str, int]()
    for reason, number in ranked:
        word = _waits_for(reason)
        words[word] = words.get(word, 0) + number
    return ", ".join(f"{number:,} {word}" for word, number in words.items())


def _waits_for(reason: str) -> str:
    """Return what tasks wait for; `@host` after a reason means that its device is the host."""
    word, _, place = reason.partition("@")
    known = Reason(word)
    return known.waits_on_host if place else known.waits


def skipped_sentences(events: Iterable[Depended], state: Callable[[int], State]) -> list[str]:
    """Return one sentence for each task whose end causes other tasks to be skipped."""
    numbers = Counter[int]()
    for event in events:
        if event.step is DependencyStep.SKIP:
            numbers[event.parent] += len(event.tasks)
    return [
        f"skipped: {count(number, 'task')} that {'depends' if number == 1 else 'depend'} on {parent_name(parent)} "
        f"({state(parent)}); scheduler retry {parent_word(parent)} brings {'it' if number == 1 else 'them'} back"
        for parent, number in numbers.items()
    ]


def makes_room(event: Preempted, since: float, now: float) -> str:
    """Return the sentence that reports that tasks are asked to make room."""
    who = _asked_to_save(event.tasks)
    return f"task {event.by} has waited for {duration(now - since)}: {who} asked to save and make room for it"


def makes_room_for_other(event: Preempted) -> str:
    """Return the sentence that reports that tasks are asked to make room for a task of another run."""
    return f"{_asked_to_save(event.tasks)} asked to save and make room for the more urgent task {event.by}"


def _asked_to_save(tasks: Sequence[int]) -> str:
    return f"{'task' if len(tasks) == 1 else 'tasks'} {ranges(tasks)} {'is' if len(tasks) == 1 else 'are'}"
