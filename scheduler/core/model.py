"""Frozen values that packages pass to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from scheduler.core.site_policy import NO_CAPS, Caps
from scheduler.values import dataclass, field

if TYPE_CHECKING:
    from scheduler.core.leases import Lease, RoomCall
    from scheduler.core.placement.refusal import Refusal

HOST = "host"
NO_TASK = -1
"""The number that means no task; the first task has number 0."""
SHARED_OUT = 0
"""The thread percentage that stands for an equal share for each task on the GPU."""
NAMED = "name:"
"""The prefix of a slot's key."""


def host_of(node: str) -> str:
    """Return the key of a node's host among the devices of a run: `host@NODE`, or `host` for the machine itself."""
    return f"{HOST}@{node}" if node else HOST


def on_node(key: str, node: str) -> str:
    """Return the key that a run uses for the device whose key on its own node is `key`."""
    return f"{HOST}@{node}" if node and key == HOST else key


def is_host_key(key: str) -> bool:
    """Tell whether a key of a device is that of a host."""
    return key == HOST or key.startswith(f"{HOST}@")


def gpus_in(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs among these devices in order, without the host and slots."""
    return _gpus_among(tuple(keys))


@lru_cache(maxsize=4096)
def _gpus_among(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPUs among these devices, from a cache: for every sample of every attempt `gpus_in` is called several
    times with the same few sets of devices.
    """
    return tuple([key for key in keys if key != HOST and not key.startswith(NAMED)])


def shown_in(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the devices that users see for a task with these devices: its slot, else its GPUs, else the host."""
    said = tuple(keys)
    return tuple(key for key in said if key.startswith(NAMED)) or gpus_in(said) or (HOST,)


class State(StrEnum):
    """The state of a task, in the words that users read."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    """The task waits for other tasks to end, or for a time, and is in no queue."""
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
    PRUNED = "pruned"
    """The task was stopped early by its metrics (`--stop-when`, `--keep-best`)."""


LIVING = frozenset({State.PROBING, State.RUNNING})
RETRIABLE = frozenset({State.FAILED, State.OOM, State.TIMEOUT, State.CANCELLED, State.REFUSED})
"""States of tasks that ended without success; `retry` moves such tasks back to the queue."""
GOOD_ENDS = frozenset({State.SUCCEEDED, State.SKIPPED, State.PRUNED})
"""The states of tasks that ended as they should."""
UNSUCCESSFUL = RETRIABLE | {State.PRUNED}
"""States of tasks whose results other tasks cannot use. `retry` moves a pruned task back only if the request names
it."""
UNFINISHED = frozenset({State.WAITING, State.BLOCKED, State.HELD, State.PROBING, State.RUNNING, State.INTERRUPTED})


class Purpose(StrEnum):
    """The purpose of an attempt: to run the task for real, or to probe what the task needs."""

    RUN = "run"
    PROBE = "probe"


class Outcome(StrEnum):
    """The way in which an attempt ended, before the lifecycle decides what that means for its task."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    UNSTARTED = "unstarted"
    """The program never started, for lack of something that is not the task's fault: processes, memory, files, the
    server that starts tasks, the task's directory."""
    AGAIN = "again"
    """The attempt ended with code 75 (EX_TEMPFAIL), and its row is Resumable: the task continues in its next turn."""


_SOURCE_WORDS = {
    "declared": "declared in the row", "profile": "known from earlier attempts",
    "earlier version": "from an earlier version", "similar": "from similar tasks",
    "interpolated": "between similar tasks", "probe": "from a probe", "measured": "measured as it ran",
}  # fmt: skip


_SOURCE_WORDS = {
    "declared": "declared in the row", "profile": "known from earlier attempts",
    "earlier version": "from an earlier version", "similar": "from similar tasks",
    "interpolated": "between similar tasks", "probe": "from a probe", "measured": "measured as it ran",
}  # fmt: skip


class EstimateSource(StrEnum):
    """The source of an estimate of what a task needs."""

    DECLARED = "declared"
    """The row of the task states the need."""
    PROFILE = "profile"
    """Attempts of the task class showed the need."""
    EARLIER = "earlier version"
    """An earlier version of the script showed the need, or the script on another driver or model of device."""
    SIMILAR = "similar"
    """Task classes of this script that differ only in arguments that do not matter showed the need."""
    INTERPOLATED = "interpolated"
    """The need is computed from the arguments, using task classes of this script with other values."""
    PROBE = "probe"
    """A short attempt of the task class showed the need."""
    MEASURED = "measured"
    """The need is unknown, and is measured while the task runs."""

    @property
    def words(self) -> str:
        """The phrase that tells users how the need is known."""
        return _SOURCE_WORDS.get(str(self), str(self))

    @property
    def is_watched(self) -> bool:
        """True if an attempt is watched until its memory has settled, because it may need a different amount than
        estimated.
        """
        return self is EstimateSource.MEASURED or self is EstimateSource.EARLIER


class Profiling(StrEnum):
    """The way in which the unknown need of a task is learned."""

    AUTO = "auto"
    PROBE = "probe"
    LIVE = "live"
    SEQUENTIAL = "sequential"
    OFF = "off"


class UnmanagedPolicy(StrEnum):
    """The treatment of GPU memory that is used by processes outside of all schedulers."""

    HEADROOM = "headroom"
    AVOID = "avoid"
    IGNORE = "ignore"


class RankOrder(StrEnum):
    """The first criterion by which waiting tasks are ranked: their batch, or their priority across all batches."""

    BATCH = "batch"
    GLOBAL = "global"


class Warn(NamedTuple):
    """A signal that is sent some seconds before the time limit, so that a task can save its state."""

    signal: int
    before: float


@dataclass(frozen=True, slots=True)
class Terms:
    """The properties of a task that matter to the scheduler; many tasks share one Terms."""

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
    """The signal that asks the task to end. A Warn is a warning before the time limit; SIGTERM follows at the limit."""
    device: str = ""
    node: str = ""
    """The nodes on which the task may run, separated by commas; empty: all."""
    exclusive: bool = False
    prefer: str = ""
    retry_on: str = "failed"
    """The outcomes after which `retries` allow another attempt: failed, timeout, or failed,timeout."""
    resumable: bool = False
    """True if the task waits for its next turn when it ends with code 75."""
    thread_percentage: int | None = None
    """The share of the GPU's threads that the task gets under MPS. SHARED_OUT: an equal share; None: all."""
    hold: bool = False
    """True if the task is held from the start, until it is released."""
    begin: float | None = None
    """The wall-clock time before which the task must not start; None: it may start at once."""
    preempt: bool = False
    """True if less urgent resumable tasks are asked to save and make room for this task, once this task has waited long
    enough."""
    preempt_after: float | None = None
    """Seconds that the task waits before it asks others to make room; None: as the settings of the run say."""
    guest: str = ""
    """The guest for which the task holds devices, in the format of `core/tasks/guest`; empty: none. The guest is a
    process outside of the task's process tree."""
    features: str = ""
    """The features that the task's node must have, separated by commas; empty: none."""

    @property
    def is_bound(self) -> bool:
        """True if the task may run only on some devices of a run."""
        return bool(self.device or self.node or self.features)


@dataclass(frozen=True, slots=True)
class Spec:
    """The text of one row that says what to run; it does not say when and where."""

    row: int
    directory: str
    executable: str
    """The program, to which the words of the command, the epochs and the id are added. Empty: the command itself names
    the program, and nothing is added."""
    command: str
    name: str
    env: tuple[tuple[str, str], ...]
    own: tuple[tuple[str, str], ...]
    terms: Terms
    stdout: str = ""
    """The file for standard output in place of the task's log; the first attempt truncates it."""
    stderr: str = ""
    after: str = ""
    """The tasks that this task depends on, as its row names them."""

    @property
    def is_whole(self) -> bool:
        """True if the command itself names its program."""
        return not self.executable


@dataclass(frozen=True, slots=True)
class TaskShell:
    """The shell in which a task was submitted, if it is not the shell of the run."""

    environ: Mapping[str, str | None]
    """Changes to the run's environment; None removes a variable."""
    python: str
    """The interpreter that an Executable of `-1` means in this shell."""
    bounds: Mapping[str, Any]
    """The shell's umask and limits, as the shim reads them, if they differ from those of the scheduler's process."""


@dataclass(frozen=True, slots=True)
class Job:
    """The text of a task, read when the task is placed: what to run, and the names of the task."""

    spec: Spec
    name: str
    key: str
    append: str = "both"
    environ: tuple[tuple[str, str | None], ...] = ()
    """Changes that the Python environment of the row makes to the run's variables; None removes a variable."""
    shell: TaskShell | None = None
    """The shell in which the task was submitted; None: the shell of the run."""
    results: Callable[[str], str | None] | None = None
    """The function that returns values for placeholders from the results of parents. Call the function only after the
    parents have ended."""
    adapts: bool = True
    """True if launchers in the command get the options that they lack."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device with memory: a GPU, or the host's RAM."""

    key: str
    """The key in reservations and leases: a GPU's UUID, or `host`."""
    label: str
    """The name for users: `GPU 0`, numbered as by nvidia-smi, or `host`."""
    total: int
    load_capacity: float
    """The load that the device can carry: its number of cores for the host, 1.0 for a GPU."""
    index: int = -1
    """The number of the GPU in nvidia-smi; for a MIG instance, the number of its GPU; -1: not a GPU."""
    model: str = ""
    single: bool = False
    """True if the driver admits only one process at a time (compute mode EXCLUSIVE_PROCESS)."""
    part: int = -1
    """The number of the MIG instance on its GPU; -1: the device is not an instance."""
    cards: tuple[str, ...] | None = None
    """For a slot, the keys of its GPUs; empty if they are unknown. None: the device is not a slot."""
    node: str = ""
    """The node to which the device belongs; empty: this machine, the only one of its run. Either all devices of a run
    have a node, or no device has one. The key of a node's host is `host_of(node)`; a GPU's UUID is its key on every
    node. Labels are unique in a run, and begin with the node: `n1 GPU 0`, `n1 host`."""
    features: tuple[str, ...] = ()
    """The features of the device's node, which rows may request."""
    node_ends: float = 0.0
    """The time at which the device's node ends, such as the end of a Slurm allocation, in seconds since the epoch; 0:
    unknown."""

    @property
    def key_there(self) -> str:
        """The key of the device on its own node. Reservations, samples and leases on that node use this key."""
        return HOST if self.is_host else self.key

    @property
    def is_host(self) -> bool:
        """True for the RAM of the machine, or of a node."""
        return self.key == (f"{HOST}@{self.node}" if self.node else HOST)

    @property
    def is_slot(self) -> bool:
        """True for a slot: a place that the user has named, and that holds one task, whatever the task needs."""
        return self.cards is not None

    @property
    def is_instance(self) -> bool:
        """True for a MIG instance. A process sees only one instance, even if it is given several."""
        return self.part >= 0

    @property
    def number(self) -> str:
        """The number of a GPU as users write it: `0`, or `0.1` for a MIG instance."""
        return f"{self.index}.{self.part}" if self.is_instance else str(self.index)

    @property
    def is_gpu(self) -> bool:
        """True for a device that counts towards a task's GPUs."""
        return self.index >= 0


@dataclass(frozen=True, slots=True)
class UnmanagedUse:
    """Memory on a device that belongs to no lease."""

    bytes: int
    user: str = ""
    pid: int = 0
    """The pid of the process; 0 if the process cannot be seen."""
    calm: float = inf
    """Seconds since the process started, or since its use last grew."""

    def to_dict(self) -> dict[str, int | str]:
        """Return the use as JSON values."""
        return {"user": self.user, "pid": self.pid, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """The measured state of one device at this moment; it does not include what is reserved."""

    device: Device
    free: int
    """Bytes that can be allocated now. The measurement lags behind the actual use, so use this number only together
    with the reservations."""
    cap: int | None = None
    """The bytes that all live leases together may reserve on the device (`--devices host:4GiB`); None: no limit."""
    unmanaged: tuple[UnmanagedUse, ...] = ()
    unreclaimed: int = 0
    """Bytes of ended attempts that the driver has not freed yet."""
    closed: str = ""
    """Why nothing can start on the device: it is lost, hangs, or has not answered for too long."""
    least: int | None = None
    """The fewest bytes that were free at any time in the last few seconds; None if this was not recorded."""
    busy: float | None = None
    """The share of time for which the device is busy, up to 1.0; None if it cannot be measured."""
    age: float = 0.0
    """Seconds since the device was measured; 0: the measurement is current."""
    celsius: int | None = None
    """The temperature of the device in degrees Celsius, if known."""
    watts: float | None = None
    """The power that the device draws, in watts, if known."""
    strayed: tuple[tuple[int, int], ...] = ()
    """Tasks of this run that use this GPU although they were not given it, each with the bytes that the task uses
    there."""
    away: str = ""
    """The reason why nothing starts on the device at present, such as the silence of its node. Attempts on the device
    may continue. So, unlike `closed`, this is never the reason for the end of an attempt."""


@dataclass(frozen=True, slots=True)
class WaitTicket:
    """The request of the next task of a waiting scheduler, published so that schedulers can take turns."""

    task: int
    devices: tuple[str, ...]
    """The devices on which the task may run."""
    gpus: tuple[int | None, ...]
    """The bytes that the task requests on each of its GPUs; None: unknown."""
    host: int | None
    cores: float = 0.0
    busy: float = 0.0
    alone: bool = False
    waited: float = 0.0
    closed: bool = False
    """True if later tasks have bypassed the task too often or for too long, so that its devices are kept for it."""
    bare: tuple[int, ...] = ()
    """The bytes without margin with which the task may start: on each of its GPUs, or on the host if it needs none.
    Empty: its request has no margin."""
    last: float = 0.0
    """The time at which the task's run last started something, in seconds since the epoch; 0: it has started nothing
    since its scheduler began."""
    urgent: bool = False
    """True if less urgent tasks of its user make room for the task, so that it precedes all other tasks of that
    user."""
    call: RoomCall | None = None
    """The request that asks other runs of the user to make room; None: no such request."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A scheduler other than this run's that waits for capacity."""

    name: str
    uid: int
    run: str
    ticket: WaitTicket
    idle: float = 0.0
    """Seconds since that scheduler last looked for capacity."""
    passed_up: bool = False
    """True if that scheduler has seen capacity that seems sufficient, and has not used it."""
    lets_capacity_pass: bool = False
    """True if capacity was kept, or devices were drained, for its user, and the user has used none of it so far."""
    who: str = ""
    """The user and process of that scheduler, in the form used by messages."""
    node: str = ""
    """The node on which that scheduler waits; its ticket names devices as that node does."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of this run's next task among all waiting tasks of the machine."""

    task: int = NO_TASK
    waited: float = 0.0
    closed: bool = False
    last: float = 0.0
    """The time at which this run last started something; 0: it has started nothing since its scheduler began."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The state of the machine and of its schedulers at one moment: the only input of a decision besides the Brain."""

    now: float
    budgets: tuple[DeviceBudget, ...]
    leases: tuple[Lease, ...] = ()
    """Live leases of other runs; this run's reservations are in the Brain."""
    used: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    """The last measured use of this run's attempts, by (task, attempt) and then by device. Devices have the names that
    the attempt's node gives them."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """For each device, the time at which an attempt of this run last ended there: its memory may not be free again
    yet."""
    uid: int = -1
    """The user id of this run."""
    caps: Caps = NO_CAPS
    """The quota of this user for all runs together."""
    waiters: tuple[Waiter, ...] = ()
    turn: Turn = Turn()


@dataclass(frozen=True, slots=True)
class Placement:
    """A reservation: the bytes on each device and the cores that an attempt may use.

    A decision creates it, and the journal records it as the event of that decision; nothing has started yet.
    """

    kind: ClassVar[str] = "placed"
    task: int
    attempt: int
    purpose: Purpose
    reservation: Mapping[str, int]
    """Bytes by device, as the attempt's node names devices; RAM is under `host`. The GPUs are in the order in which the
    task sees them. All events, samples and leases of the attempt name devices in this way."""
    cores: float
    source: EstimateSource
    alone: bool = False
    told: int = 0
    """The id that the command of a probe is given; 0: the task's own id."""
    busy: float = 0.0
    """The share of time for which the attempt is expected to keep each of its GPUs busy."""
    expected: float = 0.0
    """The expected duration of the attempt in seconds; 0: unknown."""
    percentage: int = 0
    """The percentage of the GPU's threads for the attempt under MPS; 0: it runs outside of MPS."""
    fence: int = 0
    """The limit in bytes on the attempt's GPU memory, which MPS enforces; 0: no limit."""
    ram_expected: bool = False
    """True if the reservation of RAM for a task on GPUs is only an expectation, to be corrected once its use has been
    measured."""
    visible: tuple[str, ...] = ()
    """The GPUs, in order, that an attempt on the host can see; such an attempt is known to use no GPU now, but may
    begin to use one."""
    port: int = 0
    """The network port that is kept for the attempt; 0: none."""
    node: str = ""
    """The node that has all devices of the attempt; empty: this machine."""

    @property
    def by_device(self) -> Mapping[str, int]:
        """The reservation by the keys that the run uses for devices. Only for the host of a node does the key differ
        from the one that the node itself uses.
        """
        if not self.node or HOST not in self.reservation:
            return self.reservation
        return {on_node(key, self.node): bytes_ for key, bytes_ in self.reservation.items()}

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of the attempt, in the order in which it sees them; none while it runs on the host."""
        reservation = self.reservation
        if self.visible or (len(reservation) == 1 and HOST in reservation):
            return ()
        return gpus_in(reservation)

    @property
    def sees(self) -> tuple[str, ...]:
        """The GPUs that the attempt's program sees, in order, even if it runs on the host."""
        return self.visible or self.gpus

    @property
    def shown(self) -> tuple[str, ...]:
        """The devices of the attempt that users see in output."""
        return (HOST,) if self.visible else shown_in(self.reservation)

    @property
    def slot(self) -> str:
        """The key of the attempt's slot; empty if the run has no slots."""
        return next((key for key in self.reservation if key.startswith(NAMED)), "")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices on which the attempt runs: its GPUs, or the host if it has none."""
        return self.gpus or (HOST,)

    @property
    def load(self) -> dict[str, float]:
        """The load of the attempt on each device: cores on the host, the busy share on a GPU."""
        load = {HOST: self.cores}
        for key in self.reservation:
            if key != HOST and not key.startswith(NAMED):
                load[key] = self.busy
        return load

    def load_on(self, device: Device) -> float:
        """Return the load that the placement adds to a device."""
        if device.is_host:
            return self.cores
        return self.busy if device.key in self.reservation and not device.key.startswith(NAMED) else 0.0

    def by_part(self, by_device: Mapping[str, int]) -> dict[str, int]:
        """Return bytes by part, given bytes by device. A part is `host`, or the position of a GPU among the GPUs of the
        task.
        """
        parts = {key: str(position) for position, key in enumerate(self.sees)}
        parts[HOST] = HOST
        return {parts[key]: bytes_ for key, bytes_ in by_device.items() if key in parts}


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one pass over the queue."""

    placements: tuple[Placement, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    impossible: tuple[Refusal, ...] = ()
    wait: WaitTicket | None = None
    """The ticket of the next task that found too little capacity; None: no task waits for capacity."""
    fitting: tuple[str, ...] = ()
    """The names of waiters whose turn comes before this run's, and for which there is enough capacity."""
    draining: tuple[str, ...] = ()
    """The names of waiters with closed tickets: nothing starts on their devices, although there is not enough capacity
    for them yet."""
