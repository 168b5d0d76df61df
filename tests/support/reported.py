"""Runs on a simulated machine, in the form that a report needs."""

from __future__ import annotations

import shlex
from copy import deepcopy
from dataclasses import replace

from scheduler.app.simulate.simulated_run import START, MetricsView, Simulation
from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Event
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.reporting import columns
from scheduler.core.reporting.memory_timeline import MemoryTimeline
from scheduler.core.reporting.run_history import totals
from scheduler.simulation.generators import WORKLOADS
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.memory_store import MemoryRunStore
from scheduler.simulation.workload import InitialKnowledge, model, workload
from scheduler.ui.web.report import ReportedRun


class Historian(MetricsView):
    """A view that also keeps the data of charts."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = MemoryTimeline()

    def show(self, event: Event, at: float) -> None:
        """Take an event into the history and the timeline."""
        super().show(event, at)
        self.timeline.take(event, at)


def told(name: str, tasks: int, machine: str, *, seed: int = 1, number: int = 1, policy: str = "packed") -> ReportedRun:
    """Simulate a workload with unknown, scattered peaks, so that some tasks run out of memory."""
    devices = parse_machine(machine, 8.0)
    rows = [replace(row, arrives=0.0) for row in WORKLOADS[name][0](tasks, seed)]
    given = workload(
        rows, InitialKnowledge(), seed=seed, deviation=True, largest=max(device.total for device in devices)
    )
    simulated = SimulatedMachine(devices, now=START, slowdown=MODELS["fit"].slowdown)
    book = MemoryRunStore(num=tasks, model=model)
    known = {key: deepcopy(profile) for key, profile in given.known.items()}
    view = Historian()
    run = Simulation(
        given.tasks, simulated, Brain(SchedulingConfig(policy=policy), book.terms, ProfileIndex(known)), book, view
    ).run()
    labels = {device.key: device.label for device in devices}
    found = []
    for task in run.brain.task_table:
        job, task_history = book.job(task), view.history.tasks.get(task)
        words = shlex.join(["python", *job.spec.command.split()])
        row = (task, run.brain.batch_of(task), job, run.brain.state(task), task_history, words, "")
        found.append(columns.row(*row, START, labels))
    counts = run.brain.state_counts
    states = {str(state): some for state, some in counts.items() if some}
    facts = {
        "number": number, "name": f"{name}-{policy}", "file": f"{name}.csv", "host": "gpu1", "alive": False,
        "accepted": START, "states": states, "devices": labels,
    }  # fmt: skip
    capacities = {device.key: device.total for device in devices}
    sums = totals(view.history, counts, sum(capacities.values()))
    return ReportedRun(facts, sums, found, view.timeline.tracks, capacities, view.history.last or START)
