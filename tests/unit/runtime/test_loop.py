"""The loop on a simulated machine: what it reads from the world before it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.core.attempts.launch_spec import TaskEnvironment
from scheduler.core.brain import Brain
from scheduler.core.causes import DependencyStep
from scheduler.core.events import Depended, Event, Exited
from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import DeviceBudget, Placement
from scheduler.core.ports import Key, Watched
from scheduler.errors import StateError
from scheduler.runtime.loop import Loop, Ports
from scheduler.runtime.paths import RunPaths
from scheduler.simulation.devices import SimulatedDevices, SimulatedWatcher
from scheduler.simulation.engine import SimulatedEngine
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.memory_store import MemoryLeaseRegistry, MemoryRunStore
from scheduler.simulation.task_behaviour import TaskBehaviour
from scheduler.simulation.world import SimulatedWorld
from scheduler.units import GIB
from tests.support.builders import Heard, Simulation, exited, gpu, host, jobs, placed, rules, spec, started, tell
from tests.support.faults import fault

START = 1e9
FULL = (START + 4, START + 12)
"""The time in which the disk takes nothing, from and to."""


class FullBook(MemoryRunStore):
    """A run store on a disk that is full for a while."""

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self.machine = machine

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        if FULL[0] <= self.machine.now < FULL[1]:
            raise StateError("no space left")
        super().record(events, at, later=later)


def loop(
    machine: SimulatedMachine, book: MemoryRunStore, gib: Sequence[int], truths: Sequence[TaskBehaviour], **ports: Any
) -> Loop:
    """Return a loop of tasks that declare these needs and behave as their truths say."""
    brain = Brain(rules(), book.terms)
    for batch in book.accept(spec(row=row, memory=f"{size}GiB") for row, size in enumerate(gib)):
        brain.apply(batch)
    engine = SimulatedEngine(machine, lambda order: truths[order.task - 1])
    watcher = ports.pop("watcher", None) or SimulatedWatcher(machine)
    devices = ports.pop("devices", None) or SimulatedDevices(machine)
    world = SimulatedWorld(machine, [engine, watcher])
    made = Ports(world, book, devices, engine, watcher, MemoryLeaseRegistry(machine), Heard())
    return Loop(brain, made, TaskEnvironment("1", "python", "/", RunPaths(Path("/simulated"), 1), {}))


@fault(23)
def test_memory_freed_while_the_disk_was_full_stays_reserved_for_the_living_tasks() -> None:
    truths = [
        TaskBehaviour(20, (((0, 10 * GIB), (8, 0)),)),  # lives on without what it held
        TaskBehaviour(5, (((0, 2 * GIB),),)),  # its end cannot be written down
        TaskBehaviour(1, (((0, 20 * GIB),),)),
    ]
    machine = SimulatedMachine([gpu().device, host().device], now=START)
    book = FullBook(machine)
    loop(machine, book, (10, 2, 20), truths).run()
    placed = {event.task: at for event, at in book.recorded if isinstance(event, Placement)}
    ended = {event.task: at for event, at in book.recorded if isinstance(event, Exited)}
    assert (placed[1], placed[2]) == (START, START)
    assert placed[3] >= ended[1]


class Told(SimulatedWatcher):
    """A watcher that keeps the attempts that it was last asked to watch."""

    told: frozenset[Key] = frozenset()

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        self.told = frozenset(attempts)
        super().watch(attempts, others, unnamed)


class Asked(SimulatedDevices):
    """Devices that note, each time they are asked what is free, which attempts seemed to live and which had gone."""

    def __init__(self, machine: SimulatedMachine, watcher: Told) -> None:
        super().__init__(machine)
        self.machine, self.watcher = machine, watcher
        self.gone: list[frozenset[Key]] = []

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        self.gone.append(self.watcher.told - self.machine.running.keys())
        return super().snapshot()


def test_ended_attempts_are_no_longer_watched_when_free_memory_is_measured() -> None:
    machine = SimulatedMachine([gpu().device, host().device], now=START)
    watcher = Told(machine)
    devices = Asked(machine, watcher)
    truths = [TaskBehaviour(5.0 + n, (((0, 9 * GIB),),)) for n in range(6)]
    loop(machine, MemoryRunStore(), [10] * 6, truths, watcher=watcher, devices=devices).run()
    assert len(devices.gone) > 6
    assert not any(devices.gone)


class NumberlessBook(MemoryRunStore):
    """A run store that has no ids for probes for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def probe_id(self, task: int) -> int:
        if self.refused < 3:
            self.refused += 1
            raise StateError("the counter is locked")
        return super().probe_id(task)


@fault(111)
def test_a_probe_without_an_id_is_started_later_and_reserves_nothing_meanwhile() -> None:
    machine = SimulatedMachine([gpu().device, host().device], now=START)
    book = NumberlessBook()
    made = loop(machine, book, [], [TaskBehaviour(100.0, (((0, 2 * GIB),),), epochs=100)])
    made.brain.rules = rules(profile="auto")
    for batch in book.accept([spec(filename="train.py --epochs {epochs}", epochs=100)]):
        made.brain.apply(batch)
    made.run()
    assert book.refused == 3
    assert [event.purpose for event, _ in book.recorded if isinstance(event, Placement)] == ["probe", "run"]
    assert not machine.leases.beside(-1, "")


def depending(codes: Sequence[int], *events: Depended) -> Simulation:
    """Return a simulated run of tasks with these exit codes that accepted these dependencies."""
    run = Simulation([job for code in codes for job in jobs(1, 10, memory="1GiB", code=code)])
    run.book.record(events, run.machine.now)
    for event in events:
        run.brain.apply(event)
    return run


def test_a_task_starts_after_the_end_of_its_parent_although_there_is_room_for_both() -> None:
    run = depending([0, 0, 0], Depended(DependencyStep.BLOCK, (1,), after=(3,))).run()
    times = {(type(event), event.task): at for event, at in run.book.recorded if isinstance(event, Placement | Exited)}
    assert times[Placement, 1] >= times[Exited, 3]
    assert times[Placement, 2] == times[Placement, 3]
    assert run.states == {"succeeded": 3}


def test_a_failed_task_skips_what_depends_on_it_and_the_run_ends() -> None:
    events = [Depended(DependencyStep.BLOCK, (n + 1,), after=(n,)) for n in (1, 2)]
    run = depending([1, 0, 0], *events).run()
    assert run.states == {"failed": 1, "skipped": 2}
    assert Depended(DependencyStep.SKIP, (2, 3), parent=1) in run.events


def test_a_scheduler_that_takes_over_frees_the_children_of_a_task_that_had_ended() -> None:
    run = depending([0, 0], Depended(DependencyStep.BLOCK, (2,), after=(1,)))
    ends = tell(run.brain, started_and_ended := [placed(1, "1GiB"), started(1), exited(1)])
    run.book.record(started_and_ended, run.machine.now)
    assert ends.blocked == 1
    run.loop.adopt()
    assert run.events[-1] == Depended(DependencyStep.READY, (2,))


def test_a_simulated_list_runs_in_the_order_of_its_dependencies() -> None:
    given = [*jobs(1, 10, memory="1GiB", name="b", after="a"), *jobs(1, 10, memory="1GiB", name="a")]
    run = Simulation(given).run()
    times = {(type(event), event.task): at for event, at in run.book.recorded if isinstance(event, Placement | Exited)}
    assert times[Placement, 1] >= times[Exited, 2]
    assert run.states == {"succeeded": 2}
