"""Joins what is known of everybody's leases: whose they are, what runs under them, what it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from scheduler.core.promises import Lease
from scheduler.people import user_name
from scheduler.settings import Settings
from scheduler.shim import children_finder, descendants
from scheduler.store.leases import find_directory, living
from scheduler.store.tickets import waiters
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a part of the machine; neither what is run nor with which environment."""

    user: str
    uid: int
    run: str
    task: int
    pid: int
    """Of the task's own process; 0: it cannot be seen."""
    shim: int
    since: float
    expected: float
    promised: Mapping[str, int]
    used: Mapping[str, int] = field(default_factory=dict)
    alone: bool = False
    unreadable: bool = False
    """Whether this version cannot read its lease, so that nothing starts beside it."""

    @property
    def ends(self) -> float:
        """When it is about to end; 0 where nobody knows."""
        return self.since + self.expected if self.expected else 0.0


def holders(settings: Settings, *, used: bool = False) -> list[Holder]:
    """Every living lease; `used` also looks at the RAM of each tree, as far as it can be seen."""
    leases = living(find_directory(settings.leases or None))
    children = children_finder()
    return [_holder(lease, descendants(lease.shim, children) if lease.shim else [], used=used) for lease in leases]


def _holder(lease: Lease, pids: list[int], *, used: bool) -> Holder:
    return Holder(
        user_name(lease.uid),
        lease.uid,
        lease.run.partition("-")[0],
        lease.task,
        pids[0] if pids else 0,
        lease.shim,
        lease.since,
        lease.expected,
        dict(lease.promised),
        {"host": sum(map(resident, pids))} if used and pids else {},
        lease.alone,
        bool(lease.unreadable),
    )


def resident(pid: int) -> int:
    """Bytes of RAM that a process has mapped now; everybody may see that of everybody."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def others_before(settings: Settings, token: str, key: str) -> int:
    """How many schedulers wait for a device that began to before this run did."""
    everybody = waiters(find_directory(settings.leases or None))
    found = [waiter for waiter in everybody if key in waiter.ticket.devices]
    mine = max((waiter.ticket.waited for waiter in found if waiter.run == token), default=0.0)
    return sum(waiter.ticket.waited > mine for waiter in found if waiter.run != token)
