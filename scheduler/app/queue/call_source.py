"""The calls of one Python program as rows: they arrive over a pipe, and what becomes of them is sent over another.

Both pipes carry lines of JSON. The program sends these lines, all but the first after it has received the run:

    {"start": {"what", "options", "settings", "owner", "resume", "open"}}   once, first; `resume` is the run whose
                                                   scheduler was killed (0: a new run), `open` its calls without an end
    {"form": number, "columns": its text}          before the first rows of a form
    {"rows": [[row, cells], …], "form": number}    calls; `row` is the program's own number of a call
    {"cancel": [task, …]}                          tasks to be cancelled
    {"close": true}                                no more calls; the run ends with the last of them

and receives these:

    {"run": number, "root": its directory, "elsewhere": true if other machines make the calls}
                                                   or {"trouble": why there is none}
    {"accepted": [[task, row], …]}
    {"refused": row, "why": a sentence}
    {"started": task, "attempt": number}
    {"ended": a `CallEnd`}
    {"over": true}                                 the run ends, by a request of its user or after `close`

If the program ends without `close`, its tasks are cancelled and its run ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.core.control.request_kinds import Verb
from scheduler.core.model import Terms
from scheduler.core.ports import Happening, Request
from scheduler.core.tasks.fields import BadCell, RowForm
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.errors import InputError
from scheduler.values import dataclass, field

BLOCK = 1 << 18
MOST_AT_ONCE = 500
"""The number of calls that are accepted in one transaction, so that the first of many calls start soon."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call's task."""

    task: int
    state: str
    attempt: int = 0
    """The number of the task's last attempt; 0 if the task had none."""
    why: str = ""
    peak: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the end as JSON values."""
        return {"task": self.task, "state": self.state, "attempt": self.attempt, "why": self.why, "peak": self.peak}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CallEnd:
        """Return the end that `to_dict` wrote."""
        return cls(data["task"], data["state"], data["attempt"], data["why"], data["peak"])


class LinePipe:
    """Lines of JSON in both directions, without blocking: lines that the other end does not read yet are buffered."""

    def __init__(self, read: int, write: int) -> None:
        self.read = read
        self.write = write
        self._in = b""
        self._out = bytearray()
        for fd in (read, write):
            os.set_blocking(fd, False)

    @property
    def unsent(self) -> bool:
        """True if lines wait until the other end reads."""
        return bool(self._out)

    def send(self, line: Mapping[str, Any]) -> None:
        """Send a line, at once if possible."""
        self._out += json.dumps(line).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send buffered lines, as far as the other end reads them; drop them if that end is closed."""
        while self._out:
            try:
                sent = os.write(self.write, self._out[:BLOCK])
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                return
            del self._out[:sent]

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines that have arrived. Raise EOFError if the other end is closed."""
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(self.read, BLOCK)
            except BlockingIOError:
                break
            if not part:
                if parts:
                    break  # the next call raises EOFError
                raise EOFError
            parts.append(part)
        *complete, self._in = (self._in + b"".join(parts)).split(b"\n")
        return [json.loads(line) for line in complete]

    def close(self) -> None:
        """Close both ends; the second call does nothing."""
        fds, self.read, self.write = {self.read, self.write} - {-1}, -1, -1
        for fd in fds:
            os.close(fd)
        self._out.clear()


class CallSource(RowSource):
    """The source of rows for a run of calls: rows arrive for as long as the program is alive."""

    def __init__(self, pipe: LinePipe, owner: int) -> None:
        """Prepare to read the pipe of the process `owner`.

        When that process ends, the calls end, even if a copy of the process keeps the pipe open.
        """
        self.form = RowForm(("Command", "Name"))
        self.check: Callable[[Terms, int], None] = lambda terms, row: None
        """A function that raises an error for terms that this machine can never satisfy."""
        self.living: set[int] = set()
        """The tasks that are accepted and have not ended."""
        self.abandoned = False
        """True if the program has ended without closing its executor."""
        self._pipe = pipe
        self._forms: dict[int, RowForm] = {}
        self._rows: deque[tuple[RowForm, InputRow]] = deque()
        self._offered = 0
        self._open = True
        self._always = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that is always readable; `fileno` returns it while rows wait to be accepted."""
        self._poll = select.epoll()
        self._poll.register(pipe.read, select.EPOLLIN)
        with contextlib.suppress(OSError):  # the end of the pipe is noticed as well
            self._poll.register(os.pidfd_open(owner), select.EPOLLIN)

    # ---- something to wait on ----

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is a line or an unaccepted row; -1 after the end."""
        if self._rows:
            return self._always
        return self._poll.fileno() if self._open else -1

    def collect(self) -> Sequence[Happening]:
        """Read the lines that have arrived and return the requests in them. If the program has ended, also return a
        request that cancels its tasks.
        """
        self._pipe.flush()
        if not self._open:
            return ()
        ready = {fd for fd, _ in self._poll.poll(0)}
        try:
            lines = self._pipe.lines()
        except EOFError:
            return self._abandon()
        requests = [request for line in lines for request in self._take(line)]
        if ready - {self._pipe.read}:
            requests += self._abandon()
        return requests

    def _take(self, line: Mapping[str, Any]) -> list[Happening]:
        if "columns" in line:
            self._forms[line["form"]] = RowForm.unpack(line["columns"])
        elif "rows" in line:
            form = self._forms[line["form"]]
            for row, cells in line["rows"]:
                self._put(form, row, cells)
        elif "cancel" in line:
            tasks = tuple(task for task in line["cancel"] if task in self.living)
            return [Request(Verb.CANCEL, tasks)] if tasks else []
        elif "close" in line:
            self._open = False
        return []

    def _put(self, form: RowForm, row: int, cells: list[str]) -> None:
        """Keep a row until it is accepted; if it is refused, tell the program why."""
        try:
            terms = form.terms(cells)
            self.check(terms, row)
        except (BadCell, InputError) as exc:
            why = exc.message if isinstance(exc, InputError) else f"{exc.column}: {exc}"
            self._pipe.send({"refused": row, "why": why})
        else:
            self._rows.append((form, (row, cells, terms, 0)))

    def _abandon(self) -> list[Happening]:
        """Drop the rows of the program, which has ended, and return a request that cancels its living tasks."""
        self._open, self.abandoned = False, True
        self._rows.clear()
        self._offered = 0
        return [Request(Verb.CANCEL, tuple(sorted(self.living)))] if self.living else []

    # ---- rows ----

    @property
    def more(self) -> bool:
        """True if more calls may come."""
        return self._open or bool(self._rows)

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        """Return the next rows, which have one form."""
        if not self._rows:
            return (), "", ""
        self.form = self._rows[0][0]
        found: list[InputRow] = []
        for form, row in self._rows:
            if form is not self.form or len(found) >= MOST_AT_ONCE:
                break
            found.append(row)
        self._offered = len(found)
        return found, "", ""

    def accepted(self) -> None:
        """Drop the rows that `appended` returned last, because they are in the journal."""
        for _ in range(self._offered):
            self._rows.popleft()
        self._offered = 0
