"""The clock of a scheduler: the wall clock as it was when the process began, carried on by the clock that never jumps.

A wall clock that is set anew moves neither a limit nor a duration. Each process reads it once, at its start.
"""

from __future__ import annotations

import time
from functools import cache


def now() -> float:
    """Return the seconds since 1970, for everything that is recorded and compared."""
    return _anchor() + time.clock_gettime(time.CLOCK_BOOTTIME)


def since_boot() -> float:
    """Return the seconds since boot, suspended or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _anchor() -> float:
    return time.time() - since_boot()
