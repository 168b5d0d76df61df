"""When tasks and their run will be over, and by how much that may be wrong: values, and what several goes come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from scheduler.values import dataclass

LEAST = 0.1
"""Two of ten are outside of what is said: so many at most came earlier, so many later."""
MODEL = 0.15
"""So far a simulated end is off where all times are known: tasks slow each other down, and some are tried again."""


@dataclass(frozen=True, slots=True)
class Span:
    """A moment that lies ahead, in seconds since the epoch."""

    likely: float
    early: float
    late: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of one task."""

    start: Span | None
    """None: it runs."""
    end: Span


@dataclass(frozen=True, slots=True)
class Forecast:
    """A run as it is expected to go on, from one moment."""

    at: float
    end: Span | None
    """When nothing of it waits or runs any more; None: `why` says why nobody knows."""
    why: str = ""
    tasks: Mapping[int, Expected] = field(default_factory=dict)
    """Those that run, and those that start next."""

    def pack(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "tasks": {str(task): asdict(one) for task, one in self.tasks.items()}}

    @classmethod
    def unpack(cls, said: Mapping[str, Any]) -> Forecast:
        """What `pack` made."""
        tasks = {int(task): Expected(_span(one["start"]), Span(**one["end"])) for task, one in said["tasks"].items()}
        return cls(said["at"], _span(said["end"]), said["why"], tasks)


def _span(said: Mapping[str, float] | None) -> Span | None:
    return None if said is None else Span(**said)


@dataclass(frozen=True, slots=True)
class Course:
    """One way in which a run may go on."""

    starts: Mapping[int, float]
    """Of those that wait now."""
    ends: Mapping[int, float]
    over: float | None
    """When nothing is left; None: something never starts, as things stand."""
    devices: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Keys of those on which each task is then."""
    stuck: int = 0
    """How many never start."""


def joined(at: float, courses: Sequence[Course]) -> Forecast:
    """What several goes come to; of tasks the first of them is the likely one, in which all take as long as expected.

    Of the whole run it is the middle one: whoever takes longest ends it, and that is no mean.
    """
    likely = courses[0]
    starts, ends = [course.starts for course in courses], [course.ends for course in courses]
    tasks = {
        task: Expected(_span_of(at, task, starts) if task in likely.starts else None, _span_of(at, task, ends))
        for task in likely.ends
    }
    if likely.over is None:
        return Forecast(at, None, f"{likely.stuck:,} of its tasks find no room, as things stand", tasks)
    overs = sorted(course.over for course in courses if course.over is not None)
    return Forecast(at, around(at, _at(overs, 0.5), overs), "", tasks)


def _span_of(at: float, task: int, every: Sequence[Mapping[int, float]]) -> Span:
    return around(at, every[0][task], [one[task] for one in every if task in one])


def around(at: float, likely: float, found: Sequence[float]) -> Span:
    """The likely moment, between what nearly all of the others came after and what they came before."""
    found, off = sorted([*found, likely]), MODEL * (likely - at)
    return Span(likely, min(_at(found, LEAST), likely - off), max(_at(found, 1 - LEAST), likely + off))


def _at(found: Sequence[float], share: float) -> float:
    """A quantile, between the two nearest."""
    place = share * (len(found) - 1)
    below = int(place)
    above = min(below + 1, len(found) - 1)
    return found[below] + (found[above] - found[below]) * (place - below)
