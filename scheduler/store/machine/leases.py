"""Machine-wide reservations: one locked file per living attempt, in a directory that all users' schedulers share."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from scheduler.core.leases import NO_OFFER, HeldLease, Lease, RoomCall, RoomOffer
from scheduler.core.model import Placement, Waiter, WaitTicket
from scheduler.core.reporting.published_forecast import PublishedForecast
from scheduler.core.site_policy import SitePolicy
from scheduler.errors import LeaseError
from scheduler.runtime import threads
from scheduler.runtime.shim import BLOCK, unpack_block
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine import device_reservations
from scheduler.store.machine.lease_directory import open_trusted, owned_by
from scheduler.store.machine.lease_records import (
    BY_SHIM,
    LASTING,
    LEASES,
    guest_fields,
    living,
    namespace,
    stem,
    to_block,
)
from scheduler.store.machine.locked_files import holder
from scheduler.store.machine.mutex import Mutex
from scheduler.store.machine.ports import free_port
from scheduler.store.machine.published_forecasts import PublishedForecastFile
from scheduler.store.machine.records import MANY, RecordDirectory
from scheduler.store.machine.site_config import SiteConfigReader
from scheduler.store.machine.wait_tickets import TICKETS, Tickets
from scheduler.units import count
from scheduler.values import replace

LOOKING = 1.0
"""The least seconds between two checks of the directory and of the site's rules without the mutex."""
KNOWN = 0.05
"""The most seconds that the lookup of a user's groups may take while the mutex is held; usually the groups are known
already from the check without the mutex.
"""
PATIENCE = 5.0
"""Seconds to wait for the directory's mutex; after that, an error names its holder. A decision holds the mutex for less
than a millisecond.
"""

Key = tuple[int, int]
"""A task and its attempt."""


class OwnLease(NamedTuple):
    """A lease of this run."""

    name: str = ""
    inode: int = 0
    """The inode of the lease's file, which distinguishes it from another file of that name; 0: the lease must be
    created again.
    """
    since: float = 0.0
    port: int = 0
    by_shim: bool = False
    """True if the lease was created again, so that it lives as long as the shim that it names."""
    fd: int = -1
    """The descriptor that locks a lease that was created again; -1 for any other lease, which the shim keeps locked."""


class FileLeaseRegistry:
    """The leases of this run, and a view of all other leases; a scheduler writes only files of its own run.

    `deciding` yields the registry itself as the transaction; the methods under "while the mutex is held" may be called
    only within it.
    """

    def __init__(self, directory: Path, run: str, boot: str) -> None:
        self.directory = directory
        self.uid = os.getuid()
        self.run = run
        self.has_moved = False
        """True if the directory was removed or replaced since the leases were created."""
        self._path = str(directory)
        self._stem = stem(self.uid, run)
        self._boot = boot
        self._ports: set[int] = set()
        """The ports of all living leases at the last read of the leases."""
        self._own: dict[Key, OwnLease] | None = None
        """This run's leases by task and attempt; None before the directory was searched for them."""
        self._fd = open_trusted(directory)
        self._mutex = Mutex(self._fd)
        self._records = RecordDirectory(self._fd, self.uid)
        self._looked_at = -math.inf
        """The time at which the directory was last checked without its mutex."""
        self._tickets = Tickets(self.uid, run)
        self._forecast = PublishedForecastFile(self.uid, run)
        self._site_reader = SiteConfigReader(self.uid)
        self._site = self._site_reader.now()

    def leave(self) -> None:
        """Remove this run's wait ticket."""
        self._tickets.leave(self._fd)

    def close(self) -> None:
        """Remove this run's wait ticket and published forecast, and close the directory."""
        self._tickets.forget(self._records)
        self._forecast.forget(self._records)
        for one in (self._own or {}).values():
            if one.fd >= 0:
                os.close(one.fd)
        os.close(self._fd)

    def seen(self) -> list[Lease]:
        """Return the living leases of other runs, without taking the mutex."""
        return [lease for lease in living(self.directory) if (lease.uid, lease.run) != (self.uid, self.run)]

    def publish(self, forecast: PublishedForecast | None) -> None:
        """Publish when this run's attempts are expected to end and what its tasks wait for; None removes the published
        forecast, because the run has nothing to do.

        A failure to write is ignored: it only makes the forecasts of other schedulers less exact.
        """
        if forecast is None:
            self._forecast.leave(self._fd)
            return
        with contextlib.suppress(OSError, LeaseError):
            if not self._forecast.needs_mutex:
                self._forecast.rewrite(forecast)
                return
            with self.deciding():
                self._forecast.make(self._records, forecast)

    # ---- the mutex ----

    @contextmanager
    def deciding(self) -> Iterator[FileLeaseRegistry]:
        """Hold the mutex of the whole machine for the block, which must be short, because all other schedulers wait.
        Raise LeaseError if the mutex stays locked.
        """
        self._look_ahead()
        self._lock()
        self._records.hold(exclusive=True)
        try:
            yield self
        finally:
            self._records.hold(exclusive=False)
            self._mutex.release()

    def _look_ahead(self) -> None:
        """Read all files before the mutex is taken: files that can never be valid are then known, and need not be
        opened while the mutex is held.
        """
        now = time.monotonic()
        if now - self._looked_at < LOOKING:
            return
        self._looked_at = now
        self._site = self._site_reader.now()
        may = partial(self._site_reader.allows, patience=threads.PATIENCE)
        with self._records.listed_once():
            for _ in self._records.read(LEASES, self._is_other):
                pass
            self._tickets.others(self._records)
            device_reservations.standing(self._records, may, time.time())  # group membership may take long

    def _is_other(self, name: re.Match[str]) -> bool:
        return not name.string.startswith(self._stem)

    def _lock(self) -> None:
        """Lock the directory that has the configured path now, because the open one may have been removed or
        replaced.
        """
        self._wait_for_lock()
        while not self._is_there():
            fd = open_trusted(self.directory)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
            self.has_moved = True
            self._records = RecordDirectory(self._fd, self.uid)
            self.leave()  # the next decision shows the ticket in the new directory
            self._wait_for_lock()

    def _is_there(self) -> bool:
        try:
            ours, named = os.fstat(self._fd), os.stat(self._path, follow_symlinks=False)
            return ours.st_ino == named.st_ino and ours.st_dev == named.st_dev
        except OSError:
            return False

    def _wait_for_lock(self) -> None:
        if not self._mutex.take(PATIENCE):
            raise LeaseError(
                f"the lease directory {self.directory} has been locked for {PATIENCE:g}s by {holder(self._fd)}: "
                "nothing is started before that ends"
            )

    # ---- while the mutex is held ----

    def others(self) -> list[Lease]:
        """Return every living lease of other runs; remove dead leases of this user."""
        others = list(self._records.read(LEASES, self._is_other))
        self._ports = {lease.port for lease in others}.union([one.port for one in self.own().values()])
        return others

    def take(self, placement: Placement, guest: str = "") -> HeldLease:
        """Write a placement's lease and lock it, before another scheduler can decide. Raise LeaseError if the lease
        cannot be written.

        The lease gets a port that no lease had when `others` was last called.
        """
        port = free_port(self._ports, crc32(f"{self._stem}{placement.task}.{placement.attempt}".encode()))
        self._ports.add(port)
        try:
            return self._make(replace(placement, port=port), round(time.time(), 3), guest)
        except OSError as exc:
            raise LeaseError(f"cannot write a lease in {self.directory}: {exc.strerror}") from exc

    def take_all(self, wanted: Sequence[tuple[Placement, str]]) -> Iterator[tuple[Placement, HeldLease]]:
        """Take the leases of these placements and yield them one by one. Raise LeaseError at the first lease that
        cannot be written.
        """
        for placement, guest in wanted:
            yield placement, self.take(placement, guest)

    def waiters(self) -> list[Waiter]:
        """Return the waiters of all other schedulers that wait for capacity."""
        return self._tickets.others(self._records)

    def calls(self) -> list[RoomCall]:
        """Return the requests of this user's other runs to make room, without taking the mutex."""
        every = RecordDirectory(self._fd, -1).read(TICKETS, self._tickets.is_of_this_user)
        return [waiter.ticket.call for waiter in every if waiter.ticket.call is not None]

    def wait(self, ticket: WaitTicket | None) -> None:
        """Publish what this run waits for; None removes the published ticket."""
        self._tickets.show(self._records, ticket)

    def house(self) -> SitePolicy:
        """Return the quotas, and the devices on which this user may start nothing."""
        may = partial(self._site_reader.allows, patience=KNOWN)
        found = device_reservations.standing(self._records, may, time.time())
        closed = device_reservations.for_others(found, self.uid, user_name_soon)
        return SitePolicy(self._site.caps, closed, self._site.quotas)

    def _make(
        self, placement: Placement, since: float, guest: str, shim: int = 0, *, by_shim: bool = False
    ) -> HeldLease:
        """Create the file of a lease under a new name, locked and with its record.

        An earlier lease of the attempt is replaced: either no shim holds it, or its file is gone.
        """
        key = placement.task, placement.attempt
        self.drop(*key)
        lasting = {
            "since": since, "expected": placement.expected, "locker": os.getpid(), "namespace": namespace(),
            **guest_fields(guest),
        }  # fmt: skip
        block = to_block(placement, shim, self._boot, lasting)
        name, fd = self._records.make(f"{self._stem}{key[0]}.{key[1]}.", block, BY_SHIM if by_shim else "")
        self.own()[key] = OwnLease(name, os.fstat(fd).st_ino, since, placement.port, by_shim, fd if by_shim else -1)
        return HeldLease(f"{self._path}/{name}", fd, placement.port)

    # ---- this run's leases ----

    def own(self) -> dict[Key, OwnLease]:
        """Return this run's leases by task and attempt.

        The first call searches the directory for leases of an earlier scheduler of this run, and removes dead ones. The
        search needs no mutex, because a run has only one scheduler at a time.
        """
        if self._own is None:
            records = RecordDirectory(self._fd, self.uid)
            records.hold(exclusive=True)
            found = records.read(LEASES, lambda name: not self._is_other(name))
            self._own = {(lease.task, lease.attempt): self._found(lease) for lease in found}
        return self._own

    def _found(self, lease: Lease) -> OwnLease:
        """Return a lease that an earlier scheduler of this run left. If it was created again by that scheduler, it is
        no longer locked, so its inode is 0 and `restore` must create it again.
        """
        inode = 0 if lease.by_shim else _inode(self._fd, lease.name)
        return OwnLease(lease.name, inode, lease.since, lease.port, lease.by_shim)

    def adopt(self, task: int, attempt: int) -> None:
        """Expect a lease for an attempt that an earlier scheduler started; if the attempt has no lease, `restore`
        creates one.
        """
        self.own().setdefault((task, attempt), OwnLease())

    def missing(self) -> list[Key]:
        """Return the attempts of this run whose leases are not in the directory, without taking the mutex.

        An attempt that has just ended may be among these attempts: its shim removes the lease before it reports the
        end.
        """
        own = self.own()
        if own and not self._is_there():
            self.has_moved = True
            return list(own)
        missing = [key for key, one in own.items() if not one.inode or _inode(self._fd, one.name) != one.inode]
        self.has_moved = self.has_moved and bool(missing)
        return missing

    def restore(self, living: Sequence[tuple[Placement, int, str]]) -> str:
        """Create the leases of living attempts again, each with its shim and guest; return a sentence about leases that
        were lost, else an empty string.

        This scheduler holds the lock of a new lease, because the attempt's shim holds only the lock of the removed
        file. So that the lease survives this scheduler, it counts as alive as long as the shim that it names is alive,
        and the next scheduler of the run locks it again. Raise LeaseError if a lease cannot be written.
        """
        with self.deciding():
            moved, self.has_moved = self.has_moved, False
            lost = 0
            try:
                for placement, shim, guest in living:
                    before = self.own().get((placement.task, placement.attempt), OwnLease())
                    lost += not before.by_shim or bool(before.inode)
                    self._make(placement, before.since or round(time.time(), 3), guest, shim, by_shim=True)
            except OSError as exc:
                self.has_moved = moved
                raise LeaseError(f"cannot write a lease in {self.directory}: {exc.strerror}") from exc
        return self._made_again(lost, moved=moved) if lost else ""

    def _made_again(self, lost: int, *, moved: bool) -> str:
        made = f"{count(lost, 'lease')} of this run {'was' if lost == 1 else 'were'} made again"
        if moved:
            return f"the lease directory {self.directory} was removed or replaced: {made} in the new one"
        return f"{made}: the files were removed from {self.directory}{owned_by(self.directory)}"

    def rewrite(self, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> bool:
        """Update the file of a living lease; return False if the file no longer exists."""
        one = self.own().get((placement.task, placement.attempt))
        if one is None:
            return False
        try:
            fd = os.open(one.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError:
            return False
        try:
            with self.deciding():
                before: Mapping[str, Any] = unpack_block(os.pread(fd, BLOCK, 0)) or {}
                lasting = {"since": 0.0, "expected": 0.0, **{key: before[key] for key in LASTING if key in before}}
                os.pwrite(fd, to_block(placement, shim, self._boot, lasting, offer), 0)
        finally:
            os.close(fd)
        return True

    def drop(self, task: int, attempt: int) -> None:
        """Remove the lease of a lost attempt; the lease of any other attempt is removed by its shim."""
        one = self.own().pop((task, attempt), OwnLease())
        if one.name:
            with contextlib.suppress(OSError):
                os.unlink(one.name, dir_fd=self._fd)
        if one.fd >= 0:
            os.close(one.fd)

    def forget(self, task: int, attempt: int) -> None:
        """Forget the lease of an ended attempt; remove its file if the lease was created again, because the shim does
        not know that file.
        """
        if self.own().get((task, attempt), OwnLease()).by_shim:
            self.drop(task, attempt)
        else:
            self.own().pop((task, attempt), None)

    def troubles(self) -> list[str]:
        """Return a sentence about each user with more files than are read, and about the user whose files slow
        decisions down.
        """
        told = [
            f"{user_name_soon(uid)} (user {uid}) has more than {most} in {self.directory}: the others do not count"
            for uid, most in sorted(self._records.crowded.items())
        ]
        if (uid := self._records.filler()) is not None:
            told.append(
                f"{self.directory} has more than {MANY:,} files, most of {user_name_soon(uid)} (user {uid}), which "
                "delays each start: that user or root can remove them; scheduler devices init makes a bounded directory"
            )
        return told


def _inode(directory: int, name: str) -> int:
    """Return a file's inode number; 0 if there is no such file."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
    except OSError:
        return 0
