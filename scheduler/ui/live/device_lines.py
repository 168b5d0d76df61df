"""The lines of the devices in the live view: memory as a bar; load, temperature and power with small curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.core.reporting.live_status import MemoryBar
from scheduler.ui.live.device_trends import DeviceTrend, DeviceTrends, blocks
from scheduler.ui.terminal.panels import LEGEND, Line, Piece, bar_pieces, legend_line, short_size
from scheduler.ui.text import columns, fit
from scheduler.units import count

LEAST_BAR, WIDEST_BAR = 10, 60
COOL, HOT, TOO_HOT = 30.0, 95.0, 85
"""The temperatures in degrees Celsius at the bottom and the top of a device's curve, and the temperature from which the
device is shown in red.
"""
MOST = 16
SPARKS = ((190, 24), (150, 16), (110, 10))
"""Least widths of a terminal, each with the width that the curves have on a terminal that wide."""
Cells = tuple[Piece, ...]


def lines(
    bars: Sequence[MemoryBar], history: DeviceTrends, width: int, height: int, legend: Mapping[str, str] = LEGEND
) -> list[Line]:
    """Return a line for each device, and the legend of the bars; the devices take at most a third of the height. With
    height 0, return all lines.
    """
    if not bars:
        return []
    most = max(1, min(MOST, height // 3)) if height else len(bars)
    shown = bars if len(bars) <= most else bars[: max(1, most - 1)]
    spark = next((wide for least, wide in SPARKS if width >= least), 0)
    cells = [_cells(bar, history.trend(bar.label), spark) for bar in shown]
    wide = [max(sum(columns(text) for text, _ in row[at]) for row in cells) for at in range(len(cells[0]))]
    label = max(len(bar.label) for bar in shown)
    rest = sum(2 + one for one in wide if one)
    bar_wide = max(LEAST_BAR, min(WIDEST_BAR, width - label - 2 - rest))
    found = [
        ((fit(bar.label, label, pad=True) + "  ", "bold"), *bar_pieces(bar, bar_wide), *_joined(row, wide))
        for bar, row in zip(shown, cells, strict=True)
    ]
    if len(bars) > len(shown):
        found.append(((fit(_rest(bars[len(shown) :], legend["ours"]), width), ""),))
    return [*found, legend_line(width, legend)]


def _rest(bars: Sequence[MemoryBar], ours: str) -> str:
    used, free = (short_size(sum(getattr(bar, part) for bar in bars)) for part in ("ours", "free"))
    return f"and {len(bars)} more devices: {used} {ours}, {free} free"


def _joined(row: Sequence[Cells], wide: Sequence[int]) -> list[Piece]:
    pieces: list[Piece] = []
    for cell, one in zip(row, wide, strict=True):
        if one:
            blanks = one - sum(columns(text) for text, _ in cell)
            pieces += [("  ", ""), *cell, (" " * blanks, "")]
    return pieces


def _cells(bar: MemoryBar, trend: DeviceTrend, spark: int) -> list[Cells]:
    """Return the cells for memory, tasks, load, temperature and power of a device."""
    memory = f"{short_size(bar.ours + bar.others)}/{short_size(bar.total)}"
    more = f" +{short_size(bar.reserved)}"
    tasks = ((count(bar.tasks, "task") if bar.tasks else "", ""),)
    if bar.drained:
        return [((f"drained: {bar.drained}"[:40], "bold red"),), tasks, (), (), ()]
    values = (_load(bar, trend, spark), _heat(bar, trend, spark), _power(bar, trend, spark))
    return [((memory, ""), (more, "cyan")), tasks, *values]


def _load(bar: MemoryBar, trend: DeviceTrend, spark: int) -> Cells:
    if bar.load is None:
        return ()
    if bar.capacity != 1.0:
        words = f"load {bar.load:.1f}/{bar.capacity:g}"
    else:
        words = f"{bar.load:>4.0%} busy" if not spark else f"{bar.load:>4.0%}"
    course = f" {blocks(trend.load, spark, 0.0, 1.0)}" if spark and bar.capacity == 1.0 else ""
    return (words, ""), (course, "green")


def _heat(bar: MemoryBar, trend: DeviceTrend, spark: int) -> Cells:
    if bar.celsius is None:
        return ()
    style = "bold red" if bar.celsius >= TOO_HOT else ""
    return (f"{bar.celsius}°C", style), (f" {blocks(trend.celsius, spark, COOL, HOT)}" if spark else "", "yellow")


def _power(bar: MemoryBar, trend: DeviceTrend, spark: int) -> Cells:
    if bar.watts is None or not spark:
        return ()
    high = max((watts for watts in trend.watts if watts is not None), default=1.0)
    return (f"{bar.watts:>3.0f}W", ""), (f" {blocks(trend.watts, spark, 0.0, high)}", "magenta")
