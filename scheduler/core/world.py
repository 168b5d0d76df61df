"""The world of a simulated machine: whoever waits in it lets its time pass."""

from __future__ import annotations

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
        self, machine: SimulatedMachine, tellers: Sequence[Teller], requests: Sequence[tuple[float, Request]] = ()
    ) -> None:
        self._machine = machine
        self._tellers = tellers
        self._requests = sorted(requests, key=lambda request: request[0])
        self._idle = 0
        for at, _ in self._requests:
            machine.wake_at(at)

    def now(self) -> float:
        """The machine's clock."""
        return self._machine.now

    def wait(self, timeout: float) -> list[Happening]:
        """What happens next; only where nothing ever will does the timeout count."""
        happened = self._collect()
        while not happened and self._machine.advance():
            happened = self._collect()
        self._idle = 0 if happened else self._idle + 1
        if self._idle > STANDSTILL:
            raise SchedulerError(
                f"the simulation stands still at {self._machine.now:g} s: nothing will happen any more"
            )
        if not happened:
            self._machine.now += timeout
        return happened

    def _collect(self) -> list[Happening]:
        happened = [happening for teller in self._tellers for happening in teller.collect()]
        while self._requests and self._requests[0][0] <= self._machine.now:
            happened.append(self._requests.pop(0)[1])
        return happened
