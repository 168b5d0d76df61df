"""The protocol of both sampler children: orders, answers, and a board that shows the child's current step.

A child is started with the path of the code, its own arguments, and the descriptor of the board. It takes orders as
JSON lines on standard input, and answers in JSON lines on standard output. Each order replaces the one before; its
`order` is a number. Each answer says which `order` it follows, and in how many seconds the next one is due (`rest`;
null: after the next order). So the parent knows when an answer is owed. Before every step that may hang, the child
writes the step onto the board, which is memory shared with its parent: after a hang or a crash the board is all that is
left. Standard library only: the child is started from a copy in the run's directory.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import threading
import time
from typing import Any

BOARD = 256
_PR_SET_PDEATHSIG = 1


class Board:
    """The memory on which a child announces its steps."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, BOARD)
        self._where = ""
        self._began = 0.0

    def begin(self, where: str) -> None:
        """Begin to look at another thing; `where` has no blanks."""
        self._where, self._began = where, time.monotonic()

    def say(self, call: str) -> None:
        """Announce a step."""
        text = f"{time.monotonic():.3f} {self._began:.3f} {self._where} {call}"
        self._memory[:] = text.encode()[:BOARD].ljust(BOARD, b"\0")

    def rest(self) -> None:
        """Say that no step is being made."""
        self._memory[:] = bytes(BOARD)


class OrderReader:
    """The newest order. A thread reads standard input, so that its end ends the child even while a step hangs."""

    def __init__(self) -> None:
        self.number = 0
        """The number of the order that was taken last."""
        self._news = threading.Condition()
        self._line = b""
        end_with_parent()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            with self._news:
                self._line = line
                self._news.notify()
        os._exit(0)

    def next(self, wait: float | None) -> dict[str, Any] | None:
        """Return the newest order, if one comes within `wait` seconds; else None."""
        with self._news:
            if not self._line:
                self._news.wait(wait)
            line, self._line = self._line, b""
        if not line:
            return None
        message: dict[str, Any] = json.loads(line)
        self.number = message.pop("order", 0)
        return message


def end_with_parent() -> None:
    """Have the kernel kill this process once its parent is dead: a stopped process would not notice that by itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tell(**message: Any) -> None:
    """Write one line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
