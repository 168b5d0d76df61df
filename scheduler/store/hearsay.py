"""Numbers in files that anybody may write: taken as they stand, or refused as nonsense."""

from __future__ import annotations

from typing import Any

MOST_BYTES = 1 << 60
LONGEST = 1e11
"""Seconds since the epoch that no calendar of ours goes beyond; nobody has so much of anything else that is counted."""


def size(said: Any) -> int:
    """So many bytes; nobody makes room by promising less than none. Raises ValueError where no machine has so many."""
    number = int(said)
    if number > MOST_BYTES:
        raise ValueError("no machine has so many bytes")
    return max(0, number)


def amount(said: Any) -> float:
    """A number that is one, and not below nothing. Raises ValueError where it is none, or has no end."""
    number = float(said)
    if not number <= LONGEST:
        raise ValueError(f"{number} is no amount")
    return max(0.0, number)
