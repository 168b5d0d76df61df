"""The world of a simulated machine: waiting in it lets the machine's time pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Protocol

from scheduler.core.ports import Happening, Request
from scheduler.errors import SchedulerError
from scheduler.simulation.machine import SimulatedMachine

STANDSTILL = 1000
"""After this many waits in a row without any event, the simulation counts as stuck."""


class EventTeller(Protocol):
    """A source of events."""

    def collect(self) -> Sequence[Happening]:
        """Return what happened since the last call."""


class SimulatedWorld:
    """A world in which waiting advances the machine's time to the next event, however far away it is."""

    def __init__(
        self,
        machine: SimulatedMachine,
        tellers: Sequence[EventTeller],
        requests: Sequence[tuple[float, Request]] = (),
        arrivals: Sequence[float] = (),
    ) -> None:
        self._machine = machine
        self._tellers = tellers
        self._requests = sorted(requests, key=lambda request: request[0])
        self._arrivals = deque(sorted(arrivals))
        """The times at which rows join the run; a wait ends at such a time."""
        self._idle = 0
        self._alarm = inf
        """The time at which the machine's clock will stop for this world, even if nothing happens then."""
        for at in (*self._arrivals, *(at for at, _ in self._requests)):
            machine.wake_at(at)

    def now(self) -> float:
        """Return the machine's time."""
        return self._machine.now

    def wall(self) -> float:
        """Return the time of the machine's wall clock."""
        return self._machine.now + self._machine.wall_ahead

    def wait(self, timeout: float, until: float = inf) -> list[Happening]:
        """Return the next events; return an empty list when rows arrive, or at the time `until` of the wall clock.

        The timeout applies only if nothing ever happens.
        """
        until -= self._machine.wall_ahead
        if until not in (inf, self._alarm):
            self._alarm = until
            self._machine.wake_at(until)
        happened, arrived = self._collect(), self._arrived()
        while not (happened or arrived or self._machine.now >= until) and self._machine.advance():
            happened, arrived = self._collect(), self._arrived()
        if happened or arrived or self._machine.now >= until:
            self._idle = 0
            return happened
        self._idle += 1
        if self._idle > STANDSTILL:
            raise SchedulerError(f"the simulation is stuck at {self._machine.now:g} s: nothing will happen any more")
        self._machine.now += timeout
        return []

    def _arrived(self) -> bool:
        """Tell whether rows have arrived since the last call."""
        before = len(self._arrivals)
        while self._arrivals and self._arrivals[0] <= self._machine.now:
            self._arrivals.popleft()
        return len(self._arrivals) < before

    def _collect(self) -> list[Happening]:
        happened = [happening for teller in self._tellers for happening in teller.collect()]
        while self._requests and self._requests[0][0] <= self._machine.now:
            happened.append(self._requests.pop(0)[1])
        return happened
