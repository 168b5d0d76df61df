"""Joins what closes devices to others: taken out of service for everybody, or reserved for one user."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler import machinefile
from scheduler.core.model import HOST
from scheduler.errors import LeaseError, UsageError
from scheduler.people import user_name
from scheduler.settings import Settings
from scheduler.store import closures, houserules
from scheduler.store.closures import Closure
from scheduler.store.houserules import DISABLE, RESERVE
from scheduler.store.leases import find_directory, make_directory
from scheduler.view.words import clean

if TYPE_CHECKING:
    from scheduler.devices.allocation import Seen


def disable(settings: Settings, which: str, why: str) -> None:
    """Take devices out of service; raises UsageError, and LeaseError for whoever may not."""
    _check(DISABLE, f"devices disable {which} --everybody", "your own runs leave a device out with --devices")
    keys = _keys(which)
    _end(settings, _found(settings, keys, DISABLE))
    _close(settings, [Closure(key, os.getuid(), why=why) for key in keys])


def enable(settings: Settings, which: str) -> None:
    """Put devices back into service; raises UsageError, and LeaseError for whoever may not."""
    _check(DISABLE, f"devices enable {which} --everybody", "whoever disabled it can, too")
    _end(settings, _found(settings, _keys_or_all(which), DISABLE))


def set_disabled(settings: Settings, keys: Iterable[str]) -> None:
    """Take these out of service and all others into it again, as root."""
    _end(settings, _found(settings, None, DISABLE))
    _close(settings, [Closure(key, os.getuid()) for key in keys])


def reserve(settings: Settings, which: str, seconds: float, user: str, why: str) -> None:
    """Keep devices for a user, oneself unless root says another; raises UsageError, and LeaseError for who may not."""
    _check(RESERVE, f"devices reserve {which}", "[may] there says who else may")
    uid = _uid(user) if user else os.getuid()
    if uid != os.getuid() and os.getuid() != machinefile.ROOT:
        raise LeaseError(f"only root reserves devices for others: leave --user {user} out to have {which} yourself")
    keys = _keys(which)
    taken = [one for one in _found(settings, keys, RESERVE) if one.user != uid]
    if taken:
        raise LeaseError(f"{which} cannot be reserved: {closures.sentence(taken[0], user_name)}")
    _end(settings, _found(settings, keys, RESERVE))
    _close(settings, [Closure(key, os.getuid(), uid, time.time() + seconds, why) for key in keys])


def end(settings: Settings, which: str) -> None:
    """End reservations before their time, of all devices or of some; raises LeaseError where one is not one's own."""
    _end(settings, _found(settings, _keys_or_all(which), RESERVE))


def told(settings: Settings, labels: Mapping[str, str]) -> dict[str, Any]:
    """What is disabled, and what is reserved for whom, by the names that people use."""
    found = _standing(settings)
    return {
        "disabled": {
            labels.get(one.device) or clean(one.device): closures.sentence(one, user_name)
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
                "sentence": closures.sentence(one, user_name),
            }
            for one in found
            if one.user is not None
        ],
    }


def named(settings: Settings) -> dict[str, Any]:
    """The same, where nobody has asked the GPUs for their names yet."""
    return told(settings, {gpu.uuid: gpu.label for gpu in _seen()})


def closed_to_me(settings: Settings) -> Mapping[str, str]:
    """The devices on which this user starts nothing, by their keys, each with why."""
    return closures.for_others(_standing(settings), os.getuid(), user_name)


def _standing(settings: Settings) -> list[Closure]:
    rules = houserules.read(os.environ, os.getuid())
    return closures.look(find_directory(settings.leases or None), rules.allows)


def _found(settings: Settings, keys: Sequence[str] | None, what: str) -> list[Closure]:
    """The closures of a kind on some devices, or on all."""
    return [one for one in _standing(settings) if one.asks == what and (keys is None or one.device in keys)]


def _check(what: str, words: str, other: str) -> None:
    """Raise LeaseError where root does not let this user do that."""
    rules = houserules.read(os.environ, os.getuid())
    if not rules.allows(os.getuid(), what):
        raise LeaseError(f"{rules.path} does not let you {what} devices: sudo scheduler {words}; {other}")


def _close(settings: Settings, new: Sequence[Closure]) -> None:
    closures.close(make_directory(settings.leases or None), new)


def _end(settings: Settings, found: Sequence[Closure]) -> None:
    ended = [one.name for one in closures.end(find_directory(settings.leases or None), found)]
    left = [one for one in found if one.name not in ended and one.by != os.getuid()]
    if left:
        who = user_name(left[0].by)
        raise LeaseError(f"{closures.sentence(left[0], user_name)}: only {who} or root ends what {who} has said")


def _uid(user: str) -> int:
    try:
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError as exc:
        raise UsageError(f"--user {user}: there is no such user on this machine") from exc


def _keys_or_all(which: str) -> list[str] | None:
    """The same of a word that may mean all of them, which is None."""
    from scheduler.devices.choice import ALL  # as in `_seen`

    return None if which == ALL else _keys(which)


def _keys(which: str) -> list[str]:
    """The devices that a word means, whoever may use them."""
    from scheduler.devices.allocation import Allowed  # as in `_seen`
    from scheduler.devices.choice import choose

    seen = _seen()
    try:
        chosen = choose(which, Allowed(tuple(seen)), seen)
    except UsageError as exc:
        raise UsageError(str(exc).removeprefix(f"--devices {which}: ")) from exc  # no such flag was given
    if any(share.cap is not None for share in chosen.shares) or chosen.host_cap is not None:
        raise UsageError(f"{which}: a device is closed as a whole, leave the size out")
    host = [HOST] if HOST in which.split(",") else []
    return [*(share.gpu.uuid for share in chosen.shares), *host]


def _seen() -> list[Seen]:
    """Every GPU of the machine."""
    from scheduler.devices.nvml import NvmlDevices  # `status` only tells what is closed, and asks no GPU
    from scheduler.wiring.finding import seen_by

    gpus = NvmlDevices()
    try:
        return seen_by(gpus.node())
    finally:
        gpus.close()
