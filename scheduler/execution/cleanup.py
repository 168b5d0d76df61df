"""Removal of the files of attempts that are over, in a thread beside everything else."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.runtime.processes import start_thread

BEHIND = 100
"""How many removals may wait before `remove` waits too; a resumed run looks at more than that once again."""


STUCK = 1.0
"""Seconds for which `remove` waits; after that the disk hangs, and the files stay until the run is removed."""
LAST = 30.0
"""Seconds that the remaining removals may take when the remover is closed."""


class Leftovers(NamedTuple):
    """The files of an attempt that are to be removed."""

    files: Sequence[str]
    logs: Sequence[str]
    """Logs, which are removed only if they are empty."""
    folder: str = ""
    """The task's folder, which is removed only if it is empty."""


class Remover:
    """A thread that removes files: on a disk that others sync all the time, each removal takes long.

    It is started with the first removal, and takes no signal from the main thread.
    """

    def __init__(self) -> None:
        self._todo: queue.Queue[Leftovers | None] = queue.Queue(BEHIND)
        self._thread: threading.Thread | None = None
        self._stuck = False
        """True if the last removal found no place in the queue in time; then the next one does not wait."""

    def remove(self, leftovers: Leftovers) -> None:
        """Have the files removed soon; remove them at once where this user may have no more threads."""
        self._thread = self._thread or start_thread(self._work, "removal")
        if self._thread is None:
            _remove(leftovers)
        else:
            self._put(leftovers, 0.0 if self._stuck else STUCK)

    def _put(self, leftovers: Leftovers | None, patience: float) -> None:
        try:
            self._todo.put(leftovers, patience > 0, patience or None)
            self._stuck = False
        except queue.Full:
            self._stuck = True

    def close(self) -> None:
        """Return when all removals are done, or their disk has not answered for long."""
        if self._thread is not None:
            self._put(None, LAST)
            if not self._stuck:
                self._thread.join(LAST)
            self._thread = None

    def _work(self) -> None:
        while (leftovers := self._todo.get()) is not None:
            _remove(leftovers)


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
