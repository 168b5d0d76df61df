"""The destination of lines: the terminal while there is one, and always the run's log."""

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
"""Seconds between checks whether a file that did not answer can be written again."""
MOST_PENDING = 10_000
"""The number of lines kept for a terminal that takes none (Ctrl-S); the oldest are dropped first, the log has all of
them."""


class LineSink:
    """The writer of lines to terminal and log; a terminal that is gone or blocked, or a full disk, never ends the
    run.
    """

    def __init__(self, log: Path | None, stream: TextIO | None) -> None:
        self._stream = stream
        self._pending: deque[str] = deque(maxlen=MOST_PENDING)
        self._rest = b""
        """The rest of a line of which the terminal has taken a part."""
        self._log = _open_log(log) if log is not None else None
        self._own = _description_of(stream)
        """A descriptor that is written without blocking; -1: lines go through the stream itself."""
        self._calls = BoundedCalls()
        """The runner of writes to a regular file, which may be on a dead network mount."""
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
        """Write a line to terminal and log; the log gets its date and time, the terminal its time if `timed`."""
        self.show(text, at=at if timed else None)
        self.log(text, at=at)

    def show(self, text: str, *, at: float | None = None) -> None:
        """Write a line to the terminal alone, with a time of day if `at` is given."""
        if self._stream is not None:
            shown = clean(text, keep_bytes=self._stream.errors == "surrogateescape")
            self._pending.append(f"{clock(at)}  {shown}\n" if at is not None else f"{shown}\n")
            self.catch_up()

    def log(self, text: str, *, at: float) -> None:
        """Write a line to the log alone."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.write(self._log, f"{moment(at)} {clean(text)}\n".encode("utf-8", "replace"))

    def turn_to(self, stream: TextIO | None) -> None:
        """Write lines to another stream from now on, including those that are still pending."""
        self._let_go_of_own()
        self._stream, self._own, self._ready = stream, _description_of(stream), _readiness(stream)
        self._is_file = _is_file(stream)

    def catch_up(self, *, to_the_end: bool = False) -> None:
        """Write what the terminal takes now (Ctrl-S and pagers block it), or everything, however long that takes."""
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
        """Write as much of the next line as the terminal takes now; return False if it takes nothing."""
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
        """Write the next line through the stream itself, if that takes one now or `wait` is true."""
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
        """Stop writing to the closed terminal, without an error message at exit."""
        self._let_go_of_own()
        stream, self._stream = self._stream, None
        if stream is not None:
            let_go(stream)

    def close(self) -> None:
        """Write the rest, and close the log."""
        self.catch_up(to_the_end=True)
        self._let_go_of_own()
        if self._log is not None:
            os.close(self._log)
            self._log = None


def hint(text: str) -> None:
    """Print a hint on standard error; an error there never ends a run that was accepted."""
    try:
        print(f"hint:   {clean(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        let_go(sys.stderr)


def let_go(stream: TextIO) -> None:
    """Discard what is written to a standard stream from now on, without an error message at exit."""
    for number, standard in ((1, sys.stdout), (2, sys.stderr)):
        if stream is standard:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def _description_of(stream: TextIO | None) -> int:
    """Open the terminal or pipe of a stream a second time, for writing without blocking, and return the descriptor.
    For a regular file return a copy of its descriptor, for any other stream -1.

    A terminal that takes something now may not take a whole line: if its other end is blocked, it takes the beginning
    and blocks the writer for ever. The stream's own description stays blocking, because the shell shares it.
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
    """Tell whether a stream goes into a regular file. Call this only once: on a dead network mount it would block."""
    try:
        return stream is not None and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _readiness(stream: TextIO | None) -> select.poll | None:
    """Return a poll object that tells whether a stream takes a line; None if it has no descriptor, as in a notebook."""
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
