"""What experiments measured, drawn: a bar for each arm, with how far its repeats lie apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.core.experiments import Reading, Setting, Spread, Summary
from scheduler.units import duration
from scheduler.values import dataclass
from scheduler.view.drawing import FAINT, GREY, INK, LARGE, SMALL, USUAL, Drawing, Rect, Words, column
from scheduler.view.words import short

WIDTH, BAR, GAP, RIGHT = 1000.0, 18.0, 8.0, 130.0
HEAD = 30.0
BASE, PLAIN, MPS = "#9aa3ad", "#3b6fb6", "#58a55c"
COLOURS = ("#3b6fb6", "#d99a2b", "#58a55c", "#8d65c5", "#4aa5a5", "#b0628a", "#9aa3ad", "#c0392b")
WHISKER = "#333333"
THIN = 2.0
"""Repeats that lie nearer together look like one."""
LETTER = 0.55
"""How wide a letter is on average, in sizes."""
BATCHES = 110.0
NAMES = 40


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a chart."""

    name: str
    spread: Spread
    colour: str
    note: str = ""


def bars(title: str, better: str, lines: Sequence[Bar], text: Callable[[float], str], most: float = 0.0) -> Drawing:
    """One chart: names, bars from zero, whiskers from the least to the most, numbers.

    `most` is where the scale ends, where several charts have one.
    """
    left = max(len(short(line.name, NAMES)) for line in lines) * USUAL * LETTER + 16
    most = most or max(line.spread.most for line in lines) or 1.0
    width = WIDTH - left - RIGHT
    drawn = Drawing(WIDTH, HEAD + len(lines) * (BAR + GAP))
    drawn.words += [Words(0, 18, title, size=LARGE), Words(WIDTH, 18, better, "end", SMALL, GREY)]
    for number, line in enumerate(lines):
        y = HEAD + number * (BAR + GAP)
        long, spread = width * line.spread.mean / most, line.spread
        drawn.rects += [
            Rect(left, y, width, BAR, "#f6f6f6"),
            Rect(left, y, long, BAR, line.colour, f"{line.name}: {_all(spread, text)}"),
        ]
        if (spread.most - spread.least) / most * width > THIN:
            drawn.rects += _whisker(left + width * spread.least / most, left + width * spread.most / most, y)
        drawn.words.append(Words(left - 8, y + BAR - 4, short(line.name, NAMES), "end"))
        drawn.words.append(Words(WIDTH - RIGHT + 8, y + BAR - 4, f"{text(spread.mean)} {line.note}".strip()))
    drawn.rects.append(Rect(left, HEAD - 3, 1, len(lines) * (BAR + GAP), GREY))
    return drawn


def _all(spread: Spread, text: Callable[[float], str]) -> str:
    return f"{text(spread.mean)} ({text(spread.least)} to {text(spread.most)})"


def _whisker(left: float, right: float, y: float) -> list[Rect]:
    middle = y + BAR / 2
    ends = [Rect(x - 0.5, middle - 4, 1, 8, WHISKER) for x in (left, right)]
    return [Rect(left, middle - 0.5, right - left, 1, WHISKER), *ends]


def mps_chart(all_: Sequence[Summary], setting: Setting, title: str) -> Drawing:
    """Throughput, makespan and the mean time of a task."""

    def chart(name: str, better: str, of: Callable[[Reading], float], text: Callable[[float], str]) -> Drawing:
        lines = [Bar(one.arm.name, one.spread(of), _colour(one), _ooms(one)) for one in all_]
        return bars(name, better, lines, text)

    charts = [
        chart("Tasks per hour", "more is better", lambda reading: reading.tasks_per_hour, number),
        chart("Makespan", "less is better", lambda reading: reading.makespan, duration),
        chart("Mean time of a task", "less is better", lambda reading: reading.task_mean, duration),
    ]
    if any(reading.epochs for one in all_ for reading in one.readings):
        charts[1:1] = [chart("Epochs per hour", "more is better", lambda reading: reading.epochs_per_hour, number)]
    return column([_head(title, setting), *charts])


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ooms(one: Summary) -> str:
    """Beside the bar, where there is something to tell."""
    ooms = sum(reading.ooms for reading in one.readings)
    return f"({ooms} OOM)" if ooms else ""


def _colour(one: Summary) -> str:
    return MPS if one.arm.mps else BASE if one.arm.base else PLAIN


def _head(title: str, setting: Setting) -> Drawing:
    """What it is, and in which world."""
    drawn = Drawing(WIDTH, 46)
    drawn.words.append(Words(0, 18, title, size=20))
    drawn.words.append(Words(0, 40, setting.words, fill="#b03a2e" if setting.simulated else GREY))
    return drawn


def priority_chart(all_: Sequence[Summary], setting: Setting, title: str) -> Drawing:
    """The makespan, what each priority waits, and how that comes about batch by batch."""
    makespans = [Bar(one.arm.name, one.makespan, BASE if one.arm.base else PLAIN) for one in all_]
    priorities = sorted({wait.priority for one in all_ for reading in one.readings for wait in reading.waits})
    most = max(one.waited(p).most for one in all_ for p in priorities)
    waits = [
        bars(
            f"Mean wait, {one.arm.name}",
            "less is better",
            [Bar(f"priority {p}", one.waited(p), _of(p, priorities)) for p in priorities],
            duration,
            most,
        )
        for one in all_
    ]
    by_batch = [one for one in all_ if len({wait.batch for wait in one.readings[0].waits}) > 1]
    longest = max((wait.mean for one in by_batch for wait in one.readings[0].waits), default=0.0) or 1.0
    batches = [batch_chart(one, priorities, longest) for one in by_batch]
    legend = [_legend(priorities)] if batches else []
    charts = [_head(title, setting), bars("Makespan", "less is better", makespans, duration), *waits]
    return column(charts + legend + batches)


def _of(priority: int, priorities: Sequence[int]) -> str:
    return COLOURS[priorities.index(priority) % len(COLOURS)]


def _legend(priorities: Sequence[int]) -> Drawing:
    drawn = Drawing(WIDTH, 26)
    drawn.words.append(Words(0, 18, "Mean wait, batch by batch", size=LARGE))
    x = 260.0
    for priority in priorities[:8]:
        drawn.rects.append(Rect(x, 8, 11, 11, _of(priority, priorities)))
        drawn.words.append(Words(x + 16, 18, f"priority {priority}"))
        x += 90
    return drawn


def batch_chart(one: Summary, priorities: Sequence[int], most: float) -> Drawing:
    """The first repeat of an arm: a group for each batch, a bar for each priority in it."""
    waits = one.readings[0].waits
    batches = sorted({wait.batch for wait in waits})
    left, foot = 110.0, 20 + BATCHES
    drawn = Drawing(WIDTH, foot + 18)
    drawn.words += [
        Words(0, 14, one.arm.name),
        Words(left - 8, 30, duration(most), "end", SMALL, GREY),
        Words(left - 8, foot, "0", "end", SMALL, GREY),
    ]
    slot = (WIDTH - left) / len(batches)
    thin = min(24.0, slot * 0.8 / len(priorities))
    drawn.rects.append(Rect(left, foot, WIDTH - left, 1, INK))
    drawn.rects.append(Rect(left, 20, WIDTH - left, 1, FAINT))
    for wait in waits:
        group = left + slot * (batches.index(wait.batch) + 0.5) - thin * len(priorities) / 2
        high = max(1.0, BATCHES * wait.mean / most)
        said = f"batch {wait.batch}, priority {wait.priority}: {duration(wait.mean)}, at most {duration(wait.most)}"
        x = group + thin * priorities.index(wait.priority)
        drawn.rects.append(Rect(x, foot - high, thin * 0.9, high, _of(wait.priority, priorities), said))
    every = -(-len(batches) // 20)
    for place, batch in enumerate(batches):
        if place % every == 0:
            middle = left + slot * (place + 0.5)
            drawn.words.append(Words(middle, foot + 14, str(batch), "middle", SMALL, GREY))
    return drawn
