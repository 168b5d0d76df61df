"""A lease as it is read by everybody, and as its maker has it; views need no more of the ports."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """One living lease as its file says."""

    name: str
    uid: int
    run: str
    task: int
    attempt: int
    shim: int
    promised: Mapping[str, int]
    load: Mapping[str, float]
    unreadable: str = ""
    """Whose it is, where its file makes no sense here or is a newer version's; what it promises counts as far as that
    can be told, and where it cannot it is on every device."""
    alone: bool = False
    since: float = 0.0
    """When it was taken, in seconds since the epoch."""
    expected: float = 0.0
    """How many seconds it takes, where its scheduler knows."""
    shim_id: str = ""
    """By which its shim is told from a process of the same number, later or in a container; empty: it does not say."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A lease just made: its path, and the locked descriptor that keeps it alive."""

    path: str
    fd: int
