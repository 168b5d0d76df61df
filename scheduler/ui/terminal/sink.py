"""The destination of lines: the terminal as long as there is one, and always the run's log."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TextIO

from scheduler.runtime.threads import BoundedCalls
from scheduler.ui.text import clean, clock, moment

PAUSE = 0.05
"""Seconds between two checks of whether a file that did not respond accepts data again."""
MOST_PENDING = 10_000
"""The most lines that are kept for a terminal that accepts none (Ctrl-S); the oldest lines are dropped first, but the
log has all of them.
"""


class LineSink:
    """The writer of lines to the terminal and the log; a terminal that was closed or is blocked, or a full disk, never
    ends the run.
    """

    def __init__(self, log: Path | None, stream: TextIO | None) -> None:
        self._stream = stream
        self._pending: deque[str] = deque(maxlen=MOST_PENDING)
        self._rest = b""
        """The rest of a line of which the terminal has accepted only a part."""
        self._log = _open_log(log) if log is not None else None
        self._own = _description_of(stream)
        """A descriptor to which lines are written without blocking; -1: lines are written to the stream itself."""
        self._calls = BoundedCalls()
        """The runner of writes to a regular file, which may be on a network mount that does not respond."""
        self._is_file = _is_file(stream)
        self._ready = _readiness(stream)

    @property
    def width(self) -> int | None:
        """The number of columns of the terminal; None if the lines do not go to a terminal."""
        try:
            return os.get_terminal_size(self._own).columns or None
        except OSError:
            return None

    def line(self, text: str = "", *, at: float, timed: bool = False) -> None:
        """Write a line to the terminal and the log. In the log, the line has its date and time; on the terminal, it has
        its time if `timed`.
        """
        self.show(text, at=at if timed else None)
        self.log(text, at=at)

    def show(self, text: str, *, at: float | None = None) -> None:
        """Write a line to the terminal only; with `at`, put the time of day before it."""
        if self._stream is not None:
            shown = clean(text, keep_bytes=self._stream.errors == "surrogateescape")
            self._pending.append(f"{clock(at)}  {shown}\n" if at is not None else f"{shown}\n")
            self.catch_up()

    def log(self, text: str, *, at: float) -> None:
        """Write a line to the log only."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.write(self._log, f"{moment(at)} {clean(text)}\n".encode("utf-8", "replace"))

    def turn_to(self, stream: TextIO | None) -> None:
        """Write all further lines, and the lines that are still pending, to another stream."""
        self._let_go_of_own()
        self._stream, self._own, self._ready = stream, _description_of(stream), _readiness(stream)
        self._is_file = _is_file(stream)

    def catch_up(self, *, to_the_end: bool = False) -> None:
        """Write as many pending lines as the terminal accepts now (Ctrl-S and pagers block it); with `to_the_end`,
        write all of them, however long that takes.
        """
        try:
            while self._stream is not None and (self._pending or self._rest):
                shown = self._write_without_waiting() if self._own >= 0 else self._write_line(wait=to_the_end)
                if not shown and not to_the_end:
                    return
                if not shown and self._calls.is_late(self._own):
                    time.sleep(PAUSE)
                elif not shown and self._ready is not None:
                    self._ready.poll()
        except (OSError, ValueError):
            self.hang_up()

    def _write_without_waiting(self) -> bool:
        """Write as much of the next line as the terminal accepts now; return False if it accepts nothing."""
        assert self._stream is not None
        if self._calls.is_late(self._own):
            return False
        self._rest = self._rest or self._pending.popleft().encode(
            self._stream.encoding, self._stream.errors or "strict"
        )
        try:
            self._rest = self._rest[self._write(self._rest) :]
        except BlockingIOError:
            return False
        except TimeoutError:
            self._rest = b""  # the late call writes it, once its disk answers
            return False
        return True

    def _write(self, data: bytes) -> int:
        write = partial(os.write, self._own, data)
        return self._calls.call(self._own, write) if self._is_file else write()

    def _write_line(self, *, wait: bool) -> bool:
        """Write the next line to the stream itself, if the stream can accept one now or if `wait` is true; return
        whether the line was written.
        """
        assert self._stream is not None
        if not wait and self._ready is not None and not self._ready.poll(0):
            return False
        if self._pending:
            self._stream.write(self._pending.popleft())
        self._rest = b""
        self._stream.flush()
        return True

    def _let_go_of_own(self) -> None:
        own, self._own = self._own, -1
        if own >= 0:
            os.close(own)

    def hang_up(self) -> None:
        """Stop writing to a terminal that was closed, without an error message at exit."""
        self._let_go_of_own()
        stream, self._stream = self._stream, None
        if stream is not None:
            let_go(stream)

    def close(self) -> None:
        """Write the pending lines, and close the log."""
        self.catch_up(to_the_end=True)
        self._let_go_of_own()
        if self._log is not None:
            os.close(self._log)
            self._log = None


def hint(text: str) -> None:
    """Print a hint on standard error; an error while it is printed never ends an accepted run."""
    try:
        print(f"hint:   {clean(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        let_go(sys.stderr)


def let_go(stream: TextIO) -> None:
    """Discard all further output to a standard stream, without an error message at exit."""
    for number, standard in ((1, sys.stdout), (2, sys.stderr)):
        if stream is standard:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def _description_of(stream: TextIO | None) -> int:
    """Open the terminal or pipe of a stream a second time, for writing without blocking, and return the descriptor. For
    a regular file, return a copy of its descriptor; for any other stream, return -1.

    A terminal that can accept data now may not accept a whole line: if its other end is blocked, it accepts the
    beginning and then blocks the writer for ever. The stream's own file description stays blocking, because the shell
    shares it.
    """
    try:
        fd = -1 if stream is None else stream.fileno()
        is_file = _is_file(stream)
        if fd < 0 or not (os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode) or is_file):
            return -1
        if stream is not None:
            stream.flush()
        if is_file:
            return os.dup(fd)
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return -1


def _is_file(stream: TextIO | None) -> bool:
    """Tell whether a stream writes to a regular file. Call this only once: on a network mount that does not respond, a
    later call would block.
    """
    try:
        return stream is not None and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _readiness(stream: TextIO | None) -> select.poll | None:
    """Return a poll object that tells whether a stream can accept a line; None if the stream has no descriptor, as in a
    notebook.
    """
    try:
        poll = select.poll()
        poll.register(-1 if stream is None else stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):
        return None
    return poll


def _open_log(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
