"""The durable counter of task ids and run numbers in one locked file; no id or number is used twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.errors import StateError
from scheduler.runtime.paths import RunPaths
from scheduler.store.machine.locked_files import holder, is_held_long, take_lock

PATIENCE = 5.0
"""Seconds to wait for the lock, which is normally held for a few milliseconds; after that, an error names its
holder.
"""


LENGTH = 64
"""The bytes of the file that hold the counter's two numbers."""


class Counter:
    """Two numbers in one file: the next task id and the next run number."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self._path = path
        self._first = first

    @contextmanager
    def held(self, patience: float = PATIENCE) -> Iterator[HeldCounter]:
        """Lock the counter for the block; the numbers that were taken are durable at the end of the block.

        Keep the block short, because every start of a run of this user waits for it. Raise StateError, which names the
        holder of the lock, if the lock is not free within `patience` seconds. With the default patience, raise it only
        if no other start has taken numbers meanwhile.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StateError(f"the counter {self._path} cannot be opened: {exc.strerror}") from exc
        try:
            try:
                _take_in_turn(fd, patience)
            except BlockingIOError:
                raise StateError(f"{_locked(fd, self._path, f' for {patience:g}s')}, or try again later") from None
            except OSError as exc:
                why = (exc.strerror or str(exc)).lower()
                raise StateError(
                    f"the counter {self._path} cannot be locked ({why}): give a local disk with --state DIR"
                ) from exc
            yield HeldCounter(fd, self._path, self._first)
        finally:
            os.close(fd)

    def give_back(self, run: RunPaths, patience: float) -> None:
        """Return the number of a removed run to the counter, if it is the last number and the lock becomes free within
        `patience` seconds.

        Otherwise the number stays unused, which does no harm.
        """
        with contextlib.suppress(StateError, OSError), self.held(patience) as held:
            if held.run == run.number + 1 and not run.root.exists():
                held.advance(task=held.task, run=run.number)

    def next_task(self) -> int:
        """Return the next task id without locking the counter: another process may take that id at any time."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return self._first
        try:
            return HeldCounter(fd, self._path, self._first).task
        finally:
            os.close(fd)


def why_locked(path: Path) -> str:
    """Return a sentence about the process that has held the counter's lock for long; empty if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return _locked(fd, path) if is_held_long(fd) else ""
    finally:
        os.close(fd)


def _take_in_turn(fd: int, patience: float) -> None:
    """Lock the counter; wait longer than `patience` as long as other starts take numbers, so that each of many starts
    gets its turn.
    """
    while True:
        before = os.pread(fd, LENGTH, 0)
        try:
            take_lock(fd, patience)
        except BlockingIOError:
            if patience < PATIENCE or os.pread(fd, LENGTH, 0) == before:
                raise
        else:
            return


def _locked(fd: int, path: Path, how_long: str = "") -> str:
    since = " has been locked" if how_long else " is locked"
    who = holder(fd, command=True)
    return f"the counter {path}{since}{how_long} by {who}, no run starts before that ends: continue or end that process"


class HeldCounter:
    """The numbers of the counter while this process holds its lock."""

    def __init__(self, fd: int, path: Path, first: int) -> None:
        self._fd = fd
        words = os.pread(fd, LENGTH, 0).split()
        if words and (len(words) != 2 or not all(word.isdigit() for word in words)):
            raise StateError(f"the counter {path} is damaged: write the next task id and the next run number into it")
        self.task, self.run = (int(words[0]), int(words[1])) if words else (first, 1)

    def advance(self, *, task: int, run: int) -> None:
        """Write the next numbers durably."""
        self.task, self.run = task, run
        os.pwrite(self._fd, b"%-20d %-20d\n" % (task, run), 0)
        os.fdatasync(self._fd)
