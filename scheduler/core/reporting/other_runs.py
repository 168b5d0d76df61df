"""The turns of other runs in a schedule: their waiting tasks start among this run's, by the rules of fair share.

The waiting user who holds the least is next; among equals it is the user whose newest start is the oldest, and then the
run that has waited longest (`core/queue/fair_share`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from scheduler.core.brain import Brain
from scheduler.core.model import is_host_key
from scheduler.core.queue.task_group import Asked
from scheduler.core.reporting.published_forecast import MOST_DEMANDS, PublishedForecast, WaitingDemand
from scheduler.core.reporting.run_history import RunSummary
from scheduler.core.reporting.schedule import PlannedAttempt, WaitingGroup
from scheduler.values import replace

MOST_RUNS = 16
"""The most other runs whose waiting tasks are in the schedule: those that have waited longest."""

Place = Callable[[WaitingDemand, PublishedForecast], bool]
"""A function that places one task of a demand if it fits now, and tells whether it does."""


class OtherRun:
    """Another run in a schedule, with its waiting tasks."""

    def __init__(self, said: PublishedForecast) -> None:
        self.said = said
        self.uid, self.since = said.uid, said.since
        self._left = [demand.tasks for demand in said.waiting]

    @property
    def waits(self) -> bool:
        """True if waiting tasks are left."""
        return any(self._left)

    def starts(self, place: Place, living: Mapping[str, int]) -> Iterator[None]:
        """Place the tasks of the run that fit now, in the order of its queue; yield after each."""
        for position, demand in enumerate(self.said.waiting):
            while self._left[position] > 0:
                if self.said.jobs is not None and living.get(self.said.run, 0) >= self.said.jobs:
                    return
                if not place(demand, self.said):
                    break
                self._left[position] -= 1
                yield


class FairTurns:
    """The turns of this run and of other runs in a schedule."""

    def __init__(self, uid: int, since: float, said: Iterable[PublishedForecast], *, has_gpus: bool) -> None:
        """Begin with the forecasts that other runs have published. This run has waited for its turn since `since`."""
        waiting = sorted((one for one in said if one.waiting), key=lambda one: one.since)
        self.others = [OtherRun(one) for one in waiting[:MOST_RUNS]]
        self.living: Counter[str] = Counter()
        """The number of living attempts of each run."""
        self._uid, self._since = uid, since
        self._has_gpus = has_gpus
        self._held: defaultdict[int, int] = defaultdict(int)
        self._newest: defaultdict[int, float] = defaultdict(float)

    def hold(self, attempt: PlannedAttempt, since: float) -> None:
        """Count what an attempt that began at `since` holds for its user, and count the attempt for its run."""
        self._held[attempt.uid] += self._bytes(attempt.reserved)
        self._newest[attempt.uid] = max(since, self._newest[attempt.uid])
        self.living[attempt.run] += 1

    def release(self, attempt: PlannedAttempt) -> None:
        """Stop counting an attempt that has ended."""
        self._held[attempt.uid] -= self._bytes(attempt.reserved)
        self.living[attempt.run] -= 1

    def _bytes(self, reserved: Mapping[str, int]) -> int:
        return sum(bytes_ for key, bytes_ in reserved.items() if is_host_key(key) != self._has_gpus)

    def start(self, own: Iterator[None], place: Place, at: float) -> None:
        """Let all runs start tasks in turn, until nothing more fits.

        Each step of `own` places one task of this run.
        """
        starts: dict[OtherRun | None, Iterator[None]] = {
            other: other.starts(place, self.living) for other in self.others if other.waits
        }
        starts[None] = own
        while starts:
            turn = min(starts, key=self._rank)
            try:
                next(starts[turn])
            except StopIteration:
                del starts[turn]
                continue
            if turn is None:
                self._since = at
            else:
                turn.since = at

    def _rank(self, other: OtherRun | None) -> tuple[int, float, float]:
        uid, since = (self._uid, self._since) if other is None else (other.uid, other.since)
        return self._held[uid], self._newest[uid], since


def waits_since(brain: Brain, history: RunSummary, began: float) -> float:
    """Return the time at which a run began to wait for its turn.

    This is the latest of three times: when the run last started a task, when its first task began to wait, and when its
    scheduler began (`began`).
    """
    first = brain.wait_queue.walk().front()
    placed = (attempt.placed for attempt in (*history.living.values(), *history.recent.values()))
    return max(began, max(placed, default=began), began if first is None else brain.waiting_since(first))


def demands(
    groups: Mapping[Asked, WaitingGroup], numbers: Mapping[Asked, int], waiting: int
) -> tuple[WaitingDemand, ...]:
    """Return the waiting tasks of a run by their requests, in the order of the queue.

    `groups` are the first groups in the queue, `numbers` has the number of tasks in each, and `waiting` is the number
    of all tasks.
    """
    shapes: dict[int, list[tuple[int, WaitingGroup]]] = {}
    for asked, group in groups.items():
        if number := numbers.get(asked, 0):
            shapes.setdefault(group.shape, []).append((number, group))
    found = [_demand(alike) for alike in shapes.values()]
    beyond = waiting - sum(demand.tasks for demand in found)
    if found and beyond > 0:
        found[-1] = replace(found[-1], tasks=found[-1].tasks + beyond)
    return bounded(found, MOST_DEMANDS)


def _demand(alike: Sequence[tuple[int, WaitingGroup]]) -> WaitingDemand:
    """Return groups with equal requests, each with its number of tasks, joined to one demand."""
    known = [(number, group.seconds) for number, group in alike if group.is_known]
    tasks, first = sum(number for number, _ in alike), alike[0][1]
    counted = sum(number for number, _ in known)
    seconds = sum(number * each for number, each in known) / counted if counted else None
    return WaitingDemand(tasks, seconds, first.need, first.terms.device)


def bounded(demands: Sequence[WaitingDemand], most: int) -> tuple[WaitingDemand, ...]:
    """Return the first `most` demands. The last of them also gets the tasks of all that follow."""
    if len(demands) <= most or not most:
        return tuple(demands[:most])
    tasks = sum(demand.tasks for demand in demands[most - 1 :])
    return (*demands[: most - 1], replace(demands[most - 1], tasks=tasks))
