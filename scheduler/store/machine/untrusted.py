"""Numbers in files that other users write: taken as they are, or refused as nonsense."""

from __future__ import annotations

from typing import Any

MOST_BYTES = 1 << 60
LONGEST = 1e11
"""Seconds since the epoch that no calendar of ours goes beyond; nothing else that is counted comes to so much."""


def size(said: Any) -> int:
    """Return a number of bytes, at least 0. Raises ValueError where no machine has so many."""
    number = int(said)
    if number > MOST_BYTES:
        raise ValueError("no machine has so many bytes")
    return max(0, number)


def amount(said: Any) -> float:
    """Return a number, at least 0. Raises ValueError where it is none, or is not finite."""
    number = float(said)
    if not number <= LONGEST:
        raise ValueError(f"{number} is no amount")
    return max(0.0, number)
