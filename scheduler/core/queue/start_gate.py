"""The gate of a run: whether the run may start any tasks at a time of the wall clock.

The run's pause (`pause`, or -j 0) and its window can shut the gate.
"""

from __future__ import annotations

from datetime import tzinfo
from functools import lru_cache
from math import inf

from scheduler.core.config import SchedulingConfig
from scheduler.core.local_time import moment
from scheduler.core.model import NO_TASK
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.queue.start_window import parse
from scheduler.values import dataclass

KEPT = 60.0
"""The longest time, in seconds, for which the computed state of a window is reused, because computing it takes a few
hundred microseconds."""
_window = lru_cache(maxsize=8)(parse)


@dataclass(frozen=True, slots=True)
class GateState:
    """The state of a gate at one moment."""

    refusal: Refusal | None = None
    """The reason why no task may start; None: tasks may start."""
    until: float = inf
    """The time at which the state may change by itself; inf: never."""


class StartGate:
    """The gate of one run. Its state follows from the run's settings and the wall clock."""

    def __init__(self) -> None:
        self._seen: tuple[str, float, bool, float] = ("", 0.0, True, -inf)
        """A window, the time at which its state was computed, whether it was open, and the time until which that state
        is valid."""

    def look(self, rules: SchedulingConfig, at: float, zone: tzinfo | None = None) -> GateState:
        """Return the state of the gate at a time of the wall clock. The clock may have been set since the last call."""
        if rules.jobs == 0:
            return GateState(Refusal(NO_TASK, Reason.PAUSED))
        paused_until = (rules.paused_until or inf) if rules.paused else -inf
        if not rules.window:
            return GateState(_paused(paused_until, at, zone), paused_until) if at < paused_until else GateState()
        is_open, changes = self._look(rules.window, at, zone)
        if at < paused_until:
            return GateState(_paused(paused_until, at, zone), paused_until)
        if is_open:
            return GateState(None, changes)
        return GateState(_outside(rules.window, changes, at, zone), changes)

    def _look(self, window: str, at: float, zone: tzinfo | None) -> tuple[bool, float]:
        known, since, is_open, until = self._seen
        if known != window or not since <= at < min(until, since + KEPT):
            is_open, until = _window(window).now(at, zone)
            self._seen = (window, at, is_open, until)
        return is_open, until


def _paused(until: float, at: float, zone: tzinfo | None) -> Refusal:
    return Refusal(NO_TASK, Reason.ON_PAUSE, text="" if until == inf else f" until {moment(until, at, zone)}")


def _outside(window: str, opens: float, at: float, zone: tzinfo | None) -> Refusal:
    return Refusal(NO_TASK, Reason.OUTSIDE, window, text=moment(opens, at, zone))
