"""The status of a run or a machine as styled lines of a given width and height, for any terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.model import LIVING, State
from scheduler.core.reporting.live_status import LiveStatus, LiveTask, MemoryBar, QueueSummary
from scheduler.patterns import lazy_pattern
from scheduler.ui.text import columns, fit
from scheduler.ui.verbs import eta
from scheduler.units import GIB, count, duration

Piece = tuple[str, str]
"""A text and its style; colours are given by name, so that they are readable on any background."""
Line = tuple[Piece, ...]

WIDE = 100
_BLOCKS = "▁▂▃▄▅▆▇█"
LEAST_PARTS = 3
"""The number of parts at the beginning of a log line (event, task, name) that are truncated if they do not fit; later
parts are left out instead.
"""
RECENT = 5
"""The number of the run's last log lines that are shown if there is room."""
_PARTS = (("ours", "█", "green"), ("reserved", "▒", "cyan"), ("others", "▓", "magenta"), ("buffer", "░", "dim"))
LEGEND = {
    "ours": "used by this run", "reserved": "reserved, not used yet", "others": "other use", "buffer": "buffer",
}  # fmt: skip
"""The parts of a device's memory, as a run sees them. `others` is the use of other runs, of unmanaged processes and of
the driver itself.
"""
MACHINE_LEGEND = {"ours": "used by tasks", "reserved": "reserved, not used yet", "others": "unmanaged"}
_ASCII = {
    "█": "#",
    "▒": "=",
    "▓": "x",
    "░": "-",
    "·": ".",
    "…": "~",
    "↑": "^",
    "↓": "v",
    "─": "-",
    "│": "|",
    "┤": "|",
    "▏": "_",
    "▾": "v",
    "▴": "^",
    **dict(zip("▁▂▃▄▅▆▇×", "__..--=x", strict=True)),
}
_BLANKS = lazy_pattern(" {3,}")
_BAD = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)
_COUNTED = (
    (State.RUNNING, "running", "bold"),
    (State.PROBING, "probing", "bold"),
    (State.WAITING, "waiting", ""),
    (State.BLOCKED, "blocked", ""),
    (State.HELD, "held", ""),
    (State.SUCCEEDED, "succeeded", "green"),
    (State.FAILED, "failed", "bold red"),
    (State.OOM, "out of memory", "bold red"),
    (State.TIMEOUT, "timed out", "bold red"),
    (State.REFUSED, "refused", "bold red"),
    (State.INTERRUPTED, "interrupted", ""),
    (State.CANCELLED, "cancelled", ""),
    (State.SKIPPED, "skipped", ""),
    (State.PRUNED, "pruned", ""),
)


def clipped(line: Line, width: int) -> Line:
    """Return a line, which may have been made for a wider terminal, cut to a width."""
    kept: list[Piece] = []
    for text, style in line:
        kept.append((fit(text, width) if columns(text) > width else text, style))
        width -= columns(kept[-1][0])
    return tuple(kept)


def bars_of(facts: Mapping[str, Any]) -> list[MemoryBar]:
    """Return a memory bar for each device in the facts of `status`."""
    return [*map(_gpu_bar, facts["gpus"]), _host_bar(facts)]


def _gpu_bar(gpu: Mapping[str, Any]) -> MemoryBar:
    held = gpu["total"] - gpu["free"]
    used = max(0, held - sum(one["bytes"] for one in gpu["unmanaged"]))
    unused = max(0, min(gpu["free"], gpu["reserved"] - used))
    return MemoryBar(
        gpu["device"], gpu["total"], used, held - used, unused, 0, gpu["tasks"], gpu["busy"], 1.0, gpu["celsius"],
        gpu["drained"], gpu["watts"],
    )  # fmt: skip


def _host_bar(facts: Mapping[str, Any]) -> MemoryBar:
    total, free = facts["host"]["total"], facts["host"]["available"]
    used = min(total - free, sum(lease["used"].get("host", 0) for lease in facts["leases"]))
    unused = sum(max(0, one["reserved"].get("host", 0) - one["used"].get("host", 0)) for one in facts["leases"])
    tasks = sum("host" in one["reserved"] for one in facts["leases"])
    return MemoryBar("host", total, used, total - free - used, min(free, unused), 0, tasks, None, 1.0)


def ascii_only(line: Line) -> Line:
    """Return a line in which all non-ASCII characters are replaced."""
    return tuple(
        (
            "".join(_ASCII.get(c, "*" if "\u2800" <= c <= "\u28ff" else c) for c in text)
            .encode("ascii", "replace")
            .decode(),
            style,
        )
        for text, style in line
    )


# ---- the run ----


def title(status: LiveStatus, width: int) -> list[Line]:
    """Return the line with the name of the run and the time that it has taken."""
    end = f"{duration(status.seconds)} since its start"
    words = fit(f"run {status.run}  {status.what}", width - len(end) - 2, pad=True)
    return [((words, "bold"), (f"  {end}", ""))]


def head(status: LiveStatus, width: int) -> list[Line]:
    """Return the lines with the name of the run, its states, and its progress."""
    return [*title(status, width), counts(status, width), progress(status, width)]


def counts(status: LiveStatus, width: int, *, bad_first: bool = False) -> Line:
    """Return the number of tasks in each state, for as many states as fit; with `bad_first`, failures come before
    waiting tasks.
    """
    result: list[Piece] = []
    if status.draining:
        result.append(("starts nothing new", "bold"))
    if paused := eta.of_pause({"paused": status.paused, "paused_until": status.paused_until}, status.now):
        result.append((paused, "bold"))
    states = [
        (state, f"{number:,} {word}", s) for state, word, s in _COUNTED if (number := status.states.get(state, 0))
    ]
    if bad_first:
        states.sort(key=lambda one: (one[0] not in LIVING, one[0] not in _BAD))
    result += [(words, style) for _, words, style in states]
    result += [(f"{status.retried:,} retried", "")] if status.retried else []
    result += [(count(status.ooms, "OOM"), "")] if status.ooms else []
    return _joined(result, width)


def _joined(pieces: Sequence[Piece], width: int) -> Line:
    """Return as many of the pieces as fit in one line, separated by blanks."""
    line: list[Piece] = []
    used = 0
    for text, style in pieces:
        gap = "  " if line else ""
        if used + len(gap) + columns(text) > width:
            break
        line += [(gap, ""), (text, style)] if gap else [(text, style)]
        used += len(gap) + columns(text)
    return tuple(line)


def progress(status: LiveStatus, width: int) -> Line:
    """Return a line with a bar for the share of tasks that have ended, and the time at which the run is expected to
    end.
    """
    share = status.over / status.tasks if status.tasks else 0.0
    result = f"  {status.over:,}/{status.tasks:,}  {int(share * 100)}%{_left(status, width)}"
    room = max(0, width - len(result))
    bad = sum(status.states.get(state, 0) for state in _BAD)
    full = int(room * share)
    red = min(full, -(-room * bad // status.tasks)) if status.tasks else 0
    return ("█" * (full - red), "green"), ("▓" * red, "red"), ("·" * (room - full), "dim"), (result, "bold")


def _left(status: LiveStatus, width: int) -> str:
    """Return in words when the run is expected to end, or why that is unknown."""
    if status.end is None:
        text = f"time left {status.unknown}" if width >= WIDE else "time left: unknown yet"
        return f"  {text}" if status.unknown else ""
    return "  " + eta.left(status.end, status.now)


# ---- devices ----


def bar_pieces(bar: MemoryBar, wide: int) -> list[Piece]:
    """Return the memory of a device as a bar that is `wide` characters wide."""
    result: list[Piece] = []
    at, before = 0, 0
    for part, letter, style in _PARTS:
        at += getattr(bar, part)
        end = min(wide, round(wide * at / bar.total)) if bar.total else 0
        result.append((letter * (end - before), style))
        before = end
    return [*result, ("·" * (wide - before), "dim")]


def legend_line(width: int, legend: Mapping[str, str]) -> Line:
    """Return a line that explains the parts of a bar."""
    pieces = [(f"{letter} {legend[part]}", style) for part, letter, style in _PARTS if part in legend]
    return _joined([*pieces, ("· free", "dim")], width)


# ---- tasks ----


def sparkline(values: Sequence[float | None], most: int) -> str:
    """Return the last values as a line of blocks; a value that is not a number is shown as a cross."""
    last = values[-most:]
    known = [value for value in last if value is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    top = len(_BLOCKS) - 1
    return "".join("×" if v is None else _BLOCKS[round((v - low) / span * top) if span else top // 2] for v in last)


def epochs_of(one: LiveTask) -> str:
    """Return the completed and the total number of epochs of a task in words; empty if they are unknown."""
    if one.epochs is None:
        return f"-/{one.of_epochs}" if one.of_epochs else ""
    return f"{one.epochs:.0f}/{one.of_epochs}" if one.of_epochs else f"{one.epochs:.0f}"


def short_size(bytes_: int) -> str:
    """Return a size in as few characters as possible."""
    return f"{bytes_ / GIB:.1f}G" if bytes_ >= GIB else f"{bytes_ >> 20}M"


# ---- the queue and the last lines ----


def queue_lines(queue: QueueSummary, width: int, waits: str = "") -> list[Line]:
    """Return, after a blank line, the waiting tasks by batch if any of them has a priority other than 0, and why the
    next task waits.
    """
    why: list[Line] = [((fit(f"next    {waits}", width), ""),)] if waits and queue.tasks else []
    if not any(priority for batch in queue.first for priority in batch.priorities):
        return [(), *why] if why else []  # all wait in the order of the list
    result: list[Piece] = [(f"waiting {queue.tasks:,}", "bold")]
    for batch in queue.first:
        of = ", ".join(f"prio {priority}: {number:,}" for priority, number in [*batch.priorities.items()][:3])
        more = ", …" if len(batch.priorities) > 3 else ""
        result.append((f"batch {batch.batch}: {batch.tasks:,} ({of}{more})", ""))
    rest = queue.tasks - sum(batch.tasks for batch in queue.first)
    if rest > 0:
        result.append((f"{count(queue.batches - len(queue.first), 'later batch')}: {rest:,}", ""))
    return [(), _joined(result, width), *why]


def recent_lines(recent: Sequence[str], width: int, most: int) -> list[Line]:
    """Return, after a blank line, the last lines of the run's log."""
    last = [line for line in recent if line.strip()][-most:] if most > 0 else []
    return [(), *(((_whole_parts(line, width), _style(line)),) for line in last)] if last else []


def _whole_parts(line: str, width: int) -> str:
    """Return as many parts of a log line as fit; the default priority is left out."""
    parts = [part for part in _BLANKS.sub("  ", line).split("  ") if part != "prio 0"]
    if len(parts) < LEAST_PARTS or not parts[1].isdigit():  # it is not about a task
        return fit("  ".join(parts), width)
    kept = parts[0]
    for at, part in enumerate(parts[1:], 1):
        if columns(kept) + 2 + columns(part) > width:
            return kept if at >= LEAST_PARTS else fit("  ".join(parts), width)
        kept += f"  {part}"
    return fit(kept, width)


def _style(line: str) -> str:
    words = line.split(maxsplit=2)
    return "red" if any(word in ("FAILED", "OOM", "TIMEOUT", "LOST", "REFUSED") for word in words[:2]) else "dim"
