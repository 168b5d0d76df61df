"""The status of a run or a machine as styled lines of a given width and height, independent of any terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from scheduler.core.causes import Action
from scheduler.core.metrics.goal import ranked
from scheduler.core.model import LIVING, State
from scheduler.core.reporting.live_status import LiveStatus, LiveTask, MemoryBar, QueueSummary
from scheduler.patterns import lazy_pattern
from scheduler.ui.text import clean, columns, fit, fit_middle
from scheduler.ui.verbs import eta
from scheduler.units import GIB, count, duration

Piece = tuple[str, str]
"""A text and its style; colours have names, so that they are readable on any background."""
Line = tuple[Piece, ...]

NARROW, WIDE = 80, 100
METRIC, NARROW_METRIC, SPARK, MOST_METRICS = 20, 10, 8, 3
"""The width of a metric's column with its gap and of one without a sparkline, the width of a sparkline, and the number
of such columns."""
SHORTEST_NAME = 14
"""The width that names keep beside metrics."""
_BLOCKS = "▁▂▃▄▅▆▇█"
MOST_DEVICES = 8
RECENT = 5
"""The number of last lines that are shown if there is room."""
_PARTS = (("ours", "█", "green"), ("reserved", "▒", "cyan"), ("others", "▓", "magenta"), ("buffer", "░", "dim"))
LEGEND = {
    "ours": "used by this run", "reserved": "reserved, not used yet", "others": "used by others", "buffer": "buffer",
}  # fmt: skip
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
    """Cut a line that was made for a wider terminal."""
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


def plain(status: LiveStatus, width: int) -> list[str]:
    """Return everything without styles and without a limit on the height, for pipes and files."""
    tall = 12 + len(status.bars) + len(status.living) + len(status.queue.first)
    top = [*head(status, width), (), *_devices(status.bars, width, 1 << 16), ()]
    result = [*top, *_running(status.living, width, tall), *queue_lines(status.queue, width)]
    return ["".join(text for text, _ in line).rstrip() for line in result]


def ascii_only(line: Line) -> Line:
    """Replace all characters of a line that are not ASCII."""
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
    """Return the line with the name of the run and its time."""
    end = duration(status.seconds)
    words = fit(f"run {status.run}  {status.what}", width - len(end) - 2, pad=True)
    return [((words, "bold"), (f"  {end}", ""))]


def head(status: LiveStatus, width: int) -> list[Line]:
    """Return the name of the run, its states, and its progress."""
    return [*title(status, width), counts(status, width), progress(status, width)]


def counts(status: LiveStatus, width: int, *, bad_first: bool = False) -> Line:
    """Return the number of tasks in each state, as many as fit; with `bad_first` failures come before what waits."""
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
    """Join as many pieces as fit, separated by blanks."""
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
    """Return the share of tasks that have ended as a bar, and when the run is expected to end."""
    share = status.over / status.tasks if status.tasks else 0.0
    result = f"  {status.over:,}/{status.tasks:,}  {int(share * 100)}%{_left(status, width)}"
    room = max(0, width - len(result))
    bad = sum(status.states.get(state, 0) for state in _BAD)
    full = int(room * share)
    red = min(full, -(-room * bad // status.tasks)) if status.tasks else 0
    return ("█" * (full - red), "green"), ("▓" * red, "red"), ("·" * (room - full), "dim"), (result, "bold")


def _left(status: LiveStatus, width: int) -> str:
    """Return when the run is expected to end, or why that is unknown."""
    if status.end is None:
        text = f"time left {status.unknown}" if width >= WIDE else "time left: unknown yet"
        return f"  {text}" if status.unknown else ""
    return "  " + eta.left(status.end, status.now)


# ---- devices ----


def _devices(
    bars: Sequence[MemoryBar], width: int, height: int, legend: Mapping[str, str] = MappingProxyType(LEGEND)
) -> list[Line]:
    if not bars:
        return []
    most = max(1, min(MOST_DEVICES if height < 1 << 15 else len(bars), height // 3))
    shown = bars if len(bars) <= most else bars[: most - 1] if most > 1 else bars[:1]
    label = max(len(bar.label) for bar in shown)
    texts = [_device_text(bar) for bar in shown]
    wide = max(8, min(60, width - label - 4 - max(map(len, texts))))
    result = [_device(bar, label, wide, text, width) for bar, text in zip(shown, texts, strict=True)]
    if len(bars) > len(shown):
        rest = bars[len(shown) :]
        words = f"and {len(rest)} more devices: {short_size(sum(bar.ours for bar in rest))} used by this run"
        free = f", {short_size(sum(bar.free for bar in rest))} free"
        result.append(((fit(words + free, width), ""),))
    return [*result, legend_line(width, legend)]


def _device_text(bar: MemoryBar) -> str:
    if bar.drained:
        return f"drained: {bar.drained}"[:40]
    result = f"{short_size(bar.ours + bar.others)}/{short_size(bar.total)} +{short_size(bar.reserved)}"
    if bar.load is not None:
        busy = f"{bar.load:.0%} busy" if bar.capacity == 1.0 else f"load {bar.load:.1f}/{bar.capacity:g}"
        result += f"  {busy}"
    return result + (f" {bar.celsius}°C" if bar.celsius is not None else "") + f"  {count(bar.tasks, 'task')}"


def _device(bar: MemoryBar, label: int, wide: int, text: str, width: int) -> Line:
    style = "bold red" if bar.drained else ""
    words = "  " + fit(text, max(0, width - label - wide - 4))
    return ((fit(bar.label, label, pad=True) + "  ", "bold"), *bar_pieces(bar, wide), (words, style))


def bar_pieces(bar: MemoryBar, wide: int) -> list[Piece]:
    """Return the memory of a device as a bar of this width."""
    result: list[Piece] = []
    at, before = 0, 0
    for part, letter, style in _PARTS:
        at += getattr(bar, part)
        end = min(wide, round(wide * at / bar.total)) if bar.total else 0
        result.append((letter * (end - before), style))
        before = end
    return [*result, ("·" * (wide - before), "dim")]


def legend_line(width: int, legend: Mapping[str, str]) -> Line:
    """Return the meaning of the parts of a bar."""
    pieces = [(f"{letter} {legend[part]}", style) for part, letter, style in _PARTS if part in legend]
    return _joined([*pieces, ("· free", "dim")], width)


# ---- tasks ----


def _running(living: Sequence[LiveTask], width: int, room: int) -> list[Line]:
    """Return a table of the running tasks, as many as fit; the others are counted."""
    if not living:
        return [(("nothing runs", ""),)] if room > 0 else []
    if room < 3:
        return [((count(len(living), "task") + " running", ""),)] if room > 0 else []
    most = room - 1 if len(living) < room else room - 2
    label = min(14, max(6, *(len(", ".join(one.devices)) for one in living[:most]), 6))
    number = max(4, *(len(str(one.task)) for one in living[:most]), 4)
    name_room = max(8, width - number - label - (52 if width >= WIDE else 45))
    longest = max((columns(clean(_title(one))) for one in living[:most]), default=0)
    shown = _metrics(living[:most], name_room)
    wide = METRIC if len(shown) * METRIC <= name_room - SHORTEST_NAME else NARROW_METRIC
    name = min(name_room - len(shown) * wide, max(26, longest))
    titles = "".join(f"  {fit(title, wide - 2, pad=True)}" for title in shown)
    header = f"{'task':>{number}}  {'name':<{name}}  {'device':<{label}}  {'time':>6}  {'epochs':>7}"
    result: list[Line] = [((fit(f"{header}  {'peak/reserved':>13}  {'left':>6}{titles}", width), "bold"),)]
    result += [_task(one, number, name, label, width, dict.fromkeys(shown, wide)) for one in living[: max(0, most)]]
    if len(living) > most:
        result.append(((f"and {len(living) - most:,} more running", ""),))
    return result


def _metrics(living: Sequence[LiveTask], room: int) -> list[str]:
    """Return the metrics that are shown: the most important ones of these tasks, as many as fit beside the names."""
    names = ranked(dict.fromkeys(name for one in living for name in one.metrics))
    most = min(MOST_METRICS, max(room - SHORTEST_NAME >= NARROW_METRIC, (room - SHORTEST_NAME) // METRIC))
    return [name for name in names if any(one.metrics.get(name) for one in living)][:most]


def sparkline(values: Sequence[float | None], most: int) -> str:
    """Return the last values as a line of blocks; a value that is no number is a cross."""
    last = values[-most:]
    known = [value for value in last if value is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    top = len(_BLOCKS) - 1
    return "".join("×" if v is None else _BLOCKS[round((v - low) / span * top) if span else top // 2] for v in last)


def _metric(values: Sequence[float | None], wide: int) -> str:
    """Return the last value of a metric, and its sparkline if the column is wide enough."""
    last = "" if not values else "nan" if values[-1] is None else f"{values[-1]:.4g}"
    if wide < METRIC:
        return fit(last, wide - 2, pad=True)
    return fit(f"{last:<{METRIC - SPARK - 3}} {sparkline(values, SPARK)}", METRIC - 2, pad=True)


def _task(one: LiveTask, number: int, name: int, label: int, width: int, shown: Mapping[str, int]) -> Line:
    first = f"{one.task:>{number}}  {fit_middle(_title(one), name)}  "
    second = f"{fit(', '.join(one.devices), label, pad=True)}  {duration(one.seconds):>6}  {epochs_of(one):>7}  "
    memory = f"{short_size(one.peak)}/{short_size(one.reserved)}"
    left = "" if one.left is None else duration(one.left)
    metrics = [(f"  {_metric(one.metrics.get(title, ()), wide)}", "green") for title, wide in shown.items()]
    tight = "bold red" if one.reserved and one.peak > one.reserved else ""
    style = "bold" if one.asked else "cyan" if one.probe else ""
    return (first, style), (second, ""), (f"{memory:>13}", tight), (fit(f"  {left:>6}", max(0, width)), ""), *metrics


def _title(one: LiveTask) -> str:
    words: dict[str, str] = {Action.STOP: "stopping: ", Action.CANCEL: "cancelling: "}
    again = f" (attempt {one.attempt})" if one.attempt > 1 else ""
    return f"{words.get(one.asked, '')}{'probe: ' if one.probe else ''}{one.name}{again}"


def epochs_of(one: LiveTask) -> str:
    """Write how many epochs of how many a task has completed; empty if that is unknown."""
    if one.epochs is None:
        return f"-/{one.of_epochs}" if one.of_epochs else ""
    return f"{one.epochs:.0f}/{one.of_epochs}" if one.of_epochs else f"{one.epochs:.0f}"


def short_size(bytes_: int) -> str:
    """Write a size in a few characters."""
    return f"{bytes_ / GIB:.1f}G" if bytes_ >= GIB else f"{bytes_ >> 20}M"


# ---- the queue and the last lines ----


def queue_lines(queue: QueueSummary, width: int, waits: str = "") -> list[Line]:
    """Return the waiting tasks by batch after a blank line, and why the next one waits."""
    if not queue.tasks:
        return []
    why: list[Line] = [((fit(f"next    {waits}", width), ""),)] if waits else []
    result: list[Piece] = [(f"waiting {queue.tasks:,}", "bold")]
    ranked_by = any(priority for batch in queue.first for priority in batch.priorities)
    for batch in queue.first:
        of = ", ".join(f"prio {priority}: {number:,}" for priority, number in [*batch.priorities.items()][:3])
        more = ", …" if len(batch.priorities) > 3 else ""
        result.append((f"batch {batch.batch}: {batch.tasks:,}{f' ({of}{more})' if ranked_by else ''}", ""))
    rest = queue.tasks - sum(batch.tasks for batch in queue.first)
    if rest > 0:
        result.append((f"{count(queue.batches - len(queue.first), 'later batch')}: {rest:,}", ""))
    return [(), _joined(result, width), *why]


def recent_lines(recent: Sequence[str], width: int, most: int) -> list[Line]:
    """Return the last lines of the run's log after a blank line."""
    last = [line for line in recent if line.strip()][-most:] if most > 0 else []
    return [(), *(((fit(_BLANKS.sub("  ", line), width), _style(line)),) for line in last)] if last else []


def _style(line: str) -> str:
    words = line.split(maxsplit=2)
    return "red" if any(word in ("FAILED", "OOM", "TIMEOUT", "LOST", "REFUSED") for word in words[:2]) else "dim"
