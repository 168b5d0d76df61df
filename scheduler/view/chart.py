"""What ran where and when, drawn: bars of memory over time for a terminal, and as SVG for a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TextIO

from scheduler.core.bars import Bar, held_over_time, stacked
from scheduler.core.model import Device, Outcome
from scheduler.units import duration, size
from scheduler.view.words import clean, short

SLICES = 60
MOST_LANES = 16
"""A terminal shows so many devices; the file shows all."""
MOST_BARS = 20_000
"""A file shows so many bars, the largest; no browser likes more."""
FULL, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
WIDTH, LANE, GAP, LEFT, TOP = 1000.0, 90.0, 14.0, 90.0, 34.0
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


def write_svg(runs: Mapping[str, Sequence[Bar]], devices: Sequence[Device], out: TextIO) -> None:
    """Every policy's run, one below the other on the same scale of time."""
    until = max((bar.end for bars in runs.values() for bar in bars), default=0.0) or 1.0
    block = TOP + len(devices) * (LANE + GAP) + 2 * GAP
    height = block * len(runs)
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20:.0f} {height:.0f}" '
        'font-family="sans-serif" font-size="12">',
        file=out,
    )
    print('<rect width="100%" height="100%" fill="white"/>', file=out)
    for number, (policy, bars) in enumerate(runs.items()):
        for line in _block(policy, bars, devices, until, number * block):
            print(line, file=out)
    print("</svg>", file=out)


def _block(policy: str, bars: Sequence[Bar], devices: Sequence[Device], until: float, top: float) -> Iterator[str]:
    """One policy: a lane for each device, as high as its memory."""
    shown = sorted(bars, key=lambda bar: -(bar.end - bar.begin) * bar.bytes)[:MOST_BARS]
    kept = {id(bar) for bar in shown}
    ended = max((bar.end for bar in bars), default=0.0)
    left_out = f", {len(bars) - len(shown):,} small bars left out" if len(bars) > len(shown) else ""
    yield _text(LEFT, top + 20, f"{policy}: {duration(ended)}{left_out}", "start", size_=15)
    priorities = sorted({bar.priority for bar in bars})
    for place, priority in enumerate(priorities[: len(COLOURS)]):
        yield _text(LEFT + 420 + place * 90, top + 20, f"priority {priority}", "start", fill=COLOURS[place])
    for lane, device in enumerate(devices):
        y = top + TOP + lane * (LANE + GAP)
        yield f'<rect x="{LEFT}" y="{y:.1f}" width="{WIDTH}" height="{LANE}" fill="#f2f2f2"/>'
        yield _text(LEFT - 8, y + 16, device.label, "end")
        yield _text(LEFT - 8, y + 32, size(device.total), "end", fill="#777")
        for bar in stacked([bar for bar in bars if bar.device == device.key and id(bar) in kept]):
            yield _bar(bar, device, until, y, priorities)
    bottom = top + TOP + len(devices) * (LANE + GAP) + 4
    for tick in range(5):
        yield _text(LEFT + WIDTH * tick / 4, bottom, duration(until * tick / 4), "middle", fill="#777")


def _bar(bar: Bar, device: Device, until: float, lane: float, priorities: Sequence[int]) -> str:
    x, width = LEFT + WIDTH * bar.begin / until, WIDTH * (bar.end - bar.begin) / until
    height = LANE * bar.bytes / device.total
    y = max(lane, lane + LANE - height - LANE * bar.floor / device.total)
    colour = COLOURS[min(priorities.index(bar.priority), len(COLOURS) - 1)]
    colour = colour if bar.outcome is Outcome.SUCCEEDED else "#c0392b"
    said = f"{short(bar.name, 60)}: {size(bar.bytes)}, {duration(bar.begin)} to {duration(bar.end)}, {bar.outcome}"
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{max(height, 0.3):.2f}" fill="{colour}" '
        f'fill-opacity="0.8" stroke="white" stroke-width="0.3"><title>{escape(said)}</title></rect>'
    )


def _text(x: float, y: float, said: str, anchor: str, fill: str = "#222", size_: int = 12) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} fill="{fill}" font-size="{size_}">{escape(clean(said))}</text>'
