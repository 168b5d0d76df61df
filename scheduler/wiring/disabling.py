"""Joins what takes devices out of service for everybody, which only root may."""

from __future__ import annotations

import os

from scheduler.core.model import HOST
from scheduler.devices.allocation import Allowed
from scheduler.devices.choice import ALL, choose
from scheduler.devices.nvml import NvmlDevices
from scheduler.errors import LeaseError, UsageError
from scheduler.settings import Settings
from scheduler.store import disabling
from scheduler.store.leases import find_directory, make_directory
from scheduler.wiring.finding import seen_by

BY_ROOT = "it is disabled by root"


def change(settings: Settings, which: str, *, enable: bool, why: str) -> None:
    """Disable devices, or enable them again; raises UsageError, and LeaseError for whoever is not root."""
    verb = "enable" if enable else "disable"
    if os.getuid() != 0:
        raise LeaseError(
            f"devices {verb} --everybody takes root: sudo scheduler devices {verb} {which} --everybody; "
            "your own runs leave a device out with --devices"
        )
    directory = make_directory(settings.leases or None)
    now = dict(disabling.look(directory))
    for key in list(now) if enable and which == ALL else _keys(which):
        if enable:
            now.pop(key, None)
        else:
            now[key] = f"{BY_ROOT} ({why})" if why else BY_ROOT
    disabling.disable(directory, now)


def disabled(settings: Settings) -> dict[str, str]:
    """What is disabled, and why."""
    return dict(disabling.look(find_directory(settings.leases or None)))


def _keys(which: str) -> list[str]:
    """The devices that a word means, whoever may use them."""
    gpus = NvmlDevices()
    try:
        seen = seen_by(gpus.node())
    finally:
        gpus.close()
    chosen = choose(which, Allowed(tuple(seen)), seen)
    if any(share.cap is not None for share in chosen.shares) or chosen.host_cap is not None:
        raise UsageError(f"{which}: a device is disabled as a whole, leave the size out")
    host = [HOST] if HOST in which.split(",") else []
    return [*(share.gpu.uuid for share in chosen.shares), *host]
