"""The memory of a run over time, as text for a terminal and as a drawing for a file.

Each device has a lane whose height is its memory; each attempt is a bar in the lane, whose length is the attempt's
duration and whose height is its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from scheduler.core.model import Device, Outcome
from scheduler.ui.charts.svg import GREY, LARGE, Drawing, SvgRect, SvgText
from scheduler.ui.text import short
from scheduler.units import count, duration, size
from scheduler.values import dataclass, replace

if TYPE_CHECKING:
    from scheduler.simulation.metrics import SimulatedResult

SLICES = 60
MOST_LANES = 16
"""The most devices that are shown on a terminal; a file shows all devices."""
MOST_BARS = 20_000
"""The most bars of one run in a file; the smallest bars are left out, because browsers are slow with more."""
FULL, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
WIDTH, LANE, GAP, LEFT, TOP = 1000.0, 90.0, 14.0, 90.0, 34.0
PAPER = 0.3
"""The gap between two bars, in the units of the drawing."""
LEGEND, ENTRY = 420.0, 90.0
"""The horizontal position of the legend, and the width of one of its entries."""
PRIORITIES = ("#3b6fb6", "#58a55c", "#d99a2b", "#8d65c5", "#4aa5a5", "#b0628a")
FAILED = "#c0392b"
OUTCOMES: Mapping[str, str] = {
    "succeeded": "#2f7d4f",
    "failed": "#c0362c",
    "oom": "#a3399a",
    "timeout": "#b26a00",
    "interrupted": "#6e7781",
    "lost": "#6e7781",
    "unstarted": "#6e7781",
    "again": "#3d8f97",
    "running": "#2a6fc9",
    "probe": "#8a7f00",
}


@dataclass(frozen=True, slots=True)
class ScheduleBar:
    """One attempt on one of its devices; times are in seconds from the beginning of the run."""

    device: str
    begin: float
    end: float
    bytes: int
    colour: str
    title: str
    floor: int = 0
    """The bytes between the bottom of the lane and the bar in the drawing."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run: its devices, its attempts as bars, and the meaning of the bars' colours."""

    title: str
    lanes: Sequence[Device]
    bars: Sequence[ScheduleBar]
    """The bars, sorted by device and start."""
    legend: Mapping[str, str]

    @property
    def ended(self) -> float:
        """The time at which the last attempt of the run ended."""
        return max((bar.end for bar in self.bars), default=0.0)


def simulated_schedule(policy: str, run: SimulatedResult, devices: Sequence[Device]) -> Schedule:
    """Return the schedule of a simulated run: peaks of memory, coloured by priority."""
    found, priorities = [], sorted({given.spec.terms.priority for given in run.given.values()})
    colours = {p: PRIORITIES[min(place, len(PRIORITIES) - 1)] for place, p in enumerate(priorities)}
    for task, task_history in run.history.tasks.items():
        spec = run.given[task].spec
        for a in task_history.attempts:
            if a.ended is None or a.outcome is None:
                continue
            begin, end = (a.started or a.placed) - run.began, a.ended - run.began
            colour = colours[spec.terms.priority] if a.outcome is Outcome.SUCCEEDED else FAILED
            name, held = spec.name or spec.command, {key: a.peak.get(key, 0) for key in a.devices}
            found += [_bar(key, begin, end, held[key], colour, name, str(a.outcome)) for key in held if held[key]]
    legend = {f"priority {priority}": colour for priority, colour in colours.items()}
    return Schedule(policy, devices, _sorted(found), dict([*legend.items()][: len(PRIORITIES)]))


def _bar(key: str, begin: float, end: float, bytes_: int, colour: str, name: str, outcome: str) -> ScheduleBar:
    """Return the bar of an attempt, with facts about the attempt as the bar's title."""
    title = f"{short(name, 60)}: {size(bytes_)}, {duration(begin)} to {duration(end)}, {outcome}"
    return ScheduleBar(key, begin, end, bytes_, colour, title)


def reported_schedule(run: Mapping[str, Any]) -> Schedule:
    """Return the schedule of one run in a report: reserved memory, coloured by outcome."""
    found, lanes, legend = [], [], dict[str, str]()
    names = {row[0]: row[1] for row in run["tasks"]}
    for device in run["devices"]:
        for row in device["bars"]:
            one = dict(zip(device["bar_columns"], row, strict=True))
            outcome = "probe" if (one["purpose"], one["outcome"]) == ("probe", "succeeded") else one["outcome"]
            legend[outcome] = OUTCOMES.get(outcome, GREY)
            name = f"task {one['task']} {names.get(one['task'], '')}"
            found.append(
                _bar(device["key"], one["begin"], one["end"], one["reserved_bytes"], legend[outcome], name, outcome)
            )
        lanes.append(Device(device["key"], device["label"], device["capacity"] or 0, 1.0))
    attempts = len({(row[0], row[1]) for device in run["devices"] for row in device["bars"]})
    title = f"run {run['number']} {run['file']}: {count(attempts, 'attempt')}"
    return Schedule(title, lanes, _sorted(found), legend)


def _sorted(bars: Iterable[ScheduleBar]) -> list[ScheduleBar]:
    return sorted(bars, key=lambda bar: (bar.device, bar.begin, bar.end, bar.title))


def stacked(bars: Sequence[ScheduleBar]) -> list[ScheduleBar]:
    """Stack the bars of one device, which are sorted by start, and place each as low as possible."""
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


def held_over_time(bars: Iterable[ScheduleBar], lane: Device, slices: int, until: float) -> list[float]:
    """Return the share of a device's memory that is used in each of `slices` equal parts of the time until `until`."""
    held = [0.0] * slices
    width = until / slices if until > 0 else 1.0
    for bar in bars:
        if bar.device != lane.key:
            continue
        for place in range(int(bar.begin / width), min(slices, int(bar.end / width) + 1)):
            overlap = min(bar.end, (place + 1) * width) - max(bar.begin, place * width)
            held[place] += max(0.0, overlap) / width * bar.bytes / lane.total
    return held


def text_bars(schedule: Schedule, out: TextIO) -> list[str]:
    """Return a line of text for each device that shows how full the device's memory was over time."""
    until = schedule.ended
    if not until:
        return []
    marks = FULL if (out.encoding or "").lower().startswith("utf") else PLAIN
    shown = [lane for lane in schedule.lanes if any(bar.device == lane.key for bar in schedule.bars)]
    width = max(len(lane.label) for lane in shown)
    lines = [
        f"{lane.label:<{width}}  |{_marks(held_over_time(schedule.bars, lane, SLICES, until), marks)}|"
        for lane in shown[:MOST_LANES]
    ]
    more = [f"... and {len(shown) - MOST_LANES} more devices"] if len(shown) > MOST_LANES else []
    foot = f"{'':<{width}}   0{duration(until):>{SLICES - 1}}"
    return ["", f"memory use over time ({schedule.title})", *lines, *more, foot]


def _marks(shares: Sequence[float], marks: str) -> str:
    return "".join(marks[min(len(marks) - 1, round(share * (len(marks) - 1)))] for share in shares)


def draw(schedules: Sequence[Schedule]) -> Drawing:
    """Draw the runs one below the other on a common time scale."""
    until = max((schedule.ended for schedule in schedules), default=0.0) or 1.0
    heights = [TOP + len(schedule.lanes) * (LANE + GAP) + 2 * GAP for schedule in schedules]
    drawing = Drawing(LEFT + WIDTH + 20, sum(heights))
    for number, schedule in enumerate(schedules):
        drawing.put(_block(schedule, until), 0, sum(heights[:number]))
    return drawing


def _block(schedule: Schedule, until: float) -> Drawing:
    """Return the drawing of one run, with a lane for each device."""
    drawing, bars = Drawing(0, 0), schedule.bars
    kept = {id(bar) for bar in sorted(bars, key=lambda bar: -(bar.end - bar.begin) * bar.bytes)[:MOST_BARS]}
    left_out = f", {len(bars) - len(kept):,} small bars left out" if len(bars) > len(kept) else ""
    title = f"{short(schedule.title, 60)}: {duration(schedule.ended)}{left_out}"
    drawing.words.append(SvgText(LEFT, 20, title, size=LARGE))
    for place, (meaning, colour) in enumerate(schedule.legend.items()):
        drawing.words.append(SvgText(LEFT + LEGEND + place * ENTRY, 20, meaning, fill=colour))
    for number, lane in enumerate(schedule.lanes):
        y = TOP + number * (LANE + GAP)
        here = stacked([bar for bar in bars if bar.device == lane.key and id(bar) in kept])
        total = lane.total or max((bar.floor + bar.bytes for bar in here), default=0) or 1
        drawing.rects.append(SvgRect(LEFT, y, WIDTH, LANE, "#f2f2f2"))
        drawing.rects += [_rect(bar, total, until, y) for bar in here]
        drawing.words.append(SvgText(LEFT - 8, y + 16, lane.label, "end"))
        drawing.words.append(SvgText(LEFT - 8, y + 32, size(total), "end", fill=GREY))
    bottom = TOP + len(schedule.lanes) * (LANE + GAP) + 4
    drawing.words += [_tick(at / 4, until, bottom) for at in range(5)]
    return drawing


def _tick(share: float, until: float, bottom: float) -> SvgText:
    anchor = "start" if share == 0 else "end" if share == 1 else "middle"
    return SvgText(LEFT + WIDTH * share, bottom, duration(until * share), anchor, fill=GREY)


def _rect(bar: ScheduleBar, total: int, until: float, lane: float) -> SvgRect:
    """Return the rectangle of a bar, with gaps between it and its neighbours."""
    x, width = LEFT + WIDTH * bar.begin / until, WIDTH * (bar.end - bar.begin) / until
    height = LANE * bar.bytes / total
    y = max(lane, lane + LANE - height - LANE * bar.floor / total)
    return SvgRect(x, y, max(width - PAPER, PAPER), max(height - PAPER, PAPER), bar.colour, bar.title)
