"""The mutex of the lease directory, taken in turn: processes that wait for it queue in the kernel."""

from __future__ import annotations

import fcntl
import os
import threading
import time

from scheduler.runtime.threads import start_thread

TRYING = 0.002
"""The longest pause in seconds between attempts to take a busy lock. A decision takes less time than this, and queueing
in the kernel costs a thread.
"""


class Mutex:
    """The lock of an open directory; the descriptor may be given to another directory only while the lock is held.

    Other users may take and release the lock without pause. A process that only polls hardly ever finds it free; so a
    thread waits in the kernel, and the caller waits for the thread, for a limited time. A thread whose caller has given
    up keeps its place for the next call. Nothing helps against a process that takes the lock again at the moment of its
    release: the kernel wakes the waiting process, but does not keep the lock for it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changed = threading.Condition()
        self._is_queued = False
        """True while a thread waits for the lock; meanwhile no other thread may lock or unlock the file."""
        self._is_wanted = False
        """True if the waiting thread should keep the lock once it has it."""
        self._error: OSError | None = None

    def take(self, patience: float) -> bool:
        """Take the lock; return False if it does not become free within `patience` seconds. Raise OSError if the file
        cannot be locked.
        """
        end = time.monotonic() + patience
        with self._changed:
            if not self._is_queued:
                if self._try():
                    return True
                if not self._queue():
                    return self._poll(end)
            self._is_wanted = True
            while self._is_queued and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            self._is_wanted = False
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return not self._is_queued

    def release(self) -> None:
        """Release the lock."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _try(self) -> bool:
        pause = TRYING / 8
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if pause > TRYING:
                    return False
            else:
                return True
            time.sleep(pause)
            pause *= 2

    def _poll(self, end: float) -> bool:
        """Try to take the lock repeatedly until the time `end`; return whether it was taken."""
        while not self._try():
            if time.monotonic() > end:
                return False
            time.sleep(TRYING)
        return True

    def _queue(self) -> bool:
        """Start a thread that waits for the lock on a descriptor of its own, because the caller may have given up by
        the time the lock is free.

        Return False if this user may start no more threads.
        """
        self._is_queued, self._error = True, None
        fd = os.dup(self._fd)
        if start_thread(lambda: self._wait(fd)) is None:
            os.close(fd)
            self._is_queued = False
        return self._is_queued

    def _wait(self, fd: int) -> None:
        error = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as exc:
            error = exc
        with self._changed:
            self._error = error
            if error is None and not self._is_wanted:
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
            self._is_queued = False
            self._changed.notify()
