"""Waiting for a condition with a deadline, in place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], deadline: float = 30.0, pause: float = 0.005) -> T:
    """Return the first true value of `predicate`; fail with its last one after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s; last seen: {value!r}")
        time.sleep(pause)
