"""What every attempt was promised and seen to hold, device by device, over time: the fold that charts are made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from scheduler.core.events import Event, Exited, Peaked, Placed, Resized, Started
from scheduler.core.model import Purpose
from scheduler.values import dataclass

Step = tuple[float, int, int]
"""From then on so many bytes were promised, and so many the most that had been seen."""


@dataclass(slots=True)
class Track:
    """One attempt over time."""

    task: int
    attempt: int
    purpose: Purpose
    known_by: str
    placed: float
    steps: dict[str, list[Step]]
    """By device, the first where it was placed."""
    started: float | None = None
    ended: float | None = None
    outcome: str = ""
    reason: str = ""
    peak: dict[str, int] = field(default_factory=dict)

    def _step(self, at: float, key: str, promised: int | None = None, held: int | None = None) -> None:
        steps = self.steps.setdefault(key, [(at, 0, 0)])
        _, before, seen = steps[-1]
        step = (at, before if promised is None else promised, seen if held is None else max(seen, held))
        if steps[-1][0] == at:
            steps[-1] = step
        else:
            steps.append(step)

    def resize(self, at: float, promise: Iterable[tuple[str, int]]) -> None:
        """It is promised so much from now on."""
        for key, bytes_ in promise:
            self._step(at, key, promised=bytes_)

    def see(self, at: float, peak: Iterable[tuple[str, int]]) -> None:
        """It was seen to hold so much."""
        for key, bytes_ in peak:
            self._step(at, key, held=bytes_)
            self.peak[key] = max(self.peak.get(key, 0), bytes_)


class History:
    """Takes events one after another; knows all attempts in the order they were placed."""

    def __init__(self) -> None:
        self.tracks: list[Track] = []
        self._living: dict[int, Track] = {}

    def take(self, event: Event, at: float) -> None:
        """The next event."""
        match event:
            case Placed():
                steps = {key: [(at, bytes_, 0)] for key, bytes_ in event.promise.items()}
                track = Track(event.task, event.attempt, event.purpose, str(event.known_by), at, steps)
                self._living[event.task] = track
                self.tracks.append(track)
            case Started():
                self._living[event.task].started = at
            case Resized():
                self._living[event.task].resize(at, event.promise.items())
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
            when, promised, held = steps[-1]
            steps[-1] = (when, promised, max(held, track.peak.get(key, 0)))


def lanes(spans: Iterable[tuple[float, float]]) -> list[int]:
    """The lowest free lane for each span, in their order by begin, so that none lies on another."""
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
