"""The batch-by-batch original, as a baseline: it profiles every task first, then launches in order on the first
device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, Decision, EstimateSource, Machine, Placement, Purpose
from scheduler.core.placement import fit
from scheduler.core.placement.device_capacity import capacities
from scheduler.core.placement.refusal import Reason, Refusal, too_many_jobs
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, gpus_of
from scheduler.core.placement.scheduling_state import SchedulingState
from scheduler.core.profiling import estimator
from scheduler.core.queue.wait_queue import TaskGroup


def decide(brain: SchedulingState, machine: Machine) -> Decision:
    """Decide with a barrier between batches. Every task is profiled on its own; nothing is learned from other tasks."""
    return CurrentBatch(brain, machine).decide()


class CurrentBatch:
    """The first batch that has not ended, and the capacity for it."""

    def __init__(self, brain: SchedulingState, machine: Machine) -> None:
        self._brain = brain
        self._rules = brain.rules
        self._rooms = capacities(machine, brain.placements(), brain.rules)
        self._gpus = [room for room in self._rooms.values() if room.device.is_gpu]
        self._living = brain.living()
        self._number, self._tasks = _current(brain)
        self._starts = brain.backoff.starts(machine.now, brain.rules)

    def decide(self) -> Decision:
        """Decide about the next profiling run, or about as many real runs as fit one after another."""
        if any(self._brain.batch_of(task.id) < self._number for task in self._living):
            return Decision()
        tasks = self._tasks if self._starts is None else self._starts.in_order(self._tasks)
        unprofiled = [task for task in tasks if self._peaks(task) is None]
        if unprofiled and self._living:
            return Decision(refusals=(Refusal(unprofiled[0], Reason.PROBING, wanted=self._living[0].id),))
        return self._launch(unprofiled[:1] or tasks)

    def _launch(self, tasks: list[int]) -> Decision:
        """Place tasks in order; the first that does not fit holds up all later ones, unless it can never fit."""
        placements: list[Placement] = []
        impossible: list[Refusal] = []
        for task in tasks:
            tried = self._try(task, len(placements))
            if isinstance(tried, Placement):
                fit.take(self._rooms, tried)
                placements.append(tried)
                if self._starts is not None:
                    self._starts.take(tried)
            elif tried.reason.is_final:
                impossible.append(tried)
            else:
                return Decision(tuple(placements), (tried,), tuple(impossible))
        return Decision(tuple(placements), (), tuple(impossible))

    def _try(self, task: int, started: int) -> Placement | Refusal:
        if self._starts is not None and (away := self._starts.refuses(task)) is not None:
            return away
        jobs = self._rules.jobs
        if jobs is not None and len(self._living) + started >= jobs:
            return too_many_jobs(task, jobs)
        touched = self._brain.task(task)
        need = self._need(task, touched)
        attempt = (touched.attempts if touched else 0) + 1
        first = self._gpus[: len(need.gpus)]
        return fit.fit(task, attempt, need, first, self._rooms.get(HOST), self._rules)

    def _need(self, task: int, touched: TaskState | None) -> ResourceRequest:
        """Return a task's own peak without a margin, because the buffer is per device. Load is ignored."""
        terms, peaks = self._brain.terms_of(task), self._peaks(task)
        parts = [str(place) for place in range(gpus_of(terms, bool(self._gpus)))]
        asks = tuple(_ask(peaks, part) for part in parts or [HOST])
        need = ResourceRequest(
            host=_beside(terms.host_memory, peaks) if parts else asks[0],
            gpus=asks if parts else (),
            cores=0.0,
            source=EstimateSource.PROBE,
            alone=peaks is None,
            purpose=Purpose.PROBE if peaks is None else Purpose.RUN,
        )
        return estimator.retried(need, touched, self._rules) if touched is not None and touched.floors else need

    def _peaks(self, task: int) -> Mapping[str, int] | None:
        """Return the peaks from a task's own profiling run; None before that."""
        touched = self._brain.task(task)
        return touched.probed if touched is not None else None


def _beside(declared: int | None, peaks: Mapping[str, int] | None) -> MemoryRequest:
    """Return a GPU task's request for RAM: as its row declares, else as its own profiling run showed."""
    return _ask(peaks, HOST) if declared is None else MemoryRequest(declared, declared)


def _ask(peaks: Mapping[str, int] | None, part: str) -> MemoryRequest:
    peak = None if peaks is None else peaks.get(part)  # a short profile run may end before it is measured
    return MemoryRequest(None) if peak is None else MemoryRequest(peak, peak)


def _current(brain: SchedulingState) -> tuple[int, list[int]]:
    """Return the first batch with waiting tasks, and its waiting tasks by priority and id."""
    tasks = [task for group in brain.wait_queue.groups() for task in _first_of(group, brain)]
    number = min((brain.batch_of(task) for task in tasks), default=0)
    mine = (task for task in tasks if brain.batch_of(task) == number)
    return number, sorted(mine, key=lambda task: (brain.terms_of(task).priority, task))


def _first_of(group: TaskGroup, brain: SchedulingState) -> Iterator[int]:
    """Yield the tasks of a group that are in the group's first batch."""
    first = group.peek()
    for place in range(len(group)):
        task = group.peek(place)
        if task is None or first is None or brain.batch_of(task) != brain.batch_of(first):
            return
        yield task
