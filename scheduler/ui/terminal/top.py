"""The live view of a run or a machine from another terminal (`top`), drawn until the run ends or q is pressed."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Protocol

from scheduler.ui.terminal.panels import Line
from scheduler.ui.terminal.screen import Screen, TerminalGone

PERIOD = 0.5
"""Seconds between two redraws if no key is pressed."""
KEY_PERIOD = 0.06
"""Seconds between two checks while a typed escape character may still be the key Esc or the beginning of a sequence."""


class Frame(Protocol):
    """The content of the screen, which also handles the keys."""

    @property
    def leaves(self) -> bool:
        """True once the user has left the view."""

    @property
    def waits(self) -> bool:
        """True while the bytes typed so far may be only a part of a key."""

    @property
    def mouse(self) -> bool:
        """True while the terminal should report clicks to this frame."""

    def type(self, data: bytes) -> bool:
        """Handle typed bytes; return whether they change the screen."""


def show(screen: Screen, frame: Frame, make: Callable[[int, int], Sequence[Line]], over: Callable[[], bool]) -> None:
    """Draw the lines that `make` returns until `over` returns true, the terminal is closed, or the user leaves the
    view.
    """
    try:
        screen.enter()
        while not over():
            screen.report_mouse(frame.mouse)
            screen.draw(make)
            if _leaves(screen, frame):
                return
    except TerminalGone:
        return
    finally:
        screen.leave()


def _leaves(screen: Screen, frame: Frame) -> bool:
    """Wait until the next redraw is due or a key is pressed; return whether the user leaves the view."""
    fd = screen.fileno()
    select.select([fd] if fd >= 0 else [], [], [], KEY_PERIOD if frame.waits else PERIOD)
    frame.type(screen.keys())
    return frame.leaves or screen.left or not screen.in_front
