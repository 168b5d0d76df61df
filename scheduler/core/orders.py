"""What a placement is for the engine and the samplers: a command, its environment, where its files lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath, PurePosixPath
from signal import Signals
from typing import Protocol

from scheduler.core import command
from scheduler.core.lifecycle import Task
from scheduler.core.model import HOST, Job, KnownBy, Placement, Purpose, Warn
from scheduler.core.ports import Attended, Devices, Launch, Sharing, Watched
from scheduler.core.promises import Taken
from scheduler.values import dataclass

_UNATTENDED = Attended({}, (), -1)


class TaskPlaces(Protocol):
    """Where a task's files lie."""

    def task(self, task: int) -> str:
        """The folder it may leave files in."""

    def result(self, task: int, attempt: int) -> str:
        """Where it may leave its result."""

    def progress(self, task: int, attempt: int) -> str:
        """Where it may say how far it is."""

    def task_log(self, task: int, attempt: int) -> PurePath:
        """Where its output goes."""

    def task_errors(self, task: int, attempt: int) -> PurePath:
        """Where its errors go, if they are kept apart from that."""


APART = "apart"
"""As Stderr: in a file of its own, beside the log."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every task of the run is told besides its own row."""

    run: str
    python: str
    directory: str
    places: TaskPlaces
    environ: Mapping[str, str]
    """The environment that every task of the run starts from."""
    same_id: bool = False
    """Whether a probe goes by its task's own id, as in the batch-by-batch original."""


class Orders:
    """Writes the orders of one run."""

    def __init__(
        self, around: Surroundings, devices: Devices, profile_epochs: int, sharing: Sharing | None = None
    ) -> None:
        self._around = around
        self._devices = devices
        self._numbers: dict[str, str] = {}
        self._sharing = sharing
        self._profile_epochs = profile_epochs
        self._directory = ("", str(PurePosixPath(around.directory)))
        """The last that a row said, and where that is."""

    def launch(self, placement: Placement, job: Job, lease: Taken) -> Launch:
        """What the engine needs to start a placement."""
        terms = job.spec.terms
        told = placement.told or placement.task
        asked, timed = terms.stop_signal, placement.purpose is Purpose.RUN
        attended = _UNATTENDED
        if placement.percentage and self._sharing is not None:
            attended = self._sharing.attend(placement)
        argv = command.argv(job.spec, told, self._epochs(placement, job), self._around.python, job.append)
        if job.append == command.ONE_SHOT:
            argv = command.numbered(argv, self._indices(placement))
        return Launch(
            placement.task,
            placement.attempt,
            placement.purpose,
            argv,
            self._where(job.spec.directory),
            self._environment(placement, job, attended),
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
            bool(placement.gpus),
        )

    def _where(self, said: str) -> str:
        """The directory a task runs in; most rows say the same."""
        if said != self._directory[0]:
            self._directory = (said, str(PurePosixPath(self._around.directory, said)))
        return self._directory[1]

    def _stderr(self, placement: Placement, job: Job) -> str:
        """Where its errors go; empty: to its log."""
        if job.spec.stderr != APART:
            return job.spec.stderr
        return str(self._around.places.task_errors(placement.task, placement.attempt))

    def _environment(self, placement: Placement, job: Job, attended: Attended) -> dict[str, str | None]:
        """What interface promises a task to find, then the devices' own, its Python's, and what the row says."""
        places, key = self._around.places, (placement.task, placement.attempt)
        told: dict[str, str | None] = {
            "SCHEDULER_TASK_ID": str(placement.told or placement.task),
            "SCHEDULER_ATTEMPT": str(placement.attempt),
            "SCHEDULER_KEY": job.key,
            "SCHEDULER_NAME": job.name,
            "SCHEDULER_RUN": self._around.run,
            "SCHEDULER_PURPOSE": str(placement.purpose),
            "SCHEDULER_EPOCHS": str(self._epochs(placement, job) or ""),
            "SCHEDULER_MEMORY_BYTES": str(max([placement.promise[key] for key in placement.devices], default=0)),
            "SCHEDULER_HOST_MEMORY_BYTES": str(placement.promise.get(HOST, 0)),
            "SCHEDULER_GPU_INDICES": self._indices(placement),
            "SCHEDULER_TASK_DIR": places.task(placement.told or placement.task),
            "SCHEDULER_RESULT": places.result(*key),
            "SCHEDULER_PROGRESS": places.progress(*key),
            "PYTHONUNBUFFERED": "1",
        }
        if placement.purpose is Purpose.PROBE and "WANDB_MODE" not in self._around.environ:
            told["WANDB_MODE"] = "disabled"
        told.update(self._devices.environment_for(placement))
        if job.append == command.ONE_SHOT and placement.gpus:
            told["GPU"] = ",".join(f"cuda{index}" for index in self._indices(placement).split(","))
        told.update(attended.environ)
        told.update(job.environ)
        told.update(job.spec.env)
        return told

    def _epochs(self, placement: Placement, job: Job) -> int | None:
        epochs = job.spec.terms.epochs
        if placement.purpose is Purpose.PROBE and epochs is not None:
            return min(epochs, self._profile_epochs)
        return epochs

    def _indices(self, placement: Placement) -> str:
        """The numbers of its GPUs, as nvidia-smi counts."""
        gpus = placement.gpus
        if gpus and not self._numbers:
            self._numbers = {device.key: str(device.index) for device in self._devices.discover()}
        return ",".join([self._numbers.get(key, "") for key in gpus])

    def watched(self, task: Task, shim: int) -> Watched:
        """Where to look for a living attempt."""
        assert task.placement is not None
        places, key = self._around.places, (task.id, task.attempts)
        settled = task.settled or task.placement.known_by is not KnownBy.LIVE
        return Watched(
            shim,
            str(places.task_log(*key)),
            places.progress(*key),
            task.placement.promise,
            settled,
            task.placement.percentage > 0,
        )
