"""submitit's executor `gsched`: its jobs are tasks of the user's standing queue on this machine.

`AutoExecutor(cluster="gsched")` finds it by its entry point. A batch or an array is one submission.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from gpu_batch_scheduler_plugins import submitit_task
from gpu_batch_scheduler_plugins._core import SubmittedTasks, Task, literal, submit
from gpu_batch_scheduler_plugins.call_words import name_of_call, words_of_call

NAME = "gsched"
GENERIC = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node",
           "stderr_to_stdout")  # fmt: skip
"""The parameters that submitit defines for every cluster."""
FIELDS = ("memory", "host_memory", "priority", "retries", "retry_on", "device", "prefer", "exclusive", "preempt",
          "grace", "after", "begin", "hold", "env")  # fmt: skip
"""The parameters that are fields of a task, with the meaning that they have in a list."""
OWN = ("queue", "setup", "signal_delay_s", *FIELDS)
FOR_EVER = 60 * 24 * 365 * 10
"""The time limit in minutes that submitit is told for a job without a limit."""
WARNING = 90
"""The default number of seconds before the time limit at which a job is told to save its state; at most half of the
limit.
"""
STATES = {
    "waiting": "PENDING", "held": "PENDING", "blocked": "PENDING", "probing": "RUNNING", "running": "RUNNING",
    "succeeded": "COMPLETED", "failed": "FAILED", "oom": "OUT_OF_MEMORY", "timeout": "TIMEOUT",
    "interrupted": "PREEMPTED", "cancelled": "CANCELLED", "refused": "FAILED", "skipped": "CANCELLED",
    "pruned": "CANCELLED",
}  # fmt: skip
"""The words for the states of tasks that submitit's users know."""
PAUSES = (0.05, 1.0)
"""The shortest and the longest pause, in seconds, between two checks of a job."""


class GschedInfoWatcher(core.InfoWatcher):
    """The states of all jobs of this process, read from the journals of their runs at most every few milliseconds."""

    def __init__(self, delay_s: int = 60) -> None:
        super().__init__(delay_s)
        self._groups: dict[int, SubmittedTasks] = {}
        """The registered tasks, by the number of their run."""

    def know(self, tasks: SubmittedTasks) -> None:
        """Register tasks with their run, so that the run need not be searched for."""
        known = self._groups.get(tasks.run)
        ids = dict.fromkeys((*(known.ids if known is not None else ()), *tasks.ids))
        self._groups[tasks.run] = SubmittedTasks(tasks.run, ids, tasks.queue, tasks.state)

    def tasks_of(self, job_id: str) -> SubmittedTasks:
        """Return the task of a job; raise SchedulerError if the job has none."""
        task = int(job_id)
        known = next((group for group in self._groups.values() if task in group.ids), None)
        if known is None:
            known = SubmittedTasks.find([task])
            self.know(known)
        return SubmittedTasks(known.run, [task], known.queue, known.state)

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of a job in one of submitit's words."""
        return self.get_info(job_id, mode=mode).get("State") or "UNKNOWN"

    def update_if_long_enough(self, mode: str) -> None:
        """Read the states, unless they were read a moment ago; reading new events takes less than a millisecond.

        The mode `force` always reads them, and the mode `cache` never does.
        """
        if mode == "force" or (mode != "cache" and time.time() - self._last_status_check > PAUSES[0] / 2):
            self.update()

    def update(self) -> None:
        """Read the states of all registered jobs, and start a queue again if its scheduler was killed."""
        self._num_calls += 1
        for job_id in self._registered - self._finished:
            self.tasks_of(job_id)
        for tasks in self._groups.values():
            tasks.keep_alive()
            for task, state in tasks.states().items():
                self._info_dict[str(task)] = {"State": STATES.get(state, "UNKNOWN"), "gsched": state}
        self._last_status_check = time.time()
        self._finished |= {job_id for job_id in self._registered if self.is_done(job_id, mode="cache")}


class GschedJob(core.Job[Any]):
    """A task of a queue as a job of submitit; its id is the task's id."""

    watcher = GschedInfoWatcher()
    _results_timeout_s = 0  # the result was written before the task ended, on this machine

    def done(self, force_check: bool = False) -> bool:
        """Tell whether the task has ended. The result of an attempt that will be retried does not count."""
        return bool(self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"))

    def wait(self) -> None:
        """Wait until the task has ended. Raise SchedulerError if its queue was stopped."""
        pause = PAUSES[0]
        while not self.done():
            time.sleep(pause)
            pause = min(1.2 * pause, PAUSES[1])

    def cancel(self, check: bool = True) -> None:
        """Cancel the task; with `check`, wait until the task has ended, so that its state shows the cancellation."""
        task = self.watcher.tasks_of(self.job_id)
        task.cancel()
        if check:
            task.wait()
            self.done(force_check=True)

    def _get_logs_string(self, name: str) -> str | None:
        """Return the log of all attempts."""
        path = {"stdout": self.paths.stdout, "stderr": self.paths.stderr}[name]
        if not path.is_symlink():
            found: str | None = super()._get_logs_string(name)
            return found
        last = Path(os.readlink(path))
        attempts = sorted(last.parent.glob(f"*{last.suffix}"), key=lambda one: (len(one.name), one.name))
        return "".join(one.read_text(errors="replace") for one in attempts if one.stem.isdecimal())


class GschedExecutor(core.PicklingExecutor):
    """The executor of jobs on this machine, packed by their memory.

    `python` is the command of another interpreter for the jobs; `queue` is the standing queue that they join.
    """

    job_class = GschedJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
        queue: str = "queue",
    ) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout, max_pickle_size_gb=max_pickle_size_gb)
        self.python = shlex.split(python) if python is not None else [sys.executable]
        self.queue = queue
        utils.JobPaths.get_first_id_independent_folder(self.folder).mkdir(parents=True, exist_ok=True)

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(OWN)

    @classmethod
    def affinity(cls) -> int:
        """Return a high preference for this executor on a machine without Slurm: there, users have installed it on
        purpose.
        """
        return -1 if shutil.which("srun") else 2

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Set parameters; raise ValueError for unknown names, and for values that one machine cannot provide."""
        unknown = sorted(kwargs.keys() - {*GENERIC, *OWN})
        if unknown:
            raise ValueError(f"gsched has no parameter {', '.join(unknown)}; it has {', '.join((*GENERIC, *OWN))}")
        merged = {**self.parameters, **kwargs}
        _check(merged)
        self.parameters.update(kwargs)

    def _num_tasks(self) -> int:
        return int(self.parameters.get("tasks_per_node", 1))

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit all calls at once, as tasks of one queue; return their jobs."""
        files = self._pickled(delayed_submissions)
        try:
            tasks = [self._task(file, call) for file, call in zip(files, delayed_submissions, strict=True)]
            accepted = submit(tasks, queue=self.parameters.get("queue", self.queue))
        except BaseException:
            for file in files:
                file.unlink(missing_ok=True)
            raise
        self.job_class.watcher.know(accepted)
        return [self._job(file, task) for file, task in zip(files, accepted.ids, strict=True)]

    def _pickled(self, calls: Sequence[utils.DelayedSubmission]) -> list[Path]:
        """Write the calls to files; if a call is larger than allowed, leave no file and raise RuntimeError."""
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        limit, size, files = self.max_pickle_size_gb * 1024**3, 0, list[Path]()
        try:
            for call in calls:
                files.append(folder / f"{uuid.uuid4().hex}.pkl")
                call.set_timeout(self.parameters.get("timeout_min", FOR_EVER), self.max_num_timeout)
                call.dump(files[-1])
                size += files[-1].stat().st_size
                if size > limit:
                    raise RuntimeError(
                        f"{len(files)} of {len(calls)} calls take {size / 1024**2:.1f} MiB as pickles in {folder}, "
                        f"more than max_pickle_size_gb={self.max_pickle_size_gb:g}: save large objects once and pass "
                        "their paths, or raise the limit"
                    )
        except BaseException:
            for file in files:
                file.unlink(missing_ok=True)
            raise
        return files

    def _task(self, file: Path, call: utils.DelayedSubmission) -> Task:
        said = words_of_call(call.function, call.args, call.kwargs)
        given = literal(f"--id={file.stem}:{self.folder}")  # the argument --id is no part of what determines memory
        command = [*map(literal, self._start()), "-m", submitit_task.__name__, given, *said]
        return Task(command=command, **self._fields(name_of_call(call.function)))

    def _start(self) -> list[str]:
        """Return the command that starts the interpreter, after the commands of `setup` if there are any."""
        setup = self.parameters.get("setup", ())
        if not setup:
            return [*self.python, "-u"]
        return ["/bin/sh", "-c", " && ".join([*setup, 'exec "$@"']), "setup", *self.python, "-u"]

    def _fields(self, function: str) -> dict[str, Any]:
        """Return the fields of a task according to the parameters."""
        said, ranks = self.parameters, self._num_tasks()
        fields: dict[str, Any] = {name: said[name] for name in FIELDS if name in said}
        fields["name"] = said.get("name") or function
        fields["env"] = {**_own_environment(ranks), **fields.get("env", {})}
        fields["resumable"] = True
        if "mem_gb" in said:
            fields["host_memory"] = f"{max(1, round(said['mem_gb'] * 1024))}MiB"
        if "cpus_per_task" in said:
            fields["cpus"] = said["cpus_per_task"] * ranks
        if "gpus_per_node" in said:
            fields["gpus"] = said["gpus_per_node"]
        if not said.get("stderr_to_stdout", False):
            fields["stderr"] = "apart"
        if "timeout_min" in said:
            limit = said["timeout_min"] * 60
            fields["timeout"] = f"{limit:g}s"
            delay = said.get("signal_delay_s", min(WARNING, limit // 2))
            fields["stop_signal"] = f"{submitit_task.timeout_signal()}@{delay:g}" if delay else "TERM"
        return fields

    def _job(self, file: Path, task: int) -> core.Job[Any]:
        job = self.job_class(folder=self.folder, job_id=str(task), tasks=list(range(self._num_tasks())))
        submitit_task.adopt(file, job.paths)
        return job

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        raise NotImplementedError("gsched submits calls, not commands: use submitit.helpers.CommandFunction")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        raise NotImplementedError("gsched submits calls, not commands: use submitit.helpers.CommandFunction")

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        raise NotImplementedError("gsched submits calls, not commands: use submitit.helpers.CommandFunction")


def _own_environment(ranks: int) -> Mapping[str, str]:
    return {"SUBMITIT_EXECUTOR": NAME, submitit_task.RANKS: str(ranks)}


def _check(said: Mapping[str, Any]) -> None:
    """Raise ValueError for parameters that one machine cannot provide, or that contradict each other."""
    if said.get("nodes", 1) > 1:
        raise ValueError(f"nodes={said['nodes']}: gsched has one machine; leave nodes out, or use cluster='slurm'")
    if said.get("tasks_per_node", 1) < 1:
        raise ValueError(f"tasks_per_node={said['tasks_per_node']}: a job has at least one task")
    if "mem_gb" in said and "host_memory" in said:
        raise ValueError(
            f"mem_gb={said['mem_gb']} and host_memory={said['host_memory']!r} both say how much RAM a job needs: "
            "leave one out (memory= is that of each GPU)"
        )
    delay = said.get("signal_delay_s")
    if delay and "timeout_min" not in said:
        raise ValueError(f"signal_delay_s={delay} needs a time limit: set timeout_min too")
    if delay and delay >= said["timeout_min"] * 60:
        raise ValueError(
            f"signal_delay_s={delay} is not below the time limit of {said['timeout_min'] * 60:g} s (timeout_min)"
        )
    if isinstance(said.get("setup"), str):
        raise ValueError(f"setup={said['setup']!r}: write a list of shell commands")
