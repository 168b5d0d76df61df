"""Devices that are closed to others: taken out of service, or reserved for a user; files in the lease directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from scheduler.errors import LeaseError
from scheduler.runtime import site_file
from scheduler.runtime.shim import BLOCK, pack_block, unpack_block
from scheduler.store.machine import untrusted
from scheduler.store.machine.listing import Listing
from scheduler.store.machine.site_config import DISABLE, RESERVE
from scheduler.values import dataclass

VERSION = 1
MOST_WORDS = 200
"""Characters of a reason: a record has a fixed size."""
_NAME = re.compile(r"closed\.(\d+)\.([0-9a-f]{8})\Z")

May = Callable[[int, str], bool]
"""A function that tells whether a user has a right: `reserve` or `disable`."""


@dataclass(frozen=True, slots=True)
class DeviceReservation:
    """One device that is closed to other users: by which user, for which, until when and why."""

    device: str
    by: int
    """The file's owner, whatever the file says."""
    user: int | None = None
    """The user that it is kept for; None: it is disabled."""
    until: float = 0.0
    """When that ends, in seconds since the epoch; 0: when it is ended by hand."""
    why: str = ""
    name: str = ""
    """Its file."""

    @property
    def asks(self) -> str:
        """The right that its maker needs for it to count."""
        return DISABLE if self.user is None else RESERVE


def standing(listing: Listing, names: Iterable[str], may: May, now: float) -> list[DeviceReservation]:
    """Return the reservations under these names that count now: valid, in force, and by users who may make them."""
    return [one for one in _all(listing, names, may) if may(one.by, one.asks) and not 0 < one.until <= now]


def look(directory: Path, may: May) -> list[DeviceReservation]:
    """Return the reservations of a directory that count now, for views."""
    try:
        with _opened(directory) as fd:
            listing = Listing(fd)
            return standing(listing, listing.names().device_reservations, may, time.time())
    except OSError:
        return []


def for_others(
    device_reservations: Iterable[DeviceReservation], uid: int, name: Callable[[int], str]
) -> Mapping[str, str]:
    """Return the devices on which a user starts nothing, each with the reason; `name` gives a user's name."""
    return {one.device: sentence(one, name) for one in device_reservations if one.user != uid}


def sentence(device_reservation: DeviceReservation, name: Callable[[int], str]) -> str:
    """Return why other users start nothing on a device."""
    why = f" ({device_reservation.why})" if device_reservation.why else ""
    if device_reservation.user is None:
        return f"it is disabled by {name(device_reservation.by)}{why}"
    until = f" until {_moment(device_reservation.until)}" if device_reservation.until else ""
    return f"it is reserved for {name(device_reservation.user)}{until}{why}"


def _moment(at: float) -> str:
    """Return a time for a sentence: the hour where it is today, else with the day."""
    then, now = time.localtime(at), time.localtime()
    form = "%H:%M" if then[:3] == now[:3] else "%a %H:%M" if 0 < at - time.time() < 5 * 86400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, then)


def close(directory: Path, device_reservations: Iterable[DeviceReservation]) -> None:
    """Reserve devices, each by a file that only this user and root can remove. Raises LeaseError."""
    with contextlib.suppress(OSError):  # it is said below, with the file that cannot be written
        _clear(directory)
    for one in device_reservations:
        said = {"device": one.device, "user": one.user, "until": one.until, "why": one.why[:MOST_WORDS]}
        path = directory / f"closed.{os.getuid()}.{os.urandom(4).hex()}"
        try:
            _write(path, pack_block({"version": VERSION, **said}))
        except OSError as exc:
            raise LeaseError(f"{path} cannot be written: {exc.strerror}") from exc


def _clear(directory: Path) -> None:
    """Remove this user's reservations whose time is over."""
    with _opened(directory) as fd:
        listing = Listing(fd)
        found = _all(listing, listing.names().device_reservations, lambda uid, _: uid == os.getuid())
        mine = [one for one in found if 0 < one.until <= time.time()]
    for _ in end(directory, mine):
        pass


def _write(path: Path, block: bytes) -> None:
    """Write a file whole or not at all: it gets its name once others can read it."""
    part = path.with_name(f".{path.name}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.write(fd, block)
        os.rename(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        os.close(fd)


def end(directory: Path, device_reservations: Iterable[DeviceReservation]) -> Iterator[DeviceReservation]:
    """Remove reservations; yield those that are gone. Those of other users stay, but root removes any."""
    for one in device_reservations:
        try:
            os.unlink(directory / one.name)
        except FileNotFoundError:
            continue
        except PermissionError:
            continue
        yield one


def _all(listing: Listing, names: Iterable[str], may: May) -> list[DeviceReservation]:
    """Return the reservations of users who may make any: files of other users are not opened."""
    found = sorted([match for name in names if (match := _NAME.match(name))], key=itemgetter(0))
    asked = {uid: may(uid, RESERVE) or may(uid, DISABLE) for uid in {int(match[1]) for match in found}}
    device_reservations = [_read(listing, match[0], int(match[1])) for match in found if asked[int(match[1])]]
    return [one for one in device_reservations if one is not None]


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(listing: Listing, name: str, owner: int) -> DeviceReservation | None:
    """Read one file; return None where it is planted, damaged or gone."""
    opened = listing.open(name, owner)
    if opened is None:
        return None
    fd, status = opened
    try:
        return _parsed(name, status.st_uid, unpack_block(os.pread(fd, BLOCK, 0)) or {})
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
        return None
    finally:
        os.close(fd)


def _parsed(name: str, by: int, said: Mapping[str, Any]) -> DeviceReservation | None:
    """Return the reservation of a record; None where a user other than root keeps a device for another user."""
    if said.get("version") != VERSION:
        return None
    user = said["user"]
    if by != site_file.ROOT and user is not None and user != by:
        return None
    until = untrusted.amount(said["until"])
    why = str(said["why"])[:MOST_WORDS]
    return DeviceReservation(str(said["device"]), by, None if user is None else int(user), until, why, name)
