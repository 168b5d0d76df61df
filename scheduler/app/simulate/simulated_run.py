"""A simulated run: the real Brain and loop on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

from scheduler.core.attempts.launch_spec import TaskEnvironment
from scheduler.core.brain import Brain
from scheduler.core.config import BATCHES, SchedulingConfig
from scheduler.core.events import Event
from scheduler.core.model import Device
from scheduler.core.ports import Launch, Request, View
from scheduler.core.profiling import own_peak
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.reporting.run_history import RunHistory
from scheduler.runtime.loop import Loop, Ports
from scheduler.runtime.paths import RunPaths
from scheduler.simulation.devices import SimulatedDevices, SimulatedWatcher
from scheduler.simulation.engine import SimulatedEngine
from scheduler.simulation.interference import Interference
from scheduler.simulation.lower_bound import lower_bound, works_of
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.memory_store import MemoryLeaseRegistry, MemoryRunStore
from scheduler.simulation.metrics import RunMetrics, SimulatedResult, outcomes
from scheduler.simulation.task_behaviour import TaskBehaviour
from scheduler.simulation.workload import GivenTask, Workload, batches_by_arrival, model
from scheduler.simulation.world import SimulatedWorld
from scheduler.values import dataclass, replace

START = 1e9
"""The first moment of the simulated clock, in seconds since the epoch; it is not 0, because 0 means never."""
USUAL_BATCH = 20
"""The number of rows in a batch of the older batch-by-batch tool."""


class MetricsView(View):
    """A view that shows nothing and records the history."""

    def __init__(self) -> None:
        self.history = RunHistory()

    def show(self, event: Event, at: float) -> None:
        """Add an event to the history."""
        self.history.take(event, at)


class Simulation:
    """A loop on a simulated machine, and its results."""

    def __init__(
        self,
        given: Sequence[GivenTask],
        machine: SimulatedMachine,
        brain: Brain,
        book: MemoryRunStore,
        view: View,
        *,
        requests: Sequence[tuple[float, Request]] = (),
        truth: Callable[[Launch, TaskBehaviour], TaskBehaviour] = lambda order, truth: truth,
    ) -> None:
        self.machine = machine
        self.began = machine.now
        self.book = book
        self.brain = brain
        self.view = view
        self.truth = truth
        self.requests = requests
        self._by_spec = {id(one.spec): one for one in given}
        self._given: dict[int, GivenTask] = {}
        at_once, *later = batches_by_arrival(given) or [(0.0, [])]
        if at_once[0] > 0:
            at_once, later = (0.0, []), [at_once, *later]
        self.submitted = self.book.accept(one.spec for one in at_once[1])
        for batch in self.submitted:
            self.brain.apply(batch)
        self._arrivals = [self.began + at for at, _ in later]
        self.book.expect(machine, [(self.began + at, [one.spec for one in rows]) for at, rows in later])
        self.loop = self.scheduler()

    def append(self, given: Sequence[GivenTask]) -> None:
        """Add rows, which join the run at its next iteration."""
        self._by_spec.update((id(one.spec), one) for one in given)
        self.book.append(one.spec for one in given)

    def given(self, task: int) -> GivenTask:
        """Return the row from which a task was made."""
        if task not in self._given:
            self._given[task] = self._by_spec[id(self.book.row(task))]
        return self._given[task]

    def all_given(self) -> Mapping[int, GivenTask]:
        """Return all tasks that arrived, by id."""
        return {task: self.given(task) for task in self.brain.task_table}

    def scheduler(self, brain: Brain | None = None) -> Loop:
        """Return a scheduler of this run; it adopts the attempts of an earlier scheduler."""
        engine = SimulatedEngine(self.machine, lambda order: self.truth(order, self.given(order.task).truth))
        watcher = SimulatedWatcher(self.machine)
        world = SimulatedWorld(self.machine, [engine, watcher], self.requests, self._arrivals)
        devices, registry = SimulatedDevices(self.machine), MemoryLeaseRegistry(self.machine)
        ports = Ports(world, self.book, devices, engine, watcher, registry, self.view)
        around = TaskEnvironment("1", "python", "/", RunPaths(Path("/simulated"), 1), {})
        return Loop(brain or self.brain, ports, around)

    def run(self) -> Simulation:
        """Run until all tasks have ended, or until the scheduler stops earlier."""
        self.loop.run()
        return self


@dataclass(frozen=True, slots=True)
class Scene:
    """The tasks, the machine and the settings of a simulation."""

    workload: Workload
    devices: Sequence[Device]
    interference: Interference
    rules: SchedulingConfig
    num: int | None = 20
    """The number of rows in a batch. None: USUAL_BATCH for a policy that works batch by batch; for any other policy,
    all rows that arrive together are one batch."""
    wall: float = START
    """The wall-clock time at which the simulation begins; the rows' Begin and the window refer to it."""

    def rows_in_batch(self, policy: str) -> int:
        """Return the number of rows in a batch."""
        if self.num is not None:
            return self.num
        return USUAL_BATCH if policy == BATCHES else max(1, len(self.workload.tasks))


def play(scene: Scene, policy: str = "packed") -> tuple[Simulation, RunHistory]:
    """Run a scene to its end; return the simulation and the history of its events."""
    machine = SimulatedMachine(scene.devices, now=START, slowdown=scene.interference.slowdown)
    machine.wall_ahead = scene.wall - START
    book = MemoryRunStore(num=scene.rows_in_batch(policy), model=model, kept=False)
    known = {key: deepcopy(profile) for key, profile in scene.workload.known.items()}
    rules = own_peak.config(scene.rules) if policy == BATCHES else replace(scene.rules, policy=policy)
    brain = Brain(rules, book.terms, ProfileIndex(known))
    view = MetricsView()
    return Simulation(scene.workload.tasks, machine, brain, book, view).run(), view.history


def simulate(scene: Scene, policy: str) -> SimulatedResult:
    """Run a scene to its end; return the result that metrics are computed from."""
    run, history = play(scene, policy)
    states, bypassed = dict(run.brain.state_counts), run.brain.wait_queue.most_bypassed
    return SimulatedResult(history, run.all_given(), run.began, states, scene.devices, bypassed)


def measured(
    scene: Scene, policy: str, *, alone: bool = False, known: Scene | None = None
) -> tuple[RunMetrics, SimulatedResult]:
    """Run a scene to its end; return its metrics, with the lower bound among them, and its result.

    `alone` adds how long the tasks of the best priority would wait if there were no other tasks; `known`, which is
    the scene with known peaks, adds the makespan of that scene.
    """
    run = simulate(scene, policy)
    bound = lower_bound(works_of(scene.workload.tasks), scene.devices, scene.interference)
    found = outcomes(policy, run, bound)
    if known is not None:
        found = replace(found, known=outcomes(policy, simulate(known, policy), bound).makespan)
    if not alone or not found.waits:
        return found, run
    best = min(found.waits)
    tasks = [one for one in scene.workload.tasks if one.spec.terms.priority == best]
    there = simulate(replace(scene, workload=replace(scene.workload, tasks=tasks)), policy)
    return replace(found, alone=outcomes(policy, there, bound).waits[best]), run
