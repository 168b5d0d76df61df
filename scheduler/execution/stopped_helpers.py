"""Detection of fork servers and shims that a signal has stopped, and their continuation.

A stopped shim neither ends nor reports its task and ignores time limits and requests. Killing it would lose its task's
exit code, so SIGCONT is the only remedy. The signal does not reach the task, which leads a session of its own and stays
stopped if its user has stopped it.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.runtime.processes import continue_stopped
from scheduler.runtime.shim import is_stopped

REST = 1.0
"""Seconds between checks."""
SLICE = 200
"""The number of helpers that one check covers: each check of a helper takes 10 microseconds of the loop's thread."""


class StoppedHelpers:
    """The checks of the helpers, in turn; a helper that is stopped in two checks in a row is continued."""

    def __init__(self) -> None:
        self._next = 0.0
        self._last = 0
        """The pid of the last helper that was checked."""
        self._suspected: set[int] = set()
        self._told = False
        self._news: list[str] = []

    def is_due(self, now: float) -> bool:
        """Tell whether the next check is due."""
        return now >= self._next

    def look(self, helpers: Mapping[int, int], now: float) -> None:
        """Check some of these pids (with their start times), and the pids that were stopped at the last check."""
        self._next = now + REST
        in_order = sorted(helpers)
        later = [pid for pid in in_order if pid > self._last][:SLICE]
        chosen = later or in_order[:SLICE]
        self._last = chosen[-1] if chosen else 0
        stopped = {pid for pid in {*chosen, *self._suspected.intersection(in_order)} if is_stopped(pid)}
        for pid in stopped & self._suspected:
            self._continue(pid, helpers[pid])
        self._suspected = stopped

    def _continue(self, pid: int, start: int) -> None:
        if continue_stopped(pid, start) and not self._told:
            self._told = True
            self._news.append(
                f"process {pid}, which starts or supervises tasks, was stopped by a signal (SIGSTOP) and has been "
                "continued, since a stopped one cannot report the end of a task (reported once)"
            )

    def news(self) -> list[str]:
        """Return the sentences since the last call."""
        news, self._news = self._news, []
        return news
