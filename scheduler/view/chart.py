"""What ran where and when: bars of memory over time for a terminal, and as a drawing for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from scheduler.core.bars import Bar, held_over_time, stacked
from scheduler.core.model import Device, Outcome
from scheduler.units import duration, size
from scheduler.view.drawing import GREY, LARGE, Drawing, Rect, Words
from scheduler.view.words import short

SLICES = 60
MOST_LANES = 16
"""A terminal shows so many devices; the file shows all."""
MOST_BARS = 20_000
"""A file shows so many bars, the largest; no browser likes more."""
FULL, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
WIDTH, LANE, GAP, LEFT, TOP = 1000.0, 90.0, 14.0, 90.0, 34.0
PAPER = 0.3
"""Between bars."""
COLOURS = ("#3b6fb6", "#58a55c", "#d99a2b", "#8d65c5", "#4aa5a5", "#b0628a")


def text_bars(policy: str, bars: Sequence[Bar], devices: Sequence[Device], out: TextIO) -> list[str]:
    """One line for each device: how full its memory was, from the beginning to the end."""
    until = max((bar.end for bar in bars), default=0.0)
    if not until:
        return []
    marks = FULL if (out.encoding or "").lower().startswith("utf") else PLAIN
    shown = [device for device in devices if any(bar.device == device.key for bar in bars)]
    width = max(len(device.label) for device in shown)
    lines = [
        f"{device.label:<{width}}  |{_marks(held_over_time(bars, device, SLICES, until), marks)}|"
        for device in shown[:MOST_LANES]
    ]
    more = [f"... and {len(shown) - MOST_LANES} devices more"] if len(shown) > MOST_LANES else []
    return [
        "",
        f"memory held, over time ({policy})",
        *lines,
        *more,
        f"{'':<{width}}   0{duration(until):>{SLICES - 1}}",
    ]


def _marks(shares: Sequence[float], marks: str) -> str:
    return "".join(marks[min(len(marks) - 1, round(share * (len(marks) - 1)))] for share in shares)


def draw(runs: Mapping[str, Sequence[Bar]], devices: Sequence[Device]) -> Drawing:
    """Every policy's run, one below the other on the same scale of time."""
    until = max((bar.end for bars in runs.values() for bar in bars), default=0.0) or 1.0
    block = TOP + len(devices) * (LANE + GAP) + 2 * GAP
    drawing = Drawing(LEFT + WIDTH + 20, block * len(runs))
    for number, (policy, bars) in enumerate(runs.items()):
        drawing.put(_block(policy, bars, devices, until), 0, number * block)
    return drawing


def _block(policy: str, bars: Sequence[Bar], devices: Sequence[Device], until: float) -> Drawing:
    """One policy: a lane for each device, as high as its memory."""
    drawing = Drawing(0, 0)
    shown = sorted(bars, key=lambda bar: -(bar.end - bar.begin) * bar.bytes)[:MOST_BARS]
    kept = {id(bar) for bar in shown}
    ended = max((bar.end for bar in bars), default=0.0)
    left_out = f", {len(bars) - len(shown):,} small bars left out" if len(bars) > len(shown) else ""
    words = [Words(LEFT, 20, f"{policy}: {duration(ended)}{left_out}", size=LARGE)]
    priorities = sorted({bar.priority for bar in bars})
    for place, priority in enumerate(priorities[: len(COLOURS)]):
        words.append(Words(LEFT + 420 + place * 90, 20, f"priority {priority}", fill=COLOURS[place]))
    for lane, device in enumerate(devices):
        y = TOP + lane * (LANE + GAP)
        drawing.rects.append(Rect(LEFT, y, WIDTH, LANE, "#f2f2f2"))
        words.append(Words(LEFT - 8, y + 16, device.label, "end"))
        words.append(Words(LEFT - 8, y + 32, size(device.total), "end", fill=GREY))
        here = [bar for bar in bars if bar.device == device.key and id(bar) in kept]
        drawing.rects += [_bar(bar, device, until, y, priorities) for bar in stacked(here)]
    bottom = TOP + len(devices) * (LANE + GAP) + 4
    drawing.words += [*words, *(_tick(at / 4, until, bottom) for at in range(5))]
    return drawing


def _tick(share: float, until: float, bottom: float) -> Words:
    anchor = "start" if share == 0 else "end" if share == 1 else "middle"
    return Words(LEFT + WIDTH * share, bottom, duration(until * share), anchor, fill=GREY)


def _bar(bar: Bar, device: Device, until: float, lane: float, priorities: Sequence[int]) -> Rect:
    """Where it lies; neighbours are told apart by a line of paper."""
    x, width = LEFT + WIDTH * bar.begin / until, WIDTH * (bar.end - bar.begin) / until
    height = LANE * bar.bytes / device.total
    y = max(lane, lane + LANE - height - LANE * bar.floor / device.total)
    colour = COLOURS[min(priorities.index(bar.priority), len(COLOURS) - 1)]
    colour = colour if bar.outcome is Outcome.SUCCEEDED else "#c0392b"
    said = f"{short(bar.name, 60)}: {size(bar.bytes)}, {duration(bar.begin)} to {duration(bar.end)}, {bar.outcome}"
    return Rect(x, y, max(width - PAPER, PAPER), max(height - PAPER, PAPER), colour, said)
