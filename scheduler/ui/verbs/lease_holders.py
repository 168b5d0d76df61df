"""The holders of what a task waits for, in a few words (`exec`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.ui.text import clean, clock
from scheduler.units import count, duration


class ShownHolder(Protocol):
    """The facts about the holder of a lease that a sentence names."""

    @property
    def user(self) -> str:
        """The user who holds it."""

    @property
    def run(self) -> str:
        """The run that it belongs to."""

    @property
    def task(self) -> int:
        """The task that it is for."""

    @property
    def since(self) -> float:
        """The moment of its beginning, in seconds since the epoch."""

    @property
    def ends(self) -> float:
        """The expected moment of its end; 0: unknown."""

    @property
    def reserved(self) -> Mapping[str, int]:
        """The bytes reserved on each device."""


MOST = 3


def waiting_words(device: str, holders: Sequence[ShownHolder], before: int) -> str:
    """Return who holds a device, for about how long, and how many tasks wait before this one."""
    names = [_name(holder) for holder in sorted(holders, key=lambda holder: holder.since)[:MOST]]
    if len(holders) > MOST:
        names.append(f"{len(holders) - MOST} more")
    who = f"{device} is reserved by {', '.join(names)}" if names else ""
    ends = [holder.ends for holder in holders if holder.ends]
    left = min(ends) - time.time() if ends else 0.0
    if left > 0:
        who += f"; {'the first' if len(holders) > 1 else 'it'} ends in about {duration(left)}"
    elif who and not ends:
        who += "; its end is unknown"
    queue = f"{count(before, 'task')} of other runs before it" if before else ""
    return "; ".join(filter(None, (who, queue)))


def _name(holder: ShownHolder) -> str:
    since = f" since {clock(holder.since)}" if holder.since else ""
    return f"{clean(holder.user)} (run {holder.run}, task {holder.task}{since})"
