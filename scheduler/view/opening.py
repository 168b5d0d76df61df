"""The first lines of a run, of a run taken over, and of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.core import explain
from scheduler.core.brain import Brain
from scheduler.core.estimate import should_probe
from scheduler.core.model import Budget, Decision, Device, Job, Profiling, State
from scheduler.core.packing import declared
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
    """How many needs are known, and from where; of a long list only those that were looked at."""
    words: Counter[str] = Counter()
    for task in brain.roll:
        terms, profile = brain.terms[brain.roll.terms(task)], brain.knowledge.profile(brain.roll.kind(task))
        if declared(terms) is not None:
            words["declared"] += 1
        elif brain.rules.profile is Profiling.OFF:
            words["unknown: each is promised half of what is free when it starts"] += 1
        elif profile.known:
            words["known from earlier runs"] += 1
        elif should_probe(terms, brain.rules, brain.knowledge.kind(brain.roll.kind(task))):
            words[f"to be probed first, once for each kind ({brain.rules.profile_epochs} epochs)"] += 1
        else:
            words["to be learned while they run (promised half of what is free until they settle)"] += 1
    return ", ".join(f"{number:,} {word}" for word, number in words.items())


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
