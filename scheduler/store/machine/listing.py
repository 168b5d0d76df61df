"""The names in the lease directory, of which any user may make as many as there is room for.

What was found worthless once is not opened again: a file of another owner than its name says, or whose lock is free.
Names are never used twice, so such a file never comes to count. What one user may keep others busy with is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from typing import NamedTuple

from scheduler.core.leases import Lease

MOST_LEASES = 4096
"""Living leases of one user that are read; no machine runs so many tasks of one user at once."""
MOST_TICKETS = 1024
"""Living tickets of one user that are read: one for each of that user's runs that wait."""
SETTLED = 50_000_000
"""Nanoseconds after which a second change of a file is sure to change its ctime; the kernel's clock ticks in steps."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FILE = (errno.ELOOP, errno.ENXIO)
"""How opening a link or a socket fails."""


class Names(NamedTuple):
    """Names by what they may be."""

    leases: list[str]
    tickets: list[str]
    device_reservations: list[str]


class Listing:
    """The known names of one directory; `uid` is the user whose dead files are removed, not passed over."""

    def __init__(self, directory: int, uid: int = -1) -> None:
        self.directory = directory
        self._uid = uid
        self.is_exclusive = False
        """True while the directory's mutex is held, so that no file is being made."""
        self._worthless: set[str] = set()
        self._records: dict[str, tuple[int, Lease]] = {}
        self.crowded: dict[int, str] = {}
        """The users who have more files than are read, each with how many of which are read."""

    def names(self) -> Names:
        """Return what lies there and is not known to be worthless; nothing of a directory that was removed."""
        try:
            everything = os.listdir(self.directory)
        except OSError:
            everything = []
        if len(self._worthless) > 2 * len(everything) + 1000:
            self._worthless.intersection_update(everything)
        found = Names([], [], [])
        for name in [name for name in everything if name not in self._worthless]:
            if name[0].isdigit():
                found.leases.append(name)
            elif name.startswith("ticket."):
                found.tickets.append(name)
            elif name.startswith("closed."):
                found.device_reservations.append(name)
            else:
                self._worthless.add(name)
        return found

    def condemn(self, name: str) -> None:
        """Ignore a name from now on."""
        self._worthless.add(name)

    def open(self, name: str, owner: int) -> tuple[int, os.stat_result] | None:
        """Open a plain file of this owner to be read; None for any other, which is not looked at again."""
        try:
            fd = os.open(name, _READ, dir_fd=self.directory)
        except OSError as exc:
            if exc.errno in _NO_FILE or (exc.errno == errno.EACCES and self.is_exclusive):
                self.condemn(name)
            return None
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == owner:
            return fd, status
        os.close(fd)
        self.condemn(name)
        return None

    def bury(self, name: str, fd: int) -> None:
        """Be done with a file whose lock is free: remove this user's own, do not look at another's again.

        A file is made unreadable for others, locked, then made readable; its maker holds the mutex meanwhile.
        """
        status = os.fstat(fd)
        if status.st_uid == self._uid:
            if self.is_exclusive:
                os.unlink(name, dir_fd=self.directory)
        elif status.st_nlink and (self.is_exclusive or status.st_mode & stat.S_IROTH):
            self.condemn(name)

    def recall(self, name: str, status: os.stat_result) -> Lease | None:
        """Return what a lease said when it was read, if its file has not changed since."""
        changed, lease = self._records.get(name, (0, None))
        return lease if changed == status.st_ctime_ns else None

    def remember(self, name: str, status: os.stat_result, lease: Lease, now: int) -> None:
        """Keep what a lease says; `now` is in nanoseconds since the epoch."""
        if 0 <= status.st_ctime_ns <= now - SETTLED:
            self._records[name] = (status.st_ctime_ns, lease)

    def prune(self, living: set[str]) -> None:
        """Forget the leases that are not among these."""
        if len(self._records) > len(living):
            self._records = {name: record for name, record in self._records.items() if name in living}

    def is_known(self, name: str) -> bool:
        """Return whether a lease was read before."""
        return name in self._records


class Crowd:
    """How much of each user was read in one look."""

    def __init__(self, listing: Listing, most: int, what: str) -> None:
        self._listing, self._most, self._what = listing, most, what
        self._counts: Counter[int] = Counter()

    def add(self, uid: int) -> None:
        """Count a file that lives."""
        self._counts[uid] += 1

    def is_full(self, uid: int) -> bool:
        """Return whether no more of a user is read; that user is named then."""
        if self._counts[uid] < self._most:
            return False
        self._listing.crowded[uid] = f"{self._most:,} {self._what}"
        return True
