"""Threads for calls that may never return, such as file access on a dead network mount or a lookup of a user."""

from __future__ import annotations

import _thread
import contextlib
import queue
import signal
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

PATIENCE = 1.0
"""The most seconds that a caller waits for one call."""
MOST_LATE = 4
"""The most calls that may be late at the same time; while so many are late, all other calls fail at once."""
_IDLE = 1
"""Threads without a call that are kept for the next ones."""

T = TypeVar("T")
_Work = Callable[[], Any]
_Answer = tuple[Any, BaseException | None]


class StartedThread:
    """A thread that is running, or for whose first step there was not enough memory.

    `threading.Thread.start` waits for the first step without a limit, so it never returns if memory is too short for
    this step.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        """Start the thread. Raise RuntimeError if this user may have no more threads."""
        self._work = work
        self._living = _thread.allocate_lock()
        self._living.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._living.release()

    def is_alive(self) -> bool:
        """Tell whether the work has not ended."""
        return self._living.locked()

    def join(self, patience: float) -> None:
        """Wait for the end of the work, at most this many seconds."""
        if self._living.acquire(timeout=max(0.0, patience)):
            self._living.release()


def start_thread(work: Callable[[], object]) -> StartedThread | None:
    """Run `work`, which may hang, in a new thread; return None if this user may have no more threads.

    The thread takes no signals from the main thread, and does not keep this process from ending.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with contextlib.suppress(RuntimeError, MemoryError):
            return StartedThread(work)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None


class BoundedCalls:
    """The calls of one caller; each is made in a thread, and the caller waits for it for a limited time.

    A thread in a call to the kernel cannot be ended, so a late call lasts until it returns, and its result is
    discarded. Its key stays busy until then. So a dead mount costs the caller one wait, and one thread. Only one thread
    may use such an object.
    """

    def __init__(self, patience: float = PATIENCE, most_late: int = MOST_LATE) -> None:
        self._patience = patience
        self._most_late = most_late
        self._late: dict[Hashable, _CallThread] = {}
        self._idle: list[_CallThread] = []

    def call(self, key: Hashable, work: Callable[[], T], patience: float | None = None) -> T:
        """Return or raise what `work` returns or raises; raise TimeoutError where that takes too long.

        TimeoutError is raised at once if an earlier call with this key is still late, or if too many other calls are.
        If this user may have no more threads, `work` is called without a time limit.
        """
        self._take_back()
        if key in self._late or len(self._late) >= self._most_late:
            raise TimeoutError
        thread = self._idle.pop() if self._idle else _CallThread.start()
        if thread is None:
            return work()
        thread.calls.put(work)
        try:
            result, error = thread.answers.get(timeout=self._patience if patience is None else patience)
        except queue.Empty:
            self._late[key] = thread
            raise TimeoutError from None
        self._keep(thread)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # the thread knows no types

    def is_late(self, key: Hashable) -> bool:
        """Tell whether a call with this key has not returned yet."""
        self._take_back()
        return key in self._late

    def _take_back(self) -> None:
        """Make the threads of late calls that have returned available for other calls."""
        for key, thread in list(self._late.items()):
            if not thread.answers.empty():
                thread.answers.get()
                del self._late[key]
                self._keep(thread)

    def _keep(self, thread: _CallThread) -> None:
        if len(self._idle) < _IDLE:
            self._idle.append(thread)
        else:
            thread.calls.put(None)

    def close(self) -> None:
        """End the threads without a call; the others end with their late calls, at the latest with this process."""
        for thread in (*self._idle, *self._late.values()):
            thread.calls.put(None)
        self._idle.clear()
        self._late.clear()


class _CallThread:
    """A thread that makes one call after another."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    @classmethod
    def start(cls) -> _CallThread | None:
        """Start a thread; return None if this user may have no more threads."""
        made = cls()
        return made if start_thread(made._work) is not None else None

    def _work(self) -> None:
        while (work := self.calls.get()) is not None:
            try:
                answer: _Answer = work(), None
            except BaseException as exc:  # noqa: BLE001 - it is raised again in the caller's thread
                answer = None, exc
            self.answers.put(answer)
