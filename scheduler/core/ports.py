"""The ports: Protocols for what the loop needs from outside. Real and simulated implementations satisfy them."""

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
"""The number of a task and the number of its attempt."""
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
    """Path of the lease file; the shim removes the file when the attempt's process tree is empty."""
    lease_fd: int = -1
    """The locked descriptor of the lease file, which the shim inherits. The engine closes its own copy."""
    warn: Warn | None = None
    """The warning signal, and how many seconds before its time limit the task gets it; None: no warning."""
    stdout: str = ""
    """The file for standard output, absolute or relative to the task's directory; empty: the log."""
    stderr: str = ""
    ending: tuple[str, ...] = ()
    """A command that runs before the process tree gets a signal. The signal waits until the command has ended, but for
    at most `shim.ENDING` seconds."""
    kept_fd: int = -1
    """A locked descriptor that stays open while the attempt lives. The engine passes on a copy; the descriptor itself
    belongs to the caller."""
    bounds: Mapping[str, Any] | None = None
    """The umask and limits of the shell in which the task was submitted; None: the umask and limits of the run."""
    once: bool = False
    """True if the shim of this attempt must not run another attempt, because the GPU sampler identifies processes by
    their shim."""
    node: str = ""
    """The node on which the attempt starts; empty: this machine. The node completes paths, lease and environment."""
    limits: tuple[str, ...] = ()
    """Lines for the file `dmem.max` of the attempt's control group: limits on GPU memory that the kernel enforces."""
    until: str = ""
    """The file on the attempt's node that says how long the attempt may run without contact with its scheduler; empty:
    for ever."""
    saves: bool = False
    """True if the attempt gets the stop signal before the `ending`: its task is Resumable, and saves when asked to
    stop."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a living attempt: its use by device, and its highest use so far (`peak`)."""

    task: int
    attempt: int
    used: Mapping[str, int]
    peak: Mapping[str, int]
    progress: float | None = None
    """The number of completed epochs, if the output or SCHEDULER_PROGRESS reports it."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """The share of time for which the attempt keeps each of its GPUs busy, if that can be measured."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """The share of time for which all processes together keep each of the attempt's GPUs busy, if that can be
    measured."""
    mps: str = ""
    """`client` or `turns` once it is known whether MPS accepted the attempt; empty until then."""
    absent: tuple[str, ...] | None = None
    """The GPUs that the attempt may use, but has provably not used so far; None: this sample does not concern GPUs."""
    cpu_seconds: float | None = None
    """The processor time of the attempt's processes so far; None: it was not measured."""
    rested: float = 0.0
    """Seconds for which no process of the attempt has run; 0 if that was not measured."""
    epochs: float | None = None
    """The total number of epochs, if the attempt reports it."""
    metrics: Mapping[str, Sequence[float | None]] | None = None
    """The last values of the attempt's most important metrics; None: they have not changed."""
    readings: Sequence[StepReading] = ()
    """New values of the metrics by which tasks are stopped early, each with its step."""
    ended: bool = False
    """True if the attempt has ended and the sample contains only what was read from its files."""
    strayed: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the attempt uses on GPUs that it was not given."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The description of a living attempt for the samplers: what to measure, and which files to read."""

    shim: int
    files: tuple[str, ...] = ("", "", "", "", "", "")
    """The paths of output, progress, result and record of metrics; then two lists of metrics: the metrics to look for,
    and the metrics by which tasks are stopped early."""
    reservation: Mapping[str, int] = field(default_factory=dict)
    """The bytes reserved on the attempt's GPUs, in the order in which it sees them, and on the host."""
    settled: bool = True
    """True if the attempt's need is known; attempts of unknown need are sampled more often."""
    mps: bool = False
    """True if the attempt was launched under MPS."""
    ram_expected: bool = False
    """True if the reservation of RAM for an attempt on GPUs is still an expectation."""
    guest: int = 0
    """The pid of a process for which the attempt holds devices, with its descendants, although its shim did not start
    it; 0: none."""
    activity: bool = False
    """True if the attempt may compute without its GPUs. Then the samplers measure the processor time of its processes,
    and how long all of them have been idle."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a user to a run: by a signal (drain, stop, kill, leave, hangup) or by a command."""

    what: str
    """A RunRequest or a Verb of `control/request_kinds`; any other word is answered as unknown."""
    tasks: tuple[int, ...] = ()
    """The tasks that the request concerns; empty: the run, or all tasks to which the request can apply."""
    said: Mapping[str, str] = field(default_factory=dict)
    """The requested changes, each with its value as the user wrote it."""
    name: str = ""
    """The name under which the answer is stored; empty: no process waits for an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: the tasks that it concerns (empty: the run), whether the request was carried out, and a
    sentence.
    """

    tasks: tuple[int, ...]
    done: bool
    says: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The answer as data for programs, if data were requested."""


Happening = Started | Exited | Observed | Sample | Request


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Batches that joined a run, and a sentence if the run's file was changed in a way that adds no batches."""

    batches: Sequence[Submitted] = ()
    sentence: str = ""
    more: bool = False
    """True if the run's source may still add rows, so that the run goes on even if no task is left."""


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """The answer to a submission, and the batches that it added to the run."""

    answer: Answer
    batches: Sequence[Submitted] = ()


class World(Protocol):
    """Time, and the events that the loop waits for."""

    def now(self) -> float:
        """Return the seconds since the epoch, for the journal and for users."""

    def wall(self) -> float:
        """Return the wall-clock time in seconds since the epoch, for times that users gave. The clock may be set at any
        moment.
        """

    def wait(self, timeout: float, until: float = inf) -> list[Happening]:
        """Return the happenings as soon as there are some, when the timeout is over, or when the wall clock shows
        `until`.

        It may return earlier, with an empty list.
        """


class Engine(Protocol):
    """The starter and stopper of attempts; it never makes decisions, prints, or writes to the journal."""

    def launch(self, order: Launch) -> None:
        """Start an attempt without waiting for it; the result arrives through `collect`. Never raise."""

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Ask a living attempt to end: send the stop signal, wait for the grace period, then kill the process tree.
        With `kill`, kill it at once.
        """

    def adopt(self, task: int, attempt: int) -> None:
        """Take over an attempt that an earlier scheduler placed, whatever its state.

        If it is alive, Started follows, and Exited in the end. An attempt that never started is prevented from
        starting, and Exited with the outcome LOST follows.
        """

    def collect(self) -> list[Started | Exited]:
        """Return what happened since the last call; never block."""

    def has_ended(self, task: int, attempt: int) -> bool:
        """Tell whether an attempt has ended, even if its Exited was not returned or not recorded yet."""

    def troubles(self) -> Sequence[str]:
        """Return sentences about what has prevented attempts from being started or reported since the last call."""

    def forget(self, task: int, attempt: int) -> None:
        """Remove the files of an attempt that exist for a later scheduler; call this once its Exited is recorded."""


class Devices(Protocol):
    """The devices of the machine. This port reserves nothing and launches nothing."""

    def discover(self) -> tuple[Device, ...]:
        """Return the devices that this process may use; they are constant during a run. Raise DeviceError if there
        are none.
        """

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return what each device has free now. Do not block for long, because the lease mutex is held."""

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the environment variables for a task with this placement; None removes a variable.

        `numbers` is True if the program understands GPUs only as numbers.
        """

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the numbers that CUDA inside the task uses for the GPUs of its placement."""


@dataclass(frozen=True, slots=True)
class MpsLaunch:
    """The part of a launch specification that MPS adds."""

    environ: Mapping[str, str | None]
    ending: tuple[str, ...]
    kept_fd: int


@dataclass(frozen=True, slots=True)
class FenceLaunch:
    """The part of a launch specification that limits memory: variables, and lines for the control group."""

    environ: Mapping[str, str | None] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


class MemoryFence(Protocol):
    """A limit on the GPU memory of tasks outside of MPS."""

    def limit(self, placement: Placement, argv: Sequence[str], environ: Mapping[str, str | None]) -> FenceLaunch:
        """Return the part of a launch specification that keeps a task within its reservation; empty if its command does
        not allow a limit.
        """


class GpuSharing(Protocol):
    """NVIDIA's MPS, with which several tasks use a GPU at the same time."""

    def attend(self, placement: Placement) -> MpsLaunch:
        """Return the part of a launch specification that MPS adds for a placement with a thread percentage."""

    def suspect(self, device: str, sentence: str) -> None:
        """Note that an attempt on a device failed as if MPS had failed. From then on `closed` contains the device,
        until its MPS daemon accepts tasks again.
        """

    def closed(self) -> Mapping[str, str]:
        """Return the devices on which nothing can start under MPS at present, each with the reason."""


class Watcher(Protocol):
    """The measurement of the memory of living attempts by another process. The measurement never blocks the caller, and
    it may miss short peaks.
    """

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        """Sample these attempts, and the process trees of other leases, from now on.

        None of their processes counts as unmanaged any more, nor does a process that may belong to a shim in `unnamed`.

        The mapping `attempts` belongs to the caller, which calls `watch` right before or after each change of the
        mapping.
        """

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """Return the last measured use of the process tree of another scheduler's shim; empty if that use cannot be
        measured.

        `whose` is the name of the shim's lease: use under an earlier lease of this shim does not count.
        """

    def troubles(self) -> Sequence[str]:
        """Return sentences about devices that appeared or disappeared since the last call."""


class LeaseTransaction(Protocol):
    """A transaction on the leases of the machine: no other scheduler can decide while it is open."""

    def others(self) -> list[Lease]:
        """Return all live leases of other runs."""

    def take(self, placement: Placement, guest: str = "") -> HeldLease:
        """Write and lock the lease of this placement, with the guest of its task. Raise LeaseError if that is
        impossible.
        """

    def take_all(self, wanted: Sequence[tuple[Placement, str]]) -> Iterator[tuple[Placement, HeldLease]]:
        """Take a lease for each placement, given with the guest of its task; yield each placement with its lease. Leave
        out leases that could not be kept. Raise LeaseError if a lease cannot be written.
        """

    def waiters(self) -> list[Waiter]:
        """Return all other schedulers that wait for capacity."""

    def wait(self, ticket: WaitTicket | None) -> None:
        """Publish the ticket that says what this run waits for; None: it waits for nothing."""

    def house(self) -> SitePolicy:
        """Return the user's quota, and the devices on which this run may start nothing."""


class LeaseRegistry(Protocol):
    """The access of one run to the leases of the machine."""

    def deciding(self) -> AbstractContextManager[LeaseTransaction]:
        """Hold the machine-wide mutex, only briefly. After 5 seconds raise LeaseError, which names the process that
        holds it.
        """

    def seen(self) -> list[Lease]:
        """Return the leases of other runs for display, without taking the mutex. Leases on nodes are as last
        reported.
        """

    def calls(self) -> Sequence[RoomCall]:
        """Return the requests of this user's other runs to make room, without taking the mutex."""

    def rewrite(self, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> bool:
        """Write the present state of a living attempt into its lease; return False if the attempt has no lease any
        more.
        """

    def troubles(self) -> Sequence[str]:
        """Return sentences about problems with the leases of other schedulers."""

    def adopt(self, task: int, attempt: int) -> None:
        """Note that an attempt of an earlier scheduler should have a lease."""

    def missing(self) -> Sequence[Key]:
        """Return the attempts that should have a lease but have none, because another user removed the lease or the
        directory, or because the attempt has just ended.
        """

    @property
    def has_moved(self) -> bool:
        """True if the whole lease directory was removed or replaced."""

    def restore(self, living: Sequence[tuple[Placement, int, str]]) -> str:
        """Create lost leases again, each with its shim and its guest, and return a sentence about them. Raise
        LeaseError if a lease cannot be written.
        """

    def drop(self, task: int, attempt: int) -> None:
        """Remove the lease of an attempt that was lost. The shim of any other attempt removes the lease itself."""

    def forget(self, task: int, attempt: int) -> None:
        """Forget the lease of an ended attempt, which its shim has removed."""

    def leave(self) -> None:
        """Withdraw this run's wait ticket."""

    def publish(self, forecast: PublishedForecast | None) -> None:
        """Publish what the forecasts of other schedulers need to know about this run; None: the run has nothing to
        do.
        """

    @property
    def uid(self) -> int:
        """The user id of this run."""

    @property
    def run(self) -> str:
        """The name of this run in its leases and tickets."""


class RunStore(Protocol):
    """The journal of a run, with the functions that the loop needs."""

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        """Append events. On return these and all earlier events are on disk. Raise StateError if they cannot be
        written.

        With `later`, the events are only buffered, and are written with the next call. A call without events writes the
        buffer, and waits for the disk unless it also says `later`.
        """

    def job(self, task: int) -> Job:
        """Return the texts that describe a task: its command, its name, and its shell and environment."""

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """Return the JSON object that an ended attempt wrote as its result; empty if there is no valid one."""

    def ignored_result(self, task: int, attempt: int) -> str:
        """Return a sentence that says why the result of an ended attempt is not valid; empty if the result is valid, or
        the attempt wrote none.
        """

    def number_of(self, terms: Terms) -> int:
        """Return the number under which these terms are stored and which events contain; the terms are on disk on
        return. Raise StateError if they cannot be written.
        """

    def kind(self, task: int) -> TaskClass:
        """Return the task class of a task."""

    def learn(self, kind: TaskClass, evidence: Observation, devices: Sequence[str]) -> None:
        """Store the observation from an ended attempt for later runs, under its class on the hardware of these
        devices.
        """

    def probe_id(self, task: int) -> int:
        """Return an id for a probe of this task, with a directory of its own. Raise StateError if none can be
        created.
        """

    def end_probe(self, task: int, told: int) -> None:
        """Remove the files of a probe."""

    def arrivals(self, *, last: bool) -> Arrivals:
        """Return the batches that were added to the run's source and accepted durably. `last` is True if no task is
        left to run.
        """


class View:
    """An observer of the run. A view passes every call on to its inner view, if it has one, and must never stop the
    run.
    """

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
        """Stop writing to the terminal, because it was closed; files are still written."""
        if self.inner is not None:
            self.inner.hang_up()
