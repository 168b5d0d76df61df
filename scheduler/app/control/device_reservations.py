"""Devices that are disabled for all users, or reserved for one user."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.core.model import HOST
from scheduler.errors import LeaseError, UsageError
from scheduler.runtime import site_file
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine import device_reservations, site_config
from scheduler.store.machine.device_reservations import DeviceReservation
from scheduler.store.machine.lease_directory import find_directory, make_directory
from scheduler.store.machine.site_config import DISABLE, RESERVE
from scheduler.ui.text import clean

if TYPE_CHECKING:
    from scheduler.devices.gpu.inventory import InstalledGpu


def disable(settings: Settings, which: str, why: str) -> None:
    """Disable devices for all users; raise UsageError for an unknown device, LeaseError if this user may not disable
    devices.
    """
    _check(DISABLE, f"devices disable {which} --all-users", "your own runs leave a device out with --devices")
    keys = _keys(which)
    _end(settings, _found(settings, keys, DISABLE))
    _close(settings, [DeviceReservation(key, os.getuid(), why=why) for key in keys])


def enable(settings: Settings, which: str) -> None:
    """Enable devices for all users; raise UsageError for an unknown device, LeaseError if this user may not enable
    devices.
    """
    _check(DISABLE, f"devices enable {which} --all-users", "the user who disabled it may, too")
    _end(settings, _found(settings, _keys_or_all(which), DISABLE))


def set_disabled(settings: Settings, keys: Iterable[str]) -> None:
    """Disable exactly these devices and enable all others, as root."""
    _end(settings, _found(settings, None, DISABLE))
    _close(settings, [DeviceReservation(key, os.getuid()) for key in keys])


def reserve(settings: Settings, which: str, seconds: float, user: str, why: str) -> None:
    """Reserve devices for a user (default: this one); raise UsageError for an unknown device or user, LeaseError if
    this user may not reserve them.
    """
    _check(RESERVE, f"devices reserve {which}", "its table [may] names the users who may")
    uid = _uid(user) if user else os.getuid()
    if uid != os.getuid() and os.getuid() != site_file.ROOT:
        raise LeaseError(
            f"only root reserves devices for others: leave --user {user} out to reserve {which} for yourself"
        )
    keys = _keys(which)
    taken = [one for one in _found(settings, keys, RESERVE) if one.user != uid]
    if taken:
        raise LeaseError(f"{which} cannot be reserved: {device_reservations.sentence(taken[0], user_name)}")
    _end(settings, _found(settings, keys, RESERVE))
    _close(settings, [DeviceReservation(key, os.getuid(), uid, time.time() + seconds, why) for key in keys])


def end(settings: Settings, which: str) -> None:
    """End the reservations of some or all devices early; raise LeaseError if one of these reservations belongs to
    another user.
    """
    _end(settings, _found(settings, _keys_or_all(which), RESERVE))


def told(settings: Settings, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the disabled and the reserved devices, by their labels."""
    found = _standing(settings)
    return {
        "disabled": {
            labels.get(one.device) or clean(one.device): device_reservations.sentence(one, user_name)
            for one in found
            if one.user is None
        },
        "reserved": [
            {
                "device": labels.get(one.device) or clean(one.device),
                "user": user_name(one.user),
                "by": user_name(one.by),
                "until": one.until or None,
                "why": one.why,
                "sentence": device_reservations.sentence(one, user_name),
            }
            for one in found
            if one.user is not None
        ],
    }


def named(settings: Settings) -> dict[str, Any]:
    """Read the labels of the GPUs, and return the disabled and the reserved devices by these labels."""
    return told(settings, {gpu.uuid: gpu.label for gpu in _seen()})


def closed_to_me(settings: Settings) -> Mapping[str, str]:
    """Return the devices on which this user may not start tasks, by key, with the reasons."""
    return device_reservations.for_others(_standing(settings), os.getuid(), user_name)


def _standing(settings: Settings) -> list[DeviceReservation]:
    rules = site_config.read(os.environ, os.getuid())
    return device_reservations.look(find_directory(settings.leases or None), rules.allows)


def _found(settings: Settings, keys: Sequence[str] | None, what: str) -> list[DeviceReservation]:
    """Return the reservations of the kind `what` on these devices; on all devices if `keys` is None."""
    return [one for one in _standing(settings) if one.asks == what and (keys is None or one.device in keys)]


def _check(what: str, words: str, other: str) -> None:
    """Raise LeaseError if the site's rules do not allow this user to do `what`."""
    rules = site_config.read(os.environ, os.getuid())
    if not rules.allows(os.getuid(), what):
        raise LeaseError(f"{rules.path} does not let you {what} devices: sudo scheduler {words}; {other}")


def _close(settings: Settings, new: Sequence[DeviceReservation]) -> None:
    device_reservations.close(make_directory(settings.leases or None), new)


def _end(settings: Settings, found: Sequence[DeviceReservation]) -> None:
    ended = [one.name for one in device_reservations.end(find_directory(settings.leases or None), found)]
    left = [one for one in found if one.name not in ended and one.by != os.getuid()]
    if left:
        who = user_name(left[0].by)
        raise LeaseError(f"{device_reservations.sentence(left[0], user_name)}: only {who} or root can end that")


def _uid(user: str) -> int:
    try:
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError as exc:
        raise UsageError(f"--user {user}: there is no such user on this machine") from exc


def _keys_or_all(which: str) -> list[str] | None:
    """Return the keys of the named devices; None for `all`."""
    from scheduler.devices.selection import ALL  # as in `_seen`

    return None if which == ALL else _keys(which)


def _keys(which: str) -> list[str]:
    """Return the keys of the named devices, including devices that this shell may not use."""
    from scheduler.devices.gpu.allocation import AllowedGpus  # as in `_seen`
    from scheduler.devices.selection import choose

    seen = _seen()
    try:
        chosen = choose(which, AllowedGpus(tuple(seen)), seen)
    except UsageError as exc:
        raise UsageError(str(exc).removeprefix(f"--devices {which}: ")) from exc  # the user gave no such flag
    if any(share.cap is not None for share in chosen.shares) or chosen.host_cap is not None:
        raise UsageError(f"{which}: a device is disabled or reserved as a whole: leave the size out")
    host = [HOST] if HOST in which.split(",") else []
    return [*(share.gpu.uuid for share in chosen.shares), *host]


def _seen() -> Sequence[InstalledGpu]:
    """Return every GPU of the machine."""
    from scheduler.devices.gpu.nvml_devices import NvmlDevices  # `status` shows reservations, and asks no GPU

    gpus = NvmlDevices()
    try:
        return gpus.node().gpus
    finally:
        gpus.close()
