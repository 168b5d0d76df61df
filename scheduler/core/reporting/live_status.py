"""The data of a live view of a run at one moment: its totals, replayed from events, joined with samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.core.brain import Brain
from scheduler.core.leases import Lease
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, LIVING, UNFINISHED, DeviceBudget, Purpose, State
from scheduler.core.ports import Key
from scheduler.core.queue.task_table import TaskTable
from scheduler.core.reporting.forecast import Forecast, TimeSpan
from scheduler.core.reporting.run_history import RunSummary, labels_on
from scheduler.values import dataclass, field

MOST_BATCHES = 3
"""The number of waiting batches that a view lists one by one."""
MOST_EPOCHS = 1e9
"""A task that reports this many epochs or more must be wrong, so the number is ignored."""
LONG_BATCH = 10_000
"""The size of a batch above which its tasks are not counted by priority, because that would slow down each refresh."""


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The samples of the machine and of living attempts, which are not events."""

    budgets: Sequence[DeviceBudget] = ()
    used: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """The bytes that each attempt used when the devices were last measured. The bytes of an attempt that has ended
    since then count as free."""
    epochs: Mapping[Key, float] = field(default_factory=dict)
    """The number of completed epochs of each living attempt."""
    leases: Sequence[Lease] = ()
    """The leases of other runs, of all users."""
    expected: Mapping[int, float] = field(default_factory=dict)
    """The expected duration of each task in seconds, where it is known."""
    forecast: Forecast | None = None
    """The forecast that the run's scheduler has made; None: none yet."""
    totals: Mapping[Key, float] = field(default_factory=dict)
    """The number of all epochs of each living attempt that reports it."""
    metrics: Mapping[Key, Mapping[str, Sequence[float | None]]] = field(default_factory=dict)
    """For each living attempt, the last values of its most important metrics; None: not a number."""


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """The memory of one device in bytes, as parts that add up to at most its total."""

    label: str
    total: int
    ours: int
    """The bytes that this run uses."""
    others: int
    """The bytes that other runs and unmanaged processes use."""
    reserved: int
    """The bytes that are reserved, but not used yet."""
    buffer: int
    tasks: int
    load: float | None
    """The busy share of a GPU, or the number of reserved cores of the host; None: not measured."""
    capacity: float
    celsius: int | None = None
    drained: str = ""
    watts: float | None = None
    node: str = ""

    @property
    def free(self) -> int:
        """The bytes that are neither used nor reserved."""
        return max(0, self.total - self.ours - self.others - self.reserved - self.buffer)

    def to_dict(self) -> dict[str, Any]:
        """Return the bar as JSON values."""
        return {
            "label": self.label, "total": self.total, "ours": self.ours, "others": self.others,
            "reserved": self.reserved, "buffer": self.buffer, "free": self.free, "tasks": self.tasks,
            "load": self.load, "capacity": self.capacity, "celsius": self.celsius, "watts": self.watts,
            "drained": self.drained, "node": self.node,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LiveTask:
    """One task that has a living attempt."""

    task: int
    attempt: int
    name: str
    devices: tuple[str, ...]
    probe: bool
    asked: str
    """`stop` or `cancel` if the attempt was asked to end."""
    seconds: float
    epochs: float | None
    of_epochs: int | None
    used: int | None
    peak: int
    reserved: int
    left: float | None
    """The remaining seconds of the attempt; None if they cannot be estimated."""
    metrics: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """The last values of the attempt's most important metrics, the newest at the end; None: not a number."""

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        return {
            "task": self.task, "attempt": self.attempt, "name": self.name, "devices": [*self.devices],
            "probe": self.probe, "asked": self.asked, "seconds": self.seconds, "epochs": self.epochs,
            "of_epochs": self.of_epochs, "used": self.used, "peak": self.peak, "reserved": self.reserved,
            "left": self.left, "metrics": {name: [*values] for name, values in self.metrics.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """The waiting tasks of one batch."""

    batch: int
    tasks: int
    priorities: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The waiting tasks: the first batches one by one, and the numbers of all batches and tasks."""

    first: Sequence[WaitingBatch] = ()
    batches: int = 0
    tasks: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the queue as JSON values."""
        first = [{"batch": b.batch, "tasks": b.tasks, "priorities": {**b.priorities}} for b in self.first]
        return {"first": first, "batches": self.batches, "tasks": self.tasks}


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """Everything that a live view shows of one run."""

    run: int
    what: str
    now: float
    seconds: float
    """Seconds since the first attempt of the run was placed."""
    states: Mapping[State, int]
    retried: int
    ooms: int
    bars: Sequence[MemoryBar]
    living: Sequence[LiveTask]
    queue: QueueSummary
    end: TimeSpan | None
    """The expected end of all tasks; None: unknown, for the reason in `unknown`."""
    unknown: str = ""
    draining: bool = False
    paused: bool = False
    paused_until: float | None = None
    """The time at which the pause ends by itself; None if there is no such time."""

    @property
    def tasks(self) -> int:
        """The number of all tasks."""
        return sum(self.states.values())

    @property
    def over(self) -> int:
        """The number of tasks that have ended."""
        return self.tasks - sum(self.states.get(state, 0) for state in UNFINISHED)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON values, with sizes in bytes and times in seconds."""
        return {
            "run": self.run,
            "what": self.what,
            "now": self.now,
            "seconds": self.seconds,
            "states": {str(state): number for state, number in self.states.items()},
            "tasks": self.tasks,
            "over": self.over,
            "retried": self.retried,
            "ooms": self.ooms,
            "bars": [bar.to_dict() for bar in self.bars],
            "living": [one.to_dict() for one in self.living],
            "queue": self.queue.to_dict(),
            "end": self.end and self.end.to_dict(),
            "unknown": self.unknown,
            "draining": self.draining,
            "paused": self.paused,
            "paused_until": self.paused_until,
        }


class StatusBuilder:
    """The builder of a run's live status. It keeps only data that would take long to recompute for the next status."""

    def __init__(
        self,
        run: int,
        what: str,
        brain: Brain,
        history: RunSummary,
        name: Callable[[int], str],
        labels: Mapping[str, str],
    ) -> None:
        self._run = run
        self._what = what
        self._brain = brain
        self._history = history
        self._name = name
        self._labels = labels
        self._names: dict[int, str] = {}
        self._queue: tuple[int, QueueSummary] = (-1, QueueSummary())

    def paint(self, seen: ObservedState, now: float) -> LiveStatus:
        """Return the present status of the run."""
        brain, history = self._brain, self._history
        living = brain.living()
        self._names = {task.id: self._names.get(task.id) or self._name(task.id) for task in living}
        counts = {state: number for state in State if (number := brain.state_counts[state])}
        seconds = now - history.first if history.first is not None else 0.0
        return LiveStatus(
            self._run,
            self._what,
            now,
            seconds,
            counts,
            history.retried,
            history.ooms,
            [bar(budget, living, seen, brain.rules.buffer) for budget in seen.budgets if not budget.device.is_slot],
            [self._living(task, seen, now) for task in living],
            self._waiting(),
            seen.forecast.end if seen.forecast is not None else None,
            _unknown(counts, seen.forecast),
            brain.draining,
            *brain.rules.pause(now),
        )

    def _living(self, task: TaskState, seen: ObservedState, now: float) -> LiveTask:
        assert task.placement is not None
        key, placement = (task.id, task.attempts), task.placement
        attempt = self._history.living[task.id]
        main = placement.devices
        used = seen.used.get(key)
        seconds = max(0.0, now - (attempt.started or attempt.placed))
        epochs, of = seen.epochs.get(key), self._brain.terms[task.terms].epochs or _whole(seen.totals.get(key))
        return LiveTask(
            task.id,
            task.attempts,
            self._names[task.id],
            tuple(labels_on(placement.shown, placement.node, self._labels)),
            placement.purpose is Purpose.PROBE,
            task.asked or "",
            seconds,
            epochs,
            of,
            None if used is None else max(used.get(device, 0) for device in main),
            max(max(attempt.peak.get(d, 0), (used or {}).get(d, 0)) for d in main),
            max(placement.reservation.get(device, 0) for device in main),
            _left(seconds, epochs, of, seen.expected.get(task.id, 0.0), _foreseen(task.id, seen.forecast, now)),
            seen.metrics.get(key, {}),
        )

    def _waiting(self) -> QueueSummary:
        changes, queue = self._queue
        if changes != self._brain.changes:
            queue = waiting(self._brain)
            self._queue = (self._brain.changes, queue)
        return queue


def bar(budget: DeviceBudget, living: Sequence[TaskState], seen: ObservedState, buffer: int) -> MemoryBar:
    """Return the memory bar of one device. If the run has a budget there (`--devices`), the bar shows only the
    budget.
    """
    device = budget.device
    there, total = device.key_there, device.total if budget.cap is None else budget.cap
    placed = [task for task in living if task.placement is not None and device.key in task.placement.by_device]
    ours = yet = 0
    alive = {(task.id, task.attempts) for task in living}
    ended = sum(by_device.get(device.key, 0) for attempt, by_device in seen.used.items() if attempt not in alive)
    for task in placed:
        assert task.placement is not None
        used = seen.used.get((task.id, task.attempts), {}).get(there, 0)
        ours += used
        yet += max(0, task.placement.reservation[there] - used)
    theirs = 0
    leases = [lease for lease in seen.leases if lease.node == device.node]
    for lease in leases:
        theirs += lease.used.get(there, 0)
        yet += max(0, lease.reserved.get(there, 0) - lease.used.get(there, 0))
    taken = ours + theirs if budget.cap is not None else max(ours + theirs, device.total - budget.free - ended)
    ours = min(ours, total)
    others = max(0, min(taken, total) - ours)
    reserved = max(0, min(yet, total - ours - others))
    left = total - ours - others - reserved
    here = [t for t in placed if t.placement is not None and there in t.placement.devices]
    return MemoryBar(
        device.label, total, ours, others, reserved, max(0, min(buffer, left)), len(here),
        budget.busy if device.is_gpu else _cores(placed, leases), device.load_capacity, budget.celsius,
        budget.closed, budget.watts, device.node,
    )  # fmt: skip


def _cores(placed: Sequence[TaskState], leases: Sequence[Lease]) -> float:
    """Return the number of reserved cores of the host."""
    mine = sum(task.placement.cores for task in placed if task.placement is not None)
    return mine + sum(lease.load.get(HOST, 0.0) for lease in leases)


def _left(
    seconds: float, epochs: float | None, of: int | None, expected: float, foreseen: float | None
) -> float | None:
    """Return the remaining seconds of an attempt: by its own epochs, else by the expected duration, else by the
    forecast.
    """
    if epochs and of and epochs <= of:
        return seconds * (of - epochs) / epochs
    return max(0.0, expected - seconds) if expected else foreseen


def _whole(epochs: float | None) -> int | None:
    return int(epochs) if epochs is not None and 0 < epochs < MOST_EPOCHS else None


def _foreseen(task: int, forecast: Forecast | None, now: float) -> float | None:
    one = forecast.tasks.get(task) if forecast is not None else None
    return None if one is None or one.start is not None else max(0.0, one.end.likely - now)


def _unknown(states: Mapping[State, int], forecast: Forecast | None) -> str:
    """Return why the end of the run is unknown; empty if no task is left."""
    if not any(states.get(state, 0) for state in (*LIVING, State.WAITING)):
        return ""
    return forecast.why if forecast is not None else "unknown yet"


def waiting(brain: Brain) -> QueueSummary:
    """Return the waiting tasks by batch; the first batches are also divided by priority."""
    found, first = 0, list[WaitingBatch]()
    for batch, start, total, number in brain.task_table.blocks(State.WAITING):
        if not number:
            continue
        if first and first[-1].batch == batch:
            first[-1] = WaitingBatch(batch, first[-1].tasks + number)
            continue
        found += 1
        if len(first) < MOST_BATCHES:
            first.append(WaitingBatch(batch, number, _priorities(brain, start, total)))
    return QueueSummary(first, found, brain.waiting)


def _priorities(brain: Brain, start: int, total: int) -> dict[int, int]:
    if total > LONG_BATCH:
        return {}
    roll: TaskTable = brain.task_table
    terms = Counter(roll.terms(task) for task in range(start, start + total) if roll.state(task) is State.WAITING)
    found: Counter[int] = Counter()
    for number, tasks in terms.items():
        found[brain.terms[number].priority] += tasks
    return dict(sorted(found.items()))
