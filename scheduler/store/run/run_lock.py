"""The lock of a run, and the identity of the journal's files to which its scheduler writes."""

from __future__ import annotations

import os
from pathlib import Path

from scheduler.errors import StateError, StillRunning
from scheduler.runtime.paths import RunPaths
from scheduler.store.machine.locked_files import LockHolders, open_directory, take_lock

BESIDE = ("", "-wal", "-shm")
"""The suffixes of a journal's files: the database, its log, and the index of that log."""

_Identity = tuple[int, int]
"""The device and the inode number of a file."""


class Hold:
    """The lock of a run, taken by one scheduler.

    The lock is on the run's directory, so there is no lock file that could be mistaken for a stale one and removed.
    """

    def __init__(self, places: RunPaths) -> None:
        """Take the lock; raise StillRunning, which names the process that holds the lock."""
        self._places = places
        self._fd = _locked(places)
        self._files: dict[Path, _Identity | None] = {}

    def remember(self) -> None:
        """Note the identity of the journal's files; call this after the journal was opened and written."""
        files = [Path(f"{self._places.journal}{end}") for end in BESIDE]
        self._files = {path: _identity(path) for path in files}

    def misplaced(self) -> Path | None:
        """Return the run's directory, or the first file of its journal, if it was removed or replaced; None if all are
        in place.
        """
        status = os.fstat(self._fd)
        if _identity(self._places.root) != (status.st_dev, status.st_ino):
            return self._places.root
        return next((path for path, known in self._files.items() if known and _identity(path) != known), None)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def _locked(places: RunPaths) -> int:
    """Open and lock the directory of a run; return its descriptor."""
    fd = -1
    try:
        fd = open_directory(places.root)
        take_lock(fd)
    except BlockingIOError:
        pids = LockHolders().of(os.fstat(fd))
        os.close(fd)
        who = f"process {pids[0]}" if any(pids) else "process unknown"
        raise StillRunning(f"run {places.number} is alive ({who}): scheduler status shows it") from None
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
        raise StateError(f"the run directory {places.root} cannot be locked: {exc.strerror}") from exc
    return fd


def _identity(path: Path) -> _Identity | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
