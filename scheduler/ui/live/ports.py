"""The ports of the live view: the texts of tasks, requests to the run, and the details of a task's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.core.metrics.record import MetricRecord
from scheduler.core.reporting.memory_timeline import Step
from scheduler.core.reporting.run_history import AttemptHistory
from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class TaskWords:
    """The texts of a task, without secrets."""

    name: str
    script: str
    """The name without the parameters that vary."""
    parameters: Mapping[str, str]
    """The parameters of the task that vary in its list."""


@dataclass(frozen=True, slots=True)
class BestTask:
    """The best value of the most important metric so far."""

    metric: str
    value: float
    task: int
    of: int
    """The number of tasks that were compared."""


@dataclass(frozen=True, slots=True)
class TaskDetails:
    """The part of a task's page that was read from files."""

    task: int
    command: str = ""
    why: str = ""
    """The state of the task and the reason for it, as one paragraph."""
    attempts: Sequence[AttemptHistory] = ()
    memory: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    """The reservation and the highest use of the last attempt over time, by the label of the device."""
    metrics: MetricRecord | None = None
    log: str = ""
    """The path of the last attempt's log; empty before the first."""
    lines: Sequence[str] = ()
    """The last lines of that log."""
    links: Sequence[str] = ()
    """The addresses at which trackers show the task."""
    trouble: str = ""
    """Why something could not be read."""


class RunTasks(Protocol):
    """The tasks of one run as the live view reads them: quick, and never blocking."""

    def words(self, task: int) -> TaskWords:
        """Return the texts of a task."""

    def varies(self) -> Sequence[str]:
        """Return the names of the parameters that vary."""

    def ended(self) -> Sequence[int]:
        """Return tasks that have ended, the last one first; not necessarily all."""

    def last_attempt(self, task: int) -> AttemptHistory | None:
        """Return the last attempt of a task that has ended, if it is known."""

    def metrics(self, task: int) -> Mapping[str, Sequence[float | None]]:
        """Return the last values of an ended task's metrics, as far as they were read."""

    def best(self) -> BestTask | None:
        """Return the best of the ended tasks whose metrics were read; None if none has a metric."""


class RunRequests(Protocol):
    """Requests to a run, sent in the background."""

    def ask(self, what: str, tasks: tuple[int, ...], said: Mapping[str, str]) -> None:
        """Send a request as the verb of that name does; return at once."""

    def answers(self) -> Sequence[str]:
        """Return the sentences that came in since the last call."""


class DetailReader(Protocol):
    """The reader of what a task's page shows, in the background."""

    def want(self, task: int | None) -> None:
        """Read this task again and again from now on; None: read no task."""

    def details(self) -> TaskDetails | None:
        """Return what was read last; None before the first time."""
