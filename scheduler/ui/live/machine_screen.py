"""The interactive screen of the whole machine (`top --all`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from scheduler.ui.live.keys import KeyDecoder
from scheduler.ui.terminal import panels
from scheduler.ui.terminal.panels import Line


class MachineScreen:
    """The screen of the machine and its keys; it draws nothing itself."""

    mouse = False

    def __init__(self) -> None:
        self._decoder = KeyDecoder()
        self.leaves = False

    def type(self, data: bytes) -> bool:
        """Take what was typed, and return whether that changes the screen."""
        presses = self._decoder.feed(data, time.monotonic())
        self.leaves = self.leaves or any(press.key in ("q", "Q") for press in presses)
        return bool(presses)

    @property
    def waits(self) -> bool:
        """True while a key may be typed of which only a part was read."""
        return self._decoder.waits

    def lines(self, facts: Mapping[str, Any], width: int, height: int) -> list[Line]:
        """Return exactly `height` lines, each at most `width` columns wide."""
        return panels.machine(facts, width, height)
