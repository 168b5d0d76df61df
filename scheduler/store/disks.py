"""Whether the disks that a run writes to have room: a full one would lose journals, logs and checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scheduler.paths import tilde
from scheduler.units import size

PAUSE = 1.0
"""Seconds between looks."""


class Disks:
    """Says what is wrong while one of them has too little room; the same words until there is room again."""

    def __init__(
        self,
        places: Iterable[Path],
        share: float,
        least: int,
        *,
        statvfs: Callable[[Path], Any] = os.statvfs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = tuple(places)
        self._share = share
        self._least = least
        self._statvfs = statvfs
        self._clock = clock
        self._said = ""
        self._next = float("-inf")

    def __call__(self) -> str:
        """A sentence while nothing should be launched, else nothing; cheap to ask."""
        if self._clock() >= self._next:
            self._next = self._clock() + PAUSE
            full = next(filter(None, map(self._full, self._places)), "")
            self._said = full and (self._said or full)
        return self._said

    def _full(self, place: Path) -> str:
        try:
            status = self._statvfs(place)
        except OSError:
            return ""  # what writes there says better what is wrong with it
        free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        least = max(self._least, round(self._share * total))
        if free >= least:
            return ""
        return (
            f"the disk of {tilde(place)} has {size(free)} free, below the {size(least)} that are kept: nothing starts "
            "before there is room again, what runs goes on (setting disk_min)"
        )
