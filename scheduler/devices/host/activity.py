"""The work of a tree of processes, from /proc: its processor time, and the seconds for which it has rested.

This module uses the standard library only, because the host's sampler child runs a copy of this module in the run's
directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _FAULTS, _TIMES = 0, slice(7, 11), slice(11, 15)
"""The fields of /proc/PID/stat after the name: the state of the process, and the page faults and processor times of the
process and its ended children.
"""


class ProcessWork(NamedTuple):
    """The work that one process has done so far."""

    asleep: bool
    """True if the process waits for an event. A process that waits for a disk, or that was stopped, does not count as
    asleep.
    """
    ticks: int
    """The processor time of the process and of its ended children, in clock ticks."""
    faults: int
    switches: int
    """The number of times that the main thread of the process went to sleep or was interrupted."""


def work_of(pid: int) -> ProcessWork | None:
    """Return the work of a process; None if it has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    switches = 0
    for line in _read(f"/proc/{pid}/status").splitlines():
        if b"ctxt_switches:" in line:
            switches += int(line.rpartition(b":")[2])
    ticks, faults = sum(map(int, fields[_TIMES])), sum(map(int, fields[_FAULTS]))
    return ProcessWork(fields[_STATE] == b"S", ticks, faults, switches)


class Activity:
    """The processor time of a process tree, and the time since which none of its processes has run."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.rested = 0.0
        self._last: dict[int, ProcessWork] = {}
        self._since = 0.0

    def look(self, pids: Sequence[int], now: float) -> None:
        """Measure the work of all processes of the tree once."""
        works = {pid: work for pid in pids if (work := work_of(pid)) is not None}
        self.cpu_seconds = max(self.cpu_seconds, sum(work.ticks for work in works.values()) / TICKS)
        rests = bool(works) and all(work.asleep for work in works.values())
        if not rests or works != self._last:
            self._since = now
        self._last = works
        self.rested = now - self._since if rests else 0.0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
