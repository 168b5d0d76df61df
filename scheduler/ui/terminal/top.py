"""The live view of a run or a machine from another terminal (`top`), drawn until the run ends or q is pressed."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from scheduler.ui.terminal.panels import Line
from scheduler.ui.terminal.screen import Screen, TerminalGone

PERIOD = 0.5
"""Seconds between two redraws."""


def show(screen: Screen, make: Callable[[int, int], Sequence[Line]], over: Callable[[], bool]) -> None:
    """Draw until `over` returns true, the terminal is closed, or q is pressed."""
    try:
        screen.enter()
        while not over():
            screen.draw(make)
            if _quits(screen):
                return
    except TerminalGone:
        return
    finally:
        screen.leave()


def _quits(screen: Screen) -> bool:
    """Return whether q is pressed before the next redraw is due."""
    until = time.monotonic() + PERIOD
    while (left := until - time.monotonic()) > 0:
        fd = screen.fileno()
        if select.select([fd] if fd >= 0 else [], [], [], left)[0] and "q" in screen.keys().lower():
            return True
    return screen.left or not screen.in_front
