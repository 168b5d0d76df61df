"""Requests of the live view to its run: a thread sends them as the verbs do, because an answer may take seconds."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Mapping, Sequence

from scheduler.app.control import run_requests
from scheduler.app.control.targets import Target
from scheduler.errors import SchedulerError
from scheduler.runtime.threads import start_thread
from scheduler.store.run.catalog import RunInfo
from scheduler.values import dataclass

MOST_PENDING = 100
"""The most requests that may wait for the answer to an earlier one; a key that is held down sends many."""


@dataclass(frozen=True, slots=True)
class _Pending:
    what: str
    tasks: tuple[int, ...]
    said: Mapping[str, str]


class RequestSender:
    """The requests to one run, in order, and their answers as sentences."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._pending: queue.Queue[_Pending] = queue.Queue(MOST_PENDING)
        self._answers: deque[str] = deque(maxlen=MOST_PENDING)
        self._started = False

    def ask(self, what: str, tasks: tuple[int, ...], said: Mapping[str, str]) -> None:
        """Send a request as the command-line verb `what` does; return at once."""
        try:
            self._pending.put_nowait(_Pending(what, tasks, said))
        except queue.Full:
            self._answers.append("the run has not answered earlier requests yet: this one was not sent")
            return
        if not self._started:
            self._started = start_thread(self._send_all) is not None
            if not self._started:
                self._answers.append("no thread can be started now: the request was not sent")

    def _send_all(self) -> None:
        while True:
            request = self._pending.get()
            try:
                result = run_requests.ask(Target(self._info, request.tasks), request.what, request.said)
                self._answers += result.lines()[0 if result.recorded else 1 :]
            except (SchedulerError, OSError) as exc:
                self._answers.append(str(exc))

    def answers(self) -> Sequence[str]:
        """Return the answers that have arrived since the last call, as sentences."""
        return [self._answers.popleft() for _ in range(len(self._answers))]
