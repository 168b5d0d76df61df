"""Runs on a simulated machine, told as a report is told of real ones."""

from __future__ import annotations

import shlex
from copy import deepcopy
from dataclasses import replace

from scheduler.core import columns
from scheduler.core.brain import Brain
from scheduler.core.events import Event
from scheduler.core.history import History
from scheduler.core.interference import MODELS
from scheduler.core.knowledge import Knowledge
from scheduler.core.results import totals
from scheduler.core.rules import Rules
from scheduler.core.simulation import SimulatedMachine
from scheduler.core.workload import Known, model, workload
from scheduler.core.workloads import WORKLOADS
from scheduler.doors.machines import parse_machine
from scheduler.store.memory import MemoryBook
from scheduler.view.report import Told
from scheduler.wiring.simulating import START, Onlooker, Simulation


class Historian(Onlooker):
    """Keeps what charts are made from, too."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()

    def show(self, event: Event, at: float) -> None:
        """Fold it twice."""
        super().show(event, at)
        self.history.take(event, at)


def told(name: str, tasks: int, machine: str, *, seed: int = 1, number: int = 1, policy: str = "packed") -> Told:
    """A run of a made-up workload whose peaks scatter and of which nothing is known, so that some run out of memory."""
    devices = parse_machine(machine, 8.0)
    rows = [replace(row, arrives=0.0) for row in WORKLOADS[name][0](tasks, seed)]
    given = workload(rows, Known(), seed=seed, deviation=True, largest=max(device.total for device in devices))
    simulated = SimulatedMachine(devices, now=START, slowdown=MODELS["fit"].slowdown)
    book = MemoryBook(num=tasks, model=model)
    known = {key: deepcopy(profile) for key, profile in given.known.items()}
    view = Historian()
    run = Simulation(
        given.tasks, simulated, Brain(Rules(policy=policy), book.terms, Knowledge(known)), book, view
    ).run()
    labels = {device.key: device.label for device in devices}
    found = []
    for task in run.brain.roll:
        job, story = book.job(task), view.fold.stories.get(task)
        words = shlex.join(["python", *job.spec.filename.split()])
        row = (task, run.brain.roll.batch(task), job, run.brain.state(task), story, words, "")
        found.append(columns.row(*row, START, labels))
    counts = run.brain.roll.counts
    states = {str(state): some for state, some in counts.items() if some}
    facts = {
        "number": number, "name": f"{name}-{policy}", "file": f"{name}.csv", "host": "gpu1", "alive": False,
        "accepted": START, "states": states, "devices": labels,
    }  # fmt: skip
    capacities = {device.key: device.total for device in devices}
    sums = totals(view.fold, counts, sum(capacities.values()))
    return Told(facts, sums, found, view.history.tracks, capacities, view.fold.last or START)
