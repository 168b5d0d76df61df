"""The metrics of a simulated run by which policies are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from scheduler.core.model import HOST, Device, EstimateSource, Outcome, State
from scheduler.core.reporting.run_history import RunHistory, TaskHistory, stretched
from scheduler.simulation.lower_bound import LowerBound
from scheduler.simulation.workload import GivenTask
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class PriorityWaits:
    """The waiting times of the tasks of one priority until their start, in seconds."""

    tasks: int
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One simulated run in numbers. Times are in seconds from the first arrival, or from a task's own arrival."""

    policy: str
    tasks: int
    states: Mapping[State, int]
    makespan: float
    mean_completion: float
    p95_completion: float
    waits: Mapping[int, PriorityWaits]
    memory_use: float
    """The peaks of all attempts, times their durations, as a share of the memory over the makespan."""
    load_use: float
    """The share of the makespan for which the successful attempts, each alone, would have kept the devices busy."""
    ooms: int
    unknown_ooms: int
    """Out-of-memory ends of attempts whose need was unknown when they were placed."""
    bypassed: int
    """The largest number of times that a task was bypassed."""
    stretched: int
    """The number of tasks whose epochs took more than half as long again beside others as alone."""
    bound: LowerBound
    alone: PriorityWaits | None = None
    """The waiting times of the tasks of the best priority if they had the machine to themselves, if requested."""

    known: float | None = None
    """The makespan with peaks known in advance, if requested."""

    @property
    def ratio(self) -> float:
        """The makespan divided by its lower bound; 0 if nothing ran."""
        return self.makespan / self.bound.makespan if self.bound.makespan else 0.0


@dataclass(frozen=True, slots=True)
class SimulatedResult:
    """A finished simulated run."""

    history: RunHistory
    given: Mapping[int, GivenTask]
    """Every task that arrived, by id."""
    began: float
    states: Mapping[State, int]
    devices: Sequence[Device]
    bypassed: int


def outcomes(policy: str, run: SimulatedResult, bound: LowerBound) -> RunMetrics:
    """Return the metrics of a run; tasks that never ended count only in the states."""
    history, given, began, devices = run.history, run.given, run.began, _counted(run.devices)
    ends = {task: one.last.ended for task, one in history.tasks.items() if one.last and one.last.ended}
    flows = sorted(at - began - given[task].arrives for task, at in ends.items())
    first = min((one.arrives for one in given.values()), default=0.0)
    makespan = max(ends.values(), default=began + first) - began - first
    attempts = [a for one in history.tasks.values() for a in one.attempts if a.ended is not None]
    ooms = [a for a in attempts if a.outcome is Outcome.OOM]
    return RunMetrics(
        policy,
        len(given),
        {state: number for state, number in run.states.items() if number},
        makespan,
        sum(flows) / len(flows) if flows else 0.0,
        flows[ceil(0.95 * len(flows)) - 1] if flows else 0.0,
        _waits(history.tasks, given, began),
        _memory_use(history, devices, makespan),
        _load_use(history, given, devices, makespan),
        len(ooms),
        sum(a.source == EstimateSource.MEASURED for a in ooms),
        run.bypassed,
        len(stretched(history)),
        bound,
    )


def _counted(devices: Sequence[Device]) -> Sequence[Device]:
    """Return the devices whose use is measured: the GPUs, or the host if there are none."""
    return [device for device in devices if device.is_gpu] or devices


def _waits(
    histories: Mapping[int, TaskHistory], given: Mapping[int, GivenTask], began: float
) -> dict[int, PriorityWaits]:
    by_priority: dict[int, list[float]] = {}
    for task, task_history in histories.items():
        one, last = given[task], task_history.last
        if last is not None:
            waited = (last.started or last.placed) - began - one.arrives
            by_priority.setdefault(one.spec.terms.priority, []).append(waited)
    return {
        priority: PriorityWaits(len(waits), sum(waits) / len(waits), max(waits))
        for priority, waits in sorted(by_priority.items())
    }


def _memory_use(history: RunHistory, devices: Sequence[Device], makespan: float) -> float:
    keys, capacity = {device.key for device in devices}, sum(device.total for device in devices)
    held = sum(
        a.seconds * sum(bytes_ for key, bytes_ in a.peak.items() if key in keys)
        for task_history in history.tasks.values()
        for a in task_history.attempts
    )
    return held / (capacity * makespan) if makespan > 0 else 0.0


def _load_use(history: RunHistory, given: Mapping[int, GivenTask], devices: Sequence[Device], makespan: float) -> float:
    done = 0.0
    for task, task_history in history.tasks.items():
        last, truth = task_history.last, given[task].truth
        if last is not None and last.outcome is Outcome.SUCCEEDED:
            gpus = sum(key != HOST for key in last.devices)
            on_gpus = (truth.seconds - truth.loading) * truth.utilisation * gpus
            done += on_gpus if devices[0].is_gpu else truth.seconds * truth.cores
    there = sum(device.load_capacity for device in devices)
    return done / (there * makespan) if makespan > 0 else 0.0
