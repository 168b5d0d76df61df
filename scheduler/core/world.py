"""The world of a simulated machine: whoever waits in it lets its time pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from scheduler.core.ports import Happening, Request
from scheduler.core.simulation import SimulatedMachine
from scheduler.errors import SchedulerError

STANDSTILL = 1000
"""So many waits in a row in which nothing can happen are a world that nobody will ever leave."""


class Teller(Protocol):
    """Whoever has seen something happen."""

    def collect(self) -> Sequence[Happening]:
        """What happened since the last call."""


class SimulatedWorld:
    """Waits by letting the machine's time pass: to the next happening, however long that takes."""

    def __init__(
        self,
        machine: SimulatedMachine,
        tellers: Sequence[Teller],
        requests: Sequence[tuple[float, Request]] = (),
        arrivals: Sequence[float] = (),
    ) -> None:
        self._machine = machine
        self._tellers = tellers
        self._requests = sorted(requests, key=lambda request: request[0])
        self._arrivals = deque(sorted(arrivals))
        """When rows join the run: whoever waits looks up then."""
        self._idle = 0
        for at in (*self._arrivals, *(at for at, _ in self._requests)):
            machine.wake_at(at)

    def now(self) -> float:
        """The machine's clock."""
        return self._machine.now

    def wait(self, timeout: float) -> list[Happening]:
        """What happens next, or nothing once rows arrive; only where nothing ever will does the timeout count."""
        happened, arrived = self._collect(), self._arrived()
        while not (happened or arrived) and self._machine.advance():
            happened, arrived = self._collect(), self._arrived()
        if happened or arrived:
            self._idle = 0
            return happened
        self._idle += 1
        if self._idle > STANDSTILL:
            raise SchedulerError(
                f"the simulation stands still at {self._machine.now:g} s: nothing will happen any more"
            )
        self._machine.now += timeout
        return []

    def _arrived(self) -> bool:
        """Whether rows have come since the last look."""
        before = len(self._arrivals)
        while self._arrivals and self._arrivals[0] <= self._machine.now:
            self._arrivals.popleft()
        return len(self._arrivals) < before

    def _collect(self) -> list[Happening]:
        happened = [happening for teller in self._tellers for happening in teller.collect()]
        while self._requests and self._requests[0][0] <= self._machine.now:
            happened.append(self._requests.pop(0)[1])
        return happened
