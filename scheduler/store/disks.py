"""Checks of the disks to which a run writes: enough free space, and locks that work."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scheduler.runtime.paths import tilde
from scheduler.store.machine.locked_files import open_directory, why_not_lockable
from scheduler.store.run import schema
from scheduler.units import size

PAUSE = 1.0
"""Seconds between checks."""


class DiskGuard:
    """The check of the free space on several disks; its sentence stays unchanged until all disks have enough space."""

    def __init__(
        self,
        places: Iterable[Path],
        share: float,
        least: int,
        *,
        statvfs: Callable[[Path], Any] = os.statvfs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = tuple(places)
        self._share = share
        self._least = least
        self._statvfs = statvfs
        self._clock = clock
        self._said = ""
        self._next = float("-inf")

    def __call__(self) -> str:
        """Return a sentence while a disk has too little free space, otherwise an empty string; check the disks at most
        once a second.
        """
        if self._clock() >= self._next:
            self._next = self._clock() + PAUSE
            full = next(filter(None, map(self._full, self._places)), "")
            self._said = full and (self._said or full)
        return self._said

    def _full(self, place: Path) -> str:
        try:
            status = self._statvfs(place)
        except OSError:
            return ""  # the next write there reports the error
        free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        least = max(self._least, round(self._share * total))
        if free >= least:
            return ""
        return (
            f"the disk of {tilde(place)} has {size(free)} free, less than the {size(least)} to be kept: nothing starts "
            "until there is more; running tasks continue (setting disk_min)"
        )


def why_locks_fail(directory: Path) -> str:
    """Return which locks fail in a directory, as words that follow its name; empty if all locks work, or if the
    directory does not exist.

    The check creates a small database in the directory, and then removes the database.
    """
    import sqlite3  # only `doctor` calls this
    import tempfile

    try:
        fd = open_directory(directory)
    except OSError:
        return ""
    try:
        why = why_not_lockable(fd)
    finally:
        os.close(fd)
    if why:
        return f"cannot be locked: {why}"
    try:
        with (
            tempfile.TemporaryDirectory(dir=directory, prefix=".locks-") as folder,
            contextlib.closing(sqlite3.connect(f"{folder}/try.db", isolation_level=None)) as database,
        ):
            for statement in schema.TRY:
                database.execute(statement)
    except sqlite3.Error as exc:
        return f"cannot hold an SQLite journal: {exc}"
    return ""
