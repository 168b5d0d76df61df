"""What happened or was decided: the only things that change a Brain, and one journal row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, ClassVar, get_args

from scheduler.core.model import KnownBy, Outcome, Purpose
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Submitted:
    """One batch was accepted: ids `first`, `first`+1, …, each with the number of its terms."""

    kind: ClassVar[str] = "submitted"
    batch: int
    first: int
    terms: Sequence[int]


@dataclass(frozen=True, slots=True)
class Arrived:
    """More was accepted while the run went on: the batches from this one on."""

    kind: ClassVar[str] = "arrived"
    batch: int


@dataclass(frozen=True, slots=True)
class Placed:
    """An attempt was promised its room, on its GPUs in the order it sees them; nothing of it has started yet."""

    kind: ClassVar[str] = "placed"
    task: int
    attempt: int
    purpose: Purpose
    promise: Mapping[str, int]
    cores: float
    known_by: KnownBy
    alone: bool = False
    told: int = 0
    """The id a probe goes by; 0: the task's own."""
    busy: float = 0.0
    """The share of each of its GPUs that it is expected to keep busy."""
    percentage: int = 0
    """Of its GPU's threads, under MPS; 0: it runs outside of MPS."""
    fence: int = 0
    """The bytes that MPS lets it have; 0: as many as there are."""


@dataclass(frozen=True, slots=True)
class Started:
    """The attempt's own process runs: pid and kernel start time name it for ever."""

    kind: ClassVar[str] = "started"
    task: int
    attempt: int
    pid: int
    start: int
    shim: int = 0


@dataclass(frozen=True, slots=True)
class Resized:
    """The promise of a living attempt changed, because it settled, grew, was seen, or its kind is known.

    Its cause is settled, known (another of its kind was learned), grew or seen (nothing was promised).
    """

    kind: ClassVar[str] = "resized"
    task: int
    attempt: int
    promise: Mapping[str, int]
    cause: str
    busy: float = 0.0
    """The share of its GPUs that it kept busy until it settled, where that could be seen."""


@dataclass(frozen=True, slots=True)
class Peaked:
    """A living attempt was seen to hold more than ever before."""

    kind: ClassVar[str] = "peaked"
    task: int
    attempt: int
    peak: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Exited:
    """An attempt is over and its tree is empty."""

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
    """Share of its time in which it was sampled."""
    leftovers: int = 0
    epoch_seconds: float | None = None
    """Seconds an epoch took, where its progress could be seen."""
    stretch: float | None = None
    """How many times longer its epochs took beside others than alone, or than its first one; None: nobody can tell."""
    busy: float = 0.0
    """The share of its GPUs that it kept busy, where that could be seen."""
    part: str = ""
    """Which memory ran out: `host` or `gpu`; empty where it did not, or nobody can tell."""
    asked: int = 0
    """What it asked for when it ran out, where it said so."""
    position: int | None = None
    """The place of the GPU that ran out among those it sees, where it said so."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The flat object it left at SCHEDULER_RESULT."""
    last: str = ""
    """The last line it printed, where it failed."""
    gist: str = ""
    """What that line has in common with those of other rows; empty where there is none."""
    mps: str = ""
    """Under MPS: whether it was seen as a client (`client`, `turns`: it took turns with the others instead), or what
    failed it (`refused`, `fault`); empty where nobody saw, or outside of MPS."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was granted: drain, stop, cancel, hold, release, retry, resume, skip."""

    kind: ClassVar[str] = "asked"
    what: str
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """Tasks were given other terms (priority, memory, time limit, …); what they run stays as it was."""

    kind: ClassVar[str] = "changed"
    terms: int
    """The number of their terms from now on."""
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limited:
    """New starts of the run have other limits: so many at once, so many on a device, nothing on closed devices."""

    kind: ClassVar[str] = "limited"
    jobs: int | None = None
    max_per_device: int | None = None
    closed: tuple[str, ...] = ()
    """Keys of devices."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that no device here can ever hold, found out after it was accepted."""

    kind: ClassVar[str] = "refused"
    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class Learned:
    """An argument of a script was found not to change its memory, or the first peak that says otherwise was seen."""

    kind: ClassVar[str] = "learned"
    script: str
    argument: str
    neutral: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that are not run, because the same rows succeeded in an earlier run of their list."""

    kind: ClassVar[str] = "skipped"
    done_by: int
    """The number of that run."""
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Halted:
    """Nothing more is started, and what runs ends: the first rows all failed alike, or too many tasks failed."""

    kind: ClassVar[str] = "halted"
    why: str
    """`first rows` or `failures`."""
    task: int
    attempt: int
    number: int
    """How many failed."""
    line: str = ""
    """What the one that is named printed last."""


Event = (
    Submitted
    | Arrived
    | Placed
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
    | Halted
)
TaskEvent = Placed | Started | Resized | Peaked | Exited | Refused

_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in get_args(Event) if kind is not Submitted}


def encode(event: Event) -> dict[str, Any]:
    """The event's fields as plain JSON values, without its kind and without what stands at its default."""
    said = {}
    for name, default in _DEFAULTS[event.__class__]:
        value = getattr(event, name)
        if value != default:
            said[name] = value
    return said


def _default(of: Field[Any]) -> object:
    return of.default if of.default_factory is MISSING else of.default_factory()


_DEFAULTS: dict[type[Event], list[tuple[str, object]]] = {
    kind: [(field.name, _default(field)) for field in fields(kind)] for kind in get_args(Event)
}
"""Of each field what it is where nothing was said; nothing equals that of one without a default."""


def decode(kind: str, data: dict[str, Any]) -> Event:
    """The event that `encode` wrote; unknown fields of a newer version are left out."""
    cls: Any = _KINDS[kind]
    known = {name: value for name, value in data.items() if name in cls.__slots__}
    if cls is Placed:
        known["purpose"] = Purpose(known["purpose"])
        known["known_by"] = KnownBy(known["known_by"])
    elif cls is Exited:
        known["outcome"] = Outcome(known["outcome"])
    for name in ("tasks", "closed"):
        if name in known:
            known[name] = tuple(known[name])
    event: Event = cls(**known)
    return event
