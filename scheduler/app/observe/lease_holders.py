"""The holders of leases on this machine: users, runs and tasks, with the memory that they use."""

from __future__ import annotations

import os

from scheduler.core.leases import Lease
from scheduler.runtime.settings import Settings
from scheduler.runtime.shim import children_finder, lease_members
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import find_directory
from scheduler.store.machine.lease_records import living
from scheduler.store.machine.wait_tickets import waiters
from scheduler.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """A lease with its user and its process, without its command or environment."""

    lease: Lease
    user: str
    pid: int
    """The pid of the task's own process, or of the lease's guest; 0 if that process cannot be seen."""


def holders(settings: Settings, *, used: bool = False) -> list[LeaseHolder]:
    """Return the holder of every live lease; `used` also reads the RAM of each process tree where that is allowed."""
    leases = living(find_directory(settings.leases or None))
    children = children_finder()
    shims = {lease.shim for lease in leases}
    trees = [lease_members(one.shim, one.guest, children, shims) if one.shim else [] for one in leases]
    return [_holder(lease, pids, used=used) for lease, pids in zip(leases, trees, strict=True)]


def _holder(lease: Lease, pids: list[int], *, used: bool) -> LeaseHolder:
    seen = {"host": sum(map(resident, pids))} if used and pids else {}
    return LeaseHolder(replace(lease, used=seen), user_name(lease.uid), pids[0] if pids else 0)


def resident(pid: int) -> int:
    """Return the RAM that a process uses now, in bytes; the kernel lets any user read this number of any process."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def others_before(settings: Settings, token: str, key: str) -> int:
    """Return the number of schedulers that have waited for a device longer than this run."""
    all_waiters = waiters(find_directory(settings.leases or None))
    found = [waiter for waiter in all_waiters if key in waiter.ticket.devices]
    mine = max((waiter.ticket.waited for waiter in found if waiter.run == token), default=0.0)
    return sum(waiter.ticket.waited > mine for waiter in found if waiter.run != token)
