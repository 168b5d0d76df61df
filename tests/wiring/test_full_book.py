"""While the journal cannot be written the world goes on: what was seen meanwhile counts before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scheduler.core.brain import Brain
from scheduler.core.events import Event, Exited, Placed
from scheduler.core.orders import Surroundings
from scheduler.core.simulation import SimulatedMachine
from scheduler.core.truth import Truth
from scheduler.core.world import SimulatedWorld
from scheduler.devices.simulated import SimulatedDevices, SimulatedWatcher
from scheduler.engines.simulated import SimulatedEngine
from scheduler.errors import StateError
from scheduler.loop import Loop, Ports
from scheduler.paths import RunPlaces
from scheduler.store.memory import MemoryBook, MemoryLedger
from scheduler.units import GIB
from tests.builders import Heard, gpu, host, rules, spec
from tests.faults import fault

START = 1e9
FULL = (START + 4, START + 12)
"""When the disk takes nothing."""


class FullBook(MemoryBook):
    """One on a disk that is full for a while."""

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self.machine = machine

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        if FULL[0] <= self.machine.now < FULL[1]:
            raise StateError("no space left")
        super().record(events, at, later=later)


@fault(23)
def test_memory_that_came_back_while_the_disk_was_full_is_still_promised_to_whoever_lives() -> None:
    truths = [
        Truth(20, (((0, 10 * GIB), (8, 0)),)),  # lives on without what it held
        Truth(5, (((0, 2 * GIB),),)),  # its end cannot be written down
        Truth(1, (((0, 20 * GIB),),)),
    ]
    machine = SimulatedMachine([gpu().device, host().device], now=START)
    book = FullBook(machine)
    brain = Brain(rules(), book.terms)
    for batch in book.accept(spec(row=n, memory=f"{gib}GiB") for n, gib in enumerate((10, 2, 20))):
        brain.apply(batch)
    engine, watcher = SimulatedEngine(machine, lambda order: truths[order.task - 1]), SimulatedWatcher(machine)
    world = SimulatedWorld(machine, [engine, watcher])
    ports = Ports(world, book, SimulatedDevices(machine), engine, watcher, MemoryLedger(machine), Heard())
    Loop(brain, ports, Surroundings("1", "python", "/", RunPlaces(Path("/simulated"), 1), {})).run()
    placed = {event.task: at for event, at in book.recorded if isinstance(event, Placed)}
    ended = {event.task: at for event, at in book.recorded if isinstance(event, Exited)}
    assert (placed[1], placed[2]) == (START, START)
    assert placed[3] >= ended[1]
