"""The ports: what the loop asks of the world, as Protocols; every real thing and every fake keeps the same promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.core.events import Event, Exited, Started, Submitted
from scheduler.core.house import House
from scheduler.core.model import (
    Budget,
    Device,
    Job,
    Placement,
    Purpose,
    Refusal,
    Terms,
    Ticket,
    Waiter,
    Warn,
)
from scheduler.core.promises import Lease, Taken
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.core.kinds import Kind
    from scheduler.core.knowledge import Evidence

Key = tuple[int, int]
"""A task and its attempt."""


@dataclass(frozen=True, slots=True)
class Launch:
    """All that an engine needs to start one attempt."""

    task: int
    attempt: int
    purpose: Purpose
    argv: tuple[str, ...]
    directory: str
    env: Mapping[str, str | None]
    """On top of the run's environment; None takes a name away."""
    timeout: float | None = None
    grace: float = 30.0
    stop_signal: int = 15
    lease: str = ""
    """Path of the lease file; the shim unlinks it when the tree is empty."""
    lease_fd: int = -1
    """Locked descriptor of that file, handed over to the shim; the engine closes its own copy."""
    warn: Warn | None = None
    """What it gets some time before its limit."""
    stdout: str = ""
    """A file for its output, in its directory unless it is absolute; empty: its log."""
    stderr: str = ""
    ending: tuple[str, ...] = ()
    """A command that is run to its end, or for `shim.ENDING` seconds, before anybody of its tree is signalled."""
    kept_fd: int = -1
    """A locked descriptor that is kept open for as long as it lives; a copy is handed over, this one stays ours."""
    once: bool = False
    """Whether the process that watches over it may never watch over another attempt: whoever looks at GPUs remembers
    processes by it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a living attempt was last seen to hold, by device; `peak` is the most it held at any moment so far."""

    task: int
    attempt: int
    used: Mapping[str, int]
    peak: Mapping[str, int]
    progress: float | None = None
    """Epochs done, where its output or SCHEDULER_PROGRESS says so."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """What share of each of its GPUs it keeps busy, where that can be told."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """How busy everybody together keeps each of these GPUs, where that can be told."""
    mps: str = ""
    """`client` or `turns`, once it is known whether MPS took it."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Where to look for one living attempt."""

    shim: int
    log: str = ""
    progress: str = ""
    promise: Mapping[str, int] = field(default_factory=dict)
    """Of its GPUs, in the order it sees them, and of the host."""
    settled: bool = True
    """Whether what it needs is known; what is not is looked at more often."""
    mps: bool = False
    """Whether it was launched under MPS."""


@dataclass(frozen=True, slots=True)
class Request:
    """Something a person asked of a run: by a signal (drain, stop, kill, leave, hangup) or by a verb."""

    what: str
    tasks: tuple[int, ...] = ()
    """Whom it is about; none: the run, or all of it that this can be asked of."""
    said: Mapping[str, str] = field(default_factory=dict)
    """What is to be changed and to what, as people write it."""
    name: str = ""
    """What the answer goes by; empty: nobody waits for one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request: of which tasks (none: of the run), whether it was done, and in words."""

    tasks: tuple[int, ...]
    done: bool
    says: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same as data, for programs, where that was asked for."""


Happening = Started | Exited | Sample | Request


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Batches that joined a run, and a sentence where its file was changed in another way."""

    batches: Sequence[Submitted] = ()
    sentence: str = ""
    more: bool = False
    """Whether its source is still open: with nothing left to run, the run is not over."""


class World(Protocol):
    """Time, and whatever happens in it."""

    def now(self) -> float:
        """Seconds since the epoch, for the journal and for people."""

    def wait(self, timeout: float) -> list[Happening]:
        """Return as soon as something happened, or when the time is over; may return nothing early."""


class Engine(Protocol):
    """Makes decisions true; never decides, never prints, never touches the journal."""

    def launch(self, order: Launch) -> None:
        """Start an attempt without waiting for it; what comes of it happens in the world. Never raises."""

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Ask a living attempt to end: stop signal, grace, then the whole tree; `kill` skips the grace."""

    def adopt(self, task: int, attempt: int) -> None:
        """Take over an attempt that an earlier scheduler placed, whatever became of it.

        Started happens if it lives, and in the end Exited; an attempt that never came to run is fenced, so that it
        never will, and Exited LOST happens.
        """

    def collect(self) -> list[Started | Exited]:
        """What happened since the last call; never blocks."""

    def forget(self, task: int, attempt: int) -> None:
        """Its Exited is committed: what it left for a later scheduler may go."""


class Devices(Protocol):
    """What memory exists; reserves nothing and launches nothing."""

    def discover(self) -> tuple[Device, ...]:
        """The devices this process may use; raises DeviceError where there are none. The same for a run's life."""

    def snapshot(self) -> tuple[Budget, ...]:
        """What each of them has free at this moment; never blocks for long, called with the lease mutex held."""

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """What a task placed so must find in its environment; None takes a name away."""


@dataclass(frozen=True, slots=True)
class Attended:
    """What a task under MPS is launched with."""

    environ: Mapping[str, str | None]
    ending: tuple[str, ...]
    kept_fd: int


class Sharing(Protocol):
    """NVIDIA's MPS: how several tasks really share a GPU at one moment."""

    def attend(self, placement: Placement) -> Attended:
        """What a placement with a percentage is launched with."""

    def suspect(self, device: str, sentence: str) -> None:
        """An attempt failed there as if MPS had: `closed` says so until its daemon is seen to accept tasks again."""

    def closed(self) -> Mapping[str, str]:
        """Devices on which nothing can be started under MPS now, each with the reason."""


class Watcher(Protocol):
    """Looks at the memory of living attempts, in a process of its own; may miss, never blocks."""

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Look at these attempts from now on, and at the trees of other leases' shims.

        The mapping stays the caller's: before it is changed, or right after that, this is called again.
        """

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """What the tree of another scheduler's shim was last seen to hold; nothing where it cannot be seen.

        `whose` is its lease's name: what the shim had for another lease before does not count.
        """

    def troubles(self) -> Sequence[str]:
        """Sentences about devices that came or went since the last call."""


class Desk(Protocol):
    """The machine's leases while nobody else may decide."""

    def others(self) -> list[Lease]:
        """Every living lease that is not this run's."""

    def take(self, placement: Placement) -> Taken:
        """Write and lock this placement's lease."""

    def waiters(self) -> list[Waiter]:
        """Every other scheduler that waits for room."""

    def wait(self, ticket: Ticket | None) -> None:
        """Let everybody know for what this run waits; None: for nothing."""

    def house(self) -> House:
        """What the administrator lets this user hold, and where nothing of this run may start."""


class Ledger(Protocol):
    """This run's place among the machine's promises."""

    def deciding(self) -> AbstractContextManager[Desk]:
        """The mutex of the whole machine; keep it short. Raises LeaseError, naming who holds it, after 5 seconds."""

    def rewrite(self, placement: Placement, shim: int) -> bool:
        """Bring the lease of a living attempt up to date; False where it has none any more."""

    def drop(self, task: int, attempt: int) -> None:
        """Remove the lease of an attempt that was lost; one that ended by itself removed its own."""

    def leave(self) -> None:
        """This run waits for nothing any more."""

    @property
    def uid(self) -> int:
        """Whose it is."""


class Book(Protocol):
    """The run's journal as the loop needs it."""

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        """Append events; they and all before them are durable when it returns. Raises StateError.

        With `later` they are only kept, and written together with those of the next call; without events that call
        writes what is kept, and waits for the disk unless it says `later` itself.
        """

    def job(self, task: int) -> Job:
        """The text of a task."""

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """The flat object an ended attempt left; empty where it left none that can be taken."""

    def number_of(self, terms: Terms) -> int:
        """The number by which events name these terms; durable when it returns. Raises StateError."""

    def kind(self, task: int) -> Kind:
        """What kind a task is of: what determines its memory."""

    def learn(self, kind: Kind, evidence: Evidence) -> None:
        """Keep what an ended attempt taught, for later runs."""

    def probe_id(self, task: int) -> int:
        """The id a probe of this task goes by, with a folder of its own."""

    def end_probe(self, task: int, told: int) -> None:
        """Remove what a probe left."""

    def arrivals(self, *, last: bool) -> Arrivals:
        """Batches that were appended to the run's source since, accepted durably; `last`: nothing else is left."""


class View(Protocol):
    """Is told what happens; must never stop the run."""

    def show(self, event: Event, at: float) -> None:
        """An event was recorded and applied."""

    def say(self, sentence: str) -> None:
        """Something the user should know."""

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Why the next tasks do not start now."""

    def hang_up(self) -> None:
        """Whoever looked is gone; what comes is still kept."""
