"""Readings: the numbers of one run of an arm, and the summary of all repeats of an arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.core.attempts.mps_policy import CLIENT
from scheduler.core.brain import Brain
from scheduler.core.model import Outcome
from scheduler.core.reporting.run_history import RunHistory
from scheduler.experiment.arms import Arm
from scheduler.values import dataclass, field

LEAST_DIFFERENCE = 0.02
"""The least relative difference of two means that counts as a difference. A smaller one does not count, even if repeats
hardly vary.
"""
NUMBERS = (
    "tasks", "succeeded", "epochs", "makespan_s", "task_mean_s", "ooms", "residents_max", "under_mps", "mps_clients",
    "energy_j",
)  # fmt: skip
"""The names of the numbers of a reading in tables and JSON."""


@dataclass(frozen=True, slots=True)
class BatchWait:
    """The waiting times of the tasks of one priority in one batch, in seconds after the list was accepted."""

    batch: int
    priority: int
    tasks: int
    wait_mean_s: float
    wait_max_s: float

    def to_dict(self) -> dict[str, float]:
        """Return the waits as JSON values."""
        names = ("batch", "priority", "tasks", "wait_mean_s", "wait_max_s")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers that were measured in one run of one arm."""

    arm: str
    repeat: int
    run: int | None
    """The number of the run; None for a simulated run."""
    tasks: int
    succeeded: int
    epochs: int
    """The number of epochs that successful tasks have run."""
    makespan_s: float
    task_mean_s: float
    ooms: int
    residents_max: int
    """The most tasks that were on one device at one time."""
    under_mps: int
    """The number of attempts that ran under MPS."""
    mps_clients: int
    """The number of attempts that the MPS daemon listed as clients."""
    waits: Sequence[BatchWait] = ()
    energy_j: float | None = None
    """The energy in joules that the run's GPUs used; None if unknown."""
    machine_state: Mapping[str, Any] = field(default_factory=dict)
    """The telemetry of the GPUs before and after the run, and the thread percentages that the MPS daemons reported."""

    @property
    def tasks_per_hour(self) -> float:
        """The number of successful tasks, divided by the makespan in hours."""
        return self.succeeded * 3600 / self.makespan_s if self.makespan_s else 0.0

    @property
    def epochs_per_hour(self) -> float:
        """The number of epochs of successful tasks, divided by the makespan in hours."""
        return self.epochs * 3600 / self.makespan_s if self.makespan_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as JSON values."""
        return {
            "arm": self.arm,
            "repeat": self.repeat,
            "run": self.run,
            **{name: getattr(self, name) for name in NUMBERS},
            "waits": [wait.to_dict() for wait in self.waits],
            "machine_state": dict(self.machine_state),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reading:
        """Return the reading that `to_dict` wrote."""
        return cls(**{**data, "waits": [BatchWait(**wait) for wait in data["waits"]]})

    def waited(self) -> dict[int, float]:
        """Return the mean waiting time of each priority over all batches, in seconds."""
        sums: dict[int, tuple[float, int]] = {}
        for one in self.waits:
            seconds, tasks = sums.get(one.priority, (0.0, 0))
            sums[one.priority] = seconds + one.wait_mean_s * one.tasks, tasks + one.tasks
        return {priority: seconds / tasks for priority, (seconds, tasks) in sorted(sums.items())}


def read(arm: Arm, repeat: int, run: int | None, brain: Brain, history: RunHistory, accepted: float) -> Reading:
    """Return the numbers of a run that has ended; `accepted` is the time at which the run's list was accepted."""
    attempts = [attempt for task in history.tasks.values() for attempt in task.attempts]
    last = {number: attempt for number, task in history.tasks.items() if (attempt := task.last) is not None}
    good = {task: attempt for task, attempt in last.items() if attempt.outcome is Outcome.SUCCEEDED}
    shared = [attempt for attempt in attempts if attempt.percentage]
    waits: dict[tuple[int, int], list[float]] = {}
    for task, attempt in last.items():
        where = brain.batch_of(task), brain.terms_of(task).priority
        waits.setdefault(where, []).append((attempt.started or attempt.placed) - accepted)
    return Reading(
        arm.name,
        repeat,
        run,
        tasks=len(brain.task_table),
        succeeded=len(good),
        epochs=sum(brain.terms_of(task).epochs or 0 for task in good),
        makespan_s=(history.last or 0.0) - (history.first or 0.0),
        task_mean_s=sum(attempt.seconds for attempt in good.values()) / len(good) if good else 0.0,
        ooms=sum(attempt.outcome is Outcome.OOM for attempt in attempts),
        residents_max=max((attempt.neighbours + 1 for attempt in attempts), default=0),
        under_mps=len(shared),
        mps_clients=sum(attempt.mps == CLIENT for attempt in shared),
        waits=[BatchWait(*where, len(all_), sum(all_) / len(all_), max(all_)) for where, all_ in sorted(waits.items())],
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over several repeats: its mean, its minimum and its maximum."""

    mean: float
    least: float
    most: float

    def exceeds(self, other: Spread) -> bool:
        """Tell whether this number exceeds another one by more than chance: the ranges of the repeats do not overlap,
        and the means differ by more than 2 %.
        """
        return self.least > other.most and self.mean > other.mean * (1 + LEAST_DIFFERENCE)


@dataclass(frozen=True, slots=True)
class Summary:
    """All repeats of one arm."""

    arm: Arm
    readings: Sequence[Reading]

    def spread(self, of: Callable[[Reading], float]) -> Spread:
        """Return the spread over the repeats of the number that `of` returns for a reading."""
        values = [of(reading) for reading in self.readings]
        return Spread(sum(values) / len(values), min(values), max(values))

    @property
    def rate(self) -> Spread:
        """The spread of the number of tasks per hour over the repeats."""
        return self.spread(lambda reading: reading.tasks_per_hour)

    @property
    def makespan(self) -> Spread:
        """The spread over the repeats of the time in seconds from the first start to the last end."""
        return self.spread(lambda reading: reading.makespan_s)

    def waited(self, priority: int) -> Spread:
        """Return the spread over the repeats of the mean waiting time of one priority, in seconds."""
        return self.spread(lambda reading: reading.waited().get(priority, 0.0))


def summaries(arms: Sequence[Arm], readings: Sequence[Reading]) -> list[Summary]:
    """Return the summaries of the arms that have been measured at least once."""
    mine = {arm.name: [reading for reading in readings if reading.arm == arm.name] for arm in arms}
    return [Summary(arm, mine[arm.name]) for arm in arms if mine[arm.name]]


def priorities_of(found: Sequence[Summary]) -> list[int]:
    """Return the priorities of all tasks, without repetitions."""
    return sorted({wait.priority for one in found for reading in one.readings for wait in reading.waits})
