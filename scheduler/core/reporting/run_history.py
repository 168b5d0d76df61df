"""The history of a run, replayed from its events: the source of every table and total.

`RunSummary` keeps totals and the living attempts; a running scheduler uses it, because its size does not grow with
every task that ends. `RunHistory` keeps every attempt of every task as well; results are made from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from scheduler.core.causes import ResizeCause
from scheduler.core.events import Arrived, Event, Exited, Peaked, Pruned, Refused, Resized, Skipped, Started, Strayed
from scheduler.core.model import HOST, Outcome, Placement, Purpose, State, on_node, shown_in
from scheduler.values import dataclass, field

STRETCHED = 1.5
"""The slowdown by other tasks above which users are told about it."""
MOST_RECENT = 2000
"""The number of ended attempts that every summary keeps."""


def labels_on(keys: Iterable[str], node: str, labels: Mapping[str, str]) -> list[str]:
    """Return the labels of devices that have these keys on a node."""
    return [labels.get(on_node(key, node), key) for key in keys]


@dataclass(slots=True)
class AttemptHistory:
    """One attempt, as its events describe it."""

    number: int
    purpose: Purpose
    devices: tuple[str, ...]
    reserved: Mapping[str, int]
    source: str
    placed: float
    started: float | None = None
    ended: float | None = None
    seconds: float = 0.0
    outcome: Outcome | None = None
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    peak: dict[str, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    stretch: float | None = None
    """The ratio of its epoch time beside other tasks to its epoch time alone."""
    solo: float | None = None
    """The seconds that it would have taken alone, by those of its epochs that ran alone; None: unknown."""
    had_company: bool = False
    """True if another attempt of this run lived at the same time."""
    percentage: int = 0
    """The share of its GPU's threads under MPS; 0: outside of MPS."""
    fence: int = 0
    mps: str = ""
    pruned: str = ""
    """Why its metrics stopped it early; empty if they did not."""
    sees: tuple[str, ...] = ()
    """The GPUs that its program sees, even while it counts as a task of the host."""
    node: str = ""
    """The node that it ran on; empty: this machine."""
    port: int = 0
    """The network port that was kept for it; 0: none."""
    busy: float = 0.0
    """The share of time for which it kept its GPUs busy; 0 while that is unknown."""
    strayed: dict[str, int] = field(default_factory=dict)
    """The highest recorded use of GPUs that it was not given."""
    neighbours: int = 0
    """The largest number of other attempts of this run that shared a device with it at one time."""

    @property
    def fenced(self) -> bool | None:
        """True if MPS kept it below its last reservation; None outside of MPS."""
        if not self.percentage:
            return None
        return 0 < self.fence <= min(self.reserved[device] for device in self.devices)

    def shown_on(self, labels: Mapping[str, str]) -> list[str]:
        """Return the labels of its devices; a label on a node begins with the name of the node."""
        return labels_on(self.devices, self.node, labels)

    def end(self, event: Exited, at: float) -> None:
        """Apply the event of its end."""
        self.ended, self.seconds, self.outcome = at, event.seconds, event.outcome
        self.code, self.signal, self.reason, self.busy = event.code, event.signal, event.reason, event.busy
        self.result, self.stretch, self.mps, self.solo = event.result, event.stretch, event.mps, event.solo
        self.raise_peak(event.peak)

    def raise_peak(self, seen: Mapping[str, int]) -> None:
        """Raise its peak on each device to at least these bytes."""
        for key, bytes_ in seen.items():
            self.peak[key] = max(self.peak.get(key, 0), bytes_)


@dataclass(slots=True)
class TaskHistory:
    """All attempts of one task, in order."""

    attempts: list[AttemptHistory] = field(default_factory=list)
    refused: str = ""
    """Why no device of this machine can ever hold it; empty if one can."""

    @property
    def last(self) -> AttemptHistory | None:
        """The newest attempt that was not a probe."""
        return next((a for a in reversed(self.attempts) if a.purpose is Purpose.RUN), None)


MEASURED_FROM = 3
"""Once the time alone is known for this number of attempts, it is estimated for the others."""


@dataclass(slots=True)
class SoloTime:
    """The time that attempts would have taken one at a time, as far as it was measured."""

    known: float = 0.0
    """Seconds of the attempts that ran alone, and the solo time of those that ran beside others, where it is known."""
    unknown: float = 0.0
    """Seconds of all other attempts, as they were beside others."""
    shares: tuple[float, float] = (1.0, 0.0)
    """The lowest and the highest share of its time that an attempt with company would have taken alone."""
    measured: int = 0
    """The number of attempts with company whose time alone is known."""

    def add(self, attempt: AttemptHistory) -> None:
        """Add an ended attempt, unless it ran out of memory, which would not have happened alone."""
        if attempt.outcome is Outcome.OOM or attempt.seconds <= 0:
            return
        if not attempt.had_company:
            self.known += attempt.seconds
        elif attempt.solo is None:
            self.unknown += attempt.seconds
        else:
            share = min(1.0, attempt.solo / attempt.seconds)
            self.known += share * attempt.seconds
            self.shares = min(self.shares[0], share), max(self.shares[1], share)
            self.measured += 1

    @property
    def span(self) -> tuple[float, float] | None:
        """Return the lowest and the highest possible seconds; None if too little was measured to tell."""
        if not self.unknown:
            return self.known, self.known
        if self.measured < MEASURED_FROM:
            return None
        low, high = self.shares
        return self.known + low * self.unknown, self.known + high * self.unknown


class RunSummary:
    """The totals of a run over its ended attempts, and its living attempts."""

    def __init__(self) -> None:
        self.living: dict[int, AttemptHistory] = {}
        """The living attempts by task."""
        self.recent: dict[int, AttemptHistory] = {}
        """The last attempts that ended, at most MOST_RECENT, by task in the order of their ends."""
        self.first: float | None = None
        """The time at which the first attempt was placed."""
        self.last: float | None = None
        """The time at which the last attempt ended so far."""
        self.retried = self.ooms = 0
        """The number of real attempts after the first of their task, and the number of attempts that ran out of
        memory."""
        self.ended = 0
        """The number of ended attempts."""
        self.spent = self.kept = 0.0
        """The total seconds that they ran, and that their reservations lasted, from the placement until the end was
        recorded."""
        self.alone = SoloTime()
        """The time that they would have taken one at a time."""
        self.probing = 0.0
        """The total seconds that probes ran."""
        self.byte_seconds = 0.0
        """The sum over attempts of the peak times the seconds."""
        self.good_reserved = self.good_peaks = 0
        """The sums of the last reservations and of the peaks of successful attempts, in bytes."""
        self.sources: Counter[str] = Counter()
        """The number of ended attempts by the source of their estimate."""
        self.stretched: dict[int, float] = {}
        """The slowdown of each task's newest attempt beside others, where it is above STRETCHED."""
        self._only_probed: set[int] = set()
        """Tasks with probes but no real attempt yet."""
        self._on_device: dict[str, dict[int, AttemptHistory]] = {}
        """Living attempts by task on each device."""

    @property
    def ended_attempt(self) -> AttemptHistory | None:
        """The attempt that ended last."""
        return next(reversed(self.recent.values()), None)

    def take(self, event: Event, at: float) -> None:
        """Take the next event."""
        match event:
            case Placement():
                self._place(event, at)
            case Started():
                attempt = self.living[event.task]
                attempt.started = at if attempt.started is None else attempt.started
            case Exited():
                self._end(event, at)
            case Resized():
                self._resize(event)
            case Peaked():
                self.living[event.task].raise_peak(event.peak)
            case Strayed():
                self.living[event.task].strayed.update(event.held)
            case Pruned():
                self.living[event.task].pruned = event.reason

    def _place(self, event: Placement, at: float) -> None:
        devices = shown_in(event.reservation)
        attempt = AttemptHistory(event.attempt, event.purpose, devices, event.reservation, str(event.source), at)
        attempt.percentage, attempt.fence, attempt.sees = event.percentage, event.fence, event.sees
        attempt.port, attempt.node = event.port, event.node
        if len(self.living) == 1:
            next(iter(self.living.values())).had_company = True
        attempt.had_company = bool(self.living)
        self.living[event.task] = attempt
        self.first = at if self.first is None else self.first
        if event.purpose is Purpose.PROBE:
            if event.attempt == 1:
                self._only_probed.add(event.task)
        else:
            self.retried += event.attempt > 1 and event.task not in self._only_probed
            self._only_probed.discard(event.task)
            self.stretched.pop(event.task, None)
        self._enter(event.task, attempt)

    def _resize(self, event: Resized) -> None:
        attempt = self.living[event.task]
        attempt.reserved = event.reservation
        if event.cause.changes_sides:
            self._leave(event.task, attempt)
            attempt.devices = shown_in(event.reservation) if event.cause is ResizeCause.TOUCHED else (HOST,)
            self._enter(event.task, attempt)

    def _enter(self, task: int, attempt: AttemptHistory) -> None:
        """Count an attempt on its devices, and the neighbours that it has there."""
        for device in attempt.devices:
            here = self._on_device.setdefault(on_node(device, attempt.node), {})
            here[task] = attempt
            for resident in here.values():
                resident.neighbours = max(resident.neighbours, len(here) - 1)

    def _leave(self, task: int, attempt: AttemptHistory) -> None:
        for device in attempt.devices:
            self._on_device.get(on_node(device, attempt.node), {}).pop(task, None)

    def _end(self, event: Exited, at: float) -> None:
        attempt = self.living.pop(event.task)
        attempt.end(event, at)
        self.last = at
        self._leave(event.task, attempt)
        self.recent.pop(event.task, None)
        self.recent[event.task] = attempt
        if len(self.recent) > MOST_RECENT:
            del self.recent[next(iter(self.recent))]
        self._sum_up(attempt, max(event.seconds, at - attempt.placed))
        if attempt.purpose is Purpose.RUN and attempt.stretch is not None and attempt.stretch > STRETCHED:
            self.stretched[event.task] = attempt.stretch

    def _sum_up(self, attempt: AttemptHistory, kept: float) -> None:
        """Add an ended attempt to the totals; `kept` is the number of seconds that its reservation lasted."""
        self.ended, self.spent, self.kept = self.ended + 1, self.spent + attempt.seconds, self.kept + kept
        self.byte_seconds += sum(attempt.peak.values()) * attempt.seconds
        self.ooms += attempt.outcome is Outcome.OOM
        if attempt.purpose is Purpose.PROBE:
            self.probing += attempt.seconds
            return
        self.sources[attempt.source] += 1
        self.alone.add(attempt)
        if attempt.outcome is Outcome.SUCCEEDED:
            self.good_reserved += sum(attempt.reserved.values())
            self.good_peaks += sum(attempt.peak.get(key, 0) for key in attempt.reserved)


class RunHistory(RunSummary):
    """Every attempt of a run by task, and its totals."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[int, TaskHistory] = {}
        """The history of each task that was placed or refused."""
        self.done_by: dict[int, int] = {}
        """The earlier run in which a skipped task succeeded, by task."""
        self._arrived: list[tuple[int, float]] = []
        """Batches that arrived during the run, with their times."""

    def take(self, event: Event, at: float) -> None:
        """Take the next event, and keep what it contains about its task."""
        super().take(event, at)
        match event:
            case Placement():
                self.tasks.setdefault(event.task, TaskHistory()).attempts.append(self.living[event.task])
            case Refused():
                self.tasks.setdefault(event.task, TaskHistory()).refused = event.reason
            case Arrived():
                self._arrived.append((event.batch, at))
            case Skipped():
                self.done_by.update(dict.fromkeys(event.tasks, event.done_by))

    def submitted(self, batch: int, first: float) -> float:
        """Return the time at which a batch was accepted; `first` for a batch that the run had from the beginning."""
        place = bisect_right(self._arrived, batch, key=itemgetter(0))
        return self._arrived[place - 1][1] if place else first


@dataclass(frozen=True, slots=True)
class RunTotals:
    """A run in numbers."""

    tasks: int
    states: Mapping[State, int]
    makespan: float
    spent: float
    """The seconds of all attempts in total, as they were beside others."""
    alone: tuple[float, float] | None
    """The lowest and the highest possible seconds of all attempts one at a time; None if too little was measured."""
    probing: float
    """The share of the spent seconds that probes took."""
    memory_use: float
    """The used memory (peaks) as a share of the capacity, over the makespan."""
    ooms: int
    source: Mapping[str, int]
    """The number of ended attempts by the source of their estimate."""
    reserved_for_peaks: float
    """The ratio of the reservations at the end to the peaks, over successful attempts."""
    stretched: Sequence[tuple[int, float]] = ()
    """Tasks whose epochs took more than 1.5 times as long because of their neighbours, the slowest first."""
    energy_wh: float | None = None
    """The watt hours of the run's GPUs, idle time between tasks included; None: unknown."""

    @property
    def at_once(self) -> float:
        """The mean number of attempts at a time."""
        return self.spent / self.makespan if self.makespan else 1.0


def stretched(run: RunSummary) -> list[tuple[int, float]]:
    """Return the tasks that took much longer beside others, with their slowdown, the slowest first."""
    return sorted(run.stretched.items(), key=lambda item: (-item[1], item[0]))


def totals(run: RunSummary, states: Mapping[State, int], capacity: int) -> RunTotals:
    """Return the run in numbers; `capacity` is the memory of all its devices, in bytes."""
    makespan = (run.last or 0.0) - (run.first or 0.0)
    return RunTotals(
        tasks=sum(states.values()),
        states={state: count for state, count in states.items() if count},
        makespan=makespan,
        spent=run.spent,
        alone=run.alone.span,
        probing=run.probing / run.spent if run.spent else 0.0,
        memory_use=run.byte_seconds / (capacity * makespan) if capacity and makespan > 0 else 0.0,
        ooms=run.ooms,
        source=dict(run.sources),
        reserved_for_peaks=run.good_reserved / run.good_peaks if run.good_peaks else 0.0,
        stretched=stretched(run),
    )
