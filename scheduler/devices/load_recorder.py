"""The recorder of the load of a run's devices: it measures every few seconds, and writes a file less often."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.core.model import DeviceBudget
from scheduler.core.ports import Sample
from scheduler.core.reporting.device_history import DeviceHistory, parsed
from scheduler.runtime import clock
from scheduler.runtime.paths import replace_file

WRITES = 15.0
"""Seconds between two writes of the file."""
OLD = 10.0
"""Seconds after which a measurement of a device is too old to be recorded."""


class LoadRecorder:
    """An observer of a run that records the load of the run's GPUs for the page and the report."""

    def __init__(self, look: Callable[[], Sequence[DeviceBudget]], is_active: Callable[[], bool], path: Path) -> None:
        """Record what `look` returns while `is_active` returns true, in addition to the records that the file at `path`
        already has.
        """
        self._look, self._is_active, self._path = look, is_active, path
        self._there = any(budget.busy is not None or budget.device.is_gpu for budget in look())
        self.history = read_history(path)
        self._due = self._written = time.monotonic()

    def see(self, sample: Sample) -> None:
        """Do nothing: this observer records devices, not attempts."""

    def draw(self) -> float:
        """Record the load of the devices if that is due; return the seconds until it is due again."""
        if not self._there:
            return WRITES
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self.history.every
            if self._is_active():
                self.history.add(clock.now(), [one for one in self._look() if one.age < OLD])
            if now >= self._written + WRITES:
                self._write()
        return self._due - now

    def _write(self) -> None:
        """Replace the file; ignore a failure, because the file only serves views."""
        self._written = time.monotonic()
        with contextlib.suppress(OSError):
            text = json.dumps(self.history.to_dict(), separators=(",", ":"))
            replace_file(self._path, text.encode("ascii"), durable=False)

    def close(self) -> None:
        """Write the measurements that were made after the last write."""
        if self.history.points:
            self._write()


def read_history(path: Path) -> DeviceHistory:
    """Return the recorded load of a run's devices; an empty history if there is no record, or if it is damaged."""
    try:
        return parsed(path.read_bytes())
    except OSError:
        return DeviceHistory()
