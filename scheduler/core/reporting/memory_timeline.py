"""The reservation and the peak of every attempt, device by device, over time: the source of charts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from scheduler.core.events import Event, Exited, Peaked, Resized, Started
from scheduler.core.model import Placement, Purpose
from scheduler.values import dataclass

Step = tuple[float, int, int]
"""From then on so many bytes were reserved, and so many the most that had been seen."""


@dataclass(slots=True)
class AttemptTrack:
    """One attempt over time."""

    task: int
    attempt: int
    purpose: Purpose
    source: str
    placed: float
    steps: dict[str, list[Step]]
    """The steps by device; the first is the placement."""
    started: float | None = None
    ended: float | None = None
    outcome: str = ""
    reason: str = ""
    peak: dict[str, int] = field(default_factory=dict)

    def _step(self, at: float, key: str, reserved: int | None = None, held: int | None = None) -> None:
        steps = self.steps.setdefault(key, [(at, 0, 0)])
        _, before, seen = steps[-1]
        step = (at, before if reserved is None else reserved, seen if held is None else max(seen, held))
        if steps[-1][0] == at:
            steps[-1] = step
        else:
            steps.append(step)

    def resize(self, at: float, reservation: Iterable[tuple[str, int]]) -> None:
        """Note a changed reservation."""
        for key, bytes_ in reservation:
            self._step(at, key, reserved=bytes_)

    def see(self, at: float, peak: Iterable[tuple[str, int]]) -> None:
        """Note a measured use."""
        for key, bytes_ in peak:
            self._step(at, key, held=bytes_)
            self.peak[key] = max(self.peak.get(key, 0), bytes_)


class MemoryTimeline:
    """Takes events one after another; knows all attempts in the order they were placed."""

    def __init__(self) -> None:
        self.tracks: list[AttemptTrack] = []
        self._living: dict[int, AttemptTrack] = {}

    def take(self, event: Event, at: float) -> None:
        """Take the next event."""
        match event:
            case Placement():
                steps = {key: [(at, bytes_, 0)] for key, bytes_ in event.reservation.items()}
                track = AttemptTrack(event.task, event.attempt, event.purpose, str(event.source), at, steps)
                self._living[event.task] = track
                self.tracks.append(track)
            case Started():
                self._living[event.task].started = at
            case Resized():
                self._living[event.task].resize(at, event.reservation.items())
            case Peaked():
                self._living[event.task].see(at, event.peak.items())
            case Exited():
                self._end(event, at)

    def _end(self, event: Exited, at: float) -> None:
        track = self._living.pop(event.task)
        track.ended, track.outcome, track.reason = at, str(event.outcome), event.reason
        for key, bytes_ in event.peak.items():
            track.peak[key] = max(track.peak.get(key, 0), bytes_)
        for key, steps in track.steps.items():
            when, reserved, held = steps[-1]
            steps[-1] = (when, reserved, max(held, track.peak.get(key, 0)))


def lanes(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Return the lowest free lane for each span, in order of their begin, so that no two spans overlap."""
    free: list[float] = []
    found = []
    for begin, end in spans:
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        if lane == len(free):
            free.append(end)
        else:
            free[lane] = end
        found.append(lane)
    return found
