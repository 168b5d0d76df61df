"""The screen of the live view without a terminal, for a run of which the tests say everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler.core.brain import Brain
from scheduler.core.reporting.run_history import AttemptHistory, RunSummary
from scheduler.ui.live.ports import BestTask, TaskDetails, TaskWords
from scheduler.ui.live.run_screen import RunScreen
from scheduler.ui.live.task_list import TaskRows

Values = Mapping[str, Sequence[float | None]]


class SaidTasks:
    """Tasks of which the texts are given by functions."""

    def __init__(
        self,
        name: Callable[[int], str],
        history: RunSummary,
        parameters: Mapping[int, Mapping[str, str]],
        values: Values,
    ) -> None:
        self._name, self._recent, self._parameters, self._values = name, history.recent, parameters, values
        self.given: BestTask | None = None

    def words(self, task: int) -> TaskWords:
        """Return the texts of a task; its script is the first word of its name."""
        name, parameters = self._name(task), self._parameters.get(task, {})
        return TaskWords(name, name.split()[0] if parameters else name, parameters)

    def varies(self) -> Sequence[str]:
        """Return the parameters that any task has."""
        return tuple(dict.fromkeys(name for one in self._parameters.values() for name in one))

    def ended(self) -> Sequence[int]:
        """Return the ended tasks of the history."""
        return list(reversed(self._recent))

    def last_attempt(self, task: int) -> AttemptHistory | None:
        """Return the last attempt of an ended task."""
        return self._recent.get(task)

    def metrics(self, task: int) -> Values:
        """Return the same values for every ended task."""
        return self._values

    def best(self) -> BestTask | None:
        """Return what the test gave."""
        return self.given


class NotedRequests:
    """Requests that are kept; each is answered with its own word."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...], dict[str, str]]] = []
        self.said: list[str] = []

    def ask(self, what: str, tasks: tuple[int, ...], said: Mapping[str, str]) -> None:
        """Keep a request."""
        self.asked.append((what, tasks, dict(said)))

    def answers(self) -> Sequence[str]:
        """Return the sentences that the test has put here, once."""
        said, self.said = self.said, []
        return said


class SaidDetails:
    """Details that the test gives."""

    def __init__(self, details: TaskDetails | None = None) -> None:
        self.given = details
        self.wanted: int | None = None

    def want(self, task: int | None) -> None:
        """Note the task whose page is open."""
        self.wanted = task

    def details(self) -> TaskDetails | None:
        """Return what the test gave."""
        return self.given


def screen(
    brain: Brain,
    history: RunSummary,
    name: Callable[[int], str] = str,
    parameters: Mapping[int, Mapping[str, str]] | None = None,
    values: Values | None = None,
    details: TaskDetails | None = None,
) -> RunScreen:
    """Return the screen of a run; `values` are the metrics of every ended task."""
    tasks = TaskRows(brain, SaidTasks(name, history, parameters or {}, values or {}))
    return RunScreen(tasks, NotedRequests(), SaidDetails(details))
