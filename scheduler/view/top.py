"""The live view of a run or a machine from another terminal: shown until it is over, or somebody presses q."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from scheduler.core.picture import Picture
from scheduler.view.panels import Line
from scheduler.view.screen import Gone, Screen

PERIOD = 0.5
"""It is drawn so often, in seconds."""


def show(screen: Screen, make: Callable[[int, int], Sequence[Line]], over: Callable[[], bool]) -> None:
    """Draw again and again until it is over, its terminal is gone, or q."""
    try:
        screen.enter()
        while not over():
            screen.draw(make)
            if _quits(screen):
                return
    except Gone:
        return
    finally:
        screen.leave()


def _quits(screen: Screen) -> bool:
    """Whether q is pressed before it is time to draw again."""
    until = time.monotonic() + PERIOD
    while (left := until - time.monotonic()) > 0:
        fd = screen.fileno()
        if select.select([fd] if fd >= 0 else [], [], [], left)[0] and "q" in screen.keys().lower():
            return True
    return screen.left or not screen.in_front


def as_json(picture: Picture) -> str:
    """A picture for programs: bytes and seconds as numbers, keys as in the view."""
    facts = {"format": 1, **asdict(picture), "tasks": picture.tasks, "over": picture.over}
    return json.dumps(facts, indent=1)
