"""What a simulated run came to, in the numbers that policies are compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from scheduler.core.bound import Bound
from scheduler.core.model import HOST, Device, Outcome, State
from scheduler.core.results import Fold, Story, stretched
from scheduler.core.workload import Given
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the tasks of one priority waited for their start."""

    tasks: int
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One simulated run in numbers; times are seconds from the first arrival, or from a task's own."""

    policy: str
    tasks: int
    states: Mapping[State, int]
    makespan: float
    mean_completion: float
    p95_completion: float
    waits: Mapping[int, Waits]
    memory_use: float
    """Peaks of all attempts, for as long as they lived, over the memory there was."""
    load_use: float
    """What the devices would have been kept busy by the attempts that succeeded, each alone, over the makespan."""
    ooms: int
    unknown_ooms: int
    """Those of attempts of which nothing was known when they were placed."""
    overtaken: int
    """The most often that a task was overtaken."""
    stretched: int
    """How many tasks took more than half as long again for an epoch beside others as alone."""
    bound: Bound
    alone: Waits | None = None
    """How long the tasks of the best priority wait with the machine to themselves, where that was asked."""

    @property
    def ratio(self) -> float:
        """The makespan over its lower bound; 0 where nothing ran."""
        return self.makespan / self.bound.makespan if self.bound.makespan else 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated run that is over."""

    fold: Fold
    given: Mapping[int, Given]
    """Every task that came, by id."""
    began: float
    states: Mapping[State, int]
    devices: Sequence[Device]
    overtaken: int


def outcomes(policy: str, run: Simulated, bound: Bound) -> Outcomes:
    """Sum a run up; tasks that never ended count in the states only."""
    fold, given, began, devices = run.fold, run.given, run.began, _counted(run.devices)
    ends = {task: story.last.ended for task, story in fold.stories.items() if story.last and story.last.ended}
    flows = sorted(at - began - given[task].arrives for task, at in ends.items())
    first = min((one.arrives for one in given.values()), default=0.0)
    makespan = max(ends.values(), default=began + first) - began - first
    attempts = [a for story in fold.stories.values() for a in story.attempts if a.ended is not None]
    ooms = [a for a in attempts if a.outcome is Outcome.OOM]
    return Outcomes(
        policy,
        len(given),
        {state: number for state, number in run.states.items() if number},
        makespan,
        sum(flows) / len(flows) if flows else 0.0,
        flows[ceil(0.95 * len(flows)) - 1] if flows else 0.0,
        _waits(fold.stories, given, began),
        _memory_use(fold, devices, makespan),
        _load_use(fold, given, devices, makespan),
        len(ooms),
        sum(a.known_by == "live" for a in ooms),
        run.overtaken,
        len(stretched(fold)),
        bound,
    )


def _counted(devices: Sequence[Device]) -> Sequence[Device]:
    """The devices that are to be filled: the GPUs, or the host where there are none."""
    return [device for device in devices if device.is_gpu] or devices


def _waits(stories: Mapping[int, Story], given: Mapping[int, Given], began: float) -> dict[int, Waits]:
    by_priority: dict[int, list[float]] = {}
    for task, story in stories.items():
        one, last = given[task], story.last
        if last is not None:
            waited = (last.started or last.placed) - began - one.arrives
            by_priority.setdefault(one.spec.terms.priority, []).append(waited)
    return {
        priority: Waits(len(waits), sum(waits) / len(waits), max(waits))
        for priority, waits in sorted(by_priority.items())
    }


def _memory_use(fold: Fold, devices: Sequence[Device], makespan: float) -> float:
    keys, capacity = {device.key for device in devices}, sum(device.total for device in devices)
    held = sum(
        a.seconds * sum(bytes_ for key, bytes_ in a.peak.items() if key in keys)
        for story in fold.stories.values()
        for a in story.attempts
    )
    return held / (capacity * makespan) if makespan > 0 else 0.0


def _load_use(fold: Fold, given: Mapping[int, Given], devices: Sequence[Device], makespan: float) -> float:
    done = 0.0
    for task, story in fold.stories.items():
        last, truth = story.last, given[task].truth
        if last is not None and last.outcome is Outcome.SUCCEEDED:
            gpus = sum(key != HOST for key in last.devices)
            done += truth.seconds * (truth.utilisation * gpus if devices[0].is_gpu else truth.cores)
    there = sum(device.load_capacity for device in devices)
    return done / (there * makespan) if makespan > 0 else 0.0
