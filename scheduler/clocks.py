"""What time it is for a scheduler: the wall clock as it was when it began, carried on by the clock that never jumps.

So a wall clock that is set anew moves neither a limit nor a duration. It is read anew by each process.
"""

from __future__ import annotations

import time
from functools import cache


def now() -> float:
    """Seconds since 1970, for all that is recorded and compared."""
    return _anchor() + time.clock_gettime(time.CLOCK_BOOTTIME)


def since_boot() -> float:
    """Seconds of this boot, suspended or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _anchor() -> float:
    return time.time() - since_boot()
