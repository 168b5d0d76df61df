"""The metrics of a simulated run by which policies are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from scheduler.core.model import HOST, Device, EstimateSource, Outcome, State
from scheduler.core.reporting.run_history import RunHistory, TaskHistory, stretched
from scheduler.simulation.lower_bound import LowerBound
from scheduler.simulation.workload import GivenTask
from scheduler.values import dataclass

IDLE_WATTS, CONTEXT_WATTS, FULL_WATTS = 50.0, 40.0, 300.0
"""The power of a simulated GPU without tasks, the power that a CUDA context on it adds, and its power when it is busy
all the time, in watts. For the context, 26 to 66 W were published for A100, H100 and L40S. The power grows with the
share of time for which the GPU is busy."""


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
    """The number of attempts that ran out of memory after they were placed with an unknown need."""
    bypassed: int
    """The largest number of times that a task was bypassed."""
    stretched: int
    """The number of tasks whose epochs took more than 1.5 times as long on a shared device as alone."""
    energy: float
    """The energy of all GPUs until the last end, in watt hours, by a linear model of their power; 0 without GPUs."""
    bound: LowerBound
    alone: PriorityWaits | None = None
    """The waiting times that the tasks of the best priority would have if they had the machine to themselves; None: not
    requested."""

    known: float | None = None
    """The makespan if all peaks were known in advance; None: not requested."""

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
        _energy(history, given, devices, makespan),
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
    there = sum(device.load_capacity for device in devices)
    return _work(history, given, devices) / (there * makespan) if makespan > 0 else 0.0


def _work(history: RunHistory, given: Mapping[int, GivenTask], devices: Sequence[Device]) -> float:
    """Return the seconds for which the successful attempts, each alone, would have kept a device busy."""
    done = 0.0
    for task, task_history in history.tasks.items():
        last, truth = task_history.last, given[task].truth
        if last is not None and last.outcome is Outcome.SUCCEEDED:
            gpus = sum(key != HOST for key in last.devices)
            on_gpus = (truth.seconds - truth.loading) * truth.utilisation * gpus
            done += on_gpus if devices[0].is_gpu else truth.seconds * truth.cores
    return done


def _energy(history: RunHistory, given: Mapping[int, GivenTask], devices: Sequence[Device], makespan: float) -> float:
    """Return the energy of all GPUs in watt hours: idle power to the last end, that of contexts, and that of the work.

    The energy of the work does not depend on which tasks share a GPU. Packing saves energy of the other two kinds.
    """
    if not devices[0].is_gpu:
        return 0.0
    spans: dict[str, list[tuple[float, float]]] = {device.key: [] for device in devices}
    for task_history in history.tasks.values():
        for attempt in task_history.attempts:
            for key in spans.keys() & attempt.devices if attempt.ended is not None else ():
                spans[key].append((attempt.placed, attempt.ended or 0.0))
    occupied = sum(map(_covered, spans.values()))
    work = _work(history, given, devices) * (FULL_WATTS - CONTEXT_WATTS - IDLE_WATTS)
    return (len(devices) * makespan * IDLE_WATTS + occupied * CONTEXT_WATTS + work) / 3600


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the time that is covered by at least one of these spans."""
    covered, until = 0.0, 0.0
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
