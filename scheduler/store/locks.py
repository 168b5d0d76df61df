"""Locks on files: taken, and looked at."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


def take_lock(fd: int, patience: float = 0.05) -> None:
    """Lock a file; raises BlockingIOError where somebody has it, but not for one who only looks whether it is free."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.001)


def is_locked(path: Path) -> bool:
    """Whether a scheduler holds a run."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
