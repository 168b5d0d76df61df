"""Where lines go: the terminal while there is one, and always the run's log."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections import deque
from pathlib import Path
from typing import TextIO

from scheduler.view.words import clean, clock, moment

MOST_PENDING = 10_000
"""Lines kept for a terminal that stands still; the oldest go first, and the log has them all."""


class Sink:
    """Writes lines; a terminal that is gone or stands still, or a full disk, ends its part, never the run."""

    def __init__(self, log: Path | None, stream: TextIO | None) -> None:
        self._stream = stream
        self._pending: deque[str] = deque(maxlen=MOST_PENDING)
        self._log = _open_log(log) if log is not None else None
        self._ready = _readiness(stream)

    def line(self, text: str = "", *, at: float, timed: bool = False) -> None:
        """One line to everybody who listens; the log has date and time of all, the terminal the time of some."""
        self.show(text, at=at if timed else None)
        self.log(text, at=at)

    def show(self, text: str, *, at: float | None = None) -> None:
        """One line to the terminal alone, with a time of day where one is given."""
        if self._stream is not None:
            shown = clean(text, keep_bytes=self._stream.errors == "surrogateescape")
            self._pending.append(f"{clock(at)}  {shown}\n" if at is not None else f"{shown}\n")
            self.catch_up()

    def log(self, text: str, *, at: float) -> None:
        """One line to the log alone."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.write(self._log, f"{moment(at)} {clean(text)}\n".encode("utf-8", "replace"))

    def turn_to(self, stream: TextIO | None) -> None:
        """Show lines elsewhere from now on; what is still to be shown goes along."""
        self._stream, self._ready = stream, _readiness(stream)

    def catch_up(self, *, to_the_end: bool = False) -> None:
        """Show what the terminal takes now (Ctrl-S and pagers stop it), or all of it, however long that takes."""
        try:
            while self._stream is not None and self._pending and (to_the_end or self._takes_a_line()):
                self._stream.write(self._pending.popleft())
                self._stream.flush()
        except (OSError, ValueError):
            self.hang_up()

    def _takes_a_line(self) -> bool:
        """Whether writing a line does not block now."""
        return self._ready is None or bool(self._ready.poll(0))

    def hang_up(self) -> None:
        """The terminal is gone: nothing more is written there, and nothing is complained about at exit."""
        stream, self._stream = self._stream, None
        if stream is not None:
            let_go(stream)

    def close(self) -> None:
        """Show the rest and close the log."""
        self.catch_up(to_the_end=True)
        if self._log is not None:
            os.close(self._log)
            self._log = None


def hint(text: str) -> None:
    """A line on standard error, if anybody reads that: a run that is accepted does not end for it."""
    try:
        print(f"hint:   {clean(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        let_go(sys.stderr)


def let_go(stream: TextIO) -> None:
    """What is written to a standard stream from now on goes nowhere, and nothing is complained about at exit."""
    for number, standard in ((1, sys.stdout), (2, sys.stderr)):
        if stream is standard:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def _readiness(stream: TextIO | None) -> select.poll | None:
    """What tells whether a stream takes a line; None for what is no file at all, as in a notebook."""
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
