"""Locks on files: taken, and looked at."""

from __future__ import annotations

import errno
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


def is_free(fd: int) -> bool:
    """Whether nobody holds the lock; whoever probes lets go at once by closing."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
    return True


def make_locked(directory: int, name: str, record: bytes) -> int:
    """A new file with a record in it, and its lock; nobody else may read it before it has both."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o600, dir_fd=directory)
    except FileExistsError:
        os.unlink(name, dir_fd=directory)
        fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        take_lock(fd)
        os.pwrite(fd, record, 0)
        os.fchmod(fd, 0o644)
    except OSError:
        os.unlink(name, dir_fd=directory)
        os.close(fd)
        raise
    return fd
