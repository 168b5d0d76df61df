"""What became of each task: the fold of a run's events that every table and total is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.core.events import Event, Exited, Peaked, Placed, Refused, Resized, Skipped, Started
from scheduler.core.model import HOST, Outcome, Purpose, State

STRETCHED = 1.5
"""What takes longer than so many times its time alone did not come cheap: people are told."""


@dataclass(slots=True)
class Attempt:
    """One try, as its events tell it."""

    number: int
    purpose: Purpose
    devices: tuple[str, ...]
    promised: Mapping[str, int]
    known_by: str
    placed: float
    started: float | None = None
    ended: float | None = None
    seconds: float = 0.0
    outcome: Outcome | None = None
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    peak: dict[str, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    stretch: float | None = None
    """How many times longer its epochs took beside others than alone."""
    neighbours: int = 0
    """Most other attempts of this run that shared a device with it at one moment."""


@dataclass(slots=True)
class Story:
    """All attempts of one task, in order."""

    attempts: list[Attempt] = field(default_factory=list)
    refused: str = ""
    """Why no device here can ever hold it."""

    @property
    def last(self) -> Attempt | None:
        """The newest attempt that was for real."""
        return next((a for a in reversed(self.attempts) if a.purpose is Purpose.RUN), None)


class Fold:
    """Takes events one after another; knows every attempt there was."""

    def __init__(self) -> None:
        self.stories: dict[int, Story] = {}
        self.done_by: dict[int, int] = {}
        """The earlier run in which a skipped task succeeded."""
        self.first: float | None = None
        self.last: float | None = None
        self._here: dict[str, dict[int, Attempt]] = {}
        """Living attempts on each device."""

    def take(self, event: Event, at: float) -> None:
        """The next event."""
        match event:
            case Placed():
                self._placed(event, at)
            case Started():
                attempt = self._attempt(event.task)
                attempt.started = at if attempt.started is None else attempt.started
            case Resized():
                self._attempt(event.task).promised = event.promise
            case Peaked():
                _raise_to(self._attempt(event.task).peak, event.peak)
            case Exited():
                self._exited(event, at)
            case Refused():
                self.stories.setdefault(event.task, Story()).refused = event.reason
            case Skipped():
                self.done_by.update(dict.fromkeys(event.tasks, event.done_by))

    def take_all(self, events: Iterable[tuple[Event, float]]) -> Fold:
        """A whole journal's events."""
        for event, at in events:
            self.take(event, at)
        return self

    def _attempt(self, task: int) -> Attempt:
        return self.stories[task].attempts[-1]

    def _placed(self, event: Placed, at: float) -> None:
        devices = tuple(key for key in event.promise if key != HOST) or (HOST,)
        attempt = Attempt(event.attempt, event.purpose, devices, event.promise, str(event.known_by), at)
        self.stories.setdefault(event.task, Story()).attempts.append(attempt)
        self.first = at if self.first is None else self.first
        for device in devices:
            here = self._here.setdefault(device, {})
            here[event.task] = attempt
            for resident in here.values():
                resident.neighbours = max(resident.neighbours, len(here) - 1)

    def _exited(self, event: Exited, at: float) -> None:
        attempt = self._attempt(event.task)
        attempt.ended, attempt.seconds, attempt.outcome = at, event.seconds, event.outcome
        attempt.code, attempt.signal, attempt.reason = event.code, event.signal, event.reason
        attempt.result, attempt.stretch = event.result, event.stretch
        _raise_to(attempt.peak, event.peak)
        self.last = at
        for device in attempt.devices:
            self._here.get(device, {}).pop(event.task, None)


def _accuracy(attempts: Sequence[Attempt]) -> float:
    """Of the runs that succeeded: the sum of their last promises over the sum of their peaks."""
    good = [a for a in attempts if a.outcome is Outcome.SUCCEEDED and a.purpose is Purpose.RUN]
    peaks = sum(sum(a.peak.get(key, 0) for key in a.promised) for a in good)
    return sum(sum(a.promised.values()) for a in good) / peaks if peaks else 0.0


def _raise_to(peak: dict[str, int], seen: Mapping[str, int]) -> None:
    for key, bytes_ in seen.items():
        peak[key] = max(peak.get(key, 0), bytes_)


@dataclass(frozen=True, slots=True)
class Totals:
    """A run in numbers."""

    tasks: int
    states: Mapping[State, int]
    makespan: float
    one_at_a_time: float
    """What all attempts took together."""
    probing: float
    """The share of that which went into probes."""
    memory_use: float
    """Memory really held (peaks) over what there was, through the makespan."""
    ooms: int
    known_by: Mapping[str, int]
    """How the needs of the ended runs were known."""
    promised_for_peaks: float
    """What was promised in the end over what was needed."""
    stretched: Sequence[tuple[int, float]] = ()
    """Tasks whose epochs took more than half as long again because of their neighbours, the worst first."""

    @property
    def speedup(self) -> float:
        """How many times faster than one at a time."""
        return self.one_at_a_time / self.makespan if self.makespan else 1.0


def stretched(fold: Fold) -> list[tuple[int, float]]:
    """The tasks whose epochs took more than half as long again beside others, and how many times as long."""
    last = ((task, story.last) for task, story in fold.stories.items())
    found = [(task, a.stretch) for task, a in last if a is not None and a.stretch is not None and a.stretch > STRETCHED]
    return sorted(found, key=lambda one: -one[1])


def totals(fold: Fold, states: Mapping[State, int], capacity: int) -> Totals:
    """Sum a fold up."""
    attempts = [a for story in fold.stories.values() for a in story.attempts if a.ended is not None]
    makespan = (fold.last or 0.0) - (fold.first or 0.0)
    busy = sum(a.seconds for a in attempts)
    probes = sum(a.seconds for a in attempts if a.purpose is Purpose.PROBE)
    held = sum(sum(a.peak.values()) * a.seconds for a in attempts)
    return Totals(
        tasks=sum(states.values()),
        states={state: count for state, count in states.items() if count},
        makespan=makespan,
        one_at_a_time=busy,
        probing=probes / busy if busy else 0.0,
        memory_use=held / (capacity * makespan) if capacity and makespan > 0 else 0.0,
        ooms=sum(a.outcome is Outcome.OOM for a in attempts),
        known_by=Counter(a.known_by for a in attempts if a.purpose is Purpose.RUN),
        promised_for_peaks=_accuracy(attempts),
        stretched=stretched(fold),
    )
