"""What was found on a machine, as values: what the page of `doctor` is made of, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Failed:
    """A part that could not be looked at; the page goes on without it."""

    failed: str
    traceback: str
    cure: str = ""
    """Empty: it is a fault of ours."""


@dataclass(frozen=True, slots=True)
class Program:
    """The scheduler, and the Python that runs it."""

    version: str
    place: str
    python: str
    python_version: str


@dataclass(frozen=True, slots=True)
class Foreigner:
    """What one user without a lease holds on a GPU."""

    user: str
    """Empty: no process of it can be seen."""
    bytes: int
    calm: float
    """Seconds since it came or last grew."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, whether it may be used or not."""

    index: int
    uuid: str = ""
    model: str = ""
    total: int = 0
    free: int | None = None
    """None where nobody looked: it may not be used, or cannot."""
    compute_mode: str = ""
    mig: bool = False
    accounting: bool = False
    reads: str = ""
    """Whether memory is seen per `process`, or only per `device`; empty where nobody looked."""
    allowed: bool = False
    trouble: str = ""
    cure: str = ""
    foreign: tuple[Foreigner, ...] = ()
    kept: int = 0
    """Bytes kept free for the growth of that."""
    promised_held: int = 0
    """Bytes that tasks with a promise hold."""

    @property
    def usable(self) -> bool:
        """Whether a run would use it now."""
        return self.allowed and not self.trouble and not self.mig and self.compute_mode != "prohibited"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The NVIDIA driver, its GPUs, and which of them may be used from here."""

    driver: str
    cuda: str
    module: str
    """Where pynvml lies, and whose it is."""
    module_trouble: str
    module_cure: str
    why: str
    """Why there are no GPUs at all."""
    cure: str
    broken: bool
    """Whether that is to be repaired, and not just a machine without a GPU."""
    gpus: tuple[Gpu, ...]
    allowed_by: str
    """Which variable or cgroup leaves some out; empty where nothing does."""
    refused: str
    """Why nobody can tell which may be used."""
    notes: tuple[str, ...]
    cuda_numbers: Mapping[int, int]
    """By nvidia-smi's number that of CUDA, in the order of PCI bus ids."""
    by_bus: bool
    """Whether CUDA counts in that order here."""
    told: str
    """How tasks are told their GPUs: by `uuid`, or CUDA's `index`."""
    first_namespace: bool
    policy: str
    """How foreigners are treated: headroom, avoid, ignore."""
    calm: float
    """Nothing is started beside one who came or grew within so many seconds."""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A control daemon of MPS that runs."""

    directory: str
    pid: int
    user: str
    found: bool
    """Whether CUDA finds it by itself, so that tasks join it."""


@dataclass(frozen=True, slots=True)
class Mps:
    """NVIDIA's Multi-Process Service, as far as it is here."""

    program: str
    daemons: tuple[MpsDaemon, ...]
    variables: Mapping[str, str]
    """Those of the shell, which are kept from tasks."""
    left: tuple[str, ...] = ()
    """Where daemons of this user's runs lie that nobody uses any more."""


@dataclass(frozen=True, slots=True)
class Limited:
    """How much of something may be used, and who says so."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Host:
    """RAM, cores and what belongs to them."""

    memory: Limited
    ram: int
    free: int
    cores: Limited
    all_cores: int
    cgroups: str
    swap: int
    counts_kills: bool
    kills: int
    shared: int | None
    """Bytes of /dev/shm; None: there is none."""
    shared_free: int


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that tasks inherit; None: there is none."""

    name: str
    raise_by: str
    """The command that raises it."""
    soft: int | None
    hard: int | None
    used: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where this process lives."""

    container: str
    sign: str
    first_namespace: bool
    wsl: bool
    user: str
    unit: str
    """The login session or service manager that this process belongs to; empty: none."""
    is_session: bool
    kills: bool
    kills_by: str
    lingers: bool
    ends_us: bool
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class TaskPython:
    """The Python that `-1` in a CSV means."""

    path: str
    said_by: str
    """The source of the setting; empty: it is the one that runs the scheduler."""
    runs: bool
    environment: str
    """The active environment; empty: none."""
    environment_kind: str
    inside: bool
    """Whether the Python is that of the active environment."""


@dataclass(frozen=True, slots=True)
class State:
    """Where runs are kept."""

    path: str
    there: bool
    file_system: str
    network: bool
    why: str
    """Why it is not at the usual place."""
    free: int
    trouble: str
    """Why it cannot be made or written."""
    runs: int


@dataclass(frozen=True, slots=True)
class Promises:
    """The living leases of one user."""

    user: str
    leases: int
    promised: Mapping[str, int]
    """By device: a UUID, or `host`."""


@dataclass(frozen=True, slots=True)
class Leases:
    """The directory in which everybody's promises meet."""

    path: str
    there: bool
    mode: str
    owner: str
    trouble: str
    cure: str
    private: bool
    """Whether nobody else can promise anything there."""
    strangers: bool
    """Whether it belongs to another user than root or oneself, who could take leases away."""
    promises: tuple[Promises, ...]
    unreadable: tuple[str, ...]
    """Whose leases this version cannot read."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it holds here."""

    name: str
    value: Any
    unit: str
    """`bytes`, `seconds`, or nothing."""
    source: str
    """`default`, `flag`, `environment`, or a file."""


@dataclass(frozen=True, slots=True)
class SettingsFound:
    """All settings; `trouble` where some could not be read, and the page was made with the defaults."""

    settings: tuple[Setting, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class House:
    """What root says of this machine."""

    path: str
    there: bool
    trouble: str = ""
    cure: str = ""
    stops: bool = False
    """Whether no run starts before it is mended."""
    devices: str = ""
    caps: Mapping[str, int | None] = field(default_factory=dict)
    """What this user may hold at a time; None: as much as there is."""
    caps_by: str = ""
    may: Mapping[str, str] = field(default_factory=dict)
    """Who may do what besides root, in words."""
    may_i: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Names in it that nobody here has."""


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything."""

    hostname: str
    program: Program | Failed
    gpus: Gpus | Failed
    mps: Mps | Failed
    host: Host | Failed
    surroundings: Surroundings | Failed
    python: TaskPython | Failed
    state: State | Failed
    leases: Leases | Failed
    house: House | Failed
    settings: SettingsFound | Failed
