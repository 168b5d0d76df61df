"""The ports: Protocols for what the loop needs from outside; real and simulated implementations satisfy them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.core.events import Event, Exited, Observed, Started, Submitted
from scheduler.core.leases import NO_OFFER, NO_UNNAMED, HeldLease, Lease, RoomCall, RoomOffer, Trees, UnnamedShim
from scheduler.core.model import Device, DeviceBudget, Job, Placement, Purpose, Terms, Waiter, WaitTicket, Warn
from scheduler.core.placement.refusal import Refusal
from scheduler.core.reporting.published_forecast import PublishedForecast
from scheduler.core.site_policy import SitePolicy
from scheduler.values import dataclass, field

if TYPE_CHECKING:
    from scheduler.core.profiling.class_profile import Observation
    from scheduler.core.profiling.task_class import TaskClass

Key = tuple[int, int]
"""A task and its attempt."""
StepReading = tuple[str, float, float]
"""The name of a metric, a value, and its step."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The complete description from which an engine starts one attempt."""

    task: int
    attempt: int
    purpose: Purpose
    argv: tuple[str, ...]
    directory: str
    env: Mapping[str, str | None]
    """Changes to the run's environment; None removes a variable."""
    timeout: float | None = None
    grace: float = 30.0
    stop_signal: int = 15
    lease: str = ""
    """Path of the lease file; the shim unlinks it when the tree is empty."""
    lease_fd: int = -1
    """The locked descriptor of that file, passed to the shim; the engine closes its own copy."""
    warn: Warn | None = None
    """The warning signal that the task gets some time before its time limit."""
    stdout: str = ""
    """A file for its standard output, relative to its directory or absolute; empty: its log."""
    stderr: str = ""
    ending: tuple[str, ...] = ()
    """A command that runs to its end, or for at most `shim.ENDING` seconds, before the process tree gets a signal."""
    kept_fd: int = -1
    """A locked descriptor that stays open while the attempt lives. The engine passes a copy; this one stays with the
    caller."""
    bounds: Mapping[str, Any] | None = None
    """The umask and limits of the shell that the task was submitted from; None: the run's."""
    once: bool = False
    """True if the shim of this attempt must not run another one, because the GPU sampler identifies processes by
    their shim."""
    node: str = ""
    """The node that starts it; empty: this machine. Paths, lease and environment are completed there."""
    limits: tuple[str, ...] = ()
    """The lines of `dmem.max` of its control group: limits on GPU memory that the kernel keeps."""
    until: str = ""
    """The file on its node that says until when it may live without news of its scheduler; empty: for ever."""
    saves: bool = False
    """True if it gets the stop signal before the `ending`: it is Resumable, and saves when it is asked to stop."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The measured use of a living attempt by device; `peak` is its highest use so far."""

    task: int
    attempt: int
    used: Mapping[str, int]
    peak: Mapping[str, int]
    progress: float | None = None
    """The number of completed epochs, if its output or SCHEDULER_PROGRESS reports them."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """The share of time for which it keeps each of its GPUs busy, if that can be measured."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """The share of time for which all processes together keep each of these GPUs busy, if that can be measured."""
    mps: str = ""
    """`client` or `turns` once it is known whether MPS accepted it."""
    absent: tuple[str, ...] | None = None
    """GPUs that it may use and has provably not used so far; None: this sample says nothing about GPUs."""
    cpu_seconds: float | None = None
    """The processor time of its processes so far; None: it was not measured."""
    rested: float = 0.0
    """Seconds for which none of its processes has run, where that was measured."""
    epochs: float | None = None
    """The number of all epochs, if that is reported too."""
    metrics: Mapping[str, Sequence[float | None]] | None = None
    """The last values of its most important metrics; None: they have not changed."""
    readings: Sequence[StepReading] = ()
    """New values of the metrics by which tasks are stopped early, each with its step."""
    ended: bool = False
    """True if the attempt has ended, and only what it had written was read."""
    strayed: Mapping[str, int] = field(default_factory=dict)
    """Bytes that it uses on GPUs that it was not given."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Where to sample one living attempt."""

    shim: int
    files: tuple[str, ...] = ("", "", "", "", "", "")
    """Its output, progress and result, the record of its metrics, the names that are looked for, and those of the
    metrics by which tasks are stopped early."""
    reservation: Mapping[str, int] = field(default_factory=dict)
    """The reservation on its GPUs, in the order in which it sees them, and on the host."""
    settled: bool = True
    """True if its need is known; other attempts are sampled more often."""
    mps: bool = False
    """True if it was launched under MPS."""
    ram_expected: bool = False
    """True if its RAM beside its GPUs is still an expectation."""
    guest: int = 0
    """The process outside of its shim's tree for which it holds devices, with its descendants; 0: none."""
    activity: bool = False
    """True if the processor time of its processes, and how long all of them have been idle, are measured, because it
    may compute without its GPUs."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a user to a run: by a signal (drain, stop, kill, leave, hangup) or by a command."""

    what: str
    """A RunRequest or a Verb of `control/request_kinds`; any other word is answered as unknown."""
    tasks: tuple[int, ...] = ()
    """The tasks that it concerns; empty: the run, or all tasks to which the request can apply."""
    said: Mapping[str, str] = field(default_factory=dict)
    """The requested changes, each with its value as the user wrote it."""
    name: str = ""
    """The name of the answer; empty: no process waits for an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: the tasks (none: the run), whether it was carried out, and a sentence."""

    tasks: tuple[int, ...]
    done: bool
    says: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The answer as data for programs, if that was requested."""


Happening = Started | Exited | Observed | Sample | Request


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Batches that joined a run, and a sentence if its file was changed in another way."""

    batches: Sequence[Submitted] = ()
    sentence: str = ""
    more: bool = False
    """True if its source is still open: then the run has not ended even if no task is left."""


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """The answer to a submission, and the batches that joined the run by it."""

    answer: Answer
    batches: Sequence[Submitted] = ()


class World(Protocol):
    """Time, and the events that the loop waits for."""

    def now(self) -> float:
        """Return the seconds since the epoch, for the journal and for users."""

    def wall(self) -> float:
        """Return the wall clock in seconds since the epoch, for times that users gave; it may be set at any moment."""

    def wait(self, timeout: float, until: float = inf) -> list[Happening]:
        """Return as soon as something has happened, when the timeout is over, or when the wall clock shows `until`.

        An early empty result is allowed.
        """


class Engine(Protocol):
    """The starter and stopper of attempts; it never decides, prints, or touches the journal."""

    def launch(self, order: Launch) -> None:
        """Start an attempt without waiting for it; the result arrives through `collect`. Never raise."""

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Ask a living attempt to end: stop signal, grace, then the whole tree; `kill` skips the grace."""

    def adopt(self, task: int, attempt: int) -> None:
        """Take over an attempt that an earlier scheduler placed, whatever its state.

        Started follows if it is alive, and Exited in the end. An attempt that never started is fenced, so that it never
        will, and Exited LOST follows.
        """

    def collect(self) -> list[Started | Exited]:
        """Return what happened since the last call; never block."""

    def has_ended(self, task: int, attempt: int) -> bool:
        """Tell whether an attempt is over, even if its Exited was not returned or not committed yet."""

    def troubles(self) -> Sequence[str]:
        """Return sentences about what prevents attempts from being started or reported, since the last call."""

    def forget(self, task: int, attempt: int) -> None:
        """Remove what an attempt left for a later scheduler; its Exited is committed."""


class Devices(Protocol):
    """The devices of the machine; this port neither reserves nor launches anything."""

    def discover(self) -> tuple[Device, ...]:
        """Return the devices that this process may use; they are constant during a run. Raise DeviceError if there
        are none.
        """

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return what each device has free now. Do not block for long, because the lease mutex is held."""

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the environment of a task with this placement; None removes a variable.

        `numbers`: its program understands GPUs only as numbers.
        """

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the numbers that CUDA inside the task gives to the GPUs of its placement."""


@dataclass(frozen=True, slots=True)
class MpsLaunch:
    """The additions of MPS to a launch."""

    environ: Mapping[str, str | None]
    ending: tuple[str, ...]
    kept_fd: int


@dataclass(frozen=True, slots=True)
class FenceLaunch:
    """The additions of a memory limit to a launch: variables, and lines for the control group."""

    environ: Mapping[str, str | None] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


class MemoryFence(Protocol):
    """A limit on the GPU memory of tasks outside of MPS."""

    def limit(self, placement: Placement, argv: Sequence[str], environ: Mapping[str, str | None]) -> FenceLaunch:
        """Return the additions that keep a task within its reservation; none if that is impossible for its command."""


class GpuSharing(Protocol):
    """NVIDIA's MPS, with which several tasks use a GPU at the same time."""

    def attend(self, placement: Placement) -> MpsLaunch:
        """Return the additions for the launch of a placement with a thread percentage."""

    def suspect(self, device: str, sentence: str) -> None:
        """Note that an attempt failed as if MPS had failed; `closed` names the device until its daemon accepts tasks
        again.
        """

    def closed(self) -> Mapping[str, str]:
        """Return the devices on which nothing can start under MPS now, each with the reason."""


class Watcher(Protocol):
    """The measurement of living attempts' memory, in another process; it may miss something, but never blocks."""

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        """Sample these attempts and the process trees of other leases from now on.

        From now on none of their processes counts as unmanaged. Neither does a process that may belong to a lease whose
        shim is in `unnamed`.

        The mapping belongs to the caller, who calls this again right before or after changing it.
        """

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """Return the last measured use of the process tree of another scheduler's shim; empty if it cannot be seen.

        `whose` is the name of its lease: use under an earlier lease of the same shim does not count.
        """

    def troubles(self) -> Sequence[str]:
        """Return sentences about devices that appeared or disappeared since the last call."""


class LeaseTransaction(Protocol):
    """A transaction on the machine's leases, during which no other scheduler can decide."""

    def others(self) -> list[Lease]:
        """Return all live leases of other runs."""

    def take(self, placement: Placement, guest: str = "") -> HeldLease:
        """Write and lock this placement's lease, with the guest of its task."""

    def take_all(self, wanted: Sequence[tuple[Placement, str]]) -> Iterator[tuple[Placement, HeldLease]]:
        """Take the leases of these placements, each with its guest, and yield each with its lease; leave out those that
        cannot be kept any more. Raise LeaseError.
        """

    def waiters(self) -> list[Waiter]:
        """Return all other schedulers that wait for capacity."""

    def wait(self, ticket: WaitTicket | None) -> None:
        """Publish what this run waits for; None: it waits for nothing."""

    def house(self) -> SitePolicy:
        """Return the user's quota, and the devices on which this run may start nothing."""


class LeaseRegistry(Protocol):
    """This run's access to the reservations of the machine."""

    def deciding(self) -> AbstractContextManager[LeaseTransaction]:
        """Hold the mutex of the whole machine; hold it only briefly. After 5 seconds raise LeaseError, which names the
        holder.
        """

    def seen(self) -> list[Lease]:
        """Return the leases of other runs for a view, without taking the mutex; those of nodes as last reported."""

    def calls(self) -> Sequence[RoomCall]:
        """Return the requests of this user's other runs to make room; take no mutex."""

    def rewrite(self, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> bool:
        """Bring the lease of a living attempt up to date; return False if it has none any more."""

    def troubles(self) -> Sequence[str]:
        """Return sentences about problems with the leases of other schedulers."""

    def adopt(self, task: int, attempt: int) -> None:
        """Expect the lease of an attempt that an earlier scheduler started."""

    def missing(self) -> Sequence[Key]:
        """Return the attempts without a lease: it was removed by another user, with the directory, or at the
        attempt's own end.
        """

    @property
    def has_moved(self) -> bool:
        """True if the whole lease directory was removed or replaced."""

    def restore(self, living: Sequence[tuple[Placement, int, str]]) -> str:
        """Create leases again, each with its shim and its guest, and return a sentence about them. Raise LeaseError."""

    def drop(self, task: int, attempt: int) -> None:
        """Remove the lease of an attempt that was lost; an attempt that ended by itself removed its own."""

    def forget(self, task: int, attempt: int) -> None:
        """Forget the lease of an attempt that ended by itself."""

    def leave(self) -> None:
        """Withdraw this run's wait ticket."""

    def publish(self, forecast: PublishedForecast | None) -> None:
        """Tell other schedulers what their forecasts need to know about this run; None: it has nothing to do."""

    @property
    def uid(self) -> int:
        """The user id of this run."""

    @property
    def run(self) -> str:
        """The name of this run in its leases and tickets."""


class RunStore(Protocol):
    """The run's journal as the loop needs it."""

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        """Append events; these and all earlier ones are durable on return. Raise StateError.

        With `later` they are only buffered, and written with the next call. A call without events writes the buffer,
        and waits for the disk unless it also says `later`.
        """

    def job(self, task: int) -> Job:
        """Return the text of a task."""

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """Return the JSON object that an ended attempt left; empty if there is no valid one."""

    def ignored_result(self, task: int, attempt: int) -> str:
        """Return a sentence that says why the result file of an ended attempt is not valid; empty if it left none."""

    def number_of(self, terms: Terms) -> int:
        """Return the number by which events refer to these terms; it is durable on return. Raise StateError."""

    def kind(self, task: int) -> TaskClass:
        """Return the class of a task: what determines its memory."""

    def learn(self, kind: TaskClass, evidence: Observation, devices: Sequence[str]) -> None:
        """Keep the observation of an ended attempt for later runs, with the hardware of these devices of the run as its
        key.
        """

    def probe_id(self, task: int) -> int:
        """Return the id of a probe of this task, with a directory of its own. Raise StateError if none can be
        created.
        """

    def end_probe(self, task: int, told: int) -> None:
        """Remove the files of a probe."""

    def arrivals(self, *, last: bool) -> Arrivals:
        """Return batches that were appended to the run's source and accepted durably; `last`: no task is left to
        run.
        """


class View:
    """An observer of the run. It passes everything on to its inner view, if it has one, and must never stop the run."""

    inner: View | None = None

    def __init__(self, inner: View | None = None) -> None:
        self.inner = inner

    def show(self, event: Event, at: float) -> None:
        """Show an event that was recorded and applied."""
        if self.inner is not None:
            self.inner.show(event, at)

    def say(self, sentence: str) -> None:
        """Show a sentence to the user."""
        if self.inner is not None:
            self.inner.say(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Show why the next tasks do not start now."""
        if self.inner is not None:
            self.inner.waits(refusals)

    def hang_up(self) -> None:
        """Stop writing to the terminal, because it is closed; files are still written."""
        if self.inner is not None:
            self.inner.hang_up()
