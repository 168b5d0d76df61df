"""The holders of the resources that a task waits for, in a few words (`exec`)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from scheduler.core.leases import Lease
from scheduler.runtime.users import user_name
from scheduler.ui.text import clean, clock
from scheduler.units import count, duration

MOST = 3


def waiting_words(device: str, leases: Sequence[Lease], before: int) -> str:
    """Return who holds leases on a device and for about how long, and the number of tasks that wait before this one."""
    names = [_name(lease) for lease in sorted(leases, key=lambda lease: lease.since)[:MOST]]
    if len(leases) > MOST:
        names.append(f"{len(leases) - MOST} more")
    who = f"{device} is reserved by {', '.join(names)}" if names else ""
    ends = [lease.ends for lease in leases if lease.ends]
    left = min(ends) - time.time() if ends else 0.0
    if left > 0:
        who += f"; {'the first' if len(leases) > 1 else 'it'} ends in about {duration(left)}"
    elif who and not ends:
        who += "; its end is unknown"
    queue = f"{count(before, 'task')} of other runs before it" if before else ""
    return "; ".join(filter(None, (who, queue)))


def _name(lease: Lease) -> str:
    since = f" since {clock(lease.since)}" if lease.since else ""
    return f"{clean(user_name(lease.uid))} (run {lease.number}, task {lease.task}{since})"
