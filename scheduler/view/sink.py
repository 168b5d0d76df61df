"""Where lines go: the terminal while there is one, and always the run's log."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from scheduler.view.words import moment


class Sink:
    """Writes lines; a terminal that is gone or a full disk ends its part, never the run."""

    def __init__(self, log: Path | None, stream: TextIO | None) -> None:
        self._stream = stream
        self._log = _open_log(log) if log is not None else None

    def line(self, text: str = "", *, at: float | None = None) -> None:
        """One line to everybody who listens; the log has the date as well."""
        if self._stream is not None:
            try:
                print(text, file=self._stream, flush=True)
            except (OSError, ValueError):
                self.hang_up()
        if self._log is not None:
            try:
                os.write(self._log, f"{moment(at)} {text}\n".lstrip().encode("utf-8", "replace"))
            except OSError:
                return

    def hang_up(self) -> None:
        """The terminal is gone: nothing more is written there, and nothing is complained about at exit."""
        stream, self._stream = self._stream, None
        if stream is sys.stdout:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None


def _open_log(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
