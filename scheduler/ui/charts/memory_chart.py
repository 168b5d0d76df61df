"""The memory of a simulated run over time, as text for a terminal and as a drawing for a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from scheduler.core.model import Device, Outcome
from scheduler.simulation.metrics import SimulatedResult
from scheduler.ui.charts.svg import GREY, LARGE, Drawing, SvgRect, SvgText
from scheduler.ui.text import short
from scheduler.units import duration, size
from scheduler.values import dataclass

SLICES = 60
MOST_LANES = 16
"""Devices that are shown on a terminal; a file shows all."""
MOST_BARS = 20_000
"""Bars in a file, the largest ones; browsers get slow above this."""
FULL, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
WIDTH, LANE, GAP, LEFT, TOP = 1000.0, 90.0, 14.0, 90.0, 34.0
PAPER = 0.3
"""Gap between bars."""
COLOURS = ("#3b6fb6", "#58a55c", "#d99a2b", "#8d65c5", "#4aa5a5", "#b0628a")


@dataclass(frozen=True, slots=True)
class ScheduleBar:
    """One attempt on one of its devices; times in seconds from the beginning of the run."""

    device: str
    name: str
    priority: int
    begin: float
    end: float
    bytes: int
    outcome: Outcome
    floor: int = 0
    """Bytes below it in the drawing."""


def bars_of(run: SimulatedResult) -> list[ScheduleBar]:
    """Return a bar for each attempt on each device where it used memory, sorted by device and beginning."""
    found = []
    for task, story in run.fold.tasks.items():
        spec = run.given[task].spec
        for a in story.attempts:
            if a.ended is None or a.outcome is None:
                continue
            begin = (a.started or a.placed) - run.began
            found += [
                ScheduleBar(
                    key, spec.name or spec.filename, spec.terms.priority, begin, a.ended - run.began, held, a.outcome
                )
                for key in a.devices
                if (held := a.peak.get(key, 0))
            ]
    return sorted(found, key=lambda bar: (bar.device, bar.begin, bar.end, bar.name))


def stacked(bars: Sequence[ScheduleBar]) -> list[ScheduleBar]:
    """Put the bars of one device, sorted by their beginning, on top of each other, each as low as possible."""
    placed: list[ScheduleBar] = []
    living: list[ScheduleBar] = []
    for bar in bars:
        living = [other for other in living if other.end > bar.begin]
        floor = 0
        for other in sorted(living, key=lambda one: one.floor):
            if other.floor - floor >= bar.bytes:
                break
            floor = max(floor, other.floor + other.bytes)
        lying = replace(bar, floor=floor)
        living.append(lying)
        placed.append(lying)
    return placed


def held_over_time(bars: Iterable[ScheduleBar], device: Device, slices: int, until: float) -> list[float]:
    """Return the share of a device's memory that was used in each of `slices` parts of the time."""
    held = [0.0] * slices
    width = until / slices if until > 0 else 1.0
    for bar in bars:
        if bar.device != device.key:
            continue
        for place in range(int(bar.begin / width), min(slices, int(bar.end / width) + 1)):
            overlap = min(bar.end, (place + 1) * width) - max(bar.begin, place * width)
            held[place] += max(0.0, overlap) / width * bar.bytes / device.total
    return held


def text_bars(policy: str, bars: Sequence[ScheduleBar], devices: Sequence[Device], out: TextIO) -> list[str]:
    """Return a line for each device that shows how full its memory was over time."""
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
    more = [f"... and {len(shown) - MOST_LANES} more devices"] if len(shown) > MOST_LANES else []
    return [
        "",
        f"memory use over time ({policy})",
        *lines,
        *more,
        f"{'':<{width}}   0{duration(until):>{SLICES - 1}}",
    ]


def _marks(shares: Sequence[float], marks: str) -> str:
    return "".join(marks[min(len(marks) - 1, round(share * (len(marks) - 1)))] for share in shares)


def draw(runs: Mapping[str, Sequence[ScheduleBar]], devices: Sequence[Device]) -> Drawing:
    """Draw the run of each policy, one below the other on one time scale."""
    until = max((bar.end for bars in runs.values() for bar in bars), default=0.0) or 1.0
    block = TOP + len(devices) * (LANE + GAP) + 2 * GAP
    drawing = Drawing(LEFT + WIDTH + 20, block * len(runs))
    for number, (policy, bars) in enumerate(runs.items()):
        drawing.put(_block(policy, bars, devices, until), 0, number * block)
    return drawing


def _block(policy: str, bars: Sequence[ScheduleBar], devices: Sequence[Device], until: float) -> Drawing:
    """Draw one policy, with a lane for each device."""
    drawing = Drawing(0, 0)
    shown = sorted(bars, key=lambda bar: -(bar.end - bar.begin) * bar.bytes)[:MOST_BARS]
    kept = {id(bar) for bar in shown}
    ended = max((bar.end for bar in bars), default=0.0)
    left_out = f", {len(bars) - len(shown):,} small bars left out" if len(bars) > len(shown) else ""
    words = [SvgText(LEFT, 20, f"{policy}: {duration(ended)}{left_out}", size=LARGE)]
    priorities = sorted({bar.priority for bar in bars})
    for place, priority in enumerate(priorities[: len(COLOURS)]):
        words.append(SvgText(LEFT + 420 + place * 90, 20, f"priority {priority}", fill=COLOURS[place]))
    for lane, device in enumerate(devices):
        y = TOP + lane * (LANE + GAP)
        drawing.rects.append(SvgRect(LEFT, y, WIDTH, LANE, "#f2f2f2"))
        words.append(SvgText(LEFT - 8, y + 16, device.label, "end"))
        words.append(SvgText(LEFT - 8, y + 32, size(device.total), "end", fill=GREY))
        here = [bar for bar in bars if bar.device == device.key and id(bar) in kept]
        drawing.rects += [_bar(bar, device, until, y, priorities) for bar in stacked(here)]
    bottom = TOP + len(devices) * (LANE + GAP) + 4
    drawing.words += [*words, *(_tick(at / 4, until, bottom) for at in range(5))]
    return drawing


def _tick(share: float, until: float, bottom: float) -> SvgText:
    anchor = "start" if share == 0 else "end" if share == 1 else "middle"
    return SvgText(LEFT + WIDTH * share, bottom, duration(until * share), anchor, fill=GREY)


def _bar(bar: ScheduleBar, device: Device, until: float, lane: float, priorities: Sequence[int]) -> SvgRect:
    """Return the rectangle of a bar, with a gap to its neighbours."""
    x, width = LEFT + WIDTH * bar.begin / until, WIDTH * (bar.end - bar.begin) / until
    height = LANE * bar.bytes / device.total
    y = max(lane, lane + LANE - height - LANE * bar.floor / device.total)
    colour = COLOURS[min(priorities.index(bar.priority), len(COLOURS) - 1)]
    colour = colour if bar.outcome is Outcome.SUCCEEDED else "#c0392b"
    title = f"{short(bar.name, 60)}: {size(bar.bytes)}, {duration(bar.begin)} to {duration(bar.end)}, {bar.outcome}"
    return SvgRect(x, y, max(width - PAPER, PAPER), max(height - PAPER, PAPER), colour, title)
