"""The first lines of a run, of a run taken over, and of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.core import explain
from scheduler.core.brain import Brain
from scheduler.core.model import Budget, Decision, Device, State
from scheduler.core.packing import declared
from scheduler.core.ports import Job
from scheduler.paths import tilde
from scheduler.settings import Settings
from scheduler.units import count, size
from scheduler.view.words import short


def lines(
    run: Mapping[str, str], devices: Sequence[Device], budget: Budget, settings: Settings, brain: Brain
) -> list[str]:
    """Number, list, place, devices, python, memory, how to watch and stop."""
    number = run["number"]
    return [
        f"run {number}  {_list(run['file'], brain, settings.num)}      state {tilde(run['root'])}",
        f"devices {_devices(devices, budget, settings)}",
        f"python  {tilde(run['python'])}",
        f"memory  {_memory(brain)}",
        f"watch   scheduler list {number}     stop   Ctrl-C (running tasks end), Ctrl-\\ leaves them running",
    ]


def _list(what: str, brain: Brain, num: int) -> str:
    tasks, batches = len(brain.roll), brain.roll.batches
    return f"{what}: {count(tasks, 'task')}, {count(batches, 'batch')} of {min(num, tasks)}"


def _devices(devices: Sequence[Device], budget: Budget, settings: Settings) -> str:
    device = devices[0]
    most = f"a budget of {size(budget.cap)} of " if budget.cap is not None else ""
    return (
        f"{device.label} ({most}{size(device.total)}, {size(budget.free)} free, {size(settings.buffer)} kept as "
        f"buffer; {device.load_capacity:g} cores)"
    )


def _memory(brain: Brain) -> str:
    known = {number for number, terms in enumerate(brain.terms) if declared(terms) is not None}
    declared_tasks = sum(1 for task in brain.roll if brain.roll.terms(task) in known)
    unknown = len(brain.roll) - declared_tasks
    words = [f"{declared_tasks:,} declared"] if declared_tasks else []
    if unknown:
        words.append(f"{unknown:,} unknown: each is promised half of what is free when it starts, and measured")
    return ", ".join(words)


def resuming_lines(run: Mapping[str, str], brain: Brain) -> list[str]:
    """What a scheduler finds that takes a run over."""
    living = len(brain.living())
    over = len(brain.roll) - brain.waiting - living - brain.roll.counts[State.HELD]
    return [
        f"run {run['number']}  {run['file']}: taken over; {over:,} over, {living:,} ran, {brain.waiting:,} wait",
        f"state   {tilde(run['root'])}",
    ]


def plan_lines(what: str, brain: Brain, decision: Decision, jobs: Mapping[int, Job]) -> list[str]:
    """What a dry run shows."""
    said = [f"{what}: {count(len(brain.roll), 'task')}, {count(brain.roll.batches, 'batch')}; nothing was started"]
    for placement in decision.placements:
        job = jobs.get(placement.task)
        if job is not None:
            promised = size(max(placement.promise.values(), default=0))
            said.append(f"would start now  row {job.spec.row:>5}  {short(job.name, 40):<40}  promised {promised}")
    said += [f"would wait       {explain.why(refusal)}" for refusal in decision.refusals[:5]]
    return said
