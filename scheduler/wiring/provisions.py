"""Loads everything that a living run may need, before its first launch: no upgrade can take it away after that."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

from scheduler.paths import PACKAGE

LAZY = ("csv", "ctypes", "encodings.idna", "hashlib", "psutil", "pwd", "shlex", "shutil", "tomllib", "traceback")
"""What our modules, or those of the standard library that we use, load only when they need it."""
NOT_IN_A_RUN = (
    "scheduler.api", "scheduler.cli", "scheduler.gpu_task_scheduler", "scheduler.mapping", "scheduler._",
    "scheduler.view.live", "scheduler.view.screen",
)  # fmt: skip


def load() -> None:
    """Load our own modules, all but the doors to them, and what they would load later."""
    for name in LAZY:
        import_module(name)
    for module in walk_packages([str(PACKAGE)], "scheduler."):
        if not module.name.startswith(NOT_IN_A_RUN):
            with suppress(ImportError):  # what needs a package that is not installed is not needed later either
                import_module(module.name)
