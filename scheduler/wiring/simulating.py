"""Joins what makes a simulated run go: the real Brain and loop on a machine that is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from scheduler.core.bound import lower_bound, works_of
from scheduler.core.brain import Brain
from scheduler.core.events import Event
from scheduler.core.interference import Interference
from scheduler.core.knowledge import Knowledge
from scheduler.core.measures import Outcomes, Simulated, outcomes
from scheduler.core.model import Device, Refusal
from scheduler.core.orders import Surroundings
from scheduler.core.ports import Launch, Request, View
from scheduler.core.results import Fold
from scheduler.core.rules import Rules
from scheduler.core.simulation import SimulatedMachine
from scheduler.core.truth import Truth
from scheduler.core.workload import Given, Workload, batches_by_arrival, model
from scheduler.core.world import SimulatedWorld
from scheduler.devices.simulated import SimulatedDevices, SimulatedWatcher
from scheduler.engines.simulated import SimulatedEngine
from scheduler.loop import Loop, Ports
from scheduler.paths import RunPlaces
from scheduler.store.memory import MemoryBook, MemoryLedger
from scheduler.values import dataclass

START = 1e9
"""The simulated clock's first moment: any but 0, which stands for never."""
BY_BATCH = "batches"
USUAL_BATCH = 20
"""Rows that the batch-by-batch original takes at a time."""


class Onlooker:
    """A view that shows nothing and sums everything up."""

    def __init__(self) -> None:
        self.fold = Fold()

    def show(self, event: Event, at: float) -> None:
        """Fold it."""
        self.fold.take(event, at)

    def say(self, sentence: str) -> None:
        """Nobody listens."""

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Nobody asks why."""

    def hang_up(self) -> None:
        """Nobody is there."""


class Simulation:
    """A Loop on a machine that is not there, and everything that came of it."""

    def __init__(
        self,
        given: Sequence[Given],
        machine: SimulatedMachine,
        brain: Brain,
        book: MemoryBook,
        view: View,
        *,
        requests: Sequence[tuple[float, Request]] = (),
        truth: Callable[[Launch, Truth], Truth] = lambda order, truth: truth,
    ) -> None:
        self.machine = machine
        self.began = machine.now
        self.book = book
        self.brain = brain
        self.view = view
        self.truth = truth
        self.requests = requests
        self._by_spec = {id(one.spec): one for one in given}
        self._given: dict[int, Given] = {}
        at_once, *later = batches_by_arrival(given) or [(0.0, [])]
        if at_once[0] > 0:
            at_once, later = (0.0, []), [at_once, *later]
        self.submitted = self.book.accept(one.spec for one in at_once[1])
        for batch in self.submitted:
            self.brain.apply(batch)
        self._arrivals = [self.began + at for at, _ in later]
        self.book.expect(machine, [(self.began + at, [one.spec for one in rows]) for at, rows in later])
        self.loop = self.scheduler()

    def append(self, given: Sequence[Given]) -> None:
        """Rows that join at the run's next look."""
        self._by_spec.update((id(one.spec), one) for one in given)
        self.book.append(one.spec for one in given)

    def given(self, task: int) -> Given:
        """What a task was made from."""
        if task not in self._given:
            self._given[task] = self._by_spec[id(self.book.row(task))]
        return self._given[task]

    def all_given(self) -> Mapping[int, Given]:
        """All tasks that came, by id."""
        return {task: self.given(task) for task in self.brain.roll}

    def scheduler(self, brain: Brain | None = None) -> Loop:
        """A scheduler of this run; the next one after it takes over what it left."""
        engine = SimulatedEngine(self.machine, lambda order: self.truth(order, self.given(order.task).truth))
        watcher = SimulatedWatcher(self.machine)
        world = SimulatedWorld(self.machine, [engine, watcher], self.requests, self._arrivals)
        devices, ledger = SimulatedDevices(self.machine), MemoryLedger(self.machine)
        ports = Ports(world, self.book, devices, engine, watcher, ledger, self.view)
        around = Surroundings("1", "python", "/", RunPlaces(Path("/simulated"), 1), {})
        return Loop(brain or self.brain, ports, around)

    def run(self) -> Simulation:
        """To its end, or until it was left."""
        self.loop.run()
        return self


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be simulated."""

    workload: Workload
    devices: Sequence[Device]
    interference: Interference
    rules: Rules
    num: int | None = 20
    """Rows in a batch; None: all that come together are one, but for a policy that goes batch by batch."""

    def rows_in_batch(self, policy: str) -> int:
        """How many rows of it are a batch."""
        if self.num is not None:
            return self.num
        return USUAL_BATCH if policy == BY_BATCH else max(1, len(self.workload.tasks))


def play(scene: Scene, policy: str = "packed") -> tuple[Simulation, Fold]:
    """One run of a scene to its end, and what its events tell."""
    machine = SimulatedMachine(scene.devices, now=START, slowdown=scene.interference.slowdown)
    book = MemoryBook(num=scene.rows_in_batch(policy), model=model, kept=False)
    known = {key: deepcopy(profile) for key, profile in scene.workload.known.items()}
    brain = Brain(replace(scene.rules, policy=policy), book.terms, Knowledge(known))
    view = Onlooker()
    return Simulation(scene.workload.tasks, machine, brain, book, view).run(), view.fold


def simulate(scene: Scene, policy: str) -> Simulated:
    """The same in what it is measured by."""
    run, fold = play(scene, policy)
    states = dict(run.brain.roll.counts)
    return Simulated(fold, run.all_given(), run.began, states, scene.devices, run.brain.line.most_overtaken)


def measured(scene: Scene, policy: str, *, alone: bool = False) -> tuple[Outcomes, Simulated]:
    """One run of a scene in numbers, beside what no schedule can beat.

    `alone`: and how long the tasks of the best priority would wait if there were no others.
    """
    run = simulate(scene, policy)
    bound = lower_bound(works_of(scene.workload.tasks), scene.devices, scene.interference)
    found = outcomes(policy, run, bound)
    if not alone or not found.waits:
        return found, run
    best = min(found.waits)
    tasks = [one for one in scene.workload.tasks if one.spec.terms.priority == best]
    there = simulate(replace(scene, workload=replace(scene.workload, tasks=tasks)), policy)
    return replace(found, alone=outcomes(policy, there, bound).waits[best]), run
