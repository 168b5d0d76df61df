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

CRASHES = (4, 6, 7, 8, 11)
"""Signals that end a program because of its own fault."""
STRETCHED = 1.5
"""Users are told about a task if other tasks slow it down by more than this factor."""
MOST_RECENT = 2000
"""The most ended attempts that a summary keeps."""


def labels_on(keys: Iterable[str], node: str, labels: Mapping[str, str]) -> list[str]:
    """Return the labels of the devices that have these keys on a node."""
    return [labels.get(on_node(key, node), key) for key in keys]


def error_of(event: Exited) -> str:
    """Return what a failed attempt printed about its failure; empty if a signal from outside ended it, because its
    output then says nothing about the end.
    """
    outside = event.signal is not None and event.signal not in CRASHES
    return "" if outside or event.outcome is not Outcome.FAILED else event.last


@dataclass(slots=True)
class AttemptHistory:
    """One attempt, as the events describe it."""

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
    """How many times longer the attempt's epochs took while other tasks shared its devices than without them; None:
    unknown."""
    solo: float | None = None
    """The seconds that the attempt would have taken alone, computed from the epochs during which no other task shared
    its devices; None: unknown."""
    had_company: bool = False
    """True if another attempt of this run was alive at some time during this one."""
    percentage: int = 0
    """The percentage of the GPU's threads for the attempt under MPS; 0: outside of MPS."""
    fence: int = 0
    mps: str = ""
    pruned: str = ""
    """Why the attempt was stopped early by its metrics; empty if it was not."""
    sees: tuple[str, ...] = ()
    """The GPUs that the program sees, even while the attempt counts as a task of the host."""
    node: str = ""
    """The node on which the attempt ran; empty: this machine."""
    port: int = 0
    """The network port that was kept for the attempt; 0: none."""
    busy: float = 0.0
    """The share of time for which the attempt kept its GPUs busy; 0 while that is unknown."""
    strayed: dict[str, int] = field(default_factory=dict)
    """The highest recorded use in bytes on GPUs that the attempt was not given."""
    neighbours: int = 0
    """The largest number of other attempts of this run that shared a device with this one at any time."""

    @property
    def fenced(self) -> bool | None:
        """True if MPS limited the attempt's memory to no more than its last reservation; None outside of MPS."""
        if not self.percentage:
            return None
        return 0 < self.fence <= min(self.reserved[device] for device in self.devices)

    def shown_on(self, labels: Mapping[str, str]) -> list[str]:
        """Return the labels of the attempt's devices. On a node, a label begins with the name of the node."""
        return labels_on(self.devices, self.node, labels)

    def end(self, event: Exited, at: float) -> None:
        """Note the end of the attempt."""
        self.ended, self.seconds, self.outcome = at, event.seconds, event.outcome
        self.code, self.signal, self.busy = event.code, event.signal, event.busy
        self.reason = event.reason or error_of(event)
        self.result, self.stretch, self.mps, self.solo = event.result, event.stretch, event.mps, event.solo
        self.raise_peak(event.peak)

    def raise_peak(self, seen: Mapping[str, int]) -> None:
        """Raise the attempt's peak on each device to at least these bytes."""
        for key, bytes_ in seen.items():
            self.peak[key] = max(self.peak.get(key, 0), bytes_)


@dataclass(slots=True)
class TaskHistory:
    """All attempts of one task, in order."""

    attempts: list[AttemptHistory] = field(default_factory=list)
    refused: str = ""
    """Why no device of the run can ever hold the task; empty if one can."""

    @property
    def last(self) -> AttemptHistory | None:
        """The newest attempt that was not a probe; None if there is none."""
        return next((a for a in reversed(self.attempts) if a.purpose is Purpose.RUN), None)


MEASURED_FROM = 3
"""Once the solo time of this many attempts is known, the solo time of all others is estimated from it."""


@dataclass(slots=True)
class SoloTime:
    """The total time that the attempts of a run would have taken one after another, each alone."""

    known: float = 0.0
    """The known part of the total in seconds: the time of attempts that ran alone, and the known solo time of attempts
    that ran at the same time as others."""
    unknown: float = 0.0
    """The seconds of the remaining attempts, which ran at the same time as others and whose solo time is unknown."""
    shares: tuple[float, float] = (1.0, 0.0)
    """The lowest and the highest known ratio of the solo time of an attempt to its real time."""
    measured: int = 0
    """The number of attempts that ran at the same time as others and whose solo time is known."""

    def add(self, attempt: AttemptHistory) -> None:
        """Add an ended attempt. An attempt that ran out of memory is left out, because alone it would have had enough
        memory.
        """
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
        """The lowest and the highest possible total in seconds; None if too little was measured."""
        if not self.unknown:
            return self.known, self.known
        if self.measured < MEASURED_FROM:
            return None
        low, high = self.shares
        return self.known + low * self.unknown, self.known + high * self.unknown


class RunSummary:
    """The totals over a run's ended attempts, and its living attempts."""

    def __init__(self) -> None:
        self.living: dict[int, AttemptHistory] = {}
        """For each task with a living attempt, that attempt."""
        self.recent: dict[int, AttemptHistory] = {}
        """For each task, its attempt that ended last, in the order of the ends; at most MOST_RECENT."""
        self.first: float | None = None
        """The time at which the first attempt was placed."""
        self.last: float | None = None
        """The time at which an attempt last ended."""
        self.retried = self.ooms = 0
        """The number of real attempts after the first one of their task, and the number of attempts that ran out of
        memory."""
        self.ended = 0
        """The number of ended attempts."""
        self.spent = self.kept = 0.0
        """The total seconds that ended attempts ran, and the total seconds of their reservations: from the placement
        until the end was recorded."""
        self.alone = SoloTime()
        """The total time that ended attempts would have taken one after another, each alone."""
        self.probing = 0.0
        """The total seconds that ended probes ran."""
        self.byte_seconds = 0.0
        """The sum of peak times duration, over all ended attempts."""
        self.good_reserved = self.good_peaks = 0
        """Two sums over successful attempts, in bytes: of their last reservations, and of their peaks."""
        self.sources: Counter[str] = Counter()
        """The number of ended real attempts by the source of their estimate."""
        self.stretched: dict[int, float] = {}
        """For each task whose newest attempt was slowed down by more than STRETCHED, that slowdown."""
        self._only_probed: set[int] = set()
        """Tasks that have had probes but no real attempt yet."""
        self._on_device: dict[str, dict[int, AttemptHistory]] = {}
        """For each device, the living attempts there, by task."""

    @property
    def ended_attempt(self) -> AttemptHistory | None:
        """The attempt that ended last; None if none has ended."""
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
        """Count an attempt on each of its devices, and as a neighbour of the other attempts there."""
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
        """Add an ended attempt to the totals; its reservation lasted for `kept` seconds."""
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
    """Every attempt of a run by task, and the totals of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[int, TaskHistory] = {}
        """The history of each task that was placed or refused."""
        self.done_by: dict[int, int] = {}
        """For each skipped task, the earlier run in which an equal row succeeded."""
        self._arrived: list[tuple[int, float]] = []
        """For each arrival of batches during the run, the first batch and the time."""

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
        """Return the time at which a batch was accepted. For a batch that the run had from the beginning, this is
        `first`.
        """
        place = bisect_right(self._arrived, batch, key=itemgetter(0))
        return self._arrived[place - 1][1] if place else first


@dataclass(frozen=True, slots=True)
class RunTotals:
    """The totals of a run for reports."""

    tasks: int
    states: Mapping[State, int]
    makespan: float
    spent: float
    """The total seconds that all attempts ran."""
    alone: tuple[float, float] | None
    """The lowest and the highest possible total in seconds if the attempts had run one after another; None if too
    little was measured."""
    probing: float
    """The share of the total seconds of all attempts that probes ran."""
    memory_use: float
    """The used memory (peaks) as a share of the capacity, averaged over the makespan."""
    ooms: int
    source: Mapping[str, int]
    """The number of ended real attempts by the source of their estimate."""
    reserved_for_peaks: float
    """The sum of the last reservations divided by the sum of the peaks, for successful attempts."""
    stretched: Sequence[tuple[int, float]] = ()
    """Tasks whose epochs took more than 1.5 times as long on shared devices as alone, each with its factor, the slowest
    first."""
    energy_wh: float | None = None
    """The energy of the run's GPUs in watt hours, including the time when they were idle; None: unknown."""

    @property
    def at_once(self) -> float:
        """The mean number of attempts that ran at once."""
        return self.spent / self.makespan if self.makespan else 1.0


def stretched(run: RunSummary) -> list[tuple[int, float]]:
    """Return the tasks that were slowed down much by others, each with its slowdown, the slowest first."""
    return sorted(run.stretched.items(), key=lambda item: (-item[1], item[0]))


def totals(run: RunSummary, states: Mapping[State, int], capacity: int) -> RunTotals:
    """Return the totals of a run; `capacity` is the memory of all its devices, in bytes."""
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
