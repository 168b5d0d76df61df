"""How good the expected end of a run is: `python scripts/bench/forecast.py [--rows 300] [--seeds 3]`.

Simulated runs of made-up lists on two GPUs, of which nothing is known when they begin: after 5, 20, 50 and 80 % of the
ends it is said when the run and each of its tasks will be over, and later compared. Printed for each moment: the
expected time left over the real one, how often the real end lay between the early and the late one, the same for tasks,
and the processor time of one look.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, median
from time import process_time

from scheduler.app.simulate.simulated_run import START, MetricsView, Simulation
from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Event, Exited
from scheduler.core.model import Device, Profiling, Spec, Terms
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.reporting.eta import forecast
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.reporting.schedule import MachineSnapshot
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.memory_store import MemoryRunStore
from scheduler.simulation.task_behaviour import chance
from scheduler.simulation.workload import InitialKnowledge, TraceRow, model, workload
from scheduler.units import GIB

MOMENTS = (0.05, 0.2, 0.5, 0.8)


def rows(number: int, seed: int, kinds: int = 12) -> Iterator[TraceRow]:
    """Rows of one script in so many kinds, from two minutes to an hour, 2 to 14 GiB."""
    for row in range(number):
        kind = int(chance(seed, "kind", row) * kinds)
        seconds = 120 * 30 ** chance(seed, "seconds", kind)
        peak = int((2 + 12 * chance(seed, "peak", kind)) * GIB)
        spec = Spec(row + 2, "", "-1", f"train.py --kind {kind}", "", (), (), Terms(gpus=1, epochs=20))
        yield TraceRow(spec, seconds, peak, busy=0.3 + 0.5 * chance(seed, "busy", kind))


class Counting(MetricsView):
    """Sums up, and counts what ended."""

    ended = 0

    def show(self, event: Event, at: float) -> None:
        super().show(event, at)
        self.ended += isinstance(event, Exited)


@dataclass
class Said:
    """The forecasts at one moment of all runs."""

    ratios: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    tasks: list[bool] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    unknown: int = 0

    def compare(self, at: float, told: Forecast, end: float, ends: dict[int, float]) -> None:
        """With what became of it."""
        if told.end is None:
            self.unknown += 1
            return
        self.ratios.append((told.end.likely - at) / (end - at))
        self.held.append(told.end.early <= end <= told.end.late)
        for task, one in told.tasks.items():
            self.tasks.append(one.end.early <= ends[task] <= one.end.late)
            self.off.append(abs(one.end.likely - ends[task]) / max(ends[task] - at, 1.0))


def play(number: int, seed: int) -> tuple[dict[float, tuple[float, Forecast, float]], float, dict[int, float]]:
    """One run: what was said and when, at which cost; its end, and those of its tasks."""
    devices = [Device(f"GPU-{n}", f"GPU {n}", 24 * GIB, 1.0, n) for n in range(2)]
    given = workload(list(rows(number, seed)), InitialKnowledge(), seed=seed, largest=24 * GIB)
    machine = SimulatedMachine(devices, now=START, slowdown=MODELS["fit"].slowdown)
    book, view = MemoryRunStore(num=20, model=model, kept=False), Counting()
    brain = Brain(SchedulingConfig(profile=Profiling.LIVE), book.terms, ProfileIndex())
    loop = Simulation(given.tasks, machine, brain, book, view).loop
    told: dict[float, tuple[float, Forecast, float]] = {}
    while not brain.over:
        loop.place()
        loop.digest(loop.ports.world.wait(1.0))
        for moment in MOMENTS:
            if moment not in told and view.ended >= moment * number:
                before = process_time()
                used = {key: running.used for key, running in machine.running.items()}
                said = forecast(brain, MachineSnapshot(loop.ports.devices.snapshot(), (), used), machine.now)
                told[moment] = (machine.now, said, process_time() - before)
    ends = {task: task_history.attempts[-1].ended or 0.0 for task, task_history in view.history.tasks.items()}
    return told, machine.now, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    said = {moment: Said() for moment in MOMENTS}
    for seed in range(1, args.seeds + 1):
        told, end, ends = play(args.rows, seed)
        for moment, (at, found, cost) in told.items():
            said[moment].compare(at, found, end, ends)
            said[moment].cost.append(cost)
    for moment, one in said.items():
        if not one.ratios:
            print(f"{moment:4.0%} ended: unknown")
            continue
        worst = max(one.ratios, key=lambda ratio: abs(ratio - 1))
        print(
            f"{moment:4.0%} ended: run {median(one.ratios):.2f} of the real time left (worst {worst:.2f}), within its "
            f"bounds {sum(one.held)} of {len(one.held)}; tasks off by {median(one.off):.0%} (median), within their "
            f"bounds {fmean(one.tasks):.0%}; {1000 * fmean(one.cost):.0f} ms of a core for one estimate (at most "
            f"{1000 * max(one.cost):.0f} ms)"
        )


if __name__ == "__main__":
    main()
