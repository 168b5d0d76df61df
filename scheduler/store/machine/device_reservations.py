"""Devices that are disabled, or reserved for a user, as files in the lease directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from scheduler.errors import LeaseError
from scheduler.runtime import site_file
from scheduler.runtime.shim import pack_block
from scheduler.store.machine.records import RecordDirectory, RecordKind, amount, opened, read_all
from scheduler.store.machine.site_config import DISABLE, RESERVE
from scheduler.values import dataclass

VERSION = 1
MOST_WORDS = 200
"""The most characters that a reason may have; it is limited because a record has a fixed size."""
May = Callable[[int, str], bool]
"""A function that tells whether a user (by id) has the right `reserve` or `disable`."""


@dataclass(frozen=True, slots=True)
class DeviceReservation:
    """A device that is closed to other users: who closed it, for which user, until when, and why."""

    device: str
    by: int
    """The user id of the file's owner; what the file says about its creator is ignored."""
    user: int | None = None
    """The user that the device is reserved for; None: the device is disabled."""
    until: float = 0.0
    """The time at which the reservation ends, in seconds since the epoch; 0: it lasts until a user ends it."""
    why: str = ""
    name: str = ""
    """The name of the reservation's file in the lease directory."""

    @property
    def asks(self) -> str:
        """The right that the creator of the reservation must have for the reservation to be valid."""
        return DISABLE if self.user is None else RESERVE


def to_dict(one: DeviceReservation) -> dict[str, Any]:
    """Return the record of a reservation; its creator is the owner of the file."""
    return {"version": VERSION, "device": one.device, "user": one.user, "until": one.until, "why": one.why[:MOST_WORDS]}


class ReservationKind(RecordKind[DeviceReservation]):
    """The device reservations in a directory, which last until they are removed: no process locks them."""

    prefix = ("closed.",)
    pattern = re.compile(r"closed\.(\d+)\.([0-9a-f]+)\Z")
    most = 1024
    plural = "device reservations"

    def lives_unlocked(self, name: re.Match[str]) -> bool:
        """Return True, because a reservation is valid without a lock."""
        return True

    def parse(self, name: re.Match[str], said: Mapping[str, Any]) -> DeviceReservation | None:
        """Return the reservation in a record; None if a user other than root reserves a device for another user."""
        if said.get("version") != VERSION:
            return None
        by, user = int(name[1]), said["user"]
        if by != site_file.ROOT and user not in (None, by):
            return None
        return DeviceReservation(
            device=str(said["device"]),
            by=by,
            user=None if user is None else int(user),
            until=amount(said["until"]),
            why=str(said["why"])[:MOST_WORDS],
            name=name.string,
        )


RESERVATIONS = ReservationKind()


def standing(records: RecordDirectory, may: May, now: float) -> list[DeviceReservation]:
    """Return the reservations that apply now: they are valid, have not expired, and their creators have the right to
    make them.

    Files of users without any such right are not opened.
    """
    has_rights = cache(lambda uid: may(uid, RESERVE) or may(uid, DISABLE))
    found = records.read(RESERVATIONS, lambda name: has_rights(int(name[1])))
    counting = [one for one in found if may(one.by, one.asks) and not 0 < one.until <= now]
    return sorted(counting, key=attrgetter("name"))


def look(directory: Path, may: May) -> list[DeviceReservation]:
    """Return the reservations of a directory that apply now, for views."""
    try:
        with opened(directory) as records:
            return standing(records, may, time.time())
    except OSError:
        return []


def for_others(
    device_reservations: Iterable[DeviceReservation], uid: int, name: Callable[[int], str]
) -> Mapping[str, str]:
    """Return the devices on which a user may start nothing, each with the reason; `name` returns a user's name."""
    return {one.device: sentence(one, name) for one in device_reservations if one.user != uid}


def sentence(device_reservation: DeviceReservation, name: Callable[[int], str]) -> str:
    """Return, for a message, why other users may start nothing on a device."""
    why = f" ({device_reservation.why})" if device_reservation.why else ""
    if device_reservation.user is None:
        return f"it is disabled by {name(device_reservation.by)}{why}"
    until = f" until {_moment(device_reservation.until)}" if device_reservation.until else ""
    return f"it is reserved for {name(device_reservation.user)}{until}{why}"


def _moment(at: float) -> str:
    """Return a time for a message: the time of day; with the weekday or the date if it is not today."""
    then, now = time.localtime(at), time.localtime()
    form = "%H:%M" if then[:3] == now[:3] else "%a %H:%M" if 0 < at - time.time() < 5 * 86400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, then)


def close(directory: Path, device_reservations: Iterable[DeviceReservation]) -> None:
    """Close devices, each with a file that only this user and root can remove. Raise LeaseError if a file cannot be
    written.

    Expired reservations of this user are removed.
    """
    mine = read_all(directory, RESERVATIONS, lambda name: int(name[1]) == os.getuid())
    for _ in end(directory, [one for one in mine if 0 < one.until <= time.time()]):
        pass
    try:
        with opened(directory) as records:
            for one in device_reservations:
                _, fd = records.make(f"closed.{os.getuid()}.", pack_block(to_dict(one)))
                os.close(fd)
    except OSError as exc:
        raise LeaseError(f"a device reservation cannot be written in {directory}: {exc.strerror}") from exc


def end(directory: Path, device_reservations: Iterable[DeviceReservation]) -> Iterator[DeviceReservation]:
    """Remove reservations; yield the removed ones. Only root can remove reservations of other users."""
    for one in device_reservations:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.unlink(directory / one.name)
            yield one
