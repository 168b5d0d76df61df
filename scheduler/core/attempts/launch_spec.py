"""Launch specifications for the engine and the samplers: command, environment and files of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath, PurePosixPath
from signal import Signals
from typing import Protocol

from scheduler.core.leases import HeldLease
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, Job, Placement, Purpose, Warn
from scheduler.core.ports import Devices, FenceLaunch, GpuSharing, Launch, MemoryFence, MpsLaunch, Watched
from scheduler.core.tasks import command
from scheduler.core.tasks.launchers import LauncherCalls
from scheduler.values import dataclass, replace

_FAILING = ("/bin/sh", "-c", 'echo "scheduler: $1" >&2; exit 78', "scheduler")
"""The command that replaces a task's command whose placeholders cannot be filled in: it writes the reason to the log
and exits with code 78 (EX_CONFIG)."""
_UNATTENDED = MpsLaunch({}, (), -1)
_PORT_VARIABLES = ("MASTER_PORT", "PET_MASTER_PORT")
"""The variables that tell a program its network port: torch's `env://` and Lightning read the first, torchrun the
second."""
_ADDRESS = "MASTER_ADDR"
_HERE = (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0")
"""Values of MASTER_ADDR that mean this machine."""


class TaskPaths(Protocol):
    """The paths of a task's files."""

    def task(self, task: int) -> str:
        """Return the directory in which a task may leave files."""

    def result(self, task: int, attempt: int) -> str:
        """Return the path of an attempt's result file."""

    def value(self, task: int, attempt: int) -> str:
        """Return the path of the file for the value that a Python function returns."""

    def progress(self, task: int, attempt: int) -> str:
        """Return the path of an attempt's progress file."""

    def metrics(self, task: int, attempt: int) -> str:
        """Return the path of the file that records an attempt's metrics."""

    def task_log(self, task: int, attempt: int) -> PurePath:
        """Return the path of an attempt's log."""

    def task_errors(self, task: int, attempt: int) -> PurePath:
        """Return the path of an attempt's file for standard error, if standard error is kept apart from the log."""


APART = "apart"
"""The value of Stderr that sends standard error to a file of its own, separate from the log."""


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The part of a task's environment that is equal for all tasks of a run."""

    run: str
    python: str
    directory: str
    places: TaskPaths
    environ: Mapping[str, str]
    """The variables with which the environment of every task begins."""
    metrics: str = ""
    """The metrics to look for in output, separated by commas; empty: the default metrics."""
    watched: str = ""
    """The metrics by which tasks are stopped early, separated by commas."""
    same_id: bool = False
    """True if a probe uses its task's own id, as in the older batch-by-batch tool."""
    fence: MemoryFence | None = None
    """The limit on the GPU memory of tasks outside of MPS; None if the run sets no such limit."""


class LaunchBuilder:
    """The builder of launch specifications for one run."""

    def __init__(
        self, around: TaskEnvironment, devices: Devices, profile_epochs: int, sharing: GpuSharing | None = None
    ) -> None:
        self._around = around
        self._devices = devices
        self._numbers: dict[str, str] = {}
        self._sharing = sharing
        self._profile_epochs = profile_epochs
        self._directory = ("", str(PurePosixPath(around.directory)))
        """The directory that was resolved last, as its row names it, and the resolved path."""

    def launch(self, placement: Placement, job: Job, lease: HeldLease) -> Launch:
        """Return the launch specification of a placement."""
        terms = job.spec.terms
        told = placement.told or placement.task
        asked, timed = terms.stop_signal, placement.purpose is Purpose.RUN
        attended = _UNATTENDED
        if placement.percentage and self._sharing is not None:
            attended = self._sharing.attend(placement)
        python = job.shell.python if job.shell is not None else self._around.python
        try:
            argv = command.argv(job.spec, told, self._epochs(placement, job), python, job.append, job.results)
        except LookupError as exc:
            argv = (*_FAILING, str(exc.args[0]))
        if job.append == command.ONE_SHOT:
            argv = command.numbered(argv, self._indices(placement))
        calls = LauncherCalls(command.meant([*argv]) if terms.guest else argv)
        if job.adapts and placement.port and not terms.guest:
            argv = calls.adapted(str(placement.port), len(placement.sees))
        environ = self._environment(placement, job, attended, calls)
        fenced = self._limit(placement, argv, environ)
        return Launch(
            placement.task,
            placement.attempt,
            placement.purpose,
            argv,
            self._where(job.spec.directory),
            {**environ, **fenced.environ},
            terms.timeout if timed else None,
            terms.grace,
            int(Signals.SIGTERM) if isinstance(asked, Warn) else asked,
            lease.path,
            lease.fd,
            asked if timed and isinstance(asked, Warn) else None,
            job.spec.stdout,
            self._stderr(placement, job),
            attended.ending,
            attended.kept_fd,
            job.shell.bounds if job.shell is not None else None,
            bool(placement.sees),
            placement.node,
            fenced.limits,
            saves=terms.resumable,
        )

    def _limit(self, placement: Placement, argv: Sequence[str], environ: Mapping[str, str | None]) -> FenceLaunch:
        """Return the limit on an attempt's GPU memory. It is empty for an attempt without GPUs, and under MPS, which
        has a limit of its own.
        """
        fence = self._around.fence
        if fence is None or not placement.sees or placement.percentage:
            return FenceLaunch()
        return fence.limit(placement, argv, {**self._around.environ, **environ})

    def directory(self, job: Job) -> str:
        """Return the directory in which a task runs."""
        return self._where(job.spec.directory)

    def _where(self, said: str) -> str:
        """Return the directory in which a task runs; the last result is cached, because most rows name the same
        directory.
        """
        if said != self._directory[0]:
            self._directory = (said, str(PurePosixPath(self._around.directory, said)))
        return self._directory[1]

    def _stderr(self, placement: Placement, job: Job) -> str:
        """Return the file for standard error; empty if standard error goes to the log."""
        if job.spec.stderr != APART:
            return job.spec.stderr
        return str(self._around.places.task_errors(placement.task, placement.attempt))

    def _environment(
        self, placement: Placement, job: Job, attended: MpsLaunch, calls: LauncherCalls
    ) -> dict[str, str | None]:
        """Return the task's environment: the documented variables, then the variables for its devices, its Python
        environment and its row.
        """
        places, key = self._around.places, (placement.task, placement.attempt)
        told: dict[str, str | None] = {
            **(job.shell.environ if job.shell is not None else {}),  # first, so that all below overrides it
            "SCHEDULER_TASK_ID": str(placement.told or placement.task),
            "SCHEDULER_ATTEMPT": str(placement.attempt),
            "SCHEDULER_KEY": job.key,
            "SCHEDULER_NAME": job.name,
            "SCHEDULER_RUN": self._around.run,
            "SCHEDULER_PURPOSE": str(placement.purpose),
            "SCHEDULER_EPOCHS": str(self._epochs(placement, job) or ""),
            "SCHEDULER_MEMORY_BYTES": str(max([placement.reservation[key] for key in placement.devices], default=0)),
            "SCHEDULER_HOST_MEMORY_BYTES": str(placement.reservation.get(HOST, 0)),
            "SCHEDULER_GPU_INDICES": self._indices(placement),
            "SCHEDULER_TASK_DIR": places.task(placement.told or placement.task),
            "SCHEDULER_RESULT": places.result(*key),
            "SCHEDULER_PROGRESS": places.progress(*key),
            "PYTHONUNBUFFERED": "1",
        }
        if placement.purpose is Purpose.PROBE and "WANDB_MODE" not in self._around.environ:
            told["WANDB_MODE"] = "disabled"
        told.update(self._devices.environment_for(placement, numbers=calls.reads_numbers))
        if job.append == command.ONE_SHOT and placement.sees:
            told["GPU"] = ",".join(f"cuda{number}" for number in self._devices.cuda_numbers(placement))
        if not calls.crosses_machines:
            told.update(self._ports(placement, job))
        told.update(attended.environ)
        told.update(job.environ)
        told.update(job.spec.env)
        return told

    def _ports(self, placement: Placement, job: Job) -> dict[str, str | None]:
        """Return the variables that tell the task's processes the port that is kept for it.

        A port in the run's environment is replaced, because all tasks would share it. If MASTER_ADDR names another
        machine, nothing is replaced.
        """
        shell = job.shell.environ if job.shell is not None else {}
        named = [said[_ADDRESS] for said in (dict(job.spec.env), shell, self._around.environ) if _ADDRESS in said]
        if not placement.port or (named and named[0] not in _HERE):
            return {}
        return dict.fromkeys(_PORT_VARIABLES, str(placement.port))

    def _epochs(self, placement: Placement, job: Job) -> int | None:
        epochs = job.spec.terms.epochs
        if placement.purpose is Purpose.PROBE and epochs is not None:
            return min(epochs, self._profile_epochs)
        return epochs

    def _indices(self, placement: Placement) -> str:
        """Return the numbers that nvidia-smi gives to the GPUs of an attempt."""
        gpus = placement.sees
        if not self._numbers.keys() >= set(gpus):  # MIG instances may be made during the run
            self._numbers = {device.key: str(device.index) for device in self._devices.discover()}
        return ",".join([self._numbers.get(key, "") for key in gpus])

    def watched(self, task: TaskState, shim: int, guest: int = 0) -> Watched:
        """Return what a sampler needs to know about a living attempt; `guest` is the pid of a process outside of the
        attempt for which the attempt holds devices; 0: none.
        """
        assert task.placement is not None
        places, key = self._around.places, (task.id, task.attempts)
        visible = dict.fromkeys(task.placement.visible, 0)
        settled = task.settled or not task.placement.source.is_watched
        return Watched(
            shim,
            (
                str(places.task_log(*key)),
                places.progress(*key),
                places.result(*key),
                places.metrics(*key),
                self._around.metrics,
                self._around.watched,
            ),
            {**visible, **task.placement.reservation},
            settled,
            task.placement.percentage > 0,
            task.placement.ram_expected,
            guest,
            bool(task.placement.visible or (task.placement.gpus and not settled)) and not task.without,
        )


def with_ports(taken: Sequence[tuple[Placement, HeldLease]]) -> list[Placement]:
    """Return the placements that got a lease, each with the port that is kept for it."""
    return [replace(placement, port=lease.port) if lease.port else placement for placement, lease in taken]
