"""A forecast: when a run and its tasks are expected to start and to end, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.core.model import LIVING, State
from scheduler.units import count
from scheduler.values import dataclass, field, replace

IDLE = "unknown: no task waits or runs"
"""The reason that a forecast gives if a run has no unfinished task, and therefore no end."""
NO_ETA = "no ETA: it is not known how long the tasks there take"
"""The words for a wait whose end is unknown, because it is not known when any attempt on the devices will end. A
forecast, if there is one, may know it."""


def tasks_too_long(number: int) -> str:
    """Return a clause which says that this number of tasks will not start in the present Slurm allocation."""
    return f"{count(number, 'task')} {'waits' if number == 1 else 'wait'} for a longer allocation"


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """An expected time, and the span from an early to a late one that contains it; all in seconds since the epoch."""

    likely: float
    early: float
    late: float

    def to_dict(self) -> dict[str, float]:
        """Return the span as JSON values."""
        return {"likely": self.likely, "early": self.early, "late": self.late}

    @classmethod
    def from_dict(cls, data: Mapping[str, float]) -> TimeSpan:
        """Return the span that `to_dict` described."""
        return cls(data["likely"], data["early"], data["late"])


@dataclass(frozen=True, slots=True)
class ExpectedTask:
    """The expected start and end of one task."""

    start: TimeSpan | None
    """The expected start; None if the task has started already."""
    end: TimeSpan
    devices: tuple[str, ...] = ()
    """Keys of the devices on which the task has memory reserved."""

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        return {
            "start": self.start and self.start.to_dict(), "end": self.end.to_dict(), "devices": list(self.devices),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExpectedTask:
        """Return the task that `to_dict` described."""
        start = data["start"] and TimeSpan.from_dict(data["start"])
        return cls(start, TimeSpan.from_dict(data["end"]), tuple(data["devices"]))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected course of a run, estimated at one time."""

    at: float
    end: TimeSpan | None
    """The expected end of the run's last task; None: unknown, for the reason in `why`."""
    why: str = ""
    tasks: Mapping[int, ExpectedTask] = field(default_factory=dict)
    """The running tasks, and the tasks that start next."""
    held: int = 0
    """The number of held tasks, which the forecast leaves out."""
    too_long: int = 0
    """The number of tasks that the forecast leaves out, because they would end after their Slurm allocation."""

    @property
    def is_idle(self) -> bool:
        """True if no task waits or runs, as in a queue that waits for tasks."""
        return self.why == IDLE

    def of_task(self, task: int, state: State) -> ExpectedTask | None:
        """Return the expected start and end of a task in this state; None if it has ended, or if they are unknown."""
        found = self.tasks.get(task)
        if found is None or state not in (State.WAITING, State.BLOCKED, *LIVING):
            return None
        return replace(found, start=None) if state in LIVING else found

    def run_to_dict(self) -> dict[str, Any]:
        """Return the forecast as JSON values, without its tasks."""
        return {
            "at": self.at, "end": self.end and self.end.to_dict(), "why": self.why, "held": self.held,
            "too_long": self.too_long,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as JSON values."""
        return {**self.run_to_dict(), "tasks": {str(task): one.to_dict() for task, one in self.tasks.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Forecast:
        """Return the forecast that `to_dict` described."""
        tasks = {int(task): ExpectedTask.from_dict(expected) for task, expected in data["tasks"].items()}
        end = data["end"] and TimeSpan.from_dict(data["end"])
        return cls(data["at"], end, data["why"], tasks, data["held"], data.get("too_long", 0))
