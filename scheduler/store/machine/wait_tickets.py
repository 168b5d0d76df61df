"""Tickets: one locked file in the lease directory for each scheduler that waits for capacity, written by it alone."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scheduler.core.model import Waiter, WaitTicket
from scheduler.runtime.shim import BLOCK, pack_block, unpack_block
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine import untrusted
from scheduler.store.machine.listing import MOST_TICKETS, Crowd, Listing
from scheduler.store.machine.locked_files import LockHolders, is_free, make_locked

VERSION = 1
_NAME = re.compile(r"ticket\.(\d+)\.([0-9a-f-]+)\.[0-9a-f]{16}\Z")
"""The last part is random: another user who can tell the name takes it first, and the run would lose its turn."""


class Tickets:
    """This run's ticket, and a view of all others; hold the directory's mutex for all methods but `leave`."""

    def __init__(self, directory: int, uid: int, run: str) -> None:
        self._directory = directory
        self._uid = uid
        self._run = run
        self._prefix = f"ticket.{uid}.{run}."
        self._name = self._new_name()
        self._fd = -1
        self._absent: dict[str, float] = {}
        """When each ticket of the last look had last not been there; before the first look none can be missed."""
        self._looked_at = -math.inf

    def show(self, ticket: WaitTicket | None) -> None:
        """Write what this run waits for; None: nothing. Where no file can be written, the run only loses its turn."""
        if ticket is None:
            self.leave()
            return
        now = _boot_seconds()
        said = {name: value for name, value in asdict(ticket).items() if name != "waited"}
        block = pack_block({"version": VERSION, **said, "since": now - ticket.waited, "looked": now})
        with contextlib.suppress(OSError):
            if self._fd >= 0 and not os.fstat(self._fd).st_nlink:
                self.leave()  # the directory's owner has removed it
            if self._fd < 0:
                self._fd = self._make(block)
            else:
                os.pwrite(self._fd, block, 0)

    def _new_name(self) -> str:
        return f"{self._prefix}{os.urandom(8).hex()}"

    def _make(self, block: bytes) -> int:
        """Make the file, under another name where another user has put a file of the name that was seen before."""
        try:
            return make_locked(self._directory, self._name, block)
        except FileExistsError:
            self._name = self._new_name()
            return make_locked(self._directory, self._name, block)

    def leave(self) -> None:
        """Remove the ticket, if there is one."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._directory)
        os.close(self._fd)
        self._fd = -1

    def forget(self) -> None:
        """Remove the ticket, and what an earlier scheduler of this run may have left."""
        self.leave()
        for name in Listing(self._directory).names().tickets:
            if name.startswith(self._prefix):
                with contextlib.suppress(OSError):  # another user put it there
                    os.unlink(name, dir_fd=self._directory)

    def others(self, listing: Listing, names: Iterable[str]) -> list[Waiter]:
        """Return the other waiters of these tickets of the directory; remove dead tickets of this user.

        A ticket of another user has waited no longer than since the last look at which it was not there.
        """
        found = _waiting(listing, [name for name in names if not name.startswith(self._prefix)])
        self._absent = {waiter.name: self._absent.get(waiter.name, self._looked_at) for waiter in found}
        self._looked_at = now = _boot_seconds()
        return [
            waiter if waiter.uid == self._uid else _bounded(waiter, now - self._absent[waiter.name]) for waiter in found
        ]


def _bounded(waiter: Waiter, longest: float) -> Waiter:
    """Return a waiter that has waited for so many seconds at most."""
    if waiter.ticket.waited <= longest:
        return waiter
    return replace(waiter, ticket=replace(waiter.ticket, waited=longest))


def waiters(directory: Path) -> list[Waiter]:
    """Return all waiters of a directory, longest wait first, for views."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        listing = Listing(fd)
        return sorted(_waiting(listing, listing.names().tickets), key=lambda waiter: -waiter.ticket.waited)
    finally:
        os.close(fd)


def _waiting(listing: Listing, names: Iterable[str]) -> list[Waiter]:
    """Return the waiters of all living tickets."""
    found, crowd, lockers = [], Crowd(listing, MOST_TICKETS, "tickets"), LockHolders()
    for name in names:
        match = _NAME.match(name)
        if match is None:
            listing.condemn(name)
        elif not crowd.is_full(int(match[1])):
            waiter = _look(listing, name, match, lockers)
            if waiter is not None:
                crowd.add(waiter.uid)
                found.append(waiter)
    return found


def _look(listing: Listing, name: str, match: re.Match[str], lockers: LockHolders) -> Waiter | None:
    """Read one file; return its waiter, or None where it is dead, planted or gone."""
    opened = listing.open(name, int(match[1]))
    if opened is None:
        return None
    fd, status = opened
    try:
        if is_free(fd):
            listing.bury(name, fd)
            return None
        waiter = _parsed(name, match, unpack_block(os.pread(fd, BLOCK, 0)) or {})
        return waiter and replace(waiter, who=_who(status, lockers, closed=waiter.ticket.closed))
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
        return None  # a ticket that makes no sense gets no turn
    finally:
        os.close(fd)


def _who(status: os.stat_result, lockers: LockHolders, *, closed: bool) -> str:
    """Return a ticket's user, and of a closed ticket its process as the kernel tells it."""
    user = user_name_soon(status.st_uid)
    pids = lockers.of(status) if closed else []
    return f"{user} (process {pids[0]})" if pids else user


def _parsed(name: str, match: re.Match[str], said: Mapping[str, Any]) -> Waiter | None:
    if said.get("version") != VERSION:
        return None
    now = _boot_seconds()
    ticket = WaitTicket(
        untrusted.size(said["task"]),
        tuple(str(key) for key in said["devices"]),
        tuple(None if bytes_ is None else untrusted.size(bytes_) for bytes_ in said["gpus"]),
        None if said["host"] is None else untrusted.size(said["host"]),
        untrusted.amount(said["cores"]),
        untrusted.amount(said["busy"]),
        bool(said["alone"]),
        untrusted.amount(now - float(said["since"])),
        bool(said["closed"]),
        tuple(untrusted.size(bytes_) for bytes_ in said.get("bare", ())),
    )
    return Waiter(name, int(match[1]), match[2], ticket, untrusted.amount(now - float(said["looked"])))


def _boot_seconds() -> float:
    """Return the seconds since boot: all processes share this clock, and it is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
