"""The reservation and the peak of every attempt over time, on each device: the source of charts."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.events import Event, Exited, Peaked, Resized
from scheduler.core.model import HOST, Placement, is_host_key, on_node, shown_in
from scheduler.core.reporting.run_history import AttemptHistory, RunSummary
from scheduler.values import dataclass

Step = tuple[float, int, int]
"""A time, the bytes reserved from that time on, and the highest use in bytes from that time on."""


@dataclass(frozen=True, slots=True)
class AttemptTrack:
    """The reservation and the peak of one attempt over time."""

    task: int
    attempt: AttemptHistory
    steps: dict[str, list[Step]]
    """For each device of the run, the steps of the attempt on this device; the first step is the placement."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The devices on which charts show the attempt: its slot, else its GPUs, else its host."""
        there = (HOST if is_host_key(key) else key for key in self.steps)
        return tuple([on_node(key, self.attempt.node) for key in shown_in(there)])

    def step(self, at: float) -> None:
        """Add a step if the reservation or the peak has changed."""
        reserved, peak = self.attempt.reserved, self.attempt.peak
        for key in dict.fromkeys((*reserved, *peak)):
            steps = self.steps.setdefault(on_node(key, self.attempt.node), [])
            now = (at, reserved.get(key, 0), peak.get(key, 0))
            if steps and steps[-1][0] == at:
                steps[-1] = now
            elif not steps or steps[-1][1:] != now[1:]:
                steps.append(now)

    def end(self) -> None:
        """Add to the last step the peaks that became known only when the attempt ended."""
        for key, peak in self.attempt.peak.items():
            if steps := self.steps.get(on_node(key, self.attempt.node)):
                at, reserved, held = steps[-1]
                steps[-1] = (at, reserved, max(held, peak))


class MemoryTimeline(RunSummary):
    """The totals of a run, and the tracks of all attempts in the order in which they were placed."""

    def __init__(self) -> None:
        super().__init__()
        self.tracks: list[AttemptTrack] = []
        self._living_tracks: dict[int, AttemptTrack] = {}

    def take(self, event: Event, at: float) -> None:
        """Take the next event."""
        super().take(event, at)
        match event:
            case Placement():
                track = self._living_tracks[event.task] = AttemptTrack(event.task, self.living[event.task], {})
                self.tracks.append(track)
                track.step(at)
            case Resized() | Peaked():
                self._living_tracks[event.task].step(at)
            case Exited():
                self._living_tracks.pop(event.task).end()


def lanes(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Return a lane (a line of a chart) for each span, so that spans in one lane do not overlap. Spans are ordered by
    their starts, and each gets the lowest free lane.
    """
    free: list[float] = []
    found = []
    for begin, end in spans:
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        found.append(lane)
    return found
