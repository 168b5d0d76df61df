"""A terminal that draws: what a program wrote, as the rows of a screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyte
import pytest

from tests.support.killing import Home
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

UP, DOWN, PAGE_UP, PAGE_DOWN = "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~"
HOME, END, ENTER, ESC = "\x1b[H", "\x1b[F", "\r", "\x1b"


class DrawnTerminal(Terminal):
    """A terminal whose screen can be read."""

    def __init__(self, home: Home, *arguments: str, columns: int = 120, rows: int = 40, **env: str) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0
        super().__init__(home, *arguments, columns=columns, rows=rows, **env)

    def _draw(self) -> None:
        said = bytes(self._said)
        self._stream.feed(said[self._fed :])
        self._fed = len(said)

    @property
    def rows(self) -> list[str]:
        """Return the rows of the screen, without blanks at their ends."""
        self._draw()
        return [row.rstrip() for row in self._screen.display]

    @property
    def text(self) -> str:
        """Return the whole screen."""
        return "\n".join(self.rows)

    def selected(self) -> list[str]:
        """Return the rows that are drawn in reverse."""
        self._draw()
        found = []
        for at, row in enumerate(self._screen.display):
            line: Any = self._screen.buffer[at]
            if line[2].reverse:
                found.append(row.strip())
        return found

    def shows(self, text: str) -> None:
        """Wait until the screen contains a text."""
        self._await(lambda: text in self.text, f"{text!r} is not shown")

    def hides(self, text: str) -> None:
        """Wait until the screen no longer contains a text."""
        self._await(lambda: text not in self.text, f"{text!r} is still shown")

    def selects(self, text: str) -> None:
        """Wait until exactly one row is selected, and it contains a text."""
        self._await(lambda: len(rows := self.selected()) == 1 and text in rows[0], f"{text!r} is not selected")

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, 30.0, 0.02)
        except AssertionError:
            pytest.fail(f"{what} ({self.selected()}) on this screen:\n{self.text}")
