"""The copying of files that another process writes, to descriptors, while the files grow."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

CHUNK = 1 << 16
PAUSES = (0.005, 0.1)
"""The shortest and the longest pause, in seconds, between two checks of a file that does not grow."""


class FileFollower:
    """A thread that copies growing files to descriptors, each from its beginning, until `finish`.

    If the disk is full or the reader has closed its end, the copying ends and `lost` is called once; the process that
    writes the files is not affected.
    """

    def __init__(self, files: dict[Path, int], lost: Callable[[], None]) -> None:
        self._files = [_File(path, fd) for path, fd in files.items()]
        self._lost = lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        pause = PAUSES[0]
        while True:
            last = self._over.is_set()  # what was written before that is still read
            moved = [file.copy() for file in self._files]
            if any(file.pop_lost() for file in self._files):
                self._lost()
            if last:
                return
            pause = PAUSES[0] if any(moved) else min(pause * 2, PAUSES[1])
            self._over.wait(pause)

    def finish(self) -> None:
        """Copy the files, which must be complete now, to their ends; then return."""
        self._over.set()
        self._thread.join()
        for file in self._files:
            file.close()


class _File:
    """One file, and the position up to which it has been copied."""

    def __init__(self, path: Path, out: int) -> None:
        self._path = path
        self._out = out
        self._fd = -1
        self._at = 0
        self._gone = self._lost = False

    def copy(self) -> bool:
        """Copy new bytes; return whether there were any."""
        if self._gone or not self._open():
            return False
        size = os.fstat(self._fd).st_size
        self._at = min(self._at, size)  # its middle was removed because it had grown too long
        before = self._at
        with contextlib.suppress(OSError):
            while data := os.pread(self._fd, CHUNK, self._at):
                self._at += len(data)
                if not self._pass_on(data):
                    break
        return self._at > before

    def _open(self) -> bool:
        if self._fd < 0:
            with contextlib.suppress(OSError):
                fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    self._fd = fd
                else:
                    os.close(fd)
        return self._fd >= 0

    def _pass_on(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            self._gone = self._lost = True
        return not self._gone

    def pop_lost(self) -> bool:
        """Return whether the reader of the copy has closed its end since the last call."""
        lost, self._lost = self._lost, False
        return lost

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
