"""The scheduler of Python tasks: it runs a user's class on every combination of a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from itertools import chain
from typing import Any

from scheduler.app.run import run_loop
from scheduler.app.run import start as run_start
from scheduler.app.run.devices import SLOTS
from scheduler.app.run.options import RunOptions
from scheduler.app.run.run_loop import RunResult
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import PythonCalls
from scheduler.compat.config_manager import AUTO, Combination, ConfigManager
from scheduler.compat.gpu_task import GPUTask
from scheduler.compat.gpu_task_log import TaskLog, task_logger
from scheduler.compat.parameter_values import read_axes
from scheduler.core.model import RankOrder, Spec
from scheduler.core.ports import View
from scheduler.core.tasks.fields import words
from scheduler.errors import ConfigError, MissingPackage
from scheduler.inputs import python_calls
from scheduler.inputs.python_calls import CallTarget, PythonCall
from scheduler.runtime import task_launcher
from scheduler.runtime.settings import read_settings
from scheduler.units import count

AT_ONCE = 10_000
"""The most combinations whose strings are in memory at once while a list is accepted."""
MANY = 100_000
"""The number of accepted combinations after which another line about the progress is written."""


class GPUTaskScheduler:
    """The runner of all combinations that are not done yet; each entry of `gpu` has one task at a time."""

    def __init__(self, config: dict[str, Any], gpu_task_class: type[GPUTask]) -> None:
        """Check the configuration; raise ConfigError, a ValueError, if it is invalid.

        Only an iterator among the values of `test_config`, which can be read once, is replaced by a list of them.
        """
        if not isinstance(config, dict):
            raise ConfigError("the configuration must be a dictionary")
        read_axes(config)
        own = (
            {**config, "scheduler_config": deepcopy(config["scheduler_config"])} if "scheduler_config" in config else {}
        )
        self._manager = ConfigManager(own)
        self._shared = dict(self._manager.get_all_global_config())
        self._said = self._manager.get_all_scheduler_config()
        self._class = gpu_task_class
        self._accepted = False
        """True once a run has accepted the combinations; from then on, the run handles Ctrl-C."""

    def start(self) -> None:
        """Run all remaining combinations and return when they have ended. If one fails, this process ends with exit
        code 1.

        The first Ctrl-C lets running tasks end, the second one stops them; then the process ends with exit code 130.
        Before the first task has started, Ctrl-C ends the process at once, and nothing of the list is kept.
        """
        task_launcher.stop_loading()
        target = python_calls.target_class(self._class)
        logger = task_logger(self._said["scheduler_log_file_path"])
        try:
            todo = self._todo(target, logger)
            first = next(todo, None)
            ended = self._run(target, chain([first], todo), logger) if first is not None else None
        except MissingPackage as exc:
            raise SystemExit(f"scheduler: {exc}") from exc
        except KeyboardInterrupt:
            if self._accepted:
                raise
            logger.error("interrupted before any task was started: nothing of this list was kept")
            raise SystemExit(130) from None
        else:
            for worker in self._manager.get_gpu_envs():
                logger.info("%s finished", worker["name"])
        finally:
            for handler in list(logger.handlers):
                handler.close()
        if ended is not None and ended.signal in (2, 15):
            raise SystemExit(ended.exit_code)
        if ended is not None and ended.exit_code and not ended.signal:
            logger.error("%s", _summary(ended))
            ExitCodeView.fail()

    def _todo(self, target: CallTarget, logger: Any) -> Iterator[PythonCall]:
        """Yield the calls of the combinations that are neither done nor repeated."""
        worker, seen = self._manager.get_gpu_envs()[0]["name"], set[int]()
        python_calls.pickled(self._shared, "global_config")
        shared = {key: python_calls.fingerprint(value) for key, value in self._shared.items()}
        fresh = not os.path.lexists(self._said["result_root_folder"])
        while (found := self._manager.next_combination()) is not None:
            work_dir = self._manager.work_dir(found)
            state = "" if fresh or self._said["force_rerun"] else task_launcher.state_of(work_dir)
            if state == task_launcher.FINISHED or hash(work_dir) in seen:
                logger.info("%s skips task %s", worker, found.folder)
                continue
            seen.add(hash(work_dir))
            if len(seen) % MANY == 0:
                logger.info("%s combinations are read, of %s", f"{len(seen):,}", f"{self._manager.number:,}")
            yield self._call(target, found, work_dir, shared)

    def _call(self, target: CallTarget, found: Combination, work_dir: str, shared: Mapping[str, str]) -> PythonCall:
        """Return a combination as a call. Its values become strings and bytes; values are never compared with each
        other.
        """
        name = found.folder or work_dir
        values = python_calls.pickled(found.test, f"the configuration {name}")
        varied = {str(key): text for key, text in found.texts.items()}
        return PythonCall(target, name, varied, values, _besides(shared, found.test), {"work_dir": work_dir})

    def _run(self, target: CallTarget, calls: Iterable[PythonCall], logger: Any) -> RunResult:
        said = {"what": "task", "force": bool(self._said["force_rerun"]), "log_file": self._said["log_file"]}
        shared = python_calls.pickled(self._shared, "global_config")
        todo = PythonCalls(target, calls, map(str, self._manager.parameters), said, shared)
        settings = read_settings({"num": str(AT_ONCE), "order": str(RankOrder.GLOBAL)})
        gpus = self._said["gpu"]
        devices = AUTO if gpus == AUTO else SLOTS + ";".join(gpus)
        listing = todo.listing(f"{target.name} of {target.file or target.module}")
        session = run_start.begin(listing, RunOptions(devices, keep_going=True), settings)
        assert session is not None  # there is something to do
        self._accepted = True
        tasks = int(session.facts["tasks"])
        with closing(session):
            logger.info("run %d: %s (scheduler list r%d)", session.number, count(tasks, "task"), session.number)
            return run_loop.run_to_end(session, wrap=lambda inner: self._view(inner, logger, session))

    def _view(self, inner: View, logger: Any, session: RunSession) -> View:
        book, labels = session.store, {device.key: device.label for device in session.devices.discover()}
        log_file = self._said["log_file"]

        def log_of(task: int, attempt: int) -> str:
            path = os.path.join(_work_dir_of(book.job(task).spec), log_file) if log_file else ""
            return path if path and os.path.exists(path) else str(session.places.task_log(task, attempt))

        return TaskLog(inner, logger, book.job, labels, log_of)


def _work_dir_of(spec: Spec) -> str:
    """Return the result folder of a task, as the run's file of calls records it."""
    try:
        with closing(task_launcher.Call(words(spec.command)[2])) as call:
            return str(call.said["work_dir"])
    except (OSError, ValueError, KeyError):
        return ""


def _besides(shared: Mapping[str, str], test: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the shared parameters that a combination does not set itself; for most combinations this is one shared
    object.
    """
    if shared.keys().isdisjoint(test):
        return shared
    return {key: text for key, text in shared.items() if key not in test}


def _summary(ended: RunResult) -> str:
    states = ", ".join(f"{number} {state}" for state, number in ended.states.items() if number)
    return f"run {ended.number}: {states}; tasks that have not succeeded run when this is started again"


class ExitCodeView:
    """The exit code 1 of a program that continues after a failed task.

    The code takes effect when Python cleans up the program's modules, after its atexit functions and the flush of its
    streams, and only in the process that saw the failure.
    """

    failed: ExitCodeView | None = None

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __del__(self, pid: Any = os.getpid, leave: Any = os._exit) -> None:
        if pid() == self._pid:
            leave(1)

    @classmethod
    def fail(cls) -> None:
        """Make the program end with exit code 1 from now on."""
        cls.failed = cls.failed or cls()
