"""Removal of the files of ended attempts, in a separate thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.runtime.threads import StartedThread, start_thread

BEHIND = 100
"""The most removals that may wait; while there are that many, `remove` blocks. A killed scheduler leaves the files of
no more attempts than this, and a resumed run checks more ended attempts than this for leftover files."""
BATCH = 50
"""The number of waiting removals at which the thread begins without waiting for more."""
REST = 0.1
"""Seconds for which fewer removals than BATCH wait for more removals, because waking the thread for each removal would
cost the scheduler's own thread more than the removal itself."""
STUCK = 1.0
"""The most seconds for which `remove` waits; after that the disk counts as hanging, and files stay until the run is
removed."""
LAST = 30.0
"""Seconds that the remaining removals may take when the remover is closed."""


class Leftovers(NamedTuple):
    """The files of an attempt that must be removed."""

    files: Sequence[str]
    logs: Sequence[str]
    """Logs, which are removed only if they are empty."""
    folder: str = ""
    """The task's folder, which is removed only if it is empty."""


class Remover:
    """A thread that removes files: on a disk that other processes sync all the time, each removal takes long.

    It starts with the first removal, and takes no signals from the main thread.
    """

    def __init__(self) -> None:
        self._todo: deque[Leftovers] = deque()
        """The files to be removed; the first entry is being removed now."""
        self._changed = threading.Condition()
        self._thread: StartedThread | None = None
        self._is_over = False
        self._is_stuck = False
        """True if the last call of `remove` waited in vain; then the next one does not wait."""

    def remove(self, leftovers: Leftovers) -> None:
        """Remove the files soon; remove them at once if this user may start no more threads."""
        self._thread = self._thread or start_thread(self._work)
        if self._thread is None:
            _remove(leftovers)
        elif self._has_place():
            self._todo.append(leftovers)
            if len(self._todo) in (1, BATCH):
                self._notify()

    def _has_place(self) -> bool:
        if len(self._todo) < BEHIND:
            self._is_stuck = False
            return True
        with self._changed:
            patience = 0.0 if self._is_stuck else STUCK
            self._is_stuck = not self._changed.wait_for(lambda: len(self._todo) < BEHIND, patience)
        return not self._is_stuck

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Return when all removals are done, or when their disk has not answered for long."""
        self._is_over = True
        self._notify()
        if self._thread is not None:
            self._thread.join(LAST)

    def _work(self) -> None:
        while self._wait():
            while self._todo:
                _remove(self._todo[0])
                self._todo.popleft()
                self._notify()

    def _wait(self) -> bool:
        """Wait for enough removals, or for the end; return whether there is something to remove."""
        with self._changed:
            self._changed.wait_for(lambda: self._todo or self._is_over)
            self._changed.wait_for(lambda: len(self._todo) >= BATCH or self._is_over, REST)
            return bool(self._todo)


def _remove(leftovers: Leftovers) -> None:
    for path in leftovers.files:
        with contextlib.suppress(OSError):
            os.unlink(path)
    for path in leftovers.logs:
        with contextlib.suppress(OSError):
            if os.stat(path).st_size == 0:
                os.unlink(path)
    if leftovers.folder:
        with contextlib.suppress(OSError):
            os.rmdir(leftovers.folder)
