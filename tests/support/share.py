"""The number of random cases that a test tries: some in the ordinary run, all with `./scripts/test --all`."""

from __future__ import annotations

import os

ALL = bool(os.environ.get("TEST_ALL"))
"""The choice of all cases, which the continuous integration makes."""


def cases(number: int, ordinary: int) -> int:
    """Return how many of so many cases are tried."""
    return number if ALL else ordinary
