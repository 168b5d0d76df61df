"""Leases: what the living attempts of all schedulers on this machine have reserved and use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class RoomOffer:
    """The readiness of an attempt to save and make room for a more urgent task of its user, also of another run."""

    priority: int | None = None
    """Its priority, if it may be asked to make room; None: it may not be asked."""
    asked_by: int | None = None
    """The task for which it was asked to make room; None: it was not asked."""


NO_OFFER = RoomOffer()


@dataclass(frozen=True, slots=True)
class RoomCall:
    """A request to other runs of the same user: their attempts should save and make room for an urgent task."""

    by: int
    """The urgent task."""
    priority: int
    attempts: tuple[tuple[str, int, int], ...]
    """The run, the task and the number of each attempt."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One live lease: the contents of its file, and the memory that its task uses."""

    name: str
    uid: int
    run: str
    task: int
    attempt: int
    shim: int
    reserved: Mapping[str, int]
    load: Mapping[str, float]
    unreadable: str = ""
    """The owner's name if the file cannot be read here. Its reservation counts as far as it is known; otherwise it
    counts on every device.
    """
    alone: bool = False
    """True if nothing may start beside it on its devices."""
    since: float = 0.0
    """The time at which it was taken, in seconds since the epoch."""
    expected: float = 0.0
    """The expected duration in seconds, if its scheduler knows it."""
    locker: int = 0
    """The process that the kernel lists as the holder of the lock; 0: its number means nothing here."""
    by_shim: bool = False
    """True if its file was lost and created again: it then lives as long as its shim, locked or not."""
    shim_id: str = ""
    """The mark that distinguishes its shim from a later process with that pid, or one in a container; empty: not
    given."""
    port: int = 0
    """The network port that is kept for it; 0: none."""
    offer: RoomOffer = NO_OFFER
    guest: int = 0
    """The process outside of its shim's tree for which it holds devices, with its descendants; 0: none."""
    node: str = ""
    """The node on which it is; empty: this machine. Its devices are named as on that node."""
    used: Mapping[str, int] = field(default_factory=dict)
    """Bytes that its process tree uses now; its file does not contain them. If the use cannot be measured it counts
    as none: that wastes memory, but never overcommits it.
    """

    @property
    def number(self) -> str:
        """The number of its run, as users see it."""
        return self.run.partition("-")[0]

    @property
    def ends(self) -> float:
        """The time at which it is expected to end; 0: unknown."""
        return self.since + self.expected if self.expected else 0.0


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A new lease: its path, and the locked descriptor that keeps it alive."""

    path: str
    fd: int
    port: int = 0
    """The network port that is kept for the attempt, and given to no other one; 0: none was free."""


@dataclass(frozen=True, slots=True)
class UnnamedShim:
    """The shim of a live lease that does not name it: the attempt has just begun, or its shim cannot be seen here.

    A process of this user that came to one of the devices since the lease was taken may belong to it.
    """

    uid: int
    since: float
    """When the lease was taken, in seconds since the epoch."""
    devices: frozenset[str]


NO_UNNAMED: frozenset[UnnamedShim] = frozenset()


Trees = Mapping[int, int]
"""The process trees of leases: shims, each with the guest of its lease (0: none)."""


def trees(leases: Iterable[Lease]) -> dict[int, int]:
    """Return the process trees of the leases that name their shims."""
    return {lease.shim: lease.guest for lease in leases if lease.shim}


def unnamed_shims(leases: Iterable[Lease]) -> frozenset[UnnamedShim]:
    """Return the unnamed shims of leases on other devices than the host."""
    unnamed = [(lease, frozenset(lease.reserved) - {"host"}) for lease in leases if not lease.shim]
    return frozenset(UnnamedShim(lease.uid, lease.since, devices) for lease, devices in unnamed if devices)
