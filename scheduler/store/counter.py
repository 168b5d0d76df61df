"""The durable counter: task ids and run numbers that never repeat, from one file under a lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.errors import StateError


class Counter:
    """Two numbers in one file: the next task id and the next run number."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self._path = path
        self._first = first

    @contextmanager
    def held(self) -> Iterator[Held]:
        """The counter to oneself; what was taken is durable before the block is left, or nothing was taken."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StateError(f"the counter {self._path} cannot be opened: {exc.strerror}") from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield Held(fd, self._path, self._first)
        finally:
            os.close(fd)


class Held:
    """The counter while its lock is held."""

    def __init__(self, fd: int, path: Path, first: int) -> None:
        self._fd = fd
        words = os.pread(fd, 64, 0).split()
        if words and (len(words) != 2 or not all(word.isdigit() for word in words)):
            raise StateError(f"the counter {path} is damaged: write the next task id and the next run number into it")
        self.task, self.run = (int(words[0]), int(words[1])) if words else (first, 1)

    def advance(self, *, task: int, run: int) -> None:
        """Write the next numbers down, durably."""
        self.task, self.run = task, run
        os.pwrite(self._fd, b"%-20d %-20d\n" % (task, run), 0)
        os.fdatasync(self._fd)
