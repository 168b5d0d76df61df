"""Leases as values: as every scheduler reads them, and as the scheduler that made one holds it."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """One live lease, as its file says."""

    name: str
    uid: int
    run: str
    task: int
    attempt: int
    shim: int
    reserved: Mapping[str, int]
    load: Mapping[str, float]
    unreadable: str = ""
    """The owner's name if the file cannot be read here. Its reservation counts as far as it is known, else it is on
    every device."""
    alone: bool = False
    since: float = 0.0
    """When it was taken, in seconds since the epoch."""
    expected: float = 0.0
    """The expected duration in seconds, where its scheduler knows."""
    locker: int = 0
    """The process that locked it, by which the kernel lists the lock; 0: its number means nothing here."""
    by_shim: bool = False
    """True if its file was lost and made again: it then lives as long as its shim, locked or not."""
    shim_id: str = ""
    """Distinguishes its shim from a later process of the same number, or one in a container; empty: not given."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease just made: its path, and the locked descriptor that keeps it alive."""

    path: str
    fd: int
