"""The page of one task: parameters, curves, memory over time, the reason for its state, and the end of its log."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from scheduler.core.metrics.curve import Curve
from scheduler.core.metrics.goal import Goal, goal_of, ranked
from scheduler.core.model import UNFINISHED, EstimateSource, State
from scheduler.core.reporting.memory_timeline import Step
from scheduler.core.reporting.run_history import AttemptHistory
from scheduler.runtime.paths import tilde
from scheduler.ui.live.plot import MARK, Axes, labelled
from scheduler.ui.live.ports import TaskDetails
from scheduler.ui.live.task_list import TaskRow, reason_of
from scheduler.ui.terminal.panels import Line, Piece, epochs_of, short_size
from scheduler.ui.text import clean, clock, columns, fit
from scheduler.units import GIB, count, duration
from scheduler.values import dataclass

LEAST_LOG = 5
"""The least number of lines of the log that are shown."""
MOST_CURVES, LEAST_WIDE = 2, 40
"""The most metrics whose curves are drawn, and the least width of each of two charts side by side."""
LEAST_TALL, MOST_TALL, SHARE = 5, 16, 0.55
"""The least and the greatest height of a chart, and the share of the page's remaining lines that charts take; the log
has the other lines.
"""
TALLEST = 28
"""The greatest height of a chart on the page of an ended task with a short log."""
AROUND = 2
"""The number of lines that a chart needs in addition to its curve: one for its title, and one for the labels of x."""
COLOURS = ("green", "cyan", "magenta")
GAP = "   "
TITLES = {
    State.SUCCEEDED: "bold green", State.FAILED: "bold red", State.OOM: "bold red", State.TIMEOUT: "bold red",
    State.REFUSED: "bold red",
}  # fmt: skip
"""The styles in which the states of ended tasks are shown."""
LABEL = 10
"""The width of the column of labels on the left."""


def lines(row: TaskRow, details: TaskDetails | None, width: int, height: int, back: int) -> list[Line]:
    """Return the page in exactly `height` lines; the last `back` lines of the log are scrolled out of sight."""
    known = details if details is not None and details.task == row.task else TaskDetails(row.task)
    head = [*_title(row, width), *_facts(row, known, width)]
    room = height - len(head) - LEAST_LOG - 1
    if room >= 5:
        head += _charts(row, known, width, room)
    head = head[: max(0, height - 2)]
    return [*head, *_log(known, width, height - len(head), back, ended=row.state not in UNFINISHED)]


def log_lines(details: TaskDetails | None, height: int) -> int:
    """Return by how many lines the log can be scrolled back."""
    return max(0, len(details.lines) - height) if details is not None else 0


def _title(row: TaskRow, width: int) -> list[Line]:
    state = str(row.state)
    if row.live is not None:
        state += f" {duration(row.live.seconds)}"
        state += f", attempt {row.live.attempt}" if row.live.attempt > 1 else ""
    elif row.attempt is not None:
        state += _end(row.attempt)
    title = fit(f"task {row.task}  {row.words.name}", width - columns(state) - 2, pad=True)
    return [((title, "bold"), (f"  {state}", "bold green" if row.live else TITLES.get(row.state, "bold")))]


def _end(attempt: AttemptHistory) -> str:
    """Return in words how and when an attempt ended."""
    code = f" (exit {attempt.code})" if attempt.code else f" (signal {attempt.signal})" if attempt.signal else ""
    return f"{code} after {duration(attempt.seconds)}" + (f", {clock(attempt.ended)}" if attempt.ended else "")


def _facts(row: TaskRow, details: TaskDetails, width: int) -> list[Line]:
    found: list[Line] = []
    if row.words.parameters:
        pairs = "   ".join(f"{name} = {value}" for name, value in row.words.parameters.items())
        found += _labelled("parameters", pairs, width, style="bold")
    if details.command:
        found += _labelled("command", details.command, width, most=2)
    if row.live is not None:
        live = row.live
        words = [", ".join(live.devices), f"peak {short_size(live.peak)} of {short_size(live.reserved)} reserved"]
        words += [f"now {short_size(live.used)}"] if live.used is not None else []
        words += [f"epoch {epochs_of(live)}"] if epochs_of(live) else []
        words += [f"about {duration(live.left)} left"] if live.left is not None else []
        found += _labelled("running", "   ".join(words), width)
    elif row.attempt is not None and (used := _used(row.attempt, details)):
        found += _labelled("memory", used, width)
    if details.why:
        found += _labelled("why", details.why, width, most=3)
    elif row.live is None and (reason := reason_of(row)):
        found += _labelled("why", reason, width, most=3, style="red")
    earlier = [_attempt(one) for one in details.attempts if one.outcome is not None]
    if len(details.attempts) > 1:
        found += _labelled("attempts", "; ".join(earlier), width, most=2)
    for address in details.links:
        found += _labelled("tracker", address, width, style="cyan")
    if details.trouble:
        found += _labelled("", details.trouble, width, style="red")
    return found


def _used(one: AttemptHistory, details: TaskDetails) -> str:
    """Return how much of its reservation an ended attempt used on each device, and from which source the reservation
    came.
    """
    words = [
        f"{label}: peak {short_size(max(step[2] for step in steps))} of {short_size(steps[-1][1])} reserved"
        for label, steps in details.memory.items()
        if steps
    ]
    words += [f"({EstimateSource(one.source).words})"] if words and one.source else []
    words += [f"attempt {one.number}"] if words and one.number > 1 else []
    return "   ".join(words)


def _attempt(one: AttemptHistory) -> str:
    return f"{one.number} {one.outcome} after {duration(one.seconds)}{f' ({clean(one.reason)})' if one.reason else ''}"


def _labelled(label: str, text: str, width: int, *, most: int = 2, style: str = "") -> list[Line]:
    """Return a text as one or more lines, at most `most`, to the right of its label."""
    room = max(10, width - LABEL - 2)
    wrapped = textwrap.wrap(clean(text), room, break_on_hyphens=False) or [""]
    if len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], fit(" ".join(wrapped[most - 1 :]), room)]
    return [
        ((f"{label if at == 0 else '':<{LABEL}}  ", "dim"), (fit(line, room), style)) for at, line in enumerate(wrapped)
    ]


# ---- charts ----


def _charts(row: TaskRow, details: TaskDetails, width: int, room: int) -> list[Line]:
    """Return the curves of the most important metrics and the memory over time, side by side if there is room."""
    charts = [*_curves(details, row.words.parameters), *_memory(details)]
    if not charts:
        return []
    beside = max(1, min(len(charts), width // LEAST_WIDE))
    wide = (width - len(GAP) * (beside - 1)) // beside
    below = math.ceil(len(charts) / beside)
    tall = max(LEAST_TALL, min(MOST_TALL, int(SHARE * room) // below - AROUND))
    if row.live is None:  # the log of an ended task grows no more: charts take the lines that it does not need
        tall = max(tall, min(TALLEST, (room - max(0, len(details.lines) - LEAST_LOG) - 1) // below - AROUND))
    tall = min(room - AROUND - 1, tall)
    found: list[Line] = [()]
    for first in range(0, len(charts), beside):
        some = charts[first : first + beside]
        if len(found) + tall + AROUND > room:
            break
        found += _beside([_block(chart, wide, tall) for chart in some], wide, COLOURS[first:] + COLOURS)
    return found


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve with its axes and its possible titles."""

    titles: Sequence[str]
    """The title in several lengths, the longest one first."""
    points: Sequence[tuple[float, float]]
    axes: Axes


def _block(chart: Chart, wide: int, tall: int) -> list[str]:
    """Return a chart as lines, of which the first one is its title."""
    title = next((one for one in chart.titles if columns(one) <= wide), chart.titles[-1])
    return [title, *labelled(chart.points, wide, tall, chart.axes)]


def _beside(blocks: Sequence[Sequence[str]], wide: int, colours: Sequence[str]) -> list[Line]:
    """Return charts side by side, each in its colour, with a gap between them."""
    found: list[Line] = []
    for at, row in enumerate(zip(*blocks, strict=True)):
        pieces: list[Piece] = []
        for place, text in enumerate(row):
            filled, style = (GAP if place else "") + fit(text, wide, pad=True), "bold" if at == 0 else colours[place]
            before, mark, after = filled.partition(MARK) if at else (filled, "", "")
            pieces += [(before, style), (mark, "bold red"), (after, style)] if mark else [(filled, style)]
        found.append(tuple(pieces))
    return found


def _curves(details: TaskDetails, parameters: Mapping[str, str]) -> list[Chart]:
    """Return the curves of the most important metrics; a parameter that the task also prints does not count as a
    metric.
    """
    record = details.metrics
    if record is None:
        return []
    names = [name for name in ranked(record.curves) if name not in parameters][:MOST_CURVES]
    curves = [(name, curve) for name in names if _is_drawn(curve := record.curves[name])]
    if not curves:
        return []
    firsts = [curve.steps()[0][0] if curve.points else curve.nan_step or 0.0 for _, curve in curves]
    span = min(firsts), max(curve.end for _, curve in curves)
    ends = f"{span[0]:g}", f"{span[1]:g}"
    return [
        Chart(_said(name, curve), curve.steps(), Axes(ends, span=span, mark=curve.nan_step)) for name, curve in curves
    ]


def _is_drawn(curve: Curve) -> bool:
    return len(curve.points) > 1 or curve.nan_from is not None


def _said(name: str, curve: Curve) -> list[str]:
    last = f"{curve.last:.4g}" if curve.nan_step is None else f"{curve.last} from step {curve.nan_step:g}"
    low, high = curve.lowest, curve.highest
    if not low or not high:
        return [f"{name} {last}"]
    lowest, highest = (f"{value:.4g} at {step:g}" for value, step in (low, high))
    best = f"lowest {lowest}" if goal_of(name) is Goal.MIN else f"highest {highest}"
    return [f"{name} {last}   lowest {lowest}, highest {highest}", f"{name} {last}   {best}", f"{name} {last}"]


def _memory(details: TaskDetails) -> list[Chart]:
    """Return a chart of the highest use over time, for the device that the attempt used most."""
    if not details.memory:
        return []
    label, steps = max(details.memory.items(), key=lambda item: max((step[2] for step in item[1]), default=0))
    if not steps:
        return []
    reserved, peak = steps[-1][1], max(step[2] for step in steps)
    unit, name = (GIB, "G") if max(peak, reserved) >= GIB else (1 << 20, "M")
    points = _stairs(steps, unit)
    used = f"{short_size(peak)} of {short_size(reserved)}"
    titles = [f"memory on {label}: peak {used} reserved", f"memory on {label}: {used}", f"memory: {used}"]
    ends = "0s", duration(steps[-1][0] - steps[0][0])
    return [Chart(titles, points, Axes(ends, name, 0.0, max(peak, reserved) / unit))]


def _stairs(steps: Sequence[Step], unit: int) -> list[tuple[float, float]]:
    """Return the points of a line that stays level from one step to the next."""
    found: list[tuple[float, float]] = []
    for at, _, peak in steps:
        if found:
            found.append((at, found[-1][1]))
        found.append((at, peak / unit))
    return found


# ---- the log ----


def _log(details: TaskDetails, width: int, height: int, back: int, *, ended: bool) -> list[Line]:
    if height < 1:
        return []
    room = height - 1
    end = max(min(room, len(details.lines)), len(details.lines) - back)
    shown = details.lines[max(0, end - room) : end]
    below = f"{count(len(details.lines) - end, 'line')} below: End {'shows the last' if ended else 'follows again'}"
    says = f" ({below})" if back else "" if ended else " (follows)"
    title = f"log {tilde(details.log)}{says} " if details.log else "no output " if ended else "no output yet "
    rule = "─" * max(0, width - 3 - columns(title))
    head: Line = ((fit(f"── {title}{rule}", width), "dim"),)
    body: list[Line] = [((fit(line, width), ""),) for line in shown]
    return [head, *body, *([()] * (room - len(body)))]
