"""The data of `status` on all users: leases, wait tickets, GPUs, disabled and reserved devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from scheduler.app.control import device_reservations
from scheduler.app.observe.lease_holders import LeaseHolder, holders
from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget, Waiter
from scheduler.errors import SchedulerError
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import find_directory
from scheduler.store.machine.wait_tickets import waiters
from scheduler.ui.text import clean
from scheduler.values import dataclass

LIBRARY = "libnvidia-ml.so.1"
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """The state of the GPUs, and the memory that each lease's process tree uses of them."""

    budgets: Sequence[DeviceBudget] = ()
    used: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Used bytes by the pid of the shim."""
    why: str = ""
    """Why the GPUs cannot be read; empty if they can."""


Looking = Callable[[Sequence[Lease]], GpuUsage]
"""A function that reads the GPUs and the memory that the trees of these leases use."""


def facts(settings: Settings, labels: Mapping[str, str], look: Looking | None = None) -> dict[str, Any]:
    """Return all leases and wait tickets, with what they use; devices have their labels.

    `look` reads the GPUs, for callers that keep them open.
    """
    directory = find_directory(settings.leases or None)
    held = holders(settings, used=True)
    leases = [holder.lease for holder in held]
    cards = look(leases) if look else look_at_cards(settings, [lease.shim for lease in leases if lease.shim])
    names = {**labels, **{budget.device.key: budget.device.label for budget in cards.budgets}}
    told = [_lease(holder, cards.used.get(holder.lease.shim, {}), names) for holder in held]
    return {
        "leases": sorted(told, key=lambda one: (one["user"], one["task"])),
        "waiting": [_waiter(waiter, names) for waiter in waiters(directory)],
        "gpus": [_gpu(budget, leases) for budget in cards.budgets if budget.device.is_gpu],
        "gpus_trouble": cards.why,
        **device_reservations.told(settings, names),
    }


def _lease(holder: LeaseHolder, used_on_gpus: Mapping[str, int], names: Mapping[str, str]) -> dict[str, Any]:
    def named(by_device: Mapping[str, int]) -> dict[str, int]:
        return {_called(key, names): bytes_ for key, bytes_ in by_device.items()}

    lease = holder.lease
    return {
        "user": holder.user,
        "run": lease.number,
        "task": lease.task,
        "pid": holder.pid,
        "shim": lease.shim,
        "since": lease.since,
        "reserved": named(lease.reserved),
        "used": named({**lease.used, **used_on_gpus}),
        "alone": lease.alone,
        "unreadable": bool(lease.unreadable),
        "ends": lease.ends or None,
    }


def _waiter(waiter: Waiter, names: Mapping[str, str]) -> dict[str, Any]:
    ticket = waiter.ticket
    return {
        "user": user_name(waiter.uid),
        "run": waiter.run.partition("-")[0],
        "task": ticket.task,
        "devices": [_called(key, names) for key in ticket.devices],
        "gpus": len(ticket.gpus),
        "bytes": max((bytes_ or 0 for bytes_ in ticket.gpus or (ticket.host,)), default=0) or None,
        "waited": round(ticket.waited, 1),
        "closed": ticket.closed,
    }


def _gpu(budget: DeviceBudget, leases: Sequence[Lease]) -> dict[str, Any]:
    reserved = sum(lease.reserved.get(budget.device.key, 0) for lease in leases)
    unmanaged_processes = [{"user": one.user, "pid": one.pid, "bytes": one.bytes} for one in budget.unmanaged]
    return {
        "device": budget.device.label,
        "total": budget.device.total,
        "free": budget.free,
        "reserved": reserved,
        "unmanaged": unmanaged_processes,
        "tasks": sum(budget.device.key in lease.reserved for lease in leases),
        "closed": budget.closed,
    }


def has_driver() -> bool:
    """Tell whether NVIDIA's library exists; only then a sampler process is started."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *LIBRARIES]
    paths = ["/dev/nvidiactl", *(f"{folder}/{LIBRARY}" for folder in folders if folder)]
    return any(map(os.path.exists, paths))


def look_at_cards(settings: Settings, shims: Sequence[int]) -> GpuUsage:
    """Read every GPU that this shell may use once, with the memory that the trees of these shims use."""
    if not has_driver():
        return GpuUsage()
    from scheduler.app.run.devices import find_devices

    try:
        pool = find_devices("auto", settings)
    except SchedulerError as exc:
        return GpuUsage(why=str(exc))
    try:
        if pool.gpus is None:
            return GpuUsage()
        pool.gpus.look_again(frozenset(shims))
        used = {shim: pool.gpus.used_by(shim) for shim in shims}
        return GpuUsage(pool.gpus.snapshot(), used)
    finally:
        pool.close()


def _called(key: str, names: Mapping[str, str]) -> str:
    """Return the label of a device; a label from another user's file is cleaned of control characters."""
    return names.get(key) or clean(key)
