"""The package `scheduler` under a unique name: it loads the `scheduler` package that is installed next to it, instead
of the first one on sys.path.

A project's own scheduler.py, or the distribution `scheduler` of PyPI, may come before this project's package on
sys.path.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from scheduler import (
        CallFailed,
        CallFuture,
        ConfigError,
        ConfigManager,
        Executor,
        Failure,
        Finished,
        GPUTask,
        GPUTaskScheduler,
        InputError,
        LeaseTimeout,
        NoLease,
        NotPassed,
        ProcessLease,
        RemoteError,
        SchedulerError,
        StateError,
        SubmittedTasks,
        Task,
        UsageError,
        lease,
        run,
        runs,
        submit,
    )
    from scheduler import map as map

__all__ = [
    "CallFailed", "CallFuture", "ConfigError", "ConfigManager", "Executor", "Failure", "Finished", "GPUTask",
    "GPUTaskScheduler", "InputError", "LeaseTimeout", "NoLease", "NotPassed", "ProcessLease", "RemoteError",
    "SchedulerError", "StateError", "SubmittedTasks", "Task", "UsageError", "lease", "run", "runs", "submit",
]  # fmt: skip

OLDEST = (3, 11)
"""The oldest version of Python that can run this project."""
_NAME = "scheduler"
_SITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDER = os.path.join(_SITE, _NAME)
_FIRST = os.path.join(_FOLDER, "__init__.py")
_MARK = b'"""Runs lists of GPU training jobs'
"""The first bytes of this project's own scheduler/__init__.py."""


class NameTaken(ImportError):
    """The error that another module has the name `scheduler`, under which this project's package should be loaded."""


def _ours() -> ModuleType:
    """Return the package `scheduler` that lies next to this one. Raise NameTaken if another module has its name, or if
    its files were overwritten.
    """
    there = sys.modules.get(_NAME)
    if there is None:
        return _loaded()
    path = getattr(there, "__file__", None) or "a module without a file"
    if os.path.realpath(path) != os.path.realpath(_FIRST):
        raise NameTaken(
            f"gpu_batch_scheduler: another module named {_NAME!r} ({path}) was imported before: "
            "import gpu_batch_scheduler first, or run the list with python -m gpu_batch_scheduler run FILE"
        )
    return there


def _loaded() -> ModuleType:
    _check_files()
    sys.path.insert(0, _SITE)  # only while it is found: all else of it is looked for in its own folder
    try:
        import scheduler
    finally:
        sys.path.remove(_SITE)
    return scheduler


def _check_files() -> None:
    """Raise NameTaken if another distribution has overwritten or removed files of this one."""
    try:
        with open(_FIRST, "rb") as file:
            if file.read(len(_MARK)) == _MARK:
                return
    except OSError:
        raise NameTaken(_broken("is missing")) from None
    raise NameTaken(_broken("is not ours"))


def _broken(how: str) -> str:
    pip = f"{sys.executable} -m pip"
    again = f"{pip} install --force-reinstall --no-deps gpu-batch-scheduler"
    other = _namesake()
    if other:
        return f"{_FIRST} {how}, as {other} is installed here too: {pip} uninstall scheduler && {again}"
    return f"{_FIRST} {how}: {again}"


def _namesake() -> str:
    """Return the name of the unrelated distribution `scheduler` of PyPI if it is installed, otherwise an empty
    string.
    """
    try:
        names = os.listdir(_SITE)
    except OSError:
        return ""
    found = [name for name in names if name.startswith(f"{_NAME}-") and name.endswith((".dist-info", ".egg-info"))]
    return f"PyPI's unrelated distribution {found[0].rpartition('.')[0]!r}" if found else ""


def _warn() -> None:
    other = _namesake()
    if other and os.path.isfile(_FIRST):
        sys.stderr.write(
            f"hint:   {other} is installed in {_SITE} too and shares the folder {_NAME} with ours: removing or "
            f"upgrading either breaks the other; give one of them an environment of its own\n"
        )


def door(name: str) -> None:
    """Run a command of the older tools; the distribution in dropins/ installs these commands."""
    _ours_or_exit()
    from importlib import import_module

    sys.exit(import_module(f"{_NAME}.compat.{name}").main(sys.argv[1:]))


def launch() -> None:
    """Run one Python task, which is described in a file that its run wrote."""
    _ours_or_exit()
    from scheduler.runtime import task_launcher

    sys.exit(task_launcher.main(sys.argv))


def _ours_or_exit() -> None:
    if sys.version_info < OLDEST:
        is_, needed = ".".join(map(str, sys.version_info[:2])), ".".join(map(str, OLDEST))
        sys.stderr.write(f"scheduler: {sys.executable} is Python {is_}, and {needed} or newer is needed\n")
        sys.exit(2)
    try:
        _ours()
    except NameTaken as exc:
        sys.stderr.write(f"scheduler: {exc}\n")
        sys.exit(2)


def console() -> None:
    """Run the installed command; Ctrl-C prints no traceback, even during the first imports."""
    try:
        _ours_or_exit()
        if sys.argv[1:2] in (["run"], ["resume"]):
            _warn()
        from scheduler.cli import main
    except KeyboardInterrupt:
        os._exit(130)
    main.console()


def __getattr__(name: str) -> Any:
    """Return a public name of the package; it is loaded when it is first requested."""
    if name not in (*__all__, "map", "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_ours(), name)
