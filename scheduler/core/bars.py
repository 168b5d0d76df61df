"""What ran where and when, as bars: for charts of a simulated run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.core.measures import Simulated
from scheduler.core.model import Device, Outcome
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One attempt on one of its devices; times are seconds from the run's beginning."""

    device: str
    name: str
    priority: int
    begin: float
    end: float
    bytes: int
    outcome: Outcome
    floor: int = 0
    """How many bytes lie below it, where it is drawn."""


def bars_of(run: Simulated) -> list[Bar]:
    """Every attempt on every device that it held memory on, by the device and its beginning."""
    found = []
    for task, story in run.fold.stories.items():
        spec = run.given[task].spec
        for a in story.attempts:
            if a.ended is None or a.outcome is None:
                continue
            begin = (a.started or a.placed) - run.began
            found += [
                Bar(key, spec.name or spec.filename, spec.terms.priority, begin, a.ended - run.began, held, a.outcome)
                for key in a.devices
                if (held := a.peak.get(key, 0))
            ]
    return sorted(found, key=lambda bar: (bar.device, bar.begin, bar.end, bar.name))


def stacked(bars: Sequence[Bar]) -> list[Bar]:
    """Bars of one device laid upon each other, each as low as it can lie; they are sorted by their beginning."""
    placed: list[Bar] = []
    living: list[Bar] = []
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


def held_over_time(bars: Iterable[Bar], device: Device, slices: int, until: float) -> list[float]:
    """The share of a device's memory that was held in each of so many slices of the time."""
    held = [0.0] * slices
    width = until / slices if until > 0 else 1.0
    for bar in bars:
        if bar.device != device.key:
            continue
        for place in range(int(bar.begin / width), min(slices, int(bar.end / width) + 1)):
            overlap = min(bar.end, (place + 1) * width) - max(bar.begin, place * width)
            held[place] += max(0.0, overlap) / width * bar.bytes / device.total
    return held
