"""The future of one call of an executor, and the errors that the called function did not raise itself."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from typing import Any

from scheduler.app.queue.call_source import CallEnd
from scheduler.core.model import HOST
from scheduler.errors import SchedulerError
from scheduler.runtime.paths import RunPaths, open_plain


class CallFailed(SchedulerError, BrokenExecutor):
    """A call that ended without a result: it was killed, cancelled or refused, or ran out of memory or time.

    Other calls of the executor continue.
    """

    state = ""
    """The state of the call's task: failed, oom, timeout, interrupted, cancelled, refused; empty if the call had no
    task."""
    task: int | None = None


class NotPassed(SchedulerError, pickle.PicklingError):
    """An argument or a result that cannot be passed between processes."""


class RemoteError(CallFailed):
    """A call whose result or exception cannot be loaded in this process; the exception's text and its traceback are
    kept.
    """


class CallFuture(Future[Any]):
    """The future result of a call, with facts about its task."""

    def __init__(self, name: str, on_cancel: Callable[[CallFuture], None]) -> None:
        super().__init__()
        self.name = name
        """The name of the task: the function and its arguments."""
        self.task_id: int | None = None
        """The id of the task; None until the scheduler has accepted the call."""
        self._on_cancel = on_cancel
        self._places: RunPaths | None = None
        self._attempt = 0
        self._end: CallEnd | None = None
        self._notice = threading.Lock()
        self._is_told = False
        """True once waiters were notified that the call runs, or that it was cancelled."""

    @property
    def run(self) -> int | None:
        """The number of the run that the task belongs to."""
        return self._places.number if self._places is not None else None

    @property
    def peak(self) -> int | None:
        """The most memory that the call used on one GPU, or of the host if it used no GPU, in bytes; None before its
        end.
        """
        if self._end is None:
            return None
        on_gpus = [used for device, used in self._end.peak.items() if device != HOST]
        return max([used for used in on_gpus if used] or [self._end.peak.get(HOST, 0)])

    def log(self) -> str:
        """Return the output of the call so far; if there were several attempts, that of the last one."""
        if self._places is None or self.task_id is None or not self._attempt:
            return ""
        with contextlib.suppress(OSError), open_plain(self._places.task_log(self.task_id, self._attempt)) as file:
            return file.read().decode(errors="replace")
        return ""

    def cancel(self) -> bool:
        """Cancel the call if it has not begun; return whether it is cancelled."""
        cancelled = super().cancel()
        if cancelled and self._tell():
            self._on_cancel(self)
        return cancelled

    def _tell(self) -> bool:
        """Notify waiters that the call runs, or that it was cancelled; return False if they were notified before."""
        with self._notice:
            if self._is_told:
                return False
            self._is_told = True
            self.set_running_or_notify_cancel()
            return True


# ---- for the executor ----


def accept(future: CallFuture, places: RunPaths, task: int) -> None:
    """Note the task that was accepted for a call."""
    future._places, future.task_id = places, task


def start(future: CallFuture, attempt: int) -> None:
    """Note that an attempt of the call's task has started."""
    future._attempt = attempt
    future._tell()


def end(future: CallFuture, how: CallEnd) -> None:
    """Note how the call's task ended, before the future has a result."""
    future._end = how
    future._attempt = how.attempt or future._attempt


def succeed(future: CallFuture, value: Any) -> None:
    """Set the result of a call, unless the call was cancelled."""
    future._tell()
    if not future.cancelled():
        future.set_result(value)


def fail(future: CallFuture, exc: BaseException) -> None:
    """Set the exception of a call, unless the call was cancelled."""
    future._tell()
    if not future.cancelled():
        future.set_exception(exc)
