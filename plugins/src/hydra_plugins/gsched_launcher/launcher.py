"""`hydra/launcher=gsched`: each job of a sweep is a task, started by the user's own command line with its overrides."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from gpu_batch_scheduler_plugins._core import SubmittedTasks

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two checks of the jobs."""
OWN = ("queue", "name")
"""The options that are not fields of a task."""


class GschedLauncher(Launcher):
    """The launcher that runs jobs as tasks of a standing queue on this machine; it waits for all jobs of a batch."""

    def __init__(self, **options: Any) -> None:
        self._queue = str(options["queue"])
        self._name = str(options["name"])
        plain = {
            name: OmegaConf.to_container(one) if OmegaConf.is_config(one) else one for name, one in options.items()
        }
        self._fields = {name: value for name, value in plain.items() if name not in OWN and value is not None}
        self._config: DictConfig | None = None
        self._context: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        """Note the configuration of the sweep for `launch`."""
        self._config, self._context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs of a batch, and return the results of the jobs. Ctrl-C cancels the jobs."""
        from gpu_batch_scheduler_plugins._core import submit

        assert self._config is not None
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        sweep_dir = Path(str(self._config.hydra.sweep.dir))
        sweep_dir.mkdir(parents=True, exist_ok=True)
        jobs = [self._task(list(job), initial_job_idx + nth) for nth, job in enumerate(job_overrides)]
        tasks = submit(jobs, queue=self._queue)
        for nth, (task, job) in enumerate(zip(tasks.ids, job_overrides, strict=True), initial_job_idx):
            log.info("\t#%d : %s (task %d)", nth, " ".join(filter_overrides(job)), task)
        try:
            self._wait(tasks, initial_job_idx)
        except KeyboardInterrupt:
            log.info("cancelling the jobs of the sweep that have not ended (scheduler list r%d)", tasks.run)
            tasks.cancel()
            raise
        found = {task["id"]: task for task in tasks.tasks}
        return [
            self._returned(tasks, found[task], list(job)) for task, job in zip(tasks.ids, job_overrides, strict=True)
        ]

    def _task(self, overrides: list[str], number: int) -> Any:
        """Return the task of a job: the user's command line with the job's overrides, and one additional word for the
        callback.
        """
        from gpu_batch_scheduler_plugins._core import Task
        from gpu_batch_scheduler_plugins.hydra_job import command_of_job, command_of_program

        assert self._config is not None
        folder, subdir = self._directory(overrides, number)
        command = command_of_program(self._config)
        kept = OmegaConf.to_container(self._config.hydra.overrides.hydra, resolve=False)
        words = command_of_job(command, overrides, kept, number, folder, subdir)
        name = f"{self._name} {' '.join(filter_overrides(overrides))}".strip()
        return Task(command=words, name=name, **self._fields)

    def _directory(self, overrides: list[str], number: int) -> tuple[str, str]:
        """Return the directory of the sweep, and the job's directory relative to it."""
        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        with open_dict(config.hydra.job):
            config.hydra.job.id, config.hydra.job.num = str(number), number
        before = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(config)
        try:
            return str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir)
        finally:
            HydraConfig.instance().cfg = before

    def _wait(self, tasks: SubmittedTasks, first: int) -> None:
        """Wait until all jobs have ended; log each that does not succeed."""
        numbers = {task: number for number, task in enumerate(tasks.ids, first)}
        known: dict[int, str] = {}
        going_on = True
        while going_on:
            try:
                states = tasks.wait(LOOK)
                going_on = False
            except TimeoutError:
                states = tasks.states()
            for task, state in states.items():
                if state in ("failed", "oom", "timeout", "cancelled", "refused") and known.get(task) != state:
                    log.warning("\t#%d : %s (scheduler logs %d)", numbers[task], state, task)
            known = states

    def _returned(self, tasks: SubmittedTasks, task: Mapping[str, Any], overrides: list[str]) -> JobReturn:
        """Return the return value of a job; if there is none, return an error that says how the job ended."""
        from gpu_batch_scheduler_plugins._core import StateError
        from gpu_batch_scheduler_plugins.hydra_job import return_file

        path = return_file(tasks.directory(task["id"]), task["attempts"])
        reason = ""
        try:
            with open(path, "rb") as file:
                found: JobReturn = pickle.load(file)
            if task["state"] == "succeeded" or found.status is JobStatus.FAILED:
                return found
        except OSError:
            pass
        except Exception as exc:  # noqa: BLE001  # objects of the user raise anything as they are read
            reason = f", but its return value cannot be read here: {exc}"
        how = reason or (f": {task['reason']}" if task["reason"] else f" (exit {task['exit_code']})")
        error = StateError(f"task {task['id']} ended as {task['state']}{how}; its output: scheduler logs {task['id']}")
        lost = JobReturn(overrides=overrides, task_name=self._name, status=JobStatus.FAILED)
        lost.return_value = error
        return lost
