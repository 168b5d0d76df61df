"""The cost of a decision, and of a run of very many tasks: `python scripts/bench/decision.py [--quick]`.

Printed: the median and the 99th percentile of a pass over 100,000 queued tasks in 50 classes and in 5,000, on a full
machine and right after a device became free; the cost of a pass by the length of the queue and by the number of
devices; how long a simulation of so many tasks on so many devices takes to its end, and how much memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Bench, machine, quantile
from page import Axis, Bound, Section, dots, number, table

from scheduler.core.attempts.launch_spec import TaskEnvironment
from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Event, Exited, Submitted
from scheduler.core.model import Device, DeviceBudget, Job, Machine, Outcome, Placement, Spec, Terms
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import Arrivals, Key, Launch
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.task_class import TaskClass
from scheduler.runtime.loop import Loop, Ports
from scheduler.runtime.paths import RunPaths
from scheduler.simulation.devices import SimulatedDevices, SimulatedWatcher
from scheduler.simulation.engine import SimulatedEngine
from scheduler.simulation.machine import SimulatedMachine, fitted
from scheduler.simulation.memory_store import MemoryLeaseRegistry
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.simulation.world import SimulatedWorld
from scheduler.units import GIB, MIB

TOTAL = 24 * GIB
BOUNDS = {50: 0.1, 5000: 1.0}
"""Milliseconds at the median, by classes."""


def classes(number: int) -> list[Terms]:
    """So many different needs, from 1 GiB to 20 GiB, small and large ones mixed."""
    step = 19 * GIB / number
    return [Terms(memory=int(GIB + step * (n * 7919 % number)), epochs=10) for n in range(number)]


def gpus(number: int) -> list[Device]:
    return [Device(f"GPU-{n:06}", f"GPU {n}", TOTAL, 1.0, n) for n in range(number)]


# ---- one pass ----


class Crowd:
    """A Brain with a full machine and a long queue, in which devices become free one after another."""

    def __init__(self, queued: int, kinds: int, devices: int) -> None:
        self.brain = Brain(SchedulingConfig(), classes(kinds))
        self.kinds = kinds
        self.queued = 0
        self.budgets = [DeviceBudget(device, TOTAL) for device in gpus(devices)]
        self.used: dict[Key, Mapping[str, int]] = {}
        self._more(queued)
        while placements := self.decide().placements:
            self._place(placements)

    def _more(self, number: int) -> None:
        first = self.queued + 1
        self.brain.apply(Submitted(1 + first, first, [n % self.kinds for n in range(first, first + number)]))
        self.queued += number

    def decide(self, at: float = 1.0) -> Any:
        return self.brain.decide(Machine(at, tuple(self.budgets), (), self.used, {}))

    def _place(self, placements: Sequence[Placement]) -> None:
        for p in placements:
            self.brain.apply(p)

    def full(self, turn: int) -> float:
        """Seconds of a pass on a full machine, of which one device has just changed by a little."""
        at = turn % len(self.budgets)
        self.budgets[at] = DeviceBudget(self.budgets[at].device, TOTAL - (turn % 3 + 1) * MIB)
        started = time.perf_counter()
        decision = self.decide()
        taken = time.perf_counter() - started
        assert not decision.placements
        return taken

    def freed(self, turn: int) -> float:
        """Seconds of a pass right after all tasks of a device ended; what it starts stays."""
        key = self.budgets[turn % len(self.budgets)].device.key
        ended = [p for p in self.brain.placements() if key in p.reservation]
        for p in ended:
            self.brain.apply(Exited(p.task, p.attempt, Outcome.SUCCEEDED))
        if len(ended):
            self._more(len(ended))
        started = time.perf_counter()
        decision = self.decide()
        taken = time.perf_counter() - started
        assert decision.placements
        self._place(decision.placements)
        return taken


def passes(queued: int, kinds: int, devices: int, turns: int) -> dict[str, list[float]]:
    """Milliseconds of many passes in both states."""
    crowd = Crowd(queued, kinds, devices)
    measured: dict[str, Callable[[int], float]] = {"full": crowd.full, "freed": crowd.freed}
    found = {}
    for state, measure in measured.items():
        for turn in range(5):
            measure(turn)
        found[state] = sorted(measure(turn) * 1000 for turn in range(turns))
    return found


def show_passes(queued: int, turns: int) -> list[dict[str, Any]]:
    """Both states of both numbers of classes, printed as they are found."""
    found = []
    for kinds, bound in BOUNDS.items():
        for state, taken in passes(queued, kinds, 8, turns).items():
            median, late = statistics.median(taken), quantile(taken, 0.99)
            found.append({"classes": kinds, "state": state, "median": round(median, 4), "p99": round(late, 4)})
            print(
                f"pass   {queued:>9,} queued {kinds:>6,} classes  8 GPUs {state:<6}"
                f" median {median:7.3f} ms   99 % {late:7.3f} ms   bound {bound:g} ms"
            )
    return found


# ---- a whole run ----


class Rows:
    """The book of a run whose rows are made when they are asked for, and that keeps nothing."""

    def __init__(self, number: int, terms: list[Terms]) -> None:
        self.terms = terms
        self.number = number
        self.events = 0
        specs = [Spec(2, "", "python", f"train.py --size {n}", "", (), (), one) for n, one in enumerate(terms)]
        self._jobs = [Job(spec, spec.command, spec.command) for spec in specs]

    def submitted(self) -> list[Submitted]:
        numbers = range(self.number)
        return [Submitted(1, 1, [n % len(self.terms) for n in numbers])]

    def job(self, task: int) -> Job:
        return self._jobs[(task - 1) % len(self._jobs)]

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        self.events += len(events)

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        return {}

    def ignored_result(self, task: int, attempt: int) -> str:
        return ""

    def kind(self, task: int) -> TaskClass:
        name = self.job(task).name
        return TaskClass(name, name, probes=False)

    def learn(self, kind: TaskClass, evidence: Observation) -> None: ...

    def probe_id(self, task: int) -> int:
        raise NotImplementedError

    def end_probe(self, task: int, told: int) -> None: ...

    def arrivals(self, *, last: bool) -> Arrivals:
        return Arrivals()


class Blind:
    """A view that looks at nothing."""

    def show(self, event: Event, at: float) -> None: ...

    def say(self, sentence: str) -> None:
        print(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None: ...

    def hang_up(self) -> None: ...


def truth(order: Launch, terms: Terms) -> TaskBehaviour:
    """So long as half an hour on average, and as much memory as its row says."""
    seconds = 600.0 + (order.task * 2654435761 % 2400)
    assert terms.memory is not None
    return TaskBehaviour(seconds, (curve(terms.memory - 300 * MIB, seconds),), utilisation=0.4)


@dataclass(frozen=True, slots=True)
class Took:
    """The cost of a simulation."""

    seconds: float
    cpu: float
    """The seconds of these in which it had a core."""
    events: int
    days: float
    """The days that passed on its simulated clock."""


def simulate(tasks: int, devices: int) -> Took:
    """All of them to their end, by the loop that drives real runs."""
    rows = Rows(tasks, classes(50))
    started, began = time.perf_counter(), time.process_time()
    machine = SimulatedMachine(gpus(devices), now=1e9, slowdown=fitted)
    brain = Brain(SchedulingConfig(), rows.terms)
    for batch in rows.submitted():
        brain.apply(batch)
    engine = SimulatedEngine(machine, lambda order: truth(order, rows.job(order.task).spec.terms))
    watcher = SimulatedWatcher(machine)
    world = SimulatedWorld(machine, [engine, watcher])
    ports = Ports(world, rows, SimulatedDevices(machine), engine, watcher, MemoryLeaseRegistry(machine), Blind())
    Loop(brain, ports, TaskEnvironment("1", "python", "/", RunPaths(Path("/none"), 1), {})).run()
    assert brain.state_counts.most_common(1)[0][1] == tasks, dict(brain.state_counts)
    spent = time.perf_counter() - started, time.process_time() - began
    return Took(*spent, rows.events, (machine.now - 1e9) / 86400)


def show_run(tasks: int, devices: int) -> dict[str, Any]:
    """One simulation, printed."""
    took = simulate(tasks, devices)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"run    {tasks:>9,} tasks on {devices:>5,} devices: {took.seconds:7.1f} s ({took.cpu:.1f} s of a core),"
        f" {tasks / took.cpu:7,.0f} tasks/s of a core,"
        f" {took.events:,} events, {took.days:.1f} simulated days, this process at most {peak / GIB:.2f} GiB",
        flush=True,
    )
    return {"tasks": tasks, "devices": devices, "cpu": round(took.cpu, 3), "gib": round(peak / GIB, 3)}


# ---- all of it ----


def costs(
    sizes: Sequence[int], measure: Callable[[int], dict[str, list[float]]], what: str
) -> dict[str, list[tuple[int, float]]]:
    """The median of a pass by size, printed as it is found."""
    found: dict[str, list[tuple[int, float]]] = {"full": [], "freed": []}
    for size in sizes:
        for state, taken in measure(size).items():
            found[state].append((size, statistics.median(taken)))
        shown = ", ".join(f"{state} {points[-1][1]:.3f} ms" for state, points in found.items())
        print(f"cost   {size:>9,} {what}: {shown}", flush=True)
    return found


def by_size(quick: bool) -> dict[str, Any]:
    """Measure a pass by the length of the queue, and by the number of devices."""
    turns, queued = (25, 10_000) if quick else (250, 100_000)
    longest, widest = (10_000, 64) if quick else (1_000_000, 1024)
    lengths = [n for n in (200, 1_000, 10_000, 100_000, 1_000_000) if n <= longest]
    widths = [n for n in (1, 4, 16, 64, 256, 1024) if n <= widest]
    return {
        "queue": costs(lengths, lambda n: passes(n, 50, 8, turns), "queued tasks"),
        "devices": costs(widths, lambda n: passes(queued, 50, n, turns), "devices"),
    }


def measure(bench: Bench) -> dict[str, Any]:
    """Passes, what they cost by size, and whole runs; a tenth as long where it is to be quick."""
    queued, turns = (10_000, 100) if bench.quick else (100_000, 1000)
    tasks, devices = (20_000, 100) if bench.quick else (100_000, 1000)
    return {
        "queued": queued,
        "passes": show_passes(queued, turns),
        "by_size": by_size(bench.quick),
        "runs": [show_run(part, devices) for part in (tasks // 100, tasks // 10, tasks)],
    }


STATES = {"full": "the machine is full", "freed": "a device just became free"}


def section(found: dict[str, Any]) -> list[Section]:
    """Tables, and both dependences as charts."""
    made = Section(f"A decision: {found['queued']:,} queued tasks on 8 GPUs")
    made.text.append("One pass of the pure core over the whole queue, without any input or output.")
    rows = [
        [f"{one['classes']:,}", STATES[one["state"]], number(one["median"]), number(one["p99"])]
        for one in found["passes"]
    ]
    made.text.append(table(("classes", "state", "median, ms", "99th percentile, ms"), rows))
    made.bounds = [
        Bound(
            f"a pass, {one['classes']:,} classes, {STATES[one['state']]}", BOUNDS[one["classes"]], one["median"], "ms"
        )
        for one in found["passes"]
    ]
    up = Axis(-3, 2, ("1 us", "10 us", "0.1 ms", "1 ms", "10 ms", "0.1 s"))
    for what, said, axis in (
        ("queue", "A pass by the length of the queue", Axis(2, 6, ("100", "1,000", "10,000", "100,000", "1,000,000"))),
        ("devices", "A pass by the number of GPUs", Axis(0, 3, ("1", "10", "100", "1,000"))),
    ):
        series = {STATES[state]: [(x, y) for x, y in points] for state, points in found["by_size"][what].items()}
        made.show(f"decision-{what}", said, dots(said, axis, up, series))
    made.text.append("Whole simulated runs, by the loop that drives real ones:")
    runs = [
        [
            f"{one['tasks']:,}",
            f"{one['devices']:,}",
            number(one["cpu"]),
            number(one["tasks"] / one["cpu"]),
            number(one["gib"]),
        ]
        for one in found["runs"]
    ]
    made.text.append(table(("tasks", "devices", "s of a core", "tasks a second", "memory, GiB"), runs))
    return [made]


def main() -> int:
    """Print all figures; 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--tasks", type=int, help="of the simulated run")
    parser.add_argument("--devices", type=int, help="of the simulated run")
    parser.add_argument("--only", choices=["passes", "costs", "run"])
    args = parser.parse_args()
    print(", ".join(machine().values()))
    good = True
    if args.only in (None, "passes"):
        found = show_passes(*((10_000, 100) if args.quick else (100_000, 1000)))
        good = all(one["median"] < BOUNDS[one["classes"]] for one in found)
    if args.only in (None, "costs"):
        by_size(args.quick)
    if args.only in (None, "run"):
        tasks = args.tasks or (20_000 if args.quick else 1_000_000)
        devices = args.devices or (100 if args.quick else 1000)
        for part in (tasks // 100, tasks // 10, tasks):
            show_run(part, devices)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
