"""Events, which alone change a Brain: what happened or was decided, one journal row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, cast

from scheduler.core.causes import Action, DependencyStep, HaltCause, ResizeCause
from scheduler.core.model import NO_TASK, EstimateSource, Outcome, Placement, Purpose, State
from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Submitted:
    """An accepted batch of tasks: their ids are `first`, `first`+1, …; `terms` has for each the number under which its
    terms are kept.
    """

    kind: ClassVar[str] = "submitted"
    batch: int
    first: int
    terms: Sequence[int]
    dependencies: Sequence[Depended | Observed] = ()
    """The dependencies of the whole list, if this is its last batch. In the journal, dependencies are separate
    events."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The arrival of new batches while the run is going on; `batch` is the number of the first one."""

    kind: ClassVar[str] = "arrived"
    batch: int


@dataclass(frozen=True, slots=True)
class Started:
    """The start of an attempt's process; the pid and the kernel's start time identify it for ever."""

    kind: ClassVar[str] = "started"
    task: int
    attempt: int
    pid: int
    start: int
    shim: int = 0


@dataclass(frozen=True, slots=True)
class Resized:
    """A changed reservation of a living attempt."""

    kind: ClassVar[str] = "resized"
    task: int
    attempt: int
    reservation: Mapping[str, int]
    cause: ResizeCause
    busy: float = 0.0
    """The share of time for which the attempt kept its GPUs busy so far; 0 if that could not be measured."""


@dataclass(frozen=True, slots=True)
class Peaked:
    """A new highest use of memory by a living attempt."""

    kind: ClassVar[str] = "peaked"
    task: int
    attempt: int
    peak: Mapping[str, int]


class Edge(StrEnum):
    """The consequence for a task that ran out of memory although nearly all of a device was reserved for its
    attempt.
    """

    NO = ""
    """Nothing follows: the attempt had less than nearly all of a device reserved, or did not run out of memory."""
    FINAL = "final"
    """The task fails: another attempt would have no more."""
    ONCE_MORE = "once_more"
    """The task is started at most once more: something else used memory there, or the peaks of its class vary."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The end of an attempt, recorded when its process tree is empty."""

    kind: ClassVar[str] = "exited"
    task: int
    attempt: int
    outcome: Outcome
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    peak: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    watched: float = 1.0
    """The share of the attempt's duration in which it was sampled."""
    leftovers: int = 0
    epoch_seconds: float | None = None
    """Seconds per epoch, if the attempt's progress could be measured."""
    stretch: float | None = None
    """How many times longer the attempt's epochs took beside other attempts than alone (or than its first epoch); None:
    unknown."""
    solo: float | None = None
    """Seconds that the attempt would have taken alone, computed from its epochs without others beside it; None:
    unknown."""
    busy: float = 0.0
    """The share of time for which the attempt kept its GPUs busy; 0 if that could not be measured."""
    part: str = ""
    """The memory that ran out: `host` or `gpu`; empty if none did, or if it is unknown. While the GPUs of a failed
    attempt have not been measured again, `gpu` means only that GPU memory may have run out."""
    asked: int = 0
    """The bytes that the attempt requested when memory ran out, if it reported them; else 0."""
    position: int | None = None
    """The GPU that ran out of memory, as its place among the attempt's GPUs, from 0; None: not reported."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The flat JSON object that the attempt wrote to the file SCHEDULER_RESULT."""
    last: str = ""
    """The last error in the output of a failed attempt; if there was no error, the last line that the attempt
    printed."""
    gist: str = ""
    """The last error without numbers and without words of the row, for comparison with other rows; empty if there is
    none."""
    away: str = ""
    """The directory that could not be entered, if this prevented the start of the program; else empty."""
    mps: str = ""
    """The state of the attempt under MPS: `client`, `turns` (it took turns with the others instead), `refused`, or
    `fault` (a fault ended it); empty if unknown, or outside of MPS."""
    edge: Edge = Edge.NO
    node_lost: bool = False
    """True if the attempt was lost with its node, for which a task is never to blame."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was granted."""

    kind: ClassVar[str] = "asked"
    what: Action
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """New terms for tasks (priority, memory, time limit, …); their commands stay unchanged."""

    kind: ClassVar[str] = "changed"
    terms: int
    """The number under which the new terms of the tasks are kept."""
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limited:
    """New limits for the starts of a run: attempts at once, attempts per device, devices without new starts, times
    without starts.
    """

    kind: ClassVar[str] = "limited"
    jobs: int | None = None
    max_per_device: int | None = None
    closed: tuple[str, ...] = ()
    """Keys of devices on which nothing starts."""
    paused: bool = False
    """True if nothing starts."""
    until: float = 0.0
    """The time at which the pause ends by itself; 0: it lasts until a user ends it."""
    window: str = ""
    """The local times in which tasks may start; empty: at any time."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that no device of this run can ever hold; found after it was accepted."""

    kind: ClassVar[str] = "refused"
    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class Learned:
    """The finding that an argument of a script does not change its memory, or the withdrawal of that finding."""

    kind: ClassVar[str] = "learned"
    script: str
    argument: str
    neutral: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that are skipped because equal rows succeeded in an earlier run of the list."""

    kind: ClassVar[str] = "skipped"
    done_by: int
    """The number of the earlier run."""
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Depended:
    """Tasks that are blocked, freed or skipped because of their parents."""

    kind: ClassVar[str] = "depended"
    step: DependencyStep
    tasks: tuple[int, ...]
    after: tuple[int, ...] = ()
    """New parents that must succeed. Only the first event about a task names its parents."""
    ended: tuple[int, ...] = ()
    """New parents that must end, with or without success."""
    parent: int = NO_TASK
    """The parent that ended without success, because of which the tasks are skipped."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of tasks or runs outside of this run, on which tasks of this run depend."""

    kind: ClassVar[str] = "observed"
    parents: tuple[int, ...]
    """Ids of the observed tasks; a negative number stands for a whole run (`core/tasks/after`)."""
    state: State


@dataclass(frozen=True, slots=True)
class Preempted:
    """Resumable tasks that are asked to save and make room for a more urgent one."""

    kind: ClassVar[str] = "preempted"
    by: int
    """The urgent task, which becomes the next one to start."""
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """A step of `--keep-best` that a task has reached."""

    kind: ClassVar[str] = "reached"
    task: int
    rung: float
    """The step, in epochs or as the metric counts it."""
    value: float | None
    """The best value of the metric up to this step; None: the task had no numeric value."""


@dataclass(frozen=True, slots=True)
class Strayed:
    """Memory of a living attempt on GPUs that it was not given."""

    kind: ClassVar[str] = "strayed"
    task: int
    attempt: int
    held: Mapping[str, int]
    """The bytes that the attempt uses on each GPU that it was not given."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The early stop of a living attempt because of its metrics."""

    kind: ClassVar[str] = "pruned"
    task: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Halted:
    """The end of launching, while attempts go on: many tasks in a row failed alike, or too many tasks failed."""

    kind: ClassVar[str] = "halted"
    why: HaltCause
    task: int
    attempt: int
    number: int
    """The number of failed tasks."""
    line: str = ""
    """The last line that the named task printed."""


Event = (
    Submitted
    | Arrived
    | Placement
    | Started
    | Resized
    | Peaked
    | Exited
    | Asked
    | Changed
    | Limited
    | Refused
    | Learned
    | Skipped
    | Depended
    | Observed
    | Preempted
    | Reached
    | Strayed
    | Pruned
    | Halted
)
_Fields = tuple[tuple[str, object], ...]
_REQUIRED = object()
"""The marker for a field without a default; no value of a field equals this marker."""
_MEMORY: Mapping[str, int] = {}

FORMATS: dict[type[Event], _Fields] = {
    Arrived: (("batch", _REQUIRED),),
    Placement: (
        ("task", _REQUIRED), ("attempt", _REQUIRED), ("purpose", _REQUIRED), ("reservation", _REQUIRED),
        ("cores", _REQUIRED), ("source", _REQUIRED), ("alone", False), ("told", 0), ("busy", 0.0), ("expected", 0.0),
        ("percentage", 0), ("fence", 0), ("ram_expected", False), ("visible", ()), ("port", 0), ("node", ""),
    ),
    Started: (
        ("task", _REQUIRED), ("attempt", _REQUIRED), ("pid", _REQUIRED), ("start", _REQUIRED), ("shim", 0),
    ),
    Resized: (
        ("task", _REQUIRED), ("attempt", _REQUIRED), ("reservation", _REQUIRED), ("cause", _REQUIRED), ("busy", 0.0),
    ),
    Peaked: (("task", _REQUIRED), ("attempt", _REQUIRED), ("peak", _REQUIRED)),
    Exited: (
        ("task", _REQUIRED), ("attempt", _REQUIRED), ("outcome", _REQUIRED), ("code", None), ("signal", None),
        ("reason", ""), ("peak", _MEMORY), ("seconds", 0.0), ("cpu_seconds", 0.0), ("watched", 1.0), ("leftovers", 0),
        ("epoch_seconds", None), ("stretch", None), ("solo", None), ("busy", 0.0), ("part", ""), ("asked", 0),
        ("position", None), ("result", {}), ("last", ""), ("gist", ""), ("away", ""), ("mps", ""),
        ("edge", Edge.NO), ("node_lost", False),
    ),
    Asked: (("what", _REQUIRED), ("tasks", ())),
    Changed: (("terms", _REQUIRED), ("tasks", _REQUIRED)),
    Limited: (
        ("jobs", None), ("max_per_device", None), ("closed", ()), ("paused", False), ("until", 0.0), ("window", ""),
    ),
    Refused: (("task", _REQUIRED), ("reason", _REQUIRED)),
    Learned: (("script", _REQUIRED), ("argument", _REQUIRED), ("neutral", _REQUIRED)),
    Skipped: (("done_by", _REQUIRED), ("tasks", ())),
    Depended: (("step", _REQUIRED), ("tasks", _REQUIRED), ("after", ()), ("ended", ()), ("parent", NO_TASK)),
    Observed: (("parents", _REQUIRED), ("state", _REQUIRED)),
    Preempted: (("by", _REQUIRED), ("tasks", _REQUIRED)),
    Reached: (("task", _REQUIRED), ("rung", _REQUIRED), ("value", _REQUIRED)),
    Strayed: (("task", _REQUIRED), ("attempt", _REQUIRED), ("held", _REQUIRED)),
    Pruned: (("task", _REQUIRED), ("attempt", _REQUIRED), ("reason", _REQUIRED)),
    Halted: (("why", _REQUIRED), ("task", _REQUIRED), ("attempt", _REQUIRED), ("number", _REQUIRED), ("line", "")),
}  # fmt: skip
"""The fields of each event in the journal, each with its default, which is not written.

A change here needs a new number of the journal's format. `Submitted` is missing, because it is derived from the
rows."""
_BY_NAME: dict[str, type[Event]] = {event.kind: event for event in FORMATS}
_READERS: dict[str, Callable[[Any], object]] = {
    "purpose": Purpose, "source": EstimateSource, "outcome": Outcome, "tasks": tuple, "closed": tuple,
    "visible": tuple, "edge": Edge, "cause": ResizeCause, "what": Action, "why": HaltCause,
    "after": tuple, "ended": tuple, "step": DependencyStep, "parents": tuple, "state": State,
}  # fmt: skip
"""Functions that restore fields which JSON cannot represent."""


def encode(event: Event) -> dict[str, Any]:
    """Return the fields of an event as JSON values, without its name and without fields that have their defaults."""
    encoded = {}
    for name, default in FORMATS[event.__class__]:
        value = getattr(event, name)
        if value != default:
            encoded[name] = value
    return encoded


def decode(name: str, data: Mapping[str, Any]) -> Event:
    """Return the event that `encode` wrote.

    Raise KeyError or TypeError for an unknown name or field, ValueError for an unknown word.
    """
    event: Callable[..., Any] = _BY_NAME[name]
    if _READERS.keys().isdisjoint(data):
        return cast(Event, event(**data))
    values = {key: _READERS[key](value) if key in _READERS else value for key, value in data.items()}
    return cast(Event, event(**values))
