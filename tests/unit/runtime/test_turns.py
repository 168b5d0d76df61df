"""Turns between users: real loops of two users that share a simulated machine by leases and wait tickets."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.attempts.launch_spec import TaskEnvironment
from scheduler.core.brain import Brain
from scheduler.core.events import Event, Exited
from scheduler.core.model import DeviceBudget, Placement, Spec
from scheduler.runtime.loop import Loop, Ports
from scheduler.runtime.paths import RunPaths
from scheduler.simulation.devices import SimulatedDevices, SimulatedWatcher
from scheduler.simulation.engine import SimulatedEngine
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.memory_store import MemoryLeaseRegistry, MemoryRunStore
from scheduler.simulation.task_behaviour import TaskBehaviour
from scheduler.simulation.world import SimulatedWorld
from scheduler.units import GIB
from tests.support.builders import Heard, gpu, host, made, rules, spec
from tests.support.faults import fault

ANN, BEN = 1000, 2000
START = 1e9
MOST_ENDS = 60
"""The most ends of other users' tasks within which a large task starts."""


class Run:
    """The scheduler of one user, which looks at intervals, and at each event of its own tasks."""

    def __init__(self, machine: SimulatedMachine, number: int, uid: int, specs: Sequence[Spec], **said: Any) -> None:
        self._machine = machine
        self.uid = uid
        dice = random.Random(number)
        behaves = said.pop("behaves", lambda: TaskBehaviour(round(dice.uniform(3.0, 5.0), 3)))
        self.book = MemoryRunStore(first=10_000 * number, num=max(1, len(specs)))
        self.brain = Brain(rules(**said), self.book.terms)
        self.engine = SimulatedEngine(machine, lambda order: behaves())
        made.append(self.brain)
        for batch in self.book.accept(specs):
            self.brain.apply(batch, machine.now)
        self.watcher = SimulatedWatcher(machine)
        world = SimulatedWorld(machine, [self.engine, self.watcher])
        registry = MemoryLeaseRegistry(machine, str(number), uid)
        ports = Ports(world, self.book, SimulatedDevices(machine), self.engine, self.watcher, registry, Heard())
        around = TaskEnvironment(str(number), "python", "/", RunPaths(Path("/simulated"), number), {})
        self.loop = Loop(self.brain, ports, around)
        self.next_look = machine.now + 0.03 * number
        machine.wake_at(self.next_look)

    def go_on(self) -> None:
        """Take in the events, and place tasks if it is time."""
        happened = [*self.engine.collect(), *self.watcher.collect()]
        if happened:
            self.loop.digest(happened)
        if any(isinstance(one, Exited) for one in happened) or self._machine.now >= self.next_look:
            if not self.brain.over:
                self.loop.place()
            self.next_look = self._machine.now + self.loop._timeout()
            self._machine.wake_at(self.next_look)

    @property
    def events(self) -> list[tuple[Event, float]]:
        return self.book.recorded


@dataclass
class Town:
    """A machine with the runs of all its users."""

    budgets: Sequence[DeviceBudget]
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = SimulatedMachine([budget.device for budget in self.budgets], now=START)

    def starts(self, uid: int, specs: Iterable[Spec], **said: Any) -> Run:
        self.runs.append(Run(self.machine, len(self.runs) + 1, uid, list(specs), **said))
        return self.runs[-1]

    def until(self, done: Any) -> None:
        """Let time pass until that is so."""
        while not done():
            assert self.machine.advance(), "nothing will happen any more"
            for run in self.runs:
                run.go_on()

    def ended(self, uid: int, since: float = 0.0, until: float = float("inf")) -> int:
        """Return how many tasks of a user have ended in a span of time."""
        return sum(
            isinstance(event, Exited) and since < at <= until
            for run in self.runs
            if run.uid == uid
            for event, at in run.events
        )


def small(number: int) -> list[Spec]:
    """Return the rows of tasks of 2 GiB."""
    return [spec("small.py", row, memory="2GiB") for row in range(number)]


def placed_at(run: Run) -> list[float]:
    return [at for event, at in run.events if isinstance(event, Placement)]


@fault(95)
@pytest.mark.parametrize("own", [False, True], ids=["another user's", "of the same list"])
def test_a_task_that_unmanaged_memory_keeps_from_starting_stops_no_other_task(own: bool) -> None:
    """A notebook held 3 of 24 GiB for good; after 50 bypasses nothing started any more."""
    town = Town((gpu(0), host("512GiB", cores=256)))
    town.machine.hold_unmanaged("GPU-0", 3 * GIB)
    large = [spec("large.py", 0, memory="23000MiB")]
    ann = town.starts(ANN, [*(large if own else []), *small(200)])
    ben = ann if own else town.starts(BEN, large)
    town.until(lambda: town.ended(ANN) == 150)
    quiet = max(after - before for before, after in pairwise(placed_at(ann)))
    assert quiet < 30.0
    town.machine.hold_unmanaged("GPU-0", 0)
    left = town.machine.now
    town.until(
        lambda: any(event.reservation["GPU-0"] > 20 * GIB for event, _ in ben.events if isinstance(event, Placement))
    )
    assert town.ended(ANN, since=left) <= MOST_ENDS - 1


FULL = [{}, {"max_gpu_load": 64.0}]
"""Two settings on two GPUs: eight tasks at a time by their load, or 22 by their memory."""


@pytest.mark.parametrize("said", FULL, ids=["by load", "by memory"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_large_task_starts_within_sixty_ends_of_small_tasks(gpus: int, said: dict[str, float]) -> None:
    town = Town((*(gpu(number) for number in range(gpus)), host("512GiB", cores=256)))
    for _ in range(4):
        town.starts(ANN, small(75), **said)
    town.until(lambda: town.ended(ANN) >= 20)
    large = [town.starts(BEN, [spec("large.py", memory="20GiB")], **said)]
    if gpus == 2:
        large.append(town.starts(BEN, [spec("pair.py", memory="20GiB", gpus=2)], **said))
    came = town.machine.now
    town.until(lambda: all(placed_at(run) for run in large))
    waited = [town.ended(ANN, came, placed_at(run)[0]) for run in large]
    assert max(waited) <= MOST_ENDS, waited
    assert town.ended(ANN) < 300, "they were still coming"


@pytest.mark.parametrize("said", FULL, ids=["by load", "by memory"])
def test_a_user_with_four_runs_gets_no_more_than_with_one(said: dict[str, float]) -> None:
    shares = []
    for number in (1, 4):
        town = Town((gpu(), host("512GiB", cores=256)))
        for _ in range(number):
            town.starts(ANN, small(600 // number), **said)
        town.starts(BEN, small(600), **said)
        town.until(lambda town=town: town.ended(ANN) + town.ended(BEN) >= 300)  # type: ignore[misc]  # it is called at once
        shares.append(town.ended(ANN) / (town.ended(ANN) + town.ended(BEN)))
    one, four = shares
    assert four <= one + 0.01, shares
    assert abs(four - 0.5) <= 0.03, shares
