"""Leases: what the living attempts of all schedulers on this machine have reserved and use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class RoomOffer:
    """The part of a lease that the user's other runs read: whether its attempt may be asked to save and make room for
    an urgent task.
    """

    priority: int | None = None
    """The priority of the attempt's task, if the attempt may be asked to make room; None: it may not."""
    asked_by: int | None = None
    """The task for which the attempt was asked to make room; None: it was not asked."""


NO_OFFER = RoomOffer()


@dataclass(frozen=True, slots=True)
class RoomCall:
    """A request to other runs of the same user: their attempts should save and make room for an urgent task."""

    by: int
    """The urgent task."""
    priority: int
    attempts: tuple[tuple[str, int, int], ...]
    """The attempts that should save: the run, the task and the number of each."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A live lease: the contents of its file, and the memory that its attempt uses."""

    name: str
    uid: int
    run: str
    task: int
    attempt: int
    shim: int
    reserved: Mapping[str, int]
    load: Mapping[str, float]
    unreadable: str = ""
    """The owner's name if this user or this version cannot read the file, else empty. An unreadable lease counts with
    the reservation that is known; if none is known, it counts on every device."""
    alone: bool = False
    """True if nothing may start beside the lease's attempt on its devices."""
    since: float = 0.0
    """The time at which the lease was taken, in seconds since the epoch."""
    expected: float = 0.0
    """The expected duration of the attempt in seconds; 0: unknown."""
    locker: int = 0
    """The pid that the kernel shows as the holder of the file's lock; 0 if that pid is of another pid namespace."""
    by_shim: bool = False
    """True if the file was lost and created again. The lease then lives as long as its shim, whether the file is locked
    or not."""
    shim_id: str = ""
    """The mark that distinguishes the shim from other processes with its pid: a later one, or one in another pid
    namespace. Empty: no mark was given."""
    port: int = 0
    """The network port that is kept for the attempt; 0: no port."""
    offer: RoomOffer = NO_OFFER
    guest: int = 0
    """The pid of a process for which the lease holds devices, with its descendants, although the shim did not start it;
    0: none."""
    node: str = ""
    """The node to which the devices belong; the lease names devices as that node does. Empty: this machine."""
    used: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the attempt's process tree uses now, which the file does not contain. If the use cannot be measured it
    counts as 0: this wastes memory, but never overcommits it."""

    @property
    def number(self) -> str:
        """The number of the attempt's run, as users see it."""
        return self.run.partition("-")[0]

    @property
    def ends(self) -> float:
        """The time at which the attempt is expected to end; 0: unknown."""
        return self.since + self.expected if self.expected else 0.0


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A new lease: its path, and the locked descriptor that keeps it alive."""

    path: str
    fd: int
    port: int = 0
    """The network port that is kept for the attempt, and given to no other attempt; 0: none was free."""


@dataclass(frozen=True, slots=True)
class UnnamedShim:
    """A shim whose pid its lease does not contain: the attempt has just begun, or the shim is not visible from this pid
    namespace.

    A process of this user that has used one of the devices only since the lease was taken may belong to the lease.
    """

    uid: int
    since: float
    """The time at which the lease was taken, in seconds since the epoch."""
    devices: frozenset[str]


NO_UNNAMED: frozenset[UnnamedShim] = frozenset()


Trees = Mapping[int, int]
"""The process trees of leases: the pid of each shim, with the pid of the lease's guest (0: none)."""


def trees(leases: Iterable[Lease]) -> dict[int, int]:
    """Return the process trees of those leases that contain the pids of their shims."""
    return {lease.shim: lease.guest for lease in leases if lease.shim}


def unnamed_shims(leases: Iterable[Lease]) -> frozenset[UnnamedShim]:
    """Return the shims whose pids are not in their leases. Leases that reserve only memory of the host are left out."""
    unnamed = [(lease, frozenset(lease.reserved) - {"host"}) for lease in leases if not lease.shim]
    return frozenset(UnnamedShim(lease.uid, lease.since, devices) for lease, devices in unnamed if devices)
