"""Runs lists of GPU training jobs, several per GPU, without running out of memory and without losing a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.api import Finished, run, runs
    from scheduler.doors.config_manager import ConfigManager
    from scheduler.doors.gpu_task import GPUTask
    from scheduler.doors.python_tasks import Task
    from scheduler.errors import ConfigError, InputError, SchedulerError, StateError, UsageError
    from scheduler.gpu_task_scheduler import GPUTaskScheduler
    from scheduler.mapping import Failure
    from scheduler.mapping import map as map  # the same name on purpose: it is public

__version__ = "0.1.0"
__all__ = [
    "ConfigError", "ConfigManager", "Failure", "Finished", "GPUTask", "GPUTaskScheduler", "InputError",
    "SchedulerError", "StateError", "Task", "UsageError", "run", "runs",
]  # fmt: skip
"""`map` is public too, but must not take the place of Python's own in whoever imports everything."""

_HOMES = {
    "Finished": "api", "run": "api", "runs": "api", "Task": "doors.python_tasks", "map": "mapping",
    "Failure": "mapping", "GPUTaskScheduler": "gpu_task_scheduler", "GPUTask": "doors.gpu_task",
    "ConfigManager": "doors.config_manager",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that no light verb pays for it."""
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
