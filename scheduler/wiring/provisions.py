"""Loads everything that a living run may need, before its first launch: no upgrade can take it away after that."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

from scheduler.paths import PACKAGE

LAZY = (
    "csv", "ctypes", "encodings.idna", "hashlib", "psutil", "pwd", "shlex", "shutil", "tempfile", "tomllib",
    "traceback",
)  # fmt: skip
"""What our modules, or those of the standard library that we use, load only when they need it."""
NOT_IN_A_RUN = (
    "scheduler.api", "scheduler.cli", "scheduler.gpu_task_scheduler", "scheduler.mapping", "scheduler._",
    "scheduler.view.live", "scheduler.view.screen",
    "scheduler.view.about_", "scheduler.view.doctor", "scheduler.view.examined", "scheduler.view.findings",
    "scheduler.view.report", "scheduler.view.web", "scheduler.view.why", "scheduler.wiring.browsing",
    "scheduler.wiring.examining", "scheduler.wiring.explaining", "scheduler.wiring.keeping",
    "scheduler.wiring.lookout", "scheduler.wiring.machine", "scheduler.wiring.offering",
    "scheduler.wiring.reporting", "scheduler.wiring.waiting",
)  # fmt: skip
"""Doors, and what only those verbs use that look: each of these would make every run start later."""


def load() -> None:
    """Load our own modules, all but the doors to them, and what they would load later."""
    for name in LAZY:
        import_module(name)
    for module in walk_packages([str(PACKAGE)], "scheduler."):
        if not module.name.startswith(NOT_IN_A_RUN):
            with suppress(ImportError):  # what needs a package that is not installed is not needed later either
                import_module(module.name)
