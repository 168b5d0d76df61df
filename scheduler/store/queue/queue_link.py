"""The link from a queue's name to its current run; the process that starts the queue changes it under a lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from scheduler.errors import StateError, UsageError
from scheduler.patterns import lazy_pattern
from scheduler.runtime.paths import RunPaths, StatePaths, make_private
from scheduler.store.machine.locked_files import holder, take_lock

NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
USUAL = "queue"
"""The name of a user's standing queue if no other name is given."""
PATIENCE = 60.0
"""Seconds to wait for another process that is starting the queue."""


def checked_name(name: str) -> str:
    """Return the name of a queue; raise UsageError if it cannot be a file name, or is a number."""
    if not NAME.match(name):
        raise UsageError(f"--queue {name}: write a name of letters, digits, '_', '-' and '.' that begins with a letter")
    return name


def find_queue(home: StatePaths, name: str) -> RunPaths | None:
    """Return the directory of the queue's latest run; None if there is none, or if that run was removed."""
    try:
        number = os.readlink(home.queues / name)
    except OSError:
        return None
    run = home.run(int(number)) if number.isdecimal() else None
    return run if run is not None and run.journal.exists() else None


def set_queue(home: StatePaths, name: str, number: int) -> None:
    """Make a run the current run of a queue; the caller must hold `start_lock`. Raise StateError if the link cannot be
    written.
    """
    link = home.queues / name
    part = home.queues / f".{name}.part"
    try:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        part.symlink_to(str(number))
        part.rename(link)
    except OSError as exc:
        raise StateError(f"the queue {name} cannot be recorded in {link}: {exc.strerror}") from exc


@contextlib.contextmanager
def start_lock(home: StatePaths, name: str) -> Iterator[int]:
    """Hold the lock for starting the queue during the block, and yield the lock's descriptor, which a forked copy of
    this process must close.

    Raise StateError if another process holds the lock for longer than PATIENCE.
    """
    make_private(home.queues)
    path = home.queues / f"{name}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StateError(f"the lock {path} cannot be opened: {exc.strerror}") from exc
    try:
        take_lock(fd, PATIENCE)
        yield fd
    except BlockingIOError:
        raise StateError(
            f"the queue {name} is still being started after {PATIENCE:g} s by {holder(fd, command=True)}: continue or "
            "end that process"
        ) from None
    finally:
        os.close(fd)
