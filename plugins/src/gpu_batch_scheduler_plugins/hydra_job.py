"""One job of a Hydra sweep in a process of its own: its command line, and the callback for the value that it
returns.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from gpu_batch_scheduler_plugins._core import UsageError, literal

log = logging.getLogger(__name__)

KEY = "gsched"
"""The name of the callback in the job's configuration."""
OF_THE_SWEEP = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra.sweep", "hydra.mode",
                "hydra.run.dir")  # fmt: skip
"""The prefixes of overrides of Hydra's own configuration that concern the sweep and not its jobs."""
MOST = 64 * 1024
"""The most bytes of a result file that the scheduler reads."""


def command_of_program(config: DictConfig) -> list[str]:
    """Return the command line of this program without its overrides; raise UsageError if the sweep was not started by a
    command line of its own.
    """
    from hydra._internal.utils import get_args_parser

    args, unknown = get_args_parser().parse_known_args(sys.argv[1:])
    lists = OmegaConf.to_container(config.hydra.overrides, resolve=False)
    said, typed = {*lists["task"], *lists["hydra"]}, set(args.overrides)
    given = sys.argv[1:]
    at = len(sys.orig_argv) - len(given)
    if unknown or typed - said or any(not one.startswith("hydra.") for one in said - typed) or at < 1:
        raise UsageError(
            "hydra/launcher=gsched starts the command line of the program once for each job, and this sweep does not "
            "come from a command line: start it as  python my_app.py --multirun hydra/launcher=gsched …"
        )
    start = sys.orig_argv[1:at] if sys.orig_argv[at:] == given else [sys.argv[0]]
    flags = ("config_path", "config_name", "config_dir")
    chosen = [(flag, getattr(args, flag)) for flag in flags if getattr(args, flag) is not None]
    return [
        sys.executable,
        *start,
        *(word for flag, value in chosen for word in (f"--{flag.replace('_', '-')}", value)),
    ]


def command_of_job(
    command: Sequence[str], overrides: Sequence[str], kept: Sequence[str], number: int, folder: str, subdir: str
) -> list[str]:
    """Return the words of a job. The last word contains all differences between jobs apart from their overrides; it
    gives the task its name, and the task's memory is not learned by it.
    """
    own = [one for one in kept if not one.lstrip("+~").startswith(OF_THE_SWEEP)]
    told = f"num:{number},dir:{_quoted(folder)},subdir:{_quoted(subdir)}"
    target = f"{GschedCallback.__module__}.{GschedCallback.__name__}"
    last = f"+hydra.callbacks.{KEY}={{_target_:{target},task:{{id}},{literal(told)}}}"
    return [*(literal(word) for word in (*command, *overrides, *own, "hydra.mode=RUN")), last]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def return_file(folder: Path, attempt: int) -> Path:
    """Return the path of the file for the return value of an attempt's job."""
    return folder / f"hydra-{attempt}.pkl"


class GschedCallback(Callback):
    """The callback in the process of a job: it restores the configuration that the job would have in a sweep."""

    def __init__(self, task: int, num: int, dir: str, subdir: str) -> None:
        self._task, self._num, self._dir, self._subdir = task, num, dir, subdir

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Set the directory, the number and the mode of a job of a sweep in the configuration."""
        with read_write(config.hydra), open_dict(config.hydra):
            hydra = config.hydra
            hydra.mode = RunMode.MULTIRUN
            hydra.sweep.dir, hydra.sweep.subdir = self._dir, self._subdir
            hydra.run.dir = os.path.join(self._dir, self._subdir)
            hydra.job.num, hydra.job.id = self._num, str(self._task)
            del hydra.callbacks[KEY]
            said = OmegaConf.to_container(hydra.overrides.hydra, resolve=False)
            hydra.overrides.hydra = [one for one in said if not one.startswith(f"+hydra.callbacks.{KEY}=")]

    def on_job_end(self, config: DictConfig, job_return: Any, **_: Any) -> None:
        """Pass on the return value of the job: all of it to the launcher, and its numbers to the scheduler."""
        if any(os.environ.get(name, "0") not in ("", "0") for name in ("LOCAL_RANK", "RANK")):
            return  # the process of another rank, which repeats the command line
        path = return_file(Path(os.environ["SCHEDULER_TASK_DIR"]), int(os.environ["SCHEDULER_ATTEMPT"]))
        part = path.with_suffix(".part")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_pickled(job_return))
        part.replace(path)
        leave_result(numbers_of(job_return._return_value))


def _pickled(job_return: Any) -> bytes:
    """Return the pickle of a job's JobReturn; a value that cannot be pickled is replaced by a text about it."""
    try:
        return pickle.dumps(job_return)
    except Exception as exc:  # noqa: BLE001  # objects of the user raise anything
        value = job_return._return_value
        if isinstance(value, BaseException):
            job_return.return_value = RuntimeError(f"{type(value).__name__}: {value}")
        else:
            log.warning("the return value of the job cannot be passed on, and is None for the sweeper: %s", exc)
            job_return.return_value = None
        return pickle.dumps(job_return)


def numbers_of(value: Any) -> dict[str, float]:
    """Return the numbers in a return value by name: a single number, several numbers, or the numbers of a mapping."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value)
    if isinstance(value, dict):
        return {str(name): float(one) for name, one in value.items() if _is_number(one)}
    if isinstance(value, list | tuple):
        return {f"return_value.{place}": float(one) for place, one in enumerate(value) if _is_number(one)}
    return {"return_value": float(value)} if _is_number(value) else {}


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, str | bytes) and value is not None and float(value) is not None  # type: ignore[arg-type]  # numbers of other libraries are converted too
    except (TypeError, ValueError):
        return False


def leave_result(numbers: dict[str, float]) -> None:
    """Add numbers to the task's result, and keep values that the program itself has written there."""
    path = os.environ.get("SCHEDULER_RESULT")
    if not path or not numbers:
        return
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST)
    except FileNotFoundError:
        text = ""
    try:
        whole = json.loads(text) if text.strip() else {}
    except ValueError:  # lines, which become curves
        with open(path, "a", encoding="utf-8") as file:
            file.write(("" if text.endswith("\n") else "\n") + json.dumps(numbers) + "\n")
        return
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**whole, **numbers} if isinstance(whole, dict) else numbers, file)
