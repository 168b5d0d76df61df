"""The facts about a machine that the page of `doctor` and its JSON are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """A check that failed; the page is made without it."""

    failed: str
    traceback: str
    cure: str = ""
    """Empty: it is an error in the scheduler."""


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """The scheduler, and the Python that runs it."""

    version: str
    place: str
    python: str
    python_version: str


@dataclass(frozen=True, slots=True)
class UnmanagedUser:
    """The unmanaged memory of one user on a GPU."""

    user: str
    """The name; empty if none of the processes can be seen."""
    bytes: int
    calm: float
    """Seconds since it appeared or last grew."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU, allowed or not."""

    index: int
    uuid: str = ""
    model: str = ""
    total: int = 0
    free: int | None = None
    """None if it was not read: the GPU must not or cannot be used."""
    compute_mode: str = ""
    mig: bool = False
    accounting: bool = False
    reads: str = ""
    """`process` if memory is visible per process, `device` if only per device; empty if it was not read."""
    allowed: bool = False
    trouble: str = ""
    cure: str = ""
    unmanaged: tuple[UnmanagedUser, ...] = ()
    kept: int = 0
    """Bytes kept free for the growth of unmanaged memory."""
    reserved_held: int = 0
    """Bytes used by tasks that have a reservation."""

    @property
    def usable(self) -> bool:
        """True if a run would use it now."""
        return self.allowed and not self.trouble and not self.mig and self.compute_mode != "prohibited"


@dataclass(frozen=True, slots=True)
class GpusReport:
    """The NVIDIA driver, its GPUs, and which of them are allowed here."""

    driver: str
    cuda: str
    module: str
    """The path of pynvml and its distribution."""
    module_trouble: str
    module_cure: str
    why: str
    """Why there are no GPUs at all."""
    cure: str
    broken: bool
    """True if that has to be repaired, false on a machine without a GPU."""
    gpus: tuple[GpuReport, ...]
    allowed_by: str
    """The variable or cgroup that excludes some; empty if none does."""
    refused: str
    """Why it is unknown which are allowed."""
    notes: tuple[str, ...]
    cuda_numbers: Mapping[int, int]
    """CUDA's number for each number of nvidia-smi, in the order of PCI bus ids."""
    by_bus: bool
    """True if CUDA uses that order here."""
    told: str
    """The form in which tasks get their GPUs: `uuid`, or CUDA's `index`."""
    first_namespace: bool
    policy: str
    """How unmanaged memory is treated: headroom, avoid, ignore."""
    calm: float
    """Seconds without growth before a task starts beside unmanaged memory."""


@dataclass(frozen=True, slots=True)
class MpsDaemonReport:
    """A control daemon of MPS that runs."""

    directory: str
    pid: int
    user: str
    found: bool
    """True if CUDA finds it by itself, so that tasks join it."""


@dataclass(frozen=True, slots=True)
class MpsReport:
    """NVIDIA's Multi-Process Service on this machine."""

    program: str
    daemons: tuple[MpsDaemonReport, ...]
    variables: Mapping[str, str]
    """The MPS variables of the shell, which tasks do not get."""
    left: tuple[str, ...] = ()
    """Directories of unused daemons of this user's runs."""


@dataclass(frozen=True, slots=True)
class LimitReport:
    """A limit and its source."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class HostReport:
    """RAM, cores, swap and /dev/shm."""

    memory: LimitReport
    ram: int
    free: int
    cores: LimitReport
    all_cores: int
    cgroups: str
    swap: int
    counts_kills: bool
    kills: int
    shared: int | None
    """Bytes of /dev/shm; None if it does not exist."""
    shared_free: int


@dataclass(frozen=True, slots=True)
class UlimitReport:
    """One resource limit that tasks inherit; None is unlimited."""

    name: str
    raise_by: str
    """The command that raises it."""
    soft: int | None
    hard: int | None
    used: int | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """The container, login session and limits that this process is in."""

    container: str
    sign: str
    first_namespace: bool
    wsl: bool
    user: str
    unit: str
    """The login session or service manager of this process; empty: none."""
    is_session: bool
    kills: bool
    kills_by: str
    lingers: bool
    ends_us: bool
    limits: tuple[UlimitReport, ...]


@dataclass(frozen=True, slots=True)
class TaskPython:
    """The Python that `-1` in a CSV stands for."""

    path: str
    said_by: str
    """The source of the setting; empty for the Python that runs the scheduler."""
    runs: bool
    environment: str
    """The active environment; empty: none."""
    environment_kind: str
    inside: bool
    """True if the Python belongs to the active environment."""


@dataclass(frozen=True, slots=True)
class StateReport:
    """The state directory, where runs are kept."""

    path: str
    there: bool
    file_system: str
    network: bool
    why: str
    """Why it is not in the usual place."""
    free: int
    trouble: str
    """Why it cannot be created, written or locked."""
    runs: int
    locked: str = ""
    """The process that keeps its counter locked for long, so that no run starts."""
    kept: int = 0
    """Bytes that must be free on its disk before a task starts."""


@dataclass(frozen=True, slots=True)
class UserLeases:
    """The living leases of one user."""

    user: str
    leases: int
    reserved: Mapping[str, int]
    """The bytes reserved on each device: a UUID, or `host`."""


@dataclass(frozen=True, slots=True)
class LeasesReport:
    """The directory with the leases of all users."""

    path: str
    there: bool
    mode: str
    owner: str
    trouble: str
    cure: str
    private: bool
    """True if other users cannot reserve anything there."""
    other_owner: bool
    """True if it belongs to a user other than root and oneself, who could remove leases."""
    reservations: tuple[UserLeases, ...]
    unreadable: tuple[str, ...]
    """Users with leases that this version cannot read."""


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One setting with its value and source."""

    name: str
    value: Any
    unit: str
    """`bytes`, `seconds`, or nothing."""
    source: str
    """`default`, `flag`, `environment`, or a file."""


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """All settings; with a `trouble` they are the defaults."""

    settings: tuple[SettingReport, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class SiteReport:
    """The site configuration of this machine, written by root."""

    path: str
    there: bool
    trouble: str = ""
    cure: str = ""
    stops: bool = False
    """True if no run starts before it is repaired."""
    devices: str = ""
    caps: Mapping[str, int | None] = field(default_factory=dict)
    """The quotas of this user; None is unlimited."""
    caps_by: str = ""
    may: Mapping[str, str] = field(default_factory=dict)
    """The users and groups with a permission, by permission, in words."""
    may_i: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Names in it that are unknown on this machine."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All facts about a machine."""

    hostname: str
    program: ProgramReport | ProbeFailed
    gpus: GpusReport | ProbeFailed
    mps: MpsReport | ProbeFailed
    host: HostReport | ProbeFailed
    surroundings: EnvironmentReport | ProbeFailed
    python: TaskPython | ProbeFailed
    state: StateReport | ProbeFailed
    leases: LeasesReport | ProbeFailed
    house: SiteReport | ProbeFailed
    settings: SettingsReport | ProbeFailed
