"""The clock of a scheduler: the wall clock at the start of the process, advanced by the monotonic clock.

So changes of the wall clock affect neither limits nor durations. Each process reads the wall clock once, at its start;
only times that users give (`--begin 22:00`) are compared with the wall clock itself.
"""

from __future__ import annotations

import time
from functools import cache


def now() -> float:
    """Return the seconds since 1970, for everything that is recorded or compared."""
    return _anchor() + time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> float:
    """Return the seconds since 1970 by the wall clock as it is set now, for times that users give."""
    return time.time()


def since_boot() -> float:
    """Return the seconds since boot, including time in suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _anchor() -> float:
    return time.time() - since_boot()
