"""Who holds what a job waits for, in a few words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.units import duration
from scheduler.view.words import clean, clock


class Held(Protocol):
    """A part of the machine that somebody holds."""

    @property
    def user(self) -> str:
        """Whose."""

    @property
    def run(self) -> str:
        """In which run."""

    @property
    def task(self) -> int:
        """For which task."""

    @property
    def since(self) -> float:
        """Since when."""

    @property
    def ends(self) -> float:
        """About until when; 0: nobody knows."""

    @property
    def promised(self) -> Mapping[str, int]:
        """Bytes by device."""


MOST = 3


def waiting_words(device: str, holders: Sequence[Held], before: int) -> str:
    """For whom one waits, about how long, and who else does."""
    said = [_one(holder) for holder in sorted(holders, key=lambda holder: holder.since)[:MOST]]
    if len(holders) > MOST:
        said.append(f"{len(holders) - MOST} more")
    who = f"{device} is held by {', '.join(said)}" if said else ""
    ends = [holder.ends for holder in holders if holder.ends]
    left = min(ends) - time.time() if ends else 0.0
    if left > 0:
        who += (
            f", the first of them about {duration(left)} more" if len(holders) > 1 else f", about {duration(left)} more"
        )
    elif who and not ends:
        who += ", nobody knows for how long"
    queue = f"{before} waiting before it" if before else ""
    return "; ".join(filter(None, (who, queue)))


def _one(holder: Held) -> str:
    since = f" since {clock(holder.since)}" if holder.since else ""
    return f"{clean(holder.user)} (run {holder.run}, task {holder.task}{since})"
