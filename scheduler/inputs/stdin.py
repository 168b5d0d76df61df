"""Commands from standard input, which join a run as soon as they arrive."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence

from scheduler.core.ports import Happening
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.inputs.lines import LineCutter, PendingLines

BLOCK = 1 << 18
ENOUGH = 10_000
"""The most commands that wait to be accepted; when this many wait, no more input is read."""
PATIENCE = 5.0
"""Seconds without input after which a hint tells the user at a terminal that commands are read from it."""


class LineStream(RowSource):
    """A descriptor whose lines are commands; the loop of a run can wait on it."""

    def __init__(self, fd: int, form: RowForm, *, multiline: bool = False, patience: float = PATIENCE) -> None:
        self.form = form
        self._fd = fd
        self._lines = PendingLines(form)
        self._cutter = LineCutter(multiline=multiline)
        self._ended = False
        self._always = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that is always readable. It stands for files, which epoll refuses, and for commands that were
        already read.
        """
        self._waits = _can_be_waited_on(fd)
        self._hint_at = time.monotonic() + patience if os.isatty(fd) else float("inf")

    # ---- something to wait on ----

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are bytes to read or commands to accept; -1 after the end of
        the input.
        """
        if self._lines.pending:
            return self._always
        if self._ended:
            return -1
        return self._fd if self._waits else self._always

    def collect(self) -> Sequence[Happening]:
        """Read available bytes and return nothing: commands become events when they are accepted."""
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
            return  # the descriptor was opened as non-blocking
        except OSError:
            data = b""  # the terminal is gone
        self._hint_at = float("inf")
        self._ended = not data
        self._lines.pending.extend(self._cutter.feed(data) if data else self._cutter.rest())

    # ---- rows ----

    @property
    def more(self) -> bool:
        """True if more commands may arrive."""
        return not self._ended or bool(self._lines.pending)

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        """Return the new commands, an empty mark, and a hint for the user at a terminal, which is usually empty."""
        hint = ""
        if time.monotonic() >= self._hint_at:
            self._hint_at = float("inf")
            hint = "reading commands from this terminal, one on each line; end with Ctrl-D"
        return self._lines.next_rows(), "", hint

    def accepted(self) -> None:
        """Drop the rows that `appended` returned last, because they are in the journal now."""
        self._lines.accepted()

    def rows(self) -> Iterator[InputRow]:
        """Yield all commands up to the end of the input, for a list that is accepted as a whole."""
        while self.more:
            if not self._lines.pending and not self._ended:
                if self._waits:
                    select.select([self._fd], [], [])
                self._read()
            yield from self._lines.next_rows()
            self._lines.accepted()


def _can_be_waited_on(fd: int) -> bool:
    """Tell whether epoll accepts a descriptor; it refuses files and /dev/null."""
    with select.epoll() as trial:
        try:
            trial.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
        except OSError:
            return False  # closed, as the next read shows
    return True
