"""Runs lists of GPU training jobs, several per GPU, without running out of memory and without losing a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.api import Finished, run, runs
    from scheduler.doors.python_tasks import Task
    from scheduler.errors import InputError, SchedulerError, StateError, UsageError

__version__ = "0.1.0"
__all__ = ["Finished", "InputError", "SchedulerError", "StateError", "Task", "UsageError", "run", "runs"]

_HOMES = {"Finished": "api", "run": "api", "runs": "api", "Task": "doors.python_tasks"}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that no light verb pays for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
