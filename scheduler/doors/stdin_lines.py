"""Commands from standard input, which join a run as they arrive."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence

from scheduler.core.fields import Form
from scheduler.core.ports import Happening
from scheduler.doors.lines import Cutter, Lines, Row

BLOCK = 1 << 18
ENOUGH = 10_000
"""Commands that may wait here to be accepted; whoever writes more waits as well."""
PATIENCE = 5.0
"""Seconds after which somebody at a terminal is told what is waited for."""


class LineStream:
    """A descriptor whose lines are commands: rows for a run, and something that its loop can wait on."""

    def __init__(self, fd: int, form: Form, *, multiline: bool = False, patience: float = PATIENCE) -> None:
        self.form = form
        self._fd = fd
        self._lines = Lines(form)
        self._cutter = Cutter(multiline=multiline)
        self._ended = False
        self._always = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable at any time: in place of what cannot be waited on, such as a file, and of what is already read."""
        self._waits = _can_be_waited_on(fd)
        self._speaks_at = time.monotonic() + patience if os.isatty(fd) else float("inf")

    # ---- something to wait on ----

    def fileno(self) -> int:
        """Readable when there are bytes, or commands that are not accepted yet; -1 once there will be no more."""
        if self._lines.pending:
            return self._always
        if self._ended:
            return -1
        return self._fd if self._waits else self._always

    def collect(self) -> Sequence[Happening]:
        """Read what is there; nothing has happened before it is accepted."""
        if not self._ended and len(self._lines.pending) < ENOUGH and self._is_readable():
            self._read()
        return ()

    def _is_readable(self) -> bool:
        if not self._waits:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self) -> None:
        try:
            data = os.read(self._fd, BLOCK)
        except BlockingIOError:
            return  # whoever gave it to us does not want to wait
        except OSError:
            data = b""  # the terminal is gone
        self._speaks_at = float("inf")
        self._ended = not data
        self._lines.pending.extend(self._cutter.feed(data) if data else self._cutter.rest())

    # ---- rows ----

    @property
    def mark(self) -> str:
        """Nothing: what is read is gone from a pipe."""
        return ""

    @property
    def more(self) -> bool:
        """Whether commands may still come."""
        return not self._ended or bool(self._lines.pending)

    def untaken(self) -> tuple[Sequence[Row], str]:
        """Nothing: every line is a command."""
        return (), ""

    def appended(self, *, last: bool) -> tuple[Sequence[Row], str, str]:
        """The commands that came."""
        said = ""
        if time.monotonic() >= self._speaks_at:
            self._speaks_at = float("inf")
            said = "reading commands from this terminal, one on each line; Ctrl-D ends them"
        return self._lines.tell(), self.mark, said

    def accepted(self) -> None:
        """The rows told last are in the journal."""
        self._lines.accepted()

    def rows(self) -> Iterator[Row]:
        """All of them, to the end of the input, for a list that is accepted as a whole."""
        while self.more:
            if not self._lines.pending and not self._ended:
                if self._waits:
                    select.select([self._fd], [], [])
                self._read()
            yield from self._lines.tell()
            self._lines.accepted()


def _can_be_waited_on(fd: int) -> bool:
    """Files cannot, nor /dev/null: they are always readable."""
    with select.epoll() as trial:
        try:
            trial.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
        except OSError:
            return False  # closed: reading it tells
    return True
