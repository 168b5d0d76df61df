"""A run's picture as styled lines of a given width and height; nothing in here knows a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any
from unicodedata import combining, east_asian_width

from scheduler.core.model import State
from scheduler.core.picture import Bar, Living, Picture, Queue
from scheduler.units import GIB, count, duration
from scheduler.view import ahead
from scheduler.view import machine as about_machine
from scheduler.view.words import clean

Piece = tuple[str, str]
"""A text and its style: colours by name alone, so that they read on any background."""
Line = tuple[Piece, ...]

NARROW, WIDE = 80, 100
MOST_DEVICES = 8
RECENT = 5
"""So many of the last lines are shown where there is room."""
KEYS = "q leaves the view   Ctrl-C running tasks end   Ctrl-\\ leaves them running"
MACHINE = "q leaves the view"
WATCHING = "q leaves the view, the run goes on   scheduler stop {run} ends it"
_PARTS = (("ours", "█", "green"), ("promised", "▒", "cyan"), ("others", "▓", "magenta"), ("buffer", "░", "dim"))
_LEGEND = {"ours": "held by this run", "promised": "+promised, not taken", "others": "by others", "buffer": "buffer"}
EVERYBODY = {"ours": "held by tasks", "promised": "+promised, not taken", "others": "held without a promise"}
_ASCII = {"█": "#", "▒": "=", "▓": "x", "░": "-", "·": ".", "…": "~"}
_BLANKS = re.compile(" {3,}")
_BAD = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)
_COUNTED = (
    (State.RUNNING, "running", "bold"),
    (State.PROBING, "probing", "bold"),
    (State.WAITING, "waiting", ""),
    (State.HELD, "held", ""),
    (State.SUCCEEDED, "done", "green"),
    (State.FAILED, "failed", "bold red"),
    (State.OOM, "out of memory", "bold red"),
    (State.TIMEOUT, "timed out", "bold red"),
    (State.REFUSED, "refused", "bold red"),
    (State.INTERRUPTED, "interrupted", ""),
    (State.CANCELLED, "cancelled", ""),
    (State.SKIPPED, "skipped", ""),
)


def lines(
    picture: Picture, width: int, height: int, recent: Sequence[str] = (), keys: str = KEYS, waits: str = ""
) -> list[Line]:
    """As many lines as there are rows at most, each of them no wider than the terminal.

    `waits`: why the next task does not start, where anybody knows.
    """
    head = [*_head(picture, width), (), *_devices(picture.bars, width, height), ()]
    queue = _queue(picture.queue, width, waits)
    foot: list[Line] = [((fit(keys, width), "dim"),)]
    rest = height - len(head) - len(queue) - len(foot)
    running = _running(picture.living, width, rest - min(RECENT + 1, rest // 3))
    news = _recent(recent, width, rest - len(running) - 1)
    said = [*head, *running, *queue, *news]
    gap: list[Line] = [()] * (height - len(said) - len(foot))
    return [_clipped(line, width) for line in [*said[: max(0, height - len(foot))], *gap, *foot]]


def _clipped(line: Line, width: int) -> Line:
    """A line made for a wider terminal, cut."""
    kept: list[Piece] = []
    for text, style in line:
        kept.append((fit(text, width) if columns(text) > width else text, style))
        width -= columns(kept[-1][0])
    return tuple(kept)


def machine(facts: Mapping[str, Any], width: int, height: int, keys: str = MACHINE) -> list[Line]:
    """The whole machine: bars of its devices, then all that `status` says."""
    bars = bars_of(facts)
    words = [line for line in about_machine.lines(facts)[1:] if not line.startswith(tuple(b.label for b in bars))]
    head: list[Line] = [((fit(facts["hostname"], width), "bold"),), (), *_devices(bars, width, height, EVERYBODY)]
    said = [*head, *(((fit(line, width), ""),) for line in words)]
    foot: list[Line] = [((fit(keys, width), "dim"),)]
    most = height - len(foot)
    if len(said) > most:
        said = [*said[: most - 1], ((f"and {len(said) - most + 1} more lines: scheduler status", ""),)]
    return [_clipped(line, width) for line in [*said, *([()] * (most - len(said))), *foot]]


def bars_of(facts: Mapping[str, Any]) -> list[Bar]:
    """The machine's devices, as `status` tells of them."""
    return [*map(_card, facts["gpus"]), _ram(facts)]


def _card(gpu: Mapping[str, Any]) -> Bar:
    held = gpu["total"] - gpu["free"]
    strangers = sum(one["bytes"] for one in gpu["foreign"])
    used = max(0, held - strangers)
    yet = max(0, min(gpu["free"], gpu["promised"] - used))
    return Bar(gpu["device"], gpu["total"], used, held - used, yet, 0, gpu["tasks"], None, 1.0, None, gpu["closed"])


def _ram(facts: Mapping[str, Any]) -> Bar:
    total, free = facts["host"]["total"], facts["host"]["available"]
    used = min(total - free, sum(lease["used"].get("host", 0) for lease in facts["leases"]))
    yet = sum(max(0, one["promised"].get("host", 0) - one["used"].get("host", 0)) for one in facts["leases"])
    tasks = sum("host" in one["promised"] for one in facts["leases"])
    return Bar("host", total, used, total - free - used, min(free, yet), 0, tasks, None, 1.0)


def plain(picture: Picture, width: int) -> list[str]:
    """All of it without styles or a terminal's height, for pipes and files."""
    tall = 12 + len(picture.bars) + len(picture.living) + len(picture.queue.first)
    head = [*_head(picture, width), (), *_devices(picture.bars, width, 1 << 16), ()]
    said = [*head, *_running(picture.living, width, tall), *_queue(picture.queue, width)]
    return ["".join(text for text, _ in line).rstrip() for line in said]


def ascii_only(line: Line) -> Line:
    """For terminals whose encoding has nothing else."""
    return tuple(
        ("".join(_ASCII.get(c, c) for c in text).encode("ascii", "replace").decode(), style) for text, style in line
    )


def columns(text: str) -> int:
    """How many columns a terminal gives a text."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(letter: str) -> int:
    if combining(letter) or letter in "\u200b\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1


def fit(text: str, width: int, *, pad: bool = False) -> str:
    """A text's cleaned first line in so many columns; cut with an ellipsis, filled with blanks if wanted."""
    line = clean(text).replace("\n", " ").replace("\t", " ")
    wide = columns(line)
    if wide > width:
        kept, wide = "", 0
        for letter in line:
            if wide + _cells(letter) > width - 1:
                break
            kept, wide = kept + letter, wide + _cells(letter)
        line, wide = (kept + "…", wide + 1) if width > 0 else ("", 0)
    return line + " " * (width - wide) if pad else line


# ---- the run ----


def _head(picture: Picture, width: int) -> list[Line]:
    end = duration(picture.seconds)
    title = fit(f"run {picture.run}  {picture.what}", width - len(end) - 2, pad=True)
    return [((title, "bold"), (f"  {end}", "")), _counts(picture, width), _progress(picture, width)]


def _counts(picture: Picture, width: int) -> Line:
    said: list[Piece] = []
    if picture.draining:
        said.append(("nothing more starts", "bold"))
    said += [(f"{number:,} {word}", s) for state, word, s in _COUNTED if (number := picture.states.get(state, 0))]
    said += [(f"{picture.retried:,} retried", "")] if picture.retried else []
    said += [(count(picture.ooms, "OOM"), "")] if picture.ooms else []
    return _joined(said, width)


def _joined(pieces: Sequence[Piece], width: int) -> Line:
    """Pieces with blanks between them, as many as fit."""
    line: list[Piece] = []
    used = 0
    for text, style in pieces:
        gap = "  " if line else ""
        if used + len(gap) + columns(text) > width:
            break
        line += [(gap, ""), (text, style)] if gap else [(text, style)]
        used += len(gap) + columns(text)
    return tuple(line)


def _progress(picture: Picture, width: int) -> Line:
    share = picture.over / picture.tasks if picture.tasks else 0.0
    said = f"  {picture.over:,}/{picture.tasks:,}  {int(share * 100)}%{_left(picture, width)}"
    room = max(0, width - len(said))
    bad = sum(picture.states.get(state, 0) for state in _BAD)
    full = int(room * share)
    red = min(full, -(-room * bad // picture.tasks)) if picture.tasks else 0
    return ("█" * (full - red), "green"), ("▓" * red, "red"), ("·" * (room - full), "dim"), (said, "bold")


def _left(picture: Picture, width: int) -> str:
    """When it is expected to be over, and how sure that is where there is room for it."""
    if picture.end is None:
        said = f"time left {picture.unknown}" if width >= WIDE else "left: unknown yet"
        return f"  {said}" if picture.unknown else ""
    return "  " + ahead.left(asdict(picture.end), picture.now)


# ---- devices ----


def _devices(
    bars: Sequence[Bar], width: int, height: int, legend: Mapping[str, str] = MappingProxyType(_LEGEND)
) -> list[Line]:
    if not bars:
        return []
    most = max(1, min(MOST_DEVICES if height < 1 << 15 else len(bars), height // 3))
    shown = bars if len(bars) <= most else bars[: most - 1] if most > 1 else bars[:1]
    label = max(len(bar.label) for bar in shown)
    texts = [_device_text(bar) for bar in shown]
    wide = max(8, min(60, width - label - 4 - max(map(len, texts))))
    said = [_device(bar, label, wide, text, width) for bar, text in zip(shown, texts, strict=True)]
    if len(bars) > len(shown):
        rest = bars[len(shown) :]
        words = f"and {len(rest)} more devices: {_short(sum(bar.ours for bar in rest))} held by this run"
        held = f", {_short(sum(bar.free for bar in rest))} free"
        said.append(((fit(words + held, width), ""),))
    return [*said, _legend(width, legend)]


def _device_text(bar: Bar) -> str:
    if bar.closed:
        return f"closed: {bar.closed}"[:40]
    said = f"{_short(bar.ours + bar.others)}/{_short(bar.total)} +{_short(bar.promised)}"
    if bar.load is not None:
        busy = f"{bar.load:.0%} busy" if bar.capacity == 1.0 else f"load {bar.load:.1f}/{bar.capacity:g}"
        said += f"  {busy}"
    return said + (f" {bar.celsius}°C" if bar.celsius is not None else "") + f"  {count(bar.tasks, 'task')}"


def _device(bar: Bar, label: int, wide: int, text: str, width: int) -> Line:
    said: list[Piece] = [(fit(bar.label, label, pad=True) + "  ", "bold")]
    at, before = 0, 0
    for part, letter, style in _PARTS:
        at += getattr(bar, part)
        end = min(wide, round(wide * at / bar.total)) if bar.total else 0
        said.append((letter * (end - before), style))
        before = end
    said.append(("·" * (wide - before), "dim"))
    style = "bold red" if bar.closed else ""
    return (*said, ("  " + fit(text, max(0, width - label - wide - 4)), style))


def _legend(width: int, legend: Mapping[str, str]) -> Line:
    pieces = [(f"{letter} {legend[part]}", style) for part, letter, style in _PARTS if part in legend]
    return _joined([*pieces, ("· free", "dim")], width)


# ---- tasks ----


def _running(living: Sequence[Living], width: int, room: int) -> list[Line]:
    """A table of what runs, as far as there is room; what is left out is counted."""
    if not living:
        return [(("nothing runs", ""),)] if room > 0 else []
    if room < 3:
        return [((count(len(living), "task") + " running", ""),)] if room > 0 else []
    most = room - 1 if len(living) < room else room - 2
    label = min(14, max(6, *(len(", ".join(one.devices)) for one in living[:most]), 6))
    number = max(4, *(len(str(one.task)) for one in living[:most]), 4)
    room_for_names = max(8, width - number - label - (52 if width >= WIDE else 45))
    longest = max((columns(clean(_called(one))) for one in living[:most]), default=0)
    name = min(room_for_names, max(26, longest))
    header = f"{'task':>{number}}  {'name':<{name}}  {'device':<{label}}  {'time':>6}  {'epochs':>7}"
    said: list[Line] = [((fit(f"{header}  {'peak/promised':>13}  {'left':>6}", width), "bold"),)]
    said += [_task(one, number, name, label, width) for one in living[: max(0, most)]]
    if len(living) > most:
        said.append((("and " + f"{len(living) - most:,} more that run", ""),))
    return said


def _task(one: Living, number: int, name: int, label: int, width: int) -> Line:
    first = f"{one.task:>{number}}  {fit(_called(one), name, pad=True)}  "
    second = f"{fit(', '.join(one.devices), label, pad=True)}  {duration(one.seconds):>6}  {_epochs(one):>7}  "
    memory = f"{_short(one.peak)}/{_short(one.promised)}"
    left = "" if one.left is None else duration(one.left)
    tight = "bold red" if one.promised and one.peak > one.promised else ""
    style = "bold" if one.asked else "cyan" if one.probe else ""
    return (first, style), (second, ""), (f"{memory:>13}", tight), (fit(f"  {left:>6}", max(0, width)), "")


def _called(one: Living) -> str:
    words = {"stop": "stopping: ", "cancel": "cancelling: "}
    again = f" (try {one.attempt})" if one.attempt > 1 else ""
    return f"{words.get(one.asked, '')}{'probe: ' if one.probe else ''}{one.name}{again}"


def _epochs(one: Living) -> str:
    if one.epochs is None:
        return f"-/{one.of_epochs}" if one.of_epochs else ""
    return f"{one.epochs:.0f}/{one.of_epochs}" if one.of_epochs else f"{one.epochs:.0f}"


def _short(bytes_: int) -> str:
    return f"{bytes_ / GIB:.1f}G" if bytes_ >= GIB else f"{bytes_ >> 20}M"


# ---- the queue and the last lines ----


def _queue(queue: Queue, width: int, waits: str = "") -> list[Line]:
    if not queue.tasks:
        return []
    why: list[Line] = [((fit(f"next    {waits}", width), ""),)] if waits else []
    said: list[Piece] = [(f"waiting {queue.tasks:,}", "bold")]
    for batch in queue.first:
        of = ", ".join(f"prio {priority}: {number:,}" for priority, number in [*batch.priorities.items()][:3])
        more = ", …" if len(batch.priorities) > 3 else ""
        said.append((f"batch {batch.batch}: {batch.tasks:,}{f' ({of}{more})' if of else ''}", ""))
    rest = queue.tasks - sum(batch.tasks for batch in queue.first)
    if rest > 0:
        said.append((f"{queue.batches - len(queue.first):,} later: {rest:,}", ""))
    return [(), _joined(said, width), *why]


def _recent(recent: Sequence[str], width: int, most: int) -> list[Line]:
    last = [line for line in recent if line.strip()][-most:] if most > 0 else []
    return [(), *(((fit(_BLANKS.sub("  ", line), width), _style(line)),) for line in last)] if last else []


def _style(line: str) -> str:
    words = line.split(maxsplit=2)
    return "red" if any(word in ("FAILED", "OOM", "TIMEOUT", "LOST", "REFUSED") for word in words[:2]) else "dim"
