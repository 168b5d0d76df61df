"""What became of each task: the fold of a run's events that every table and total is made from."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any

from scheduler.core.events import Arrived, Event, Exited, Peaked, Placed, Refused, Resized, Skipped, Started
from scheduler.core.model import Outcome, Purpose, State, shown_in
from scheduler.values import dataclass

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
    percentage: int = 0
    """Of its GPU's threads under MPS; 0: outside of MPS."""
    fence: int = 0
    mps: str = ""
    neighbours: int = 0
    """Most other attempts of this run that shared a device with it at one moment."""

    @property
    def fenced(self) -> bool | None:
        """Whether MPS kept it below what it was promised last; None outside of MPS."""
        if not self.percentage:
            return None
        return 0 < self.fence <= min(self.promised[device] for device in self.devices)


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
        self.retried = self.ooms = 0
        """Runs for real that were not a task's first, attempts that ran out of memory."""
        self.ended = 0
        self.spent = 0.0
        """How many attempts are over, and the seconds they took together."""
        self.kept = 0.0
        """The seconds for which they had their places, from when these were promised until their ends were known."""
        self._arrived: list[tuple[int, float]] = []
        """Batches that came while the run went on, and when."""
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
            case Exited():
                self._exited(event, at)
            case Resized():
                self._attempt(event.task).promised = event.promise
            case Peaked():
                _raise_to(self._attempt(event.task).peak, event.peak)
            case Refused():
                self.stories.setdefault(event.task, Story()).refused = event.reason
            case Arrived():
                self._arrived.append((event.batch, at))
            case Skipped():
                self.done_by.update(dict.fromkeys(event.tasks, event.done_by))

    def submitted(self, batch: int, first: float) -> float:
        """When a batch was accepted; `first` is when the run was."""
        place = bisect_right(self._arrived, batch, key=itemgetter(0))
        return self._arrived[place - 1][1] if place else first

    def take_all(self, events: Iterable[tuple[Event, float]]) -> Fold:
        """A whole journal's events."""
        for event, at in events:
            self.take(event, at)
        return self

    def _attempt(self, task: int) -> Attempt:
        return self.stories[task].attempts[-1]

    def _placed(self, event: Placed, at: float) -> None:
        devices = shown_in(event.promise)
        attempt = Attempt(event.attempt, event.purpose, devices, event.promise, str(event.known_by), at)
        attempt.percentage, attempt.fence = event.percentage, event.fence
        story = self.stories.setdefault(event.task, Story())
        self.retried += bool(story.attempts) and event.purpose is Purpose.RUN and story.last is not None
        story.attempts.append(attempt)
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
        attempt.result, attempt.stretch, attempt.mps = event.result, event.stretch, event.mps
        _raise_to(attempt.peak, event.peak)
        self.ended, self.spent = self.ended + 1, self.spent + event.seconds
        self.kept += max(event.seconds, at - attempt.placed)
        self.ooms += event.outcome is Outcome.OOM
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
