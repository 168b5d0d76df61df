"""Runs lists of GPU training jobs, several per GPU, without running out of memory and without losing a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.api.call_future import CallFailed, CallFuture, NotPassed, RemoteError
    from scheduler.api.executor import Executor
    from scheduler.api.lease import ProcessLease, lease
    from scheduler.api.map import Failure
    from scheduler.api.map import map as map  # the same name on purpose: it is public
    from scheduler.api.run import Finished, run, runs
    from scheduler.api.submit import SubmittedTasks, submit
    from scheduler.compat.config_manager import ConfigManager
    from scheduler.compat.gpu_task import GPUTask
    from scheduler.compat.gpu_task_scheduler import GPUTaskScheduler
    from scheduler.errors import ConfigError, InputError, LeaseTimeout, NoLease, SchedulerError, StateError, UsageError
    from scheduler.inputs.python_tasks import Task

__version__ = "0.1.0"
__all__ = [
    "CallFailed", "CallFuture", "ConfigError", "ConfigManager", "Executor", "Failure", "Finished", "GPUTask",
    "GPUTaskScheduler", "InputError", "LeaseTimeout", "NoLease", "NotPassed", "ProcessLease", "RemoteError",
    "SchedulerError", "StateError", "SubmittedTasks", "Task", "UsageError", "lease", "run", "runs", "submit",
]  # fmt: skip
"""`map` is public too, but a star import must not replace Python's own `map`."""

_HOMES = {
    "Finished": "api.run", "run": "api.run", "runs": "api.run", "Task": "inputs.python_tasks", "map": "api.map",
    "Failure": "api.map", "GPUTaskScheduler": "compat.gpu_task_scheduler", "GPUTask": "compat.gpu_task",
    "ConfigManager": "compat.config_manager", "submit": "api.submit", "SubmittedTasks": "api.submit",
    "Executor": "api.executor", "lease": "api.lease", "ProcessLease": "api.lease",
    "load_ipython_extension": "api.notebook",
    **dict.fromkeys(("CallFailed", "CallFuture", "NotPassed", "RemoteError"), "api.call_future"),
}  # fmt: skip


def __dir__() -> list[str]:
    """Return all names, so that Tab also completes the public names that are not loaded yet."""
    return sorted({*globals(), *__all__, *_HOMES} - {"Any", "TYPE_CHECKING", "annotations"})


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that no light verb pays for it."""
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
