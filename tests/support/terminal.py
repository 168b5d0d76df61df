"""A terminal of its own for a command: what it wrote there, and keys."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
from typing import Any

from tests.support.killing import Home


class Terminal:
    """A command on a terminal of its own, as a shell would start it."""

    def __init__(self, home: Home, *arguments: str, columns: int = 80, rows: int = 24, **env: str) -> None:
        self.fd, side = os.openpty()
        self.path = os.ttyname(side)
        self._side = side
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._said = bytearray()
        on_it: dict[str, Any] = {"stdin": side, "stdout": side, "stderr": side}
        own = {**home.env, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1", **env}
        self.process = home.start(
            *arguments,
            **on_it,
            env=own,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self.fd, 65536):
                self._said += data
        except OSError:
            return

    @property
    def said(self) -> str:
        """Return everything that was written, with escape sequences."""
        return bytes(self._said).decode("utf-8", "replace")

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self.fd, keys.encode())

    @property
    def modes(self) -> int:
        """Return the terminal modes: whether lines are edited and echoed."""
        flags: int = termios.tcgetattr(self._side)[3]
        return flags & (termios.ICANON | termios.ECHO)

    def wait(self) -> int:
        """Wait for the end of the program; return its exit code."""
        return self.process.wait(60)

    def close(self) -> None:
        """Close the terminal; processes that are left get a hang-up."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._side)
        os.close(self.fd)


USUAL = termios.ICANON | termios.ECHO

__all__ = ["USUAL", "Terminal"]
