"""`OptunaRunner`: the trials of an Optuna study as tasks, pruned by the metrics that they report while they run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from gpu_batch_scheduler_plugins._core import SubmittedTasks, Task, UsageError, submit

if TYPE_CHECKING:
    from optuna import Study, Trial

log = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between two checks of the trials."""
ENDED = ("succeeded", "failed", "oom", "timeout", "cancelled", "refused", "skipped", "pruned")
TRIAL = "trial"
"""The column with the number of a trial, which fills `{trial}` in the command."""


class OptunaRunner:
    """The runner of one study: it asks for trials, runs each as a task of a standing queue, and reports their values to
    the study.

    The program of a trial need not import Optuna: it prints the usual epoch lines, or writes to SCHEDULER_RESULT.
    """

    def __init__(
        self,
        study: Study,
        command: str | Sequence[str],
        space: Callable[[Trial], Mapping[str, Any]],
        *,
        metric: str | Sequence[str],
        at_once: int = 8,
        queue: str = "queue",
        **fields: Any,
    ) -> None:
        """Prepare a runner.

        `space` suggests the parameters of a trial and returns what fills `{name}` in the command; `{trial}` is the
        trial's number. `metric` is what the study optimises, by its name in `scheduler results`; several for several
        objectives. `at_once` trials are asked for before the first has ended; memory decides how many of them run.
        `fields` are fields of the tasks.
        """
        self._study, self._command, self._space, self._queue = study, command, space, queue
        self._metrics = [metric] if isinstance(metric, str) else list(metric)
        if len(self._metrics) != len(study.directions):
            raise UsageError(
                f"the study has {len(study.directions)} objectives and metric names {len(self._metrics)}: "
                "name one for each"
            )
        if at_once < 1:
            raise UsageError(f"at_once={at_once}: at least one trial has to run")
        self._at_once, self._fields = at_once, fields
        self._trials: dict[int, Trial] = {}
        """The trials whose tasks have not ended, by task id."""
        self._steps: dict[int, set[int]] = {}
        """The steps that were reported to the study, by task id."""
        self._tasks = SubmittedTasks(0, ())

    def optimize(self, n_trials: int, timeout: float | None = None) -> Study:
        """Run trials and return the study; after `timeout` seconds, start no more trials. Ctrl-C cancels the running
        trials.
        """
        end = None if timeout is None else time.monotonic() + timeout
        left = n_trials
        try:
            while left or self._trials:
                if end is not None and time.monotonic() >= end:
                    left = 0
                if new := min(left, self._at_once - len(self._trials)):
                    self._start(new)
                    left -= new
                self._look()
        except BaseException:
            self._give_up()
            raise
        return self._study

    def _start(self, number: int) -> None:
        """Ask the study for trials, and submit them at once."""
        trials = [self._study.ask() for _ in range(number)]
        try:
            accepted = submit([self._task(trial) for trial in trials], queue=self._queue)
        except BaseException:
            for trial in trials:
                self._study.tell(trial, state=TrialState.FAIL)
            raise
        ids = (*self._trials, *accepted.ids) if accepted.run == self._tasks.run else accepted.ids
        if accepted.run != self._tasks.run and self._trials:  # the queue began anew; those of before have ended
            self._look()
        self._trials |= dict(zip(accepted.ids, trials, strict=True))
        self._steps |= {task: set() for task in accepted.ids}
        self._tasks = SubmittedTasks(accepted.run, ids, accepted.queue, accepted.state)

    def _task(self, trial: Trial) -> Task:
        said = dict(self._space(trial))
        more = dict(self._fields)
        epochs = [name for name in said if name.lower() == "epochs"]
        if epochs:  # a field of every task, which fills {epochs}
            more["epochs"] = said.pop(epochs[0])
        name = " ".join([f"trial {trial.number}", *(f"{key}={value}" for key, value in said.items())])
        return Task(command=self._command, name=name, columns={TRIAL: trial.number, **said}, **more)

    def _look(self) -> None:
        """Wait for a moment, then report the new points of curves, and the values of trials that have ended."""
        try:
            states = self._tasks.wait(LOOK)
        except TimeoutError:
            states = self._tasks.states()
        curves = self._tasks.curves() if len(self._metrics) == 1 else {}
        ended = [task for task in self._trials if states.get(task) in ENDED]
        for task in list(self._trials):
            if task not in ended and self._should_stop(task, curves.get(task, {})):
                self._prune(task)
        if ended:
            rows = {row["id"]: row for row in self._tasks.tasks}
            for task in ended:
                self._report(task, curves.get(task, {}))
                self._tell(self._trials.pop(task), rows[task])

    def _report(self, task: int, curves: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
        """Report the new points of a task's curve to the study; return whether there were any."""
        known = self._steps[task]
        new = [(int(step), value) for step, value in curves.get(self._metrics[0], ()) if int(step) not in known]
        for step, value in new:
            known.add(step)
            self._trials[task].report(value, step)
        return bool(new)

    def _should_stop(self, task: int, curves: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
        return self._report(task, curves) and self._trials[task].should_prune()

    def _prune(self, task: int) -> None:
        trial = self._trials.pop(task)
        self._tasks.cancel(task)
        self._study.tell(trial, state=TrialState.PRUNED)
        log.info("trial %d pruned at step %d (task %d)", trial.number, max(self._steps[task]), task)

    def _tell(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Report to the study the values of a trial whose task has ended."""
        values = [row.get(f"result.{name}") for name in self._metrics]
        if row["state"] == "pruned":
            self._study.tell(trial, state=TrialState.PRUNED)
        elif row["state"] == "succeeded" and None not in values:
            self._study.tell(trial, [float(str(value)) for value in values])
            log.info("trial %d: %s (task %d)", trial.number, values, row["id"])
        else:
            why = f"it reported no {', '.join(self._metrics)}" if row["state"] == "succeeded" else row["state"]
            log.warning("trial %d failed: %s (scheduler logs %d)", trial.number, why, row["id"])
            self._study.tell(trial, state=TrialState.FAIL)

    def _give_up(self) -> None:
        """Cancel all trials that have not ended."""
        self._tasks.cancel(*self._trials)
        for trial in self._trials.values():
            self._study.tell(trial, state=TrialState.FAIL)
        self._trials.clear()
