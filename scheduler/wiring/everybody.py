"""Joins what `status` tells of everybody: leases, who waits, GPUs, what is disabled, what holds memory idly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from scheduler.core.model import HOST, Budget, Waiter
from scheduler.errors import SchedulerError
from scheduler.people import user_name
from scheduler.settings import Settings
from scheduler.store.leases import find_directory
from scheduler.store.tickets import waiters
from scheduler.values import dataclass
from scheduler.view.words import clean
from scheduler.wiring import closures
from scheduler.wiring.holders import Holder, holders
from scheduler.wiring.idleness import Held, idle_for
from scheduler.wiring.reading import places

LIBRARY = "libnvidia-ml.so.1"
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)  # fmt: skip
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs as they are now, and what each lease's tree holds of them."""

    budgets: Sequence[Budget] = ()
    used: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By the pid of its shim."""
    why: str = ""
    """Why they cannot be looked at."""


Looking = Callable[[Sequence[Holder]], Cards]
"""Looks at the GPUs and at what the trees of these leases hold there."""


def facts(settings: Settings, labels: Mapping[str, str], look: Looking | None = None) -> dict[str, Any]:
    """Everybody's leases and tickets, with what they use; devices by the names that people use.

    `look` looks at the GPUs where somebody keeps them at hand.
    """
    directory = find_directory(settings.leases or None)
    held = holders(settings, used=True)
    cards = look(held) if look else look_at_cards(settings, [holder.shim for holder in held if holder.shim])
    names = {**labels, **{budget.device.key: budget.device.label for budget in cards.budgets}}
    held = [replace(holder, used={**holder.used, **cards.used.get(holder.shim, {})}) for holder in held]
    return {
        "leases": sorted((_lease(holder, names) for holder in held), key=lambda one: (one["user"], one["task"])),
        "waiting": [_waiter(waiter, names) for waiter in waiters(directory)],
        "gpus": [_gpu(budget, held) for budget in cards.budgets if budget.device.is_gpu],
        "gpus_trouble": cards.why,
        **closures.told(settings, names),
        "idle": idle(settings, held, cards.budgets, names),
    }


def _lease(holder: Holder, names: Mapping[str, str]) -> dict[str, Any]:
    def named(by_device: Mapping[str, int]) -> dict[str, int]:
        return {_called(key, names): bytes_ for key, bytes_ in by_device.items()}

    told = {name: value for name, value in asdict(holder).items() if name not in ("uid", "expected")}
    return {**told, "promised": named(holder.promised), "used": named(holder.used), "ends": holder.ends or None}


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


def _gpu(budget: Budget, held: Sequence[Holder]) -> dict[str, Any]:
    promised = sum(holder.promised.get(budget.device.key, 0) for holder in held)
    strangers = [{"user": one.user, "pid": one.pid, "bytes": one.bytes} for one in budget.foreign]
    return {
        "device": budget.device.label,
        "total": budget.device.total,
        "free": budget.free,
        "promised": promised,
        "foreign": strangers,
        "tasks": sum(budget.device.key in holder.promised for holder in held),
        "closed": budget.closed,
    }


def has_driver() -> bool:
    """Whether NVIDIA's library is here at all: only then a process is started that asks it."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *LIBRARIES]
    paths = ["/dev/nvidiactl", *(f"{folder}/{LIBRARY}" for folder in folders if folder)]
    return any(map(os.path.exists, paths))


def look_at_cards(settings: Settings, shims: Sequence[int]) -> Cards:
    """One look at every GPU that this shell may use, and at what the trees of these shims hold there."""
    if not has_driver():
        return Cards()
    from scheduler.wiring.finding import find_devices

    try:
        pool = find_devices("auto", settings)
    except SchedulerError as exc:
        return Cards(why=str(exc))
    try:
        if pool.gpus is None:
            return Cards()
        pool.gpus.look_again(frozenset(shims))
        used = {shim: pool.gpus.used_by(shim) for shim in shims}
        return Cards(pool.gpus.snapshot(), used)
    finally:
        pool.close()


def idle(
    settings: Settings, held: Sequence[Holder], budgets: Sequence[Budget], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What holds memory and has done nothing for an hour, as far back as anybody of this user has looked."""
    some = [Held((one.shim,), one.user, _what(one), _most(one, names), one.since) for one in held if one.shim]
    for budget in budgets:
        for one in budget.foreign:
            if one.pid:
                words = {budget.device.label: one.bytes}
                some.append(Held((one.pid,), one.user, "started by hand", words))
    found = idle_for(places(settings).looks, some)
    return [
        {"user": one.user, "pid": one.pids[0], "what": one.what, "holds": dict(one.holds), "idle": round(seconds)}
        for one, seconds in found
        if seconds >= HOUR
    ]


def _what(holder: Holder) -> str:
    return f"task {holder.task} of run {holder.run}"


def _most(holder: Holder, names: Mapping[str, str]) -> dict[str, int]:
    gpus = {key: bytes_ for key, bytes_ in holder.promised.items() if key != HOST}
    return {_called(key, names): bytes_ for key, bytes_ in (gpus or holder.promised).items()}


def _called(key: str, names: Mapping[str, str]) -> str:
    """What people call a device; of one that only others know what they call it, which must not steer a terminal."""
    return names.get(key) or clean(key)
