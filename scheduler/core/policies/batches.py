"""The batch-by-batch original, as a yardstick: profile every task first, then launch in order on the first device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scheduler.core import estimate, packing
from scheduler.core.brain import Brain
from scheduler.core.lifecycle import Task
from scheduler.core.model import HOST, Decision, KnownBy, Machine, Placement, Purpose, Refusal
from scheduler.core.ordering import Group
from scheduler.core.packing import Ask, Need


def decide(brain: Brain, machine: Machine) -> Decision:
    """A barrier between batches; in each, every task is profiled for itself, and nothing is learned from others."""
    return Batch(brain, machine).decide()


class Batch:
    """The first batch that is not over, and what there is for it."""

    def __init__(self, brain: Brain, machine: Machine) -> None:
        self._brain = brain
        self._rules = brain.rules
        self._rooms = packing.rooms(machine, brain.placements(), brain.rules)
        self._gpus = [room for room in self._rooms.values() if room.device.is_gpu]
        self._living = brain.living()
        self._number, self._tasks = _current(brain)

    def decide(self) -> Decision:
        """The next profile run, or as many real ones as fit one after another."""
        if any(self._brain.roll.batch(task.id) < self._number for task in self._living):
            return Decision()
        unprofiled = [task for task in self._tasks if self._peaks(task) is None]
        if unprofiled and self._living:
            return Decision(refusals=(Refusal(unprofiled[0], "probing", wanted=self._living[0].id),))
        return self._launch(unprofiled[:1] or self._tasks)

    def _launch(self, tasks: list[int]) -> Decision:
        """In order; the first that does not fit holds up all behind it, unless it never will."""
        placements: list[Placement] = []
        impossible: list[Refusal] = []
        for task in tasks:
            tried = self._try(task, len(placements))
            if isinstance(tried, Placement):
                packing.take(self._rooms, tried)
                placements.append(tried)
            elif tried.reason == "never":
                impossible.append(tried)
            else:
                return Decision(tuple(placements), (tried,), tuple(impossible))
        return Decision(tuple(placements), (), tuple(impossible))

    def _try(self, task: int, started: int) -> Placement | Refusal:
        jobs = self._rules.jobs
        if jobs is not None and len(self._living) + started >= jobs:
            return Refusal(task, "jobs", total=jobs)
        touched = self._brain.task(task)
        need = self._need(task, touched)
        attempt = (touched.attempts if touched else 0) + 1
        first = self._gpus[: len(need.gpus)]
        return packing.fit(task, attempt, need, first, self._rooms.get(HOST), self._rules)

    def _need(self, task: int, touched: Task | None) -> Need:
        """Its own peak and no margin: the buffer is the device's, however many share it; load is not looked at."""
        terms, peaks = self._brain.terms[self._brain.roll.terms(task)], self._peaks(task)
        parts = [str(place) for place in range(packing.gpus_of(terms, bool(self._gpus)))]
        asks = tuple(_ask(peaks, part) for part in parts or [HOST])
        need = Need(
            host=Ask(0) if parts else asks[0],
            gpus=asks if parts else (),
            cores=0.0,
            known_by=KnownBy.PROBE,
            alone=peaks is None,
            purpose=Purpose.PROBE if peaks is None else Purpose.RUN,
        )
        return estimate.retried(need, touched, self._rules) if touched is not None and touched.floors else need

    def _peaks(self, task: int) -> Mapping[str, int] | None:
        """What its own profile run showed; None before that."""
        touched = self._brain.task(task)
        return touched.probed if touched is not None else None


def _ask(peaks: Mapping[str, int] | None, part: str) -> Ask:
    return Ask(None) if peaks is None else Ask(peaks.get(part, 0), peaks.get(part, 0))


def _current(brain: Brain) -> tuple[int, list[int]]:
    """The first batch of which anything waits, and what of it does: by priority, then as it came."""
    tasks = [task for group in brain.line.groups() for task in _first_of(group, brain)]
    number = min((brain.roll.batch(task) for task in tasks), default=0)
    mine = (task for task in tasks if brain.roll.batch(task) == number)
    return number, sorted(mine, key=lambda task: (brain.terms[brain.roll.terms(task)].priority, task))


def _first_of(group: Group, brain: Brain) -> Iterator[int]:
    """What a group has of its first batch."""
    first = group.peek()
    for place in range(len(group)):
        task = group.peek(place)
        if task is None or first is None or brain.roll.batch(task) != brain.roll.batch(first):
            return
        yield task
