"""What a live view shows of a run at one moment, as numbers: a fold of its events joined with what was seen since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from scheduler.core.brain import Brain
from scheduler.core.forecast import Forecast, Span
from scheduler.core.lifecycle import Task
from scheduler.core.model import HOST, LIVING, UNFINISHED, Budget, Hold, Purpose, State, gpus_in, shown_in
from scheduler.core.ports import Key
from scheduler.core.results import Fold
from scheduler.core.roll import Roll
from scheduler.values import dataclass

MOST_BATCHES = 3
"""So many of the waiting batches are told one by one."""
LONG_BATCH = 10_000
"""Of a longer batch nobody counts the priorities at every look."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the machine and of living attempts, which no event tells."""

    budgets: Sequence[Budget] = ()
    used: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """What each living attempt holds now, by device."""
    epochs: Mapping[Key, float] = field(default_factory=dict)
    """How many of its epochs are done."""
    others: Sequence[Hold] = ()
    """The leases of other runs, everybody's."""
    expected: Mapping[int, float] = field(default_factory=dict)
    """How many seconds a task takes, where that is known."""
    forecast: Forecast | None = None
    """What its scheduler expects; None: nothing yet."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The memory of one device: parts that add up to its total at most, in bytes."""

    label: str
    total: int
    ours: int
    """Held by this run."""
    others: int
    """Held by other runs and by whoever has no lease."""
    promised: int
    """Promised to anybody, and not taken yet."""
    buffer: int
    tasks: int
    load: float | None
    """How busy a GPU is, the cores promised of a host; None where nobody looked."""
    capacity: float
    celsius: int | None = None
    closed: str = ""

    @property
    def free(self) -> int:
        """What nobody holds or was promised."""
        return max(0, self.total - self.ours - self.others - self.promised - self.buffer)


@dataclass(frozen=True, slots=True)
class Living:
    """One task with an attempt."""

    task: int
    attempt: int
    name: str
    devices: tuple[str, ...]
    probe: bool
    asked: str
    """`stop` or `cancel` where it was told to end."""
    seconds: float
    epochs: float | None
    of_epochs: int | None
    used: int | None
    peak: int
    promised: int
    left: float | None
    """Seconds until it ends, where that can be told."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits of one batch."""

    batch: int
    tasks: int
    priorities: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """Who waits: the first batches one by one, the rest as a number."""

    first: Sequence[Waiting] = ()
    batches: int = 0
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that a live view shows of one run."""

    run: int
    what: str
    now: float
    seconds: float
    """Since its first start."""
    states: Mapping[State, int]
    retried: int
    ooms: int
    bars: Sequence[Bar]
    living: Sequence[Living]
    queue: Queue
    end: Span | None
    """When all of it is expected to be over; None: `unknown` says why nobody knows."""
    unknown: str = ""
    draining: bool = False

    @property
    def tasks(self) -> int:
        """All of them."""
        return sum(self.states.values())

    @property
    def over(self) -> int:
        """Those that are over."""
        return self.tasks - sum(self.states.get(state, 0) for state in UNFINISHED)


class Painter:
    """Makes pictures of one run; between two of them it keeps only what is dear to find again."""

    def __init__(
        self, run: int, what: str, brain: Brain, fold: Fold, name: Callable[[int], str], labels: Mapping[str, str]
    ) -> None:
        self._run = run
        self._what = what
        self._brain = brain
        self._fold = fold
        self._name = name
        self._labels = labels
        self._names: dict[int, str] = {}
        self._queue: tuple[int, Queue] = (-1, Queue())

    def paint(self, seen: Seen, now: float) -> Picture:
        """The run as it is now."""
        brain, fold = self._brain, self._fold
        living = brain.living()
        self._names = {task.id: self._names.get(task.id) or self._name(task.id) for task in living}
        counts = {state: number for state in State if (number := brain.roll.counts[state])}
        seconds = now - fold.first if fold.first is not None else 0.0
        return Picture(
            self._run,
            self._what,
            now,
            seconds,
            counts,
            fold.retried,
            fold.ooms,
            [bar(budget, living, seen, brain.rules.buffer) for budget in seen.budgets if not budget.device.is_slot],
            [self._living(task, seen, now) for task in living],
            self._waiting(),
            seen.forecast.end if seen.forecast is not None else None,
            _unknown(counts, seen.forecast),
            brain.draining,
        )

    def _living(self, task: Task, seen: Seen, now: float) -> Living:
        assert task.placement is not None
        key, placement = (task.id, task.attempts), task.placement
        attempt = self._fold.stories[task.id].attempts[-1]
        main = gpus_in(placement.promise) or (HOST,)
        used = seen.used.get(key)
        seconds = max(0.0, now - (attempt.started or attempt.placed))
        epochs, of = seen.epochs.get(key), self._brain.terms[task.terms].epochs
        return Living(
            task.id,
            task.attempts,
            self._names[task.id],
            tuple(self._labels.get(device, device) for device in shown_in(placement.promise)),
            placement.purpose is Purpose.PROBE,
            task.asked,
            seconds,
            epochs,
            of,
            None if used is None else max(used.get(device, 0) for device in main),
            max(max(attempt.peak.get(d, 0), (used or {}).get(d, 0)) for d in main),
            max(placement.promise.get(device, 0) for device in main),
            _left(seconds, epochs, of, seen.expected.get(task.id, 0.0), _foreseen(task.id, seen.forecast, now)),
        )

    def _waiting(self) -> Queue:
        changes, queue = self._queue
        if changes != self._brain.changes:
            queue = waiting(self._brain)
            self._queue = (self._brain.changes, queue)
        return queue


def bar(budget: Budget, living: Sequence[Task], seen: Seen, buffer: int) -> Bar:
    """One device's memory; where a run has a budget of it, all of that."""
    device = budget.device
    key, total = device.key, device.total if budget.cap is None else budget.cap
    placed = [task for task in living if task.placement is not None and key in task.placement.promise]
    ours = yet = 0
    for task in placed:
        assert task.placement is not None
        used = seen.used.get((task.id, task.attempts), {}).get(key, 0)
        ours += used
        yet += max(0, task.placement.promise[key] - used)
    theirs = 0
    for hold in seen.others:
        theirs += hold.used.get(key, 0)
        yet += max(0, hold.promised.get(key, 0) - hold.used.get(key, 0))
    taken = ours + theirs if budget.cap is not None else max(ours + theirs, device.total - budget.free)
    ours = min(ours, total)
    others = max(0, min(taken, total) - ours)
    promised = max(0, min(yet, total - ours - others))
    left = total - ours - others - promised
    here = [t for t in placed if t.placement is not None and key in (gpus_in(t.placement.promise) or (HOST,))]
    return Bar(
        device.label, total, ours, others, promised, max(0, min(buffer, left)), len(here),
        budget.busy if device.is_gpu else _cores(placed, seen, key), device.load_capacity, budget.celsius,
        budget.closed,
    )  # fmt: skip


def _cores(placed: Sequence[Task], seen: Seen, key: str) -> float:
    """The cores promised on the host."""
    mine = sum(task.placement.cores for task in placed if task.placement is not None)
    return mine + sum(hold.load.get(key, 0.0) for hold in seen.others)


def _left(
    seconds: float, epochs: float | None, of: int | None, expected: float, foreseen: float | None
) -> float | None:
    """By its own epochs, else by what its like took before, else by what others did."""
    if epochs and of and epochs <= of:
        return seconds * (of - epochs) / epochs
    return max(0.0, expected - seconds) if expected else foreseen


def _foreseen(task: int, forecast: Forecast | None, now: float) -> float | None:
    one = forecast.tasks.get(task) if forecast is not None else None
    return None if one is None or one.start is not None else max(0.0, one.end.likely - now)


def _unknown(states: Mapping[State, int], forecast: Forecast | None) -> str:
    """Why nobody knows when it will be over; nothing where nothing is left."""
    if not any(states.get(state, 0) for state in (*LIVING, State.WAITING)):
        return ""
    return forecast.why if forecast is not None else "unknown yet"


def waiting(brain: Brain) -> Queue:
    """The queue by batch, and the first batches by priority."""
    found, first = 0, list[Waiting]()
    for batch, start, total, number in brain.roll.blocks(State.WAITING):
        if not number:
            continue
        if first and first[-1].batch == batch:
            first[-1] = Waiting(batch, first[-1].tasks + number)
            continue
        found += 1
        if len(first) < MOST_BATCHES:
            first.append(Waiting(batch, number, _priorities(brain, start, total)))
    return Queue(first, found, brain.waiting)


def _priorities(brain: Brain, start: int, total: int) -> dict[int, int]:
    if total > LONG_BATCH:
        return {}
    roll: Roll = brain.roll
    terms = Counter(roll.terms(task) for task in range(start, start + total) if roll.state(task) is State.WAITING)
    found: Counter[int] = Counter()
    for number, tasks in terms.items():
        found[brain.terms[number].priority] += tasks
    return dict(sorted(found.items()))
