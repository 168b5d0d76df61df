"""Charts of an experiment: a bar for each arm, a whisker from the lowest to the highest repeat, waits by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.experiment.arms import Arm
from scheduler.experiment.readings import Reading, Spread, Summary, priorities_of
from scheduler.ui.charts.svg import FAINT, GREY, INK, LARGE, SMALL, USUAL, Drawing, SvgRect, SvgText, column, svg
from scheduler.ui.text import short
from scheduler.units import duration
from scheduler.values import dataclass

WIDTH, BAR, GAP, RIGHT, HEAD = 1000.0, 18.0, 8.0, 130.0, 30.0
BASE, PLAIN, MPS = "#9aa3ad", "#3b6fb6", "#58a55c"
COLOURS = ("#3b6fb6", "#d99a2b", "#58a55c", "#8d65c5", "#4aa5a5", "#b0628a", "#9aa3ad", "#c0392b")
WHISKER, THIN = "#333333", 2.0
"""The colour of whiskers, and the length, in units of the drawing, below which a whisker is not drawn."""
LETTER = 0.55
"""The mean width of a letter as a fraction of the font size."""
LEFT, HEIGHT = 110.0, 110.0
"""The left margin and the height, in units of the drawing, of a chart of batches."""
NAMES = 40


def number(value: float) -> str:
    """Return a number with three significant digits; from 100 on, as a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def heading(title: str, words: str, *, simulated: bool) -> Drawing:
    """Draw the title, and a note if the results come from a simulation."""
    drawn = Drawing(WIDTH, 46)
    drawn.words.append(SvgText(0, 18, title, size=20))
    drawn.words.append(SvgText(0, 40, words, fill="#b03a2e" if simulated else GREY))
    return drawn


def as_svg(drawings: list[Drawing]) -> str:
    """Return drawings, one below the other, as an SVG file."""
    return svg(column(drawings))


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One bar of a chart."""

    name: str
    spread: Spread
    colour: str


def chart(
    title: str, better: str, found: Sequence[Summary], of: Callable[[Reading], float], text: Callable[[float], str]
) -> Drawing:
    """Draw a chart with one number of each arm."""
    return bars(title, better, [ChartBar(one.arm.name, one.spread(of), _colour(one.arm)) for one in found], text)


def _colour(arm: Arm) -> str:
    return MPS if arm.mps else BASE if arm.base else PLAIN


def bars(title: str, better: str, lines: Sequence[ChartBar], text: Callable[[float], str]) -> Drawing:
    """Draw one chart: the names, the bars from zero, whiskers from the lowest to the highest value, and the values."""
    left = max(len(short(line.name, NAMES)) for line in lines) * USUAL * LETTER + 16
    scale = (WIDTH - left - RIGHT) / (max(line.spread.most for line in lines) or 1.0)
    drawn = Drawing(WIDTH, HEAD + len(lines) * (BAR + GAP))
    drawn.words += [SvgText(0, 18, title, size=LARGE), SvgText(WIDTH, 18, better, "end", SMALL, GREY)]
    for place, line in enumerate(lines):
        y, spread = HEAD + place * (BAR + GAP), line.spread
        values = f"{text(spread.mean)} ({text(spread.least)} to {text(spread.most)})"
        least, most = left + spread.least * scale, left + spread.most * scale
        drawn.rects += [
            SvgRect(left, y, WIDTH - left - RIGHT, BAR, "#f6f6f6"),
            SvgRect(left, y, spread.mean * scale, BAR, line.colour, f"{line.name}: {values}"),
        ]
        if most - least > THIN:
            drawn.rects.append(SvgRect(least, y + BAR / 2 - 0.5, most - least, 1, WHISKER))
            drawn.rects += [SvgRect(x - 0.5, y + BAR / 2 - 4, 1, 8, WHISKER) for x in (least, most)]
        drawn.words.append(SvgText(left - 8, y + BAR - 4, short(line.name, NAMES), "end"))
        drawn.words.append(SvgText(WIDTH - RIGHT + 8, y + BAR - 4, text(spread.mean)))
    drawn.rects.append(SvgRect(left, HEAD - 3, 1, len(lines) * (BAR + GAP), GREY))
    return drawn


def batch_charts(found: Sequence[Summary]) -> list[Drawing]:
    """Draw the mean waiting times by batch, from the first repeat of each arm with several batches."""
    several = [one for one in found if len({wait.batch for wait in one.readings[0].waits}) > 1]
    if not several:
        return []
    colours = {p: COLOURS[place % len(COLOURS)] for place, p in enumerate(priorities_of(found))}
    legend = Drawing(WIDTH, 26)
    legend.words.append(SvgText(0, 18, "Mean wait, batch by batch", size=LARGE))
    for place, (priority, colour) in enumerate([*colours.items()][: len(COLOURS)]):
        legend.rects.append(SvgRect(260.0 + place * 90, 8, 11, 11, colour))
        legend.words.append(SvgText(276.0 + place * 90, 18, f"priority {priority}"))
    most = max(wait.wait_mean_s for one in several for wait in one.readings[0].waits) or 1.0
    return [legend, *(_batches(one, colours, most) for one in several)]


def _batches(one: Summary, colours: dict[int, str], most: float) -> Drawing:
    """Draw a group of bars for each batch, with a bar for each priority."""
    waits, places = one.readings[0].waits, {priority: place for place, priority in enumerate(colours)}
    batches = {batch: place for place, batch in enumerate(sorted({wait.batch for wait in waits}))}
    foot, slot = 20 + HEIGHT, (WIDTH - LEFT) / len(batches)
    thin = min(24.0, slot * 0.8 / len(colours))
    drawn = Drawing(WIDTH, foot + 18)
    drawn.words += [
        SvgText(0, 14, one.arm.name),
        SvgText(LEFT - 8, 30, duration(most), "end", SMALL, GREY),
        SvgText(LEFT - 8, foot, "0", "end", SMALL, GREY),
    ]
    drawn.rects += [SvgRect(LEFT, foot, WIDTH - LEFT, 1, INK), SvgRect(LEFT, 20, WIDTH - LEFT, 1, FAINT)]
    for wait in waits:
        x = LEFT + slot * (batches[wait.batch] + 0.5) + thin * (places[wait.priority] - len(colours) / 2)
        high = max(1.0, HEIGHT * wait.wait_mean_s / most)
        values = f"{duration(wait.wait_mean_s)}, at most {duration(wait.wait_max_s)}"
        title = f"batch {wait.batch}, priority {wait.priority}: {values}"
        drawn.rects.append(SvgRect(x, foot - high, thin * 0.9, high, colours[wait.priority], title))
    every = -(-len(batches) // 20)
    for batch, place in batches.items():
        if place % every == 0:
            drawn.words.append(SvgText(LEFT + slot * (place + 0.5), foot + 14, str(batch), "middle", SMALL, GREY))
    return drawn
