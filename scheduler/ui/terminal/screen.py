"""A terminal for drawing, on its alternate screen, which is never scrolled; no write to it blocks."""

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

from scheduler.ui.terminal.panels import Line, ascii_only

PATIENCE = 1.0
"""Seconds within which a blocked terminal must accept the last bytes, which restore it."""
CANCEL = "\x18"
"""The byte that cancels an escape sequence of which only a part was written."""
MOUSE_ON, MOUSE_OFF = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"
"""The sequences that make the terminal start or stop reporting clicks and the wheel. A terminal without a mouse ignores
both.
"""
GIVE_BACK = f"\x1b[0m{MOUSE_OFF}\x1b[?25h\x1b[?1049l"


class TerminalGone(Exception):
    """The error that a terminal no longer exists."""


class Screen:
    r"""The alternate screen of a terminal, and its keys one by one; Ctrl-C and Ctrl-\ still send signals."""

    def __init__(self, path: str, encoding: str = "utf-8") -> None:
        # A separate open file description: the shell's own stays blocking whatever happens here.
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
        """True once the terminal was restored for good."""
        self._mouse = False
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGTSTP, self._pause)

    # ---- what rich writes to ----

    def write(self, text: str) -> int:
        """Keep a text until the terminal accepts it."""
        self._out += text.encode("ascii" if self._ascii else "utf-8", "replace")
        return len(text)

    def flush(self) -> None:
        """Write as much as the terminal accepts now; raise TerminalGone if it was closed."""
        try:
            while self._out:
                del self._out[: os.write(self._fd, self._out)]
        except BlockingIOError:
            return
        except OSError as exc:
            raise TerminalGone from exc

    # ---- in and out ----

    def enter(self) -> None:
        """Switch to the alternate screen; the earlier content returns when this screen is left. Raise TerminalGone if
        the terminal was closed.
        """
        attributes = termios.tcgetattr(self._fd)
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(self._fd, termios.TCSANOW, attributes)
        self.entered = True
        self._drawn, self._mouse = [], False
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        self._console.clear()

    def leave(self) -> None:
        """Restore the terminal for good; a second call does nothing."""
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
            return  # another process group has it now; a write would stop this one (SIGTTOU)
        self._out[:] = (CANCEL if self._out else "").encode() + GIVE_BACK.encode()
        with contextlib.suppress(TerminalGone):
            self.flush()
            if self._out and select.select([], [self._fd], [], PATIENCE)[1]:
                self.flush()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    @property
    def in_front(self) -> bool:
        """True while this process is in the foreground of the terminal."""
        return in_front(self._fd)

    def _pause(self, *_: object) -> None:
        """Handle Ctrl-Z: restore the terminal and stop the process; once it continues in the foreground, draw again."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        if not self.left and self.in_front:
            with contextlib.suppress(TerminalGone):
                self.enter()

    # ---- drawing and keys ----

    def report_mouse(self, on: bool) -> None:
        """Make the terminal report clicks and the wheel to this process, or use the mouse itself."""
        if self.entered and on != self._mouse:
            self._mouse = on
            self.write(MOUSE_ON if on else MOUSE_OFF)

    @property
    def size(self) -> tuple[int, int]:
        """Return the present number of columns and rows; raise TerminalGone if the terminal was closed."""
        try:
            width, height = os.get_terminal_size(self._fd)
            return width or 80, height or 24
        except OSError as exc:
            raise TerminalGone from exc

    def draw(self, make: Callable[[int, int], Sequence[Line]]) -> None:
        """Draw the lines that have changed; `make` makes them for the present size. Draw nothing while earlier output
        is pending.
        """
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
        """True while the terminal has not accepted all output."""
        return bool(self._out)

    def fileno(self) -> int:
        """Return a descriptor that is readable after a key press; -1 while this process must not read the terminal."""
        return self._fd if self.entered and not self.left else -1

    def keys(self) -> bytes:
        """Return the bytes that were typed since the last call; raise TerminalGone if the terminal was closed."""
        if not self.entered or not self.in_front:
            return b""
        try:
            typed = os.read(self._fd, 1024)
        except BlockingIOError:
            return b""
        except OSError as exc:
            raise TerminalGone from exc
        if not typed:
            raise TerminalGone
        return typed


def in_front(fd: int) -> bool:
    """Tell whether this process is in the foreground of a terminal, so that Ctrl-C reaches it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


def path_of(stream: TextIO) -> str:
    """Return the path of the terminal to which a stream writes, if a view can be drawn there; otherwise an empty
    string.
    """
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return ""
    try:
        fd = stream.fileno()
        return os.ttyname(fd) if stream.isatty() and in_front(fd) else ""
    except (OSError, ValueError):
        return ""
