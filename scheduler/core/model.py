"""The frozen values that the rooms hand to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from scheduler.core.house import NO_CAPS, Caps
from scheduler.values import dataclass

HOST = "host"
NO_TASK = -1
"""Where a task's number stands and there is none: the first of all is 0."""
SHARED_OUT = 0
"""The thread percentage that says: what the residents leave each other."""
NAMED = "name:"
"""What the key of a slot begins with."""


def gpus_in(keys: Iterable[str]) -> tuple[str, ...]:
    """Those of these devices that are GPUs, in their order: neither the host nor a slot."""
    return tuple([key for key in keys if key != HOST and not key.startswith(NAMED)])


def shown_in(keys: Iterable[str]) -> tuple[str, ...]:
    """The devices people are told that a task runs on: its slot, else its GPUs, else the host."""
    said = tuple(keys)
    return tuple(key for key in said if key.startswith(NAMED)) or gpus_in(said) or (HOST,)


class State(StrEnum):
    """Where a task stands; the words people read."""

    WAITING = "waiting"
    HELD = "held"
    PROBING = "probing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    SKIPPED = "skipped"


LIVING = frozenset({State.PROBING, State.RUNNING})
RETRIABLE = frozenset({State.FAILED, State.OOM, State.TIMEOUT, State.CANCELLED, State.REFUSED})
"""Ended without success: `retry` takes them back to the line."""
UNFINISHED = frozenset({State.WAITING, State.HELD, State.PROBING, State.RUNNING, State.INTERRUPTED})


class Purpose(StrEnum):
    """Why an attempt is made: for real, or to learn what the task needs."""

    RUN = "run"
    PROBE = "probe"


class Outcome(StrEnum):
    """How an attempt ended, before the lifecycle decides what that means for its task."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    AGAIN = "again"
    """It ended with 75 (EX_TEMPFAIL) and its row says Resumable: it wants to go on in its next turn."""


class KnownBy(StrEnum):
    """How a task's need became known."""

    DECLARED = "declared"
    PROFILE = "profile"
    FAMILY = "family"
    INTERPOLATED = "interpolated"
    PROBE = "probe"
    LIVE = "live"


class Profiling(StrEnum):
    """How the need of a task is learned that nobody knows."""

    AUTO = "auto"
    PROBE = "probe"
    LIVE = "live"
    OFF = "off"


class Manners(StrEnum):
    """What is done about memory of people who use the GPUs without this scheduler."""

    HEADROOM = "headroom"
    AVOID = "avoid"
    IGNORE = "ignore"


class Order(StrEnum):
    """What ranks first: the batch, or the priority over all batches."""

    BATCH = "batch"
    GLOBAL = "global"


class Warn(NamedTuple):
    """A signal that is sent some seconds before the time limit, so that a task can save what it has."""

    signal: int
    before: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What of a task matters to the scheduler; many tasks share one."""

    priority: int = 0
    epochs: int | None = None
    gpus: int | None = None
    memory: int | None = None
    host_memory: int | None = None
    cpus: float | None = None
    retries: int = 0
    timeout: float | None = None
    grace: float = 30.0
    stop_signal: int | Warn = 15
    """The signal that asks it to end; or a warning before the limit, and then TERM."""
    device: str = ""
    exclusive: bool = False
    prefer: str = ""
    retry_on: str = "failed"
    """What `retries` are for: failed, timeout, or failed,timeout."""
    resumable: bool = False
    """Whether it waits for its next turn when it ends with 75."""
    thread_percentage: int | None = None
    """Of its GPU's threads under MPS; SHARED_OUT: whatever the residents leave each other, None: all."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the user wants run, as one row says it; text only, nothing about when or where."""

    row: int
    directory: str
    executable: str
    filename: str
    command: str
    name: str
    env: tuple[tuple[str, str], ...]
    own: tuple[tuple[str, str], ...]
    terms: Terms
    stdout: str = ""
    """Where its standard output goes instead of its log; begun anew by its first attempt."""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A task's text, fetched when it is placed: what to run and what to call it."""

    spec: Spec
    name: str
    key: str
    append: str = "both"
    environ: tuple[tuple[str, str | None], ...] = ()
    """What the Python environment that its row names changes in the run's variables; None takes one away."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing with memory: a GPU, or the host's RAM."""

    key: str
    """What promises and leases are kept under: a GPU's UUID, or `host`."""
    label: str
    """What people call it: `GPU 0`, as nvidia-smi counts, or `host`."""
    total: int
    load_capacity: float
    """What its load is measured in: cores of the host, 1.0 for a GPU that is kept busy all the time."""
    index: int = -1
    """Of a GPU, as nvidia-smi counts; -1: it is none."""
    model: str = ""
    single: bool = False
    """Whether the driver lets one process at a time use it (compute mode EXCLUSIVE_PROCESS)."""
    cards: tuple[str, ...] | None = None
    """Of a slot: the keys of the GPUs that its name means, none where nobody here knows them; None: it is no slot."""

    @property
    def is_slot(self) -> bool:
        """Whether it is a place that the user named, which takes one task whatever that needs."""
        return self.cards is not None

    @property
    def is_gpu(self) -> bool:
        """Whether it is one of those that a task's GPUs are counted in."""
        return self.index >= 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """What somebody who has no lease holds on a device."""

    bytes: int
    user: str = ""
    pid: int = 0
    """0: no process of it can be seen."""
    calm: float = inf
    """Seconds since it came, or last grew."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one device has at this moment, seen from outside any task of ours."""

    device: Device
    free: int
    """Bytes that can be had now; moves late, so never trusted without the promises."""
    cap: int | None = None
    """Bytes all live leases together may promise here (`--devices host:4GiB`)."""
    foreign: tuple[Foreign, ...] = ()
    ghosts: int = 0
    """Bytes of attempts that are over, which the driver has not given back yet."""
    closed: str = ""
    """Why nothing can be started on it now: it is lost, hangs, or has not answered for too long."""
    least: int | None = None
    """The least that was free within the last seconds; None where nobody looked."""
    busy: float | None = None
    """How busy it is, of 1.0; None where that cannot be seen."""
    age: float = 0.0
    """Seconds since it was looked at; 0: all of this is true now."""
    celsius: int | None = None
    """How hot it is, where that is known."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What one live lease promises and has taken on each device; ours or another scheduler's."""

    promised: Mapping[str, int]
    used: Mapping[str, int]
    load: Mapping[str, float]
    unreadable: str = ""
    """Whose live lease it is that nobody here can read: nothing is started beside it."""
    alone: bool = False
    """Whether nothing may be started beside it where it runs."""
    uid: int = -1
    """Whose it is; -1: the run's own."""
    since: float = 0.0
    """When it was taken."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a waiting scheduler says of the task that is next with it, so that everybody's turn can be kept."""

    task: int
    devices: tuple[str, ...]
    """Where it may run."""
    gpus: tuple[int | None, ...]
    """The bytes it asks of each of its GPUs; None: nobody knows."""
    host: int | None
    cores: float = 0.0
    busy: float = 0.0
    alone: bool = False
    waited: float = 0.0
    closed: bool = False
    """Whether later comers have started before it so often, or for so long, that its devices are kept for it."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """Another scheduler that waits for room."""

    name: str
    uid: int
    run: str
    ticket: Ticket
    idle: float = 0.0
    """Seconds since it last looked whether there is room."""
    passed_up: bool = False
    """Whether it has looked at room that seems enough for it, and has not taken it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How long the task of this run that is next has waited among all who wait on the machine."""

    task: int = NO_TASK
    waited: float = 0.0
    closed: bool = False
    last: float = 0.0
    """When this run last started something; 0: not since its scheduler began."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the world looks like at one moment; the only thing a decision may look at besides the Brain."""

    now: float
    budgets: tuple[Budget, ...]
    holds: tuple[Hold, ...] = ()
    """Live leases of everybody else; our own are in the Brain."""
    used: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    """What our own attempts were last seen to hold, by (task, attempt)."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """When an attempt of ours last ended on a device: what it held may not be back yet."""
    uid: int = -1
    """Who we are."""
    caps: Caps = NO_CAPS
    """What we may hold at a time, over all our runs."""
    waiters: tuple[Waiter, ...] = ()
    turn: Turn = Turn()


@dataclass(frozen=True, slots=True)
class Placement:
    """A promise: this attempt may have these bytes on these devices and these cores."""

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
    expected: float = 0.0
    """Seconds it takes, as far as that is known."""
    percentage: int = 0
    """Of its GPU's threads, under MPS; 0: it runs outside of MPS."""
    fence: int = 0
    """The bytes that MPS lets it have, for all of its life; 0: as many as there are."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, in the order it sees them."""
        promise = self.promise
        return () if len(promise) == 1 and HOST in promise else gpus_in(promise)

    @property
    def slot(self) -> str:
        """The key of the slot it has; empty where the run has none."""
        return next((key for key in self.promise if key.startswith(NAMED)), "")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices it runs on: its GPUs, or the host where it has none."""
        return self.gpus or (HOST,)

    @property
    def load(self) -> dict[str, float]:
        """What it asks of each device besides memory."""
        load = {HOST: self.cores}
        for key in self.promise:
            if key != HOST and not key.startswith(NAMED):
                load[key] = self.busy
        return load

    def load_on(self, device: Device) -> float:
        """What it asks of one device besides memory."""
        if device.key == HOST:
            return self.cores
        return self.busy if device.key in self.promise and not device.key.startswith(NAMED) else 0.0

    def by_part(self, by_device: Mapping[str, int]) -> dict[str, int]:
        """Bytes by device as bytes by part: which GPU it was does not matter, which of its GPUs does."""
        parts = {key: str(position) for position, key in enumerate(self.gpus)}
        parts[HOST] = HOST
        return {parts[key]: bytes_ for key, bytes_ in by_device.items() if key in parts}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a task does not start now, as numbers; `explain` makes the sentence."""

    task: int
    reason: str
    device: str = ""
    """What people call it."""
    wanted: int = 0
    room: int = 0
    total: int = 0
    text: str = ""
    """What its device says of itself, where that is the reason."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one pass over the queue came to."""

    placements: tuple[Placement, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    impossible: tuple[Refusal, ...] = ()
    wait: Ticket | None = None
    """What is next in line and found no room."""
    fitting: tuple[str, ...] = ()
    """Waiters whose turn is before ours, and for whom there is room."""
