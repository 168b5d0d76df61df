"""A terminal that is drawn on: entered and left again, never scrolled, never waited for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.segment import Segment

from scheduler.view.panels import Line, ascii_only

PATIENCE = 1.0
"""Seconds that a terminal which stands still gets to take the last bytes, which give it back."""
CANCEL = "\x18"
"""Ends an escape sequence that was cut short."""
GIVE_BACK = "\x1b[0m\x1b[?25h\x1b[?1049l"


class Gone(Exception):
    """Nobody can be shown anything there any more."""


class Screen:
    """The alternate screen of a terminal, and its keys one by one; Ctrl-C and its like stay signals."""

    def __init__(self, path: str, encoding: str = "utf-8") -> None:
        # A description of our own: the shell's stays as it is, whatever happens to us.
        self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._ascii = encoding.lower().replace("-", "") not in ("utf8", "utf16", "utf32")
        self._before = termios.tcgetattr(self._fd)
        self._out = bytearray()
        self._drawn: list[Line] = []
        self._size = (0, 0)
        self._old: Any = None
        self._console = Console(file=self, force_terminal=True, legacy_windows=False, highlight=False)  # type: ignore[arg-type]  # write and flush are all that it calls
        self.entered = False
        self.left = False
        """Whether it was given back for good."""
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGTSTP, self._pause)

    # ---- what rich writes to ----

    def write(self, text: str) -> int:
        """Keep it until the terminal takes it."""
        self._out += text.encode("ascii" if self._ascii else "utf-8", "replace")
        return len(text)

    def flush(self) -> None:
        """Write what the terminal takes now; raises Gone where there is none any more."""
        try:
            while self._out:
                del self._out[: os.write(self._fd, self._out)]
        except BlockingIOError:
            return
        except OSError as exc:
            raise Gone from exc

    # ---- in and out ----

    def enter(self) -> None:
        """Take the screen; what stood there comes back when it is left. Raises Gone."""
        attributes = termios.tcgetattr(self._fd)
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(self._fd, termios.TCSANOW, attributes)
        self.entered = True
        self._drawn = []
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        self._console.clear()

    def leave(self) -> None:
        """Give the screen back for good; the second time nothing."""
        if not self.left:
            self.left = True
            self._give_back()
            if self._old is not None:
                signal.signal(signal.SIGTSTP, self._old)
            os.close(self._fd)

    def _give_back(self) -> None:
        if not self.entered:
            return
        self.entered = False
        if not self.in_front:
            return  # it is somebody else's now, and whoever touches it would be stopped
        self._out[:] = (CANCEL if self._out else "").encode() + GIVE_BACK.encode()
        with contextlib.suppress(Gone):
            self.flush()
            if self._out and select.select([], [self._fd], [], PATIENCE)[1]:
                self.flush()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    @property
    def in_front(self) -> bool:
        """Whether we are what its user talks to, not in the background."""
        return in_front(self._fd)

    def _pause(self, *_: object) -> None:
        """Ctrl-Z: give it back, stop, and take it again once we are brought to the front."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        if not self.left and self.in_front:
            with contextlib.suppress(Gone):
                self.enter()

    # ---- drawing and keys ----

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows now; raises Gone."""
        try:
            width, height = os.get_terminal_size(self._fd)
            return width or 80, height or 24
        except OSError as exc:
            raise Gone from exc

    def draw(self, make: Callable[[int, int], Sequence[Line]]) -> None:
        """Show lines made for its size, only those that changed; nothing while it has not taken the last ones."""
        self.flush()
        if self._out or not self.entered:
            return
        size = width, height = self.size
        if size != self._size:
            self._size, self._drawn = size, []
            self._console.size = size
            self._console.clear()
        lines = list(make(width, height))[:height]
        lines += [()] * (height - len(lines))
        for row, line in enumerate(lines):
            if row >= len(self._drawn) or self._drawn[row] != line:
                self._console.update_screen_lines([self._segments(line, width)], 0, row)
        self._drawn = lines

    def _segments(self, line: Line, width: int) -> list[Segment]:
        pieces = ascii_only(line) if self._ascii else line
        segments = [Segment(text, self._console.get_style(style or "none")) for text, style in pieces if text]
        return Segment.adjust_line_length(segments, width)

    @property
    def pending(self) -> bool:
        """Whether the terminal has not taken everything yet."""
        return bool(self._out)

    def fileno(self) -> int:
        """Readable when a key was pressed; -1 while nobody may read there."""
        return self._fd if self.entered and not self.left else -1

    def keys(self) -> str:
        """What was typed since; raises Gone where the terminal is."""
        if not self.entered or not self.in_front:
            return ""
        try:
            typed = os.read(self._fd, 1024)
        except BlockingIOError:
            return ""
        except OSError as exc:
            raise Gone from exc
        if not typed:
            raise Gone
        return typed.decode("ascii", "replace")


def in_front(fd: int) -> bool:
    """Whether this process may talk to a terminal's user: its group is the one that Ctrl-C reaches."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


def path_of(stream: TextIO) -> str:
    """The terminal behind a stream that a view can be drawn on; empty where there is none."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return ""
    try:
        fd = stream.fileno()
        return os.ttyname(fd) if stream.isatty() and in_front(fd) else ""
    except (OSError, ValueError):
        return ""
