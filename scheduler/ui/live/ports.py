"""The ports of the live view: texts of tasks, requests to the run, and the details on a task's page."""

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
    """The name of the task without the parameters that vary in its list."""
    parameters: Mapping[str, str]
    """The parameters of the task that vary in its list."""


@dataclass(frozen=True, slots=True)
class BestTask:
    """The task with the best value so far of the most important metric."""

    metric: str
    value: float
    task: int
    of: int
    """The number of tasks among which this one is the best."""


@dataclass(frozen=True, slots=True)
class TaskDetails:
    """The part of a task's page that is read from files."""

    task: int
    command: str = ""
    why: str = ""
    """The state of the task and the reason for it, as one paragraph."""
    attempts: Sequence[AttemptHistory] = ()
    memory: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    """The reservation and the highest use of the last attempt over time, by the label of each device."""
    metrics: MetricRecord | None = None
    log: str = ""
    """The path of the last attempt's log; empty before the first attempt."""
    lines: Sequence[str] = ()
    """The last lines of the log."""
    links: Sequence[str] = ()
    """The addresses of the task's pages in trackers such as MLflow."""
    trouble: str = ""
    """A sentence about a file that could not be read; empty if all could."""


class RunTasks(Protocol):
    """The tasks of one run as the live view reads them; all methods are quick and never block."""

    def words(self, task: int) -> TaskWords:
        """Return the texts of a task."""

    def varies(self) -> Sequence[str]:
        """Return the names of the parameters that vary."""

    def ended(self) -> Sequence[int]:
        """Return tasks that have ended, most recent first; some may be missing."""

    def last_attempt(self, task: int) -> AttemptHistory | None:
        """Return the last attempt of a task that has ended; None if it is not known."""

    def metrics(self, task: int) -> Mapping[str, Sequence[float | None]]:
        """Return the last values of an ended task's metrics, as far as they were read."""

    def best(self) -> BestTask | None:
        """Return the best task among the ended tasks whose metrics were read; None if none of them has a metric."""


class RunRequests(Protocol):
    """The sender of requests to a run, which works in the background."""

    def ask(self, what: str, tasks: tuple[int, ...], said: Mapping[str, str]) -> None:
        """Send the request that the verb `what` would send; return at once."""

    def answers(self) -> Sequence[str]:
        """Return the sentences that arrived as answers since the last call."""


class DetailReader(Protocol):
    """The reader of the details on a task's page, which works in the background."""

    def want(self, task: int | None) -> None:
        """Read the details of this task repeatedly from now on; None: read no task."""

    def details(self) -> TaskDetails | None:
        """Return the details that were read last; None before the first reading."""
