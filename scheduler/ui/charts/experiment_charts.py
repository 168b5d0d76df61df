"""Charts of an experiment: a bar for each arm, with a whisker from its least to its most repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.core.reporting.experiment import ExperimentContext, Reading, Spread, Summary
from scheduler.ui.charts.svg import (
    FAINT,
    GREY,
    INK,
    LARGE,
    SMALL,
    USUAL,
    Drawing,
    SvgRect,
    SvgText,
    column,
)
from scheduler.ui.text import short
from scheduler.units import duration
from scheduler.values import dataclass

WIDTH, BAR, GAP, RIGHT = 1000.0, 18.0, 8.0, 130.0
HEAD = 30.0
BASE, PLAIN, MPS = "#9aa3ad", "#3b6fb6", "#58a55c"
COLOURS = ("#3b6fb6", "#d99a2b", "#58a55c", "#8d65c5", "#4aa5a5", "#b0628a", "#9aa3ad", "#c0392b")
WHISKER = "#333333"
THIN = 2.0
"""Whiskers shorter than this are left out."""
LETTER = 0.55
"""Mean width of a letter, in font sizes."""
BATCHES = 110.0
NAMES = 40


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One bar of a chart."""

    name: str
    spread: Spread
    colour: str
    note: str = ""


def bars(
    title: str, better: str, lines: Sequence[ChartBar], text: Callable[[float], str], most: float = 0.0
) -> Drawing:
    """Draw one chart: names, bars from zero, whiskers from the least to the most, numbers.

    `most` is the end of the scale; 0 stands for the most of the chart itself.
    """
    left = max(len(short(line.name, NAMES)) for line in lines) * USUAL * LETTER + 16
    most = most or max(line.spread.most for line in lines) or 1.0
    width = WIDTH - left - RIGHT
    drawn = Drawing(WIDTH, HEAD + len(lines) * (BAR + GAP))
    drawn.words += [SvgText(0, 18, title, size=LARGE), SvgText(WIDTH, 18, better, "end", SMALL, GREY)]
    for number, line in enumerate(lines):
        y = HEAD + number * (BAR + GAP)
        long, spread = width * line.spread.mean / most, line.spread
        drawn.rects += [
            SvgRect(left, y, width, BAR, "#f6f6f6"),
            SvgRect(left, y, long, BAR, line.colour, f"{line.name}: {_all(spread, text)}"),
        ]
        if (spread.most - spread.least) / most * width > THIN:
            drawn.rects += _whisker(left + width * spread.least / most, left + width * spread.most / most, y)
        drawn.words.append(SvgText(left - 8, y + BAR - 4, short(line.name, NAMES), "end"))
        drawn.words.append(SvgText(WIDTH - RIGHT + 8, y + BAR - 4, f"{text(spread.mean)} {line.note}".strip()))
    drawn.rects.append(SvgRect(left, HEAD - 3, 1, len(lines) * (BAR + GAP), GREY))
    return drawn


def _all(spread: Spread, text: Callable[[float], str]) -> str:
    return f"{text(spread.mean)} ({text(spread.least)} to {text(spread.most)})"


def _whisker(left: float, right: float, y: float) -> list[SvgRect]:
    middle = y + BAR / 2
    ends = [SvgRect(x - 0.5, middle - 4, 1, 8, WHISKER) for x in (left, right)]
    return [SvgRect(left, middle - 0.5, right - left, 1, WHISKER), *ends]


def mps_chart(summaries: Sequence[Summary], context: ExperimentContext, title: str) -> Drawing:
    """Draw throughput, makespan and the mean time of a task."""

    def chart(name: str, better: str, of: Callable[[Reading], float], text: Callable[[float], str]) -> Drawing:
        lines = [ChartBar(one.arm.name, one.spread(of), _colour(one), _ooms(one)) for one in summaries]
        return bars(name, better, lines, text)

    charts = [
        chart("Tasks per hour", "more is better", lambda reading: reading.tasks_per_hour, number),
        chart("Makespan", "less is better", lambda reading: reading.makespan, duration),
        chart("Mean time of a task", "less is better", lambda reading: reading.task_mean, duration),
    ]
    if any(reading.epochs for one in summaries for reading in one.readings):
        charts[1:1] = [chart("Epochs per hour", "more is better", lambda reading: reading.epochs_per_hour, number)]
    return column([_head(title, context), *charts])


def number(value: float) -> str:
    """Return a number with three digits, or as a whole number from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ooms(one: Summary) -> str:
    """Return the note beside a bar about attempts that ran out of memory."""
    ooms = sum(reading.ooms for reading in one.readings)
    return f"({ooms} OOM)" if ooms else ""


def _colour(one: Summary) -> str:
    return MPS if one.arm.mps else BASE if one.arm.base else PLAIN


def _head(title: str, context: ExperimentContext) -> Drawing:
    """Draw the title, and whether it is simulated."""
    drawn = Drawing(WIDTH, 46)
    drawn.words.append(SvgText(0, 18, title, size=20))
    drawn.words.append(SvgText(0, 40, context.words, fill="#b03a2e" if context.simulated else GREY))
    return drawn


def priority_chart(summaries: Sequence[Summary], context: ExperimentContext, title: str) -> Drawing:
    """Draw the makespan, the mean wait of each priority, and the waits batch by batch."""
    makespans = [ChartBar(one.arm.name, one.makespan, BASE if one.arm.base else PLAIN) for one in summaries]
    priorities = sorted({wait.priority for one in summaries for reading in one.readings for wait in reading.waits})
    most = max(one.waited(p).most for one in summaries for p in priorities)
    waits = [
        bars(
            f"Mean wait, {one.arm.name}",
            "less is better",
            [ChartBar(f"priority {p}", one.waited(p), _of(p, priorities)) for p in priorities],
            duration,
            most,
        )
        for one in summaries
    ]
    by_batch = [one for one in summaries if len({wait.batch for wait in one.readings[0].waits}) > 1]
    longest = max((wait.mean for one in by_batch for wait in one.readings[0].waits), default=0.0) or 1.0
    batches = [batch_chart(one, priorities, longest) for one in by_batch]
    legend = [_legend(priorities)] if batches else []
    charts = [_head(title, context), bars("Makespan", "less is better", makespans, duration), *waits]
    return column(charts + legend + batches)


def _of(priority: int, priorities: Sequence[int]) -> str:
    return COLOURS[priorities.index(priority) % len(COLOURS)]


def _legend(priorities: Sequence[int]) -> Drawing:
    drawn = Drawing(WIDTH, 26)
    drawn.words.append(SvgText(0, 18, "Mean wait, batch by batch", size=LARGE))
    x = 260.0
    for priority in priorities[:8]:
        drawn.rects.append(SvgRect(x, 8, 11, 11, _of(priority, priorities)))
        drawn.words.append(SvgText(x + 16, 18, f"priority {priority}"))
        x += 90
    return drawn


def batch_chart(one: Summary, priorities: Sequence[int], most: float) -> Drawing:
    """Draw the first repeat of an arm: a group for each batch, a bar for each priority."""
    waits = one.readings[0].waits
    batches = sorted({wait.batch for wait in waits})
    left, foot = 110.0, 20 + BATCHES
    drawn = Drawing(WIDTH, foot + 18)
    drawn.words += [
        SvgText(0, 14, one.arm.name),
        SvgText(left - 8, 30, duration(most), "end", SMALL, GREY),
        SvgText(left - 8, foot, "0", "end", SMALL, GREY),
    ]
    slot = (WIDTH - left) / len(batches)
    thin = min(24.0, slot * 0.8 / len(priorities))
    drawn.rects.append(SvgRect(left, foot, WIDTH - left, 1, INK))
    drawn.rects.append(SvgRect(left, 20, WIDTH - left, 1, FAINT))
    for wait in waits:
        group = left + slot * (batches.index(wait.batch) + 0.5) - thin * len(priorities) / 2
        high = max(1.0, BATCHES * wait.mean / most)
        said = f"batch {wait.batch}, priority {wait.priority}: {duration(wait.mean)}, at most {duration(wait.most)}"
        x = group + thin * priorities.index(wait.priority)
        drawn.rects.append(SvgRect(x, foot - high, thin * 0.9, high, _of(wait.priority, priorities), said))
    every = -(-len(batches) // 20)
    for place, batch in enumerate(batches):
        if place % every == 0:
            middle = left + slot * (place + 0.5)
            drawn.words.append(SvgText(middle, foot + 14, str(batch), "middle", SMALL, GREY))
    return drawn
