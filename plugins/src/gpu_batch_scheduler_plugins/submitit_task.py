"""The process of a job of submitit: it finds the pickled call by the task's id, and runs it, in several ranks if the
job has several tasks.

python -m gpu_batch_scheduler_plugins.submitit_task --id=UUID:FOLDER [words that only describe the call]
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from submitit.core.utils import JobPaths

RANKS, RANK = "SUBMITIT_GSCHED_NTASKS", "SUBMITIT_GSCHED_RANK"
"""The variables with the number of ranks of a job, and with the rank of a process."""
PATIENCE = 2.0
"""Seconds between the failure of a rank and the interruption of the other ranks: most of them fail within this time
too, and print the cause.
"""
GRACE = 10.0
"""Seconds within which ranks must end after they were interrupted."""
LOOK = 0.05
TAIL = 8192
"""The bytes at the end of another rank's errors that are copied to the task's own errors."""


def timeout_signal() -> str:
    """Return the name of the signal that tells submitit's jobs to save their state."""
    return os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")


def adopt(file: Path, paths: JobPaths) -> None:
    """Rename a pickled call so that its job finds it. The caller and the job both try this; only the first one still
    finds the file.
    """
    paths.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(file, paths.submitted_pickle)


def main(argv: list[str]) -> int:
    """Run the call; return the exit code."""
    from submitit.core import utils

    name, _, folder = argv[1].removeprefix("--id=").partition(":")
    job, ranks = os.environ["SCHEDULER_TASK_ID"], int(os.environ.get(RANKS, "1"))
    adopt(utils.JobPaths.get_first_id_independent_folder(folder) / f"{name}.pkl", utils.JobPaths(folder, job, 0))
    for rank in range(ranks):  # of an earlier attempt
        utils.JobPaths(folder, job, rank).result_pickle.unlink(missing_ok=True)
    paths = utils.JobPaths(folder, job, 0)
    _link(1, paths.stdout)
    if os.readlink("/proc/self/fd/1") != os.readlink("/proc/self/fd/2"):
        _link(2, paths.stderr)
    os.environ.setdefault("SUBMITIT_EXECUTOR", "gsched")
    if ranks > 1:
        return Ranks(folder, job, ranks).run()
    from submitit.core.submission import process_job

    sys.argv = [sys.argv[0], folder]
    process_job(folder)
    return 0


def _link(fd: int, path: Path) -> None:
    """Make the log of this attempt available under the name that submitit expects."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        os.symlink(os.readlink(f"/proc/self/fd/{fd}"), temporary)
        os.replace(temporary, path)


class Ranks:
    """The processes of a job with several tasks; the output of the first process is the task's own output."""

    def __init__(self, folder: str, job: str, number: int) -> None:
        from submitit.core import utils

        self._paths = [utils.JobPaths(folder, job, rank) for rank in range(number)]
        self._words = [sys.executable, "-u", "-m", "submitit.core._submit", folder]
        self._children: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Start all ranks and return the exit code of the first rank that fails, or 0; no rank is running when this
        returns.
        """
        names = (signal.SIGTERM, getattr(signal, f"SIG{timeout_signal()}"))
        for number in names:
            signal.signal(number, lambda caught, _frame: self._pass_on(caught))
        try:
            for rank in range(len(self._paths)):
                self._children.append(self._start(rank))
            return self._wait()
        finally:
            for child in self._children:
                child.kill()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        env = {**os.environ, RANK: str(rank)}
        if not rank:
            return subprocess.Popen(self._words, env=env)
        with open(self._paths[rank].stdout, "ab") as out, open(self._paths[rank].stderr, "ab") as err:
            return subprocess.Popen(self._words, env=env, stdout=out, stderr=err)

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)

    def _wait(self) -> int:
        end = interrupt = float("inf")
        code = 0
        while any(child.poll() is None for child in self._children) and time.monotonic() < end:
            ended = [child.poll() for child in self._children]
            bad = next((one for one in ended if one), 0)
            if bad and not code:
                code, interrupt = bad, time.monotonic() + PATIENCE
            if time.monotonic() >= interrupt:
                interrupt, end = float("inf"), time.monotonic() + GRACE
                self._pass_on(signal.SIGINT)
            time.sleep(LOOK)
        codes = [child.poll() for child in self._children]
        code = code or next((one for one in codes if one), 0)
        self._copy_errors([rank for rank, one in enumerate(codes) if rank and one])
        return code if code >= 0 else 128 - code

    def _copy_errors(self, ranks: list[int]) -> None:
        """Copy the last errors of failed ranks to the task's own errors, in which the scheduler searches for
        out-of-memory errors.
        """
        for rank in ranks:
            with contextlib.suppress(OSError), open(self._paths[rank].stderr, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                sys.stderr.write(f"--- task {rank} of the job ({self._paths[rank].stderr})\n")
                sys.stderr.flush()
                os.write(2, file.read())


if __name__ == "__main__":
    sys.exit(main(sys.argv))
