"""Removing files that nobody needs any more, beside everything else."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Sequence
from typing import NamedTuple

BEHIND = 100
"""So many may wait to be removed, then whoever has more waits too; a resumed run looks at more than that once again."""


class Leftovers(NamedTuple):
    """What is to go of an attempt."""

    files: Sequence[str]
    logs: Sequence[str]
    """Only if nothing was written there."""
    folder: str = ""
    """Only if nothing is left in it."""


class Remover:
    """A thread that removes: on a disk that others sync all the time each file keeps one waiting.

    It is started with the first of them, and takes no signal from the main thread.
    """

    def __init__(self) -> None:
        self._todo: queue.Queue[Leftovers | None] = queue.Queue(BEHIND)
        self._thread: threading.Thread | None = None

    def remove(self, leftovers: Leftovers) -> None:
        """Have them removed soon; at once, where this user may have no more threads."""
        if self._thread is None and not self._start():
            _remove(leftovers)
        else:
            self._todo.put(leftovers)

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name="removal", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        except RuntimeError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._thread = thread
        return True

    def close(self) -> None:
        """Return when all of them are gone."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
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
