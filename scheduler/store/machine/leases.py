"""Machine-wide reservations: one locked file per living attempt, in a directory that all users' schedulers share."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from scheduler.core.leases import HeldLease, Lease
from scheduler.core.model import Placement, Waiter, WaitTicket
from scheduler.core.site_policy import SitePolicy
from scheduler.errors import LeaseError
from scheduler.runtime.shim import BLOCK, pack_block, start_time, unpack_block
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine import device_reservations, untrusted
from scheduler.store.machine.listing import MOST_LEASES, Crowd, Listing, Names
from scheduler.store.machine.locked_files import (
    LockHolders,
    holder,
    is_free,
    is_held_long,
    make_locked,
    why_not_lockable,
)
from scheduler.store.machine.mutex import Mutex
from scheduler.store.machine.site_config import SiteConfigReader
from scheduler.store.machine.wait_tickets import Tickets
from scheduler.units import count

VERSION = 1
RUNTIME = Path("/run/gpu-batch-scheduler")
FALLBACK = Path("/tmp/.gpu-batch-scheduler")
FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the pid namespace that is no container's; in others /proc/locks leaves out locks of dead processes."""
LOOKING = 1.0
"""Least seconds between looks at new files outside the mutex."""
PATIENCE = 5.0
"""Seconds to wait for the directory's mutex before its holder is named; it is held for under a millisecond."""
_RANDOM_BYTES = 8
"""Random bytes in each lease's name: another user who could foresee the next name could take it first."""
_BY_SHIM = ".shim"
"""The end of the name of a lease that was made again: a dead lease is told by its name and lock, and is never read."""
_NAME = re.compile(rf"(\d+)\.([0-9a-f-]+)\.(\d+)\.(\d+)\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}({re.escape(_BY_SHIM)})?\Z")
_LASTING = ("since", "expected", "locker", "namespace")
"""The fields of a record that stay as they were when the lease was made."""
_TRIES = 3
"""The number of names tried for one lease; a second one is hardly ever needed."""


def find_directory(said: str | None) -> Path:
    """Return the lease directory: as named, else the administrator's, else one under /tmp that the first user makes."""
    if said:
        return Path(said).absolute()
    return RUNTIME if RUNTIME.is_dir() else FALLBACK


def make_directory(said: str | None) -> Path:
    """Return the lease directory, and make it where it is missing. Raises LeaseError where it cannot be trusted."""
    directory = find_directory(said)
    os.close(_open_directory(directory))
    return directory


Key = tuple[int, int]
"""A task and its attempt."""


class _Own(NamedTuple):
    """A lease of this run."""

    name: str = ""
    inode: int = 0
    """The inode of its file, which tells it from another file of its name; 0: it is to be made again."""
    since: float = 0.0
    by_shim: bool = False
    """True where it was made again, so that it lives by the shim that it names."""
    fd: int = -1
    """The lock of one that was made again; of the others their shims have it."""


class FileLeaseRegistry:
    """This run's leases, and a view of all others; a scheduler writes files of its own run only."""

    def __init__(self, directory: Path, run: str, boot: str) -> None:
        self.directory = directory
        self._path = str(directory)
        self._uid = os.getuid()
        self._run = run
        self._boot = boot
        self._own: dict[Key, _Own] | None = None
        """This run's leases by task and attempt; None: the directory has not been searched for them."""
        self._has_moved = False
        """True where the directory's name leads to another one than that of the leases."""
        self._fd = _open_directory(directory)
        self._mutex = Mutex(self._fd)
        self._listing = Listing(self._fd, self._uid)
        self._looked_at = -math.inf
        """When the directory was last looked at outside its mutex."""
        self._tickets = Tickets(self._fd, self._uid, run)
        self._follower = SiteConfigReader(self._uid)
        self._rules = self._follower.now()

    @property
    def uid(self) -> int:
        """Whose leases these are."""
        return self._uid

    def leave(self) -> None:
        """Remove this run's wait ticket."""
        self._tickets.leave()

    def close(self) -> None:
        """Let go of the directory."""
        self._tickets.forget()
        for one in (self._own or {}).values():
            if one.fd >= 0:
                os.close(one.fd)
        os.close(self._fd)

    def deciding(self) -> FileLeaseTransaction:
        """Return a transaction that holds the mutex of the whole machine: keep it short, all other schedulers wait."""
        return FileLeaseTransaction(self)

    def _lock(self) -> None:
        """Lock the directory that has the name now; ours may have been removed or replaced since it was opened."""
        self._wait_for_lock()
        while not self._is_there():
            fd = _open_directory(self.directory)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
            self._has_moved = True
            self._listing = Listing(self._fd, self._uid)
            self._tickets.leave()  # the next decision shows it in the new directory
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

    def living(self) -> list[Lease]:
        """Return every living lease, this run's too, without the mutex: only nearly those of one moment."""
        return list(_living(self._listing.names().leases, self._listing))

    def troubles(self) -> list[str]:
        """Return a sentence about each user who has more in the directory than is read."""
        return [
            f"{user_name_soon(uid)} (user {uid}) has more than {most} in {self.directory}: the others do not count"
            for uid, most in sorted(self._listing.crowded.items())
        ]

    def look(self) -> None:
        """Look at new files while others may decide, so that those which never count are known under the mutex."""
        now = time.monotonic()
        if now - self._looked_at < LOOKING:
            return
        self._looked_at = now
        listing = self._listing
        names = listing.names()
        new = [name for name in names.leases if not listing.is_known(name)]
        for _ in _living(new, listing, skip=self.prefix):
            pass
        self._tickets.others(listing, names.tickets)
        if self._rules.names_groups or names.device_reservations:  # who is in a group may take a while to be told
            device_reservations.standing(listing, names.device_reservations, self._rules.allows, time.time())

    @property
    def prefix(self) -> str:
        """How the names of this run's leases begin."""
        return f"{self._uid}.{self._run}."

    def own(self) -> dict[Key, _Own]:
        """Return this run's leases by task and attempt.

        The first call searches the directory for the leases of an earlier scheduler of this run, and removes the dead
        ones. It needs no mutex: a run has one scheduler at a time.
        """
        if self._own is None:
            listing = Listing(self._fd, self._uid)
            listing.is_exclusive = True
            found = _living([name for name in listing.names().leases if name.startswith(self.prefix)], listing)
            self._own = {(lease.task, lease.attempt): self._found(lease) for lease in found}
        return self._own

    def _found(self, lease: Lease) -> _Own:
        """Return a lease of an earlier scheduler; one that it had made again has lost its lock with it."""
        inode = 0 if lease.by_shim else _inode(self._fd, lease.name)
        return _Own(lease.name, inode, lease.since, lease.by_shim)

    def adopt(self, task: int, attempt: int) -> None:
        """Expect a lease of an attempt that an earlier scheduler started: where it has none, it gets one."""
        self.own().setdefault((task, attempt), _Own())

    def missing(self) -> list[Key]:
        """Return the attempts of this run whose leases are not in the directory; takes no mutex.

        An attempt that has just ended is among them: its shim removes the lease before it tells of the end.
        """
        own = self.own()
        if own and not self._is_there():
            self._has_moved = True
            return list(own)
        missing = [key for key, one in own.items() if not one.inode or _inode(self._fd, one.name) != one.inode]
        self._has_moved = self._has_moved and bool(missing)
        return missing

    @property
    def has_moved(self) -> bool:
        """True where the directory was removed or replaced since the leases were made."""
        return self._has_moved

    def restore(self, living: Sequence[tuple[Placement, int]]) -> str:
        """Make the leases of living attempts again, each with its shim; return a sentence about the lost ones.

        The lock of such a lease is this scheduler's: the attempt's shim has that of the file that was removed. So it
        lives by the shim that it names, too, and the next scheduler of the run takes a lock for it anew. Raises
        LeaseError.
        """
        with self.deciding():
            moved, self._has_moved = self._has_moved, False
            lost = 0
            try:
                for placement, shim in living:
                    before = self.own().get((placement.task, placement.attempt), _Own())
                    lost += not before.by_shim or bool(before.inode)
                    self.make(placement, before.since or round(time.time(), 3), shim, by_shim=True)
            except OSError as exc:
                self._has_moved = moved
                raise LeaseError(f"cannot write a lease in {self.directory}: {exc.strerror}") from exc
        return self._made_again(lost, moved=moved) if lost else ""

    def _made_again(self, lost: int, *, moved: bool) -> str:
        made = f"{count(lost, 'lease')} of this run {'was' if lost == 1 else 'were'} made again"
        if moved:
            return f"the lease directory {self.directory} was removed or replaced: {made} in the new one"
        return f"{made}: the files were removed from {self.directory}{_owned_by(self.directory)}"

    def rewrite(self, placement: Placement, shim: int) -> bool:
        """Bring the file of a living lease up to date; False where there is none any more."""
        one = self.own().get((placement.task, placement.attempt))
        if one is None:
            return False
        try:
            fd = os.open(one.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError:
            return False
        try:
            with self.deciding():
                before = unpack_block(os.pread(fd, BLOCK, 0)) or {}
                kept = {"since": 0.0, "expected": 0.0, **{name: before[name] for name in _LASTING if name in before}}
                os.pwrite(fd, self._record(placement, shim, kept), 0)
        finally:
            os.close(fd)
        return True

    def drop(self, task: int, attempt: int) -> None:
        """Remove what a lost attempt left; the shim of any other has done it."""
        one = self.own().pop((task, attempt), _Own())
        if one.name:
            with contextlib.suppress(OSError):
                os.unlink(one.name, dir_fd=self._fd)
        if one.fd >= 0:
            os.close(one.fd)

    def forget(self, task: int, attempt: int) -> None:
        """Forget the lease of an attempt that has ended; its shim does not know of one that was made again."""
        if self.own().get((task, attempt), _Own()).by_shim:
            self.drop(task, attempt)
        else:
            self.own().pop((task, attempt), None)

    def make(self, placement: Placement, since: float, shim: int = 0, *, by_shim: bool = False) -> HeldLease:
        """Make the file of a lease under a new name, with its record in it and locked; the mutex has to be held.

        One that was made before for the same attempt is replaced: no shim has it, or its file has gone.
        """
        self.drop(placement.task, placement.attempt)
        lasting: dict[str, Any] = {"since": since, "expected": placement.expected}
        lasting |= {"locker": os.getpid(), "namespace": _namespace()}
        name, fd = self._file(placement, self._record(placement, shim, lasting), _BY_SHIM if by_shim else "")
        own = _Own(name, os.fstat(fd).st_ino, since, by_shim, fd if by_shim else -1)
        self.own()[placement.task, placement.attempt] = own
        return HeldLease(f"{self._path}/{name}", fd)

    def _file(self, placement: Placement, record: bytes, end: str) -> tuple[str, int]:
        for left in reversed(range(_TRIES)):
            name = f"{self.prefix}{placement.task}.{placement.attempt}.{os.urandom(_RANDOM_BYTES).hex()}{end}"
            try:
                return name, make_locked(self._fd, name, record)
            except FileExistsError:
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def _record(self, placement: Placement, shim: int, lasting: Mapping[str, Any]) -> bytes:
        return pack_block(
            {
                **lasting,
                "alone": placement.alone,
                "version": VERSION,
                "shim": shim,
                "shim_id": _identity(shim) if shim else "",
                "boot": self._boot,
                "bytes": dict(placement.reservation),
                "load": placement.load,
            }
        )


class FileLeaseTransaction:
    """The directory while its mutex is held."""

    def __init__(self, registry: FileLeaseRegistry) -> None:
        self._registry = registry
        self._listed: Names | None = None

    def __enter__(self) -> FileLeaseTransaction:
        registry = self._registry
        registry._rules = registry._follower.now()
        registry.look()
        registry._lock()
        registry._listing.is_exclusive = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._registry._listing.is_exclusive = False
        self._registry._mutex.release()

    @property
    def _names(self) -> Names:
        """The names in the directory, listed once: no other scheduler writes while the mutex is held."""
        if self._listed is None:
            self._registry._listing.crowded.clear()
            self._listed = self._registry._listing.names()
        return self._listed

    def others(self) -> list[Lease]:
        """Return every living lease of other runs; remove dead ones of this user on the way."""
        registry = self._registry
        found = list(_living(self._names.leases, registry._listing, skip=registry.prefix))
        registry._listing.prune({lease.name for lease in found})
        return found

    def take(self, placement: Placement) -> HeldLease:
        """Write a placement's lease and lock it, before another scheduler can decide. Raises LeaseError."""
        try:
            return self._registry.make(placement, round(time.time(), 3))
        except OSError as exc:
            raise LeaseError(f"cannot write a lease in {self._registry.directory}: {exc.strerror}") from exc

    def waiters(self) -> list[Waiter]:
        """Return every other scheduler that waits for capacity."""
        return self._registry._tickets.others(self._registry._listing, self._names.tickets)

    def wait(self, ticket: WaitTicket | None) -> None:
        """Show all schedulers what this run waits for; None: nothing."""
        self._registry._tickets.show(ticket)

    def house(self) -> SitePolicy:
        """Return the quotas, and the devices on which this user starts nothing."""
        registry = self._registry
        found = device_reservations.standing(
            registry._listing, self._names.device_reservations, registry._rules.allows, time.time()
        )
        closed = device_reservations.for_others(found, registry._uid, user_name_soon)
        return SitePolicy(registry._rules.caps, closed, registry._rules.quotas)


def living(directory: Path) -> list[Lease]:
    """Return every living lease of this machine, for views: without the mutex, so only nearly of one moment."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        listing = Listing(fd)
        return list(_living(listing.names().leases, listing))
    finally:
        os.close(fd)


def distrust(directory: Path) -> str:
    """Return why leases in a directory cannot be trusted or written, with the cure; empty where all is well.

    One that is not there yet is made by the first run.
    """
    if not os.path.lexists(directory):
        return ""
    try:
        fd = _open_directory(directory)
    except LeaseError as exc:
        return str(exc)
    try:
        if not os.access(directory, os.W_OK | os.X_OK):
            owner = os.fstat(fd).st_uid
            return f"you may not write in the lease directory {directory}: {_cure(directory, owner)}"
        return _who_locks(fd, directory)
    finally:
        os.close(fd)


def _who_locks(fd: int, directory: Path) -> str:
    """Return a sentence about a process that keeps the directory locked for longer than any decision takes."""
    if not is_held_long(fd):
        return ""
    who = holder(fd)
    return f"the lease directory {directory} is locked by {who}, nothing starts before that ends: end it, or ask for it"


def _open_directory(path: Path) -> int:
    try:
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o1777)
    except FileExistsError:
        pass
    except OSError as exc:
        why = f"cannot make the lease directory {path}: {exc.strerror}"
        raise LeaseError(f"{why}; name another with SCHEDULER_LEASES") from exc
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        why = f"the lease directory {path} cannot be used ({(exc.strerror or str(exc)).lower()})"
        raise LeaseError(f"{why}: move it away, or name another with SCHEDULER_LEASES") from exc
    try:
        _check_directory(path, os.fstat(fd))
        if why := why_not_lockable(fd):
            raise LeaseError(
                f"the lease directory {path} cannot be locked ({why}): name one on a local disk with SCHEDULER_LEASES"
            )
    except LeaseError:
        os.close(fd)
        raise
    return fd


def _check_directory(path: Path, status: os.stat_result) -> None:
    """Refuse a directory in which others could remove or replace our leases."""
    open_to_others = status.st_mode & 0o022
    if open_to_others and not status.st_mode & stat.S_ISVTX:
        raise LeaseError(f"{path} can be written by others and is not sticky: {_cure(path, status.st_uid)}")
    if status.st_uid not in (0, os.getuid()) and not open_to_others:
        raise LeaseError(
            f"{path} belongs to user {status.st_uid} and you may not write there: {_cure(path, status.st_uid)}"
        )


def _cure(path: Path, owner: int) -> str:
    """Return what opens a lease directory to all users; one that is another user's would stay in that user's power."""
    if owner == 0:
        return f"sudo chmod 1777 {path}"
    if owner == os.getuid():
        return f"chmod 1777 {path}"
    return "sudo scheduler devices init makes one of root's, or name another with SCHEDULER_LEASES for all users"


def _living(names: Iterable[str], listing: Listing, *, skip: str = "") -> Iterator[Lease]:
    """Find the living leases; those whose names begin with `skip` are left out."""
    lockers, crowd, now = LockHolders(), Crowd(listing, MOST_LEASES, "leases"), time.time_ns()
    for name in names:
        if skip and name.startswith(skip):
            continue
        match = _NAME.match(name)
        if match is None:
            listing.condemn(name)
        elif not crowd.is_full(int(match[1])):
            lease = _look(name, match, listing, lockers, now)
            if lease is not None:
                crowd.add(lease.uid)
                yield lease


def _look(name: str, match: re.Match[str], listing: Listing, lockers: LockHolders, now: int) -> Lease | None:
    """Read one file; return its living lease, or None where it is dead, planted or gone."""
    opened = listing.open(name, int(match[1]))
    if opened is None:
        return None
    fd, status = opened
    try:
        free = is_free(fd)
        lease = listing.recall(name, status)
        if lease is None and (not free or match[5]):
            lease = _parse(name, match, os.pread(fd, BLOCK, 0))
            listing.remember(name, status, lease, now)
        alive = None if lease is None else _alive(lease, status, lockers, free=free)
        if alive is None and free:
            listing.bury(name, fd)
        if alive is not None and alive.unreadable:
            return replace(alive, unreadable=_with_process(alive.unreadable, status, lockers))
        return alive
    except OSError:
        return None
    finally:
        os.close(fd)


def _with_process(user: str, status: os.stat_result, lockers: LockHolders) -> str:
    """Return a user's name with the process that locked a file, where the kernel lists one."""
    pids = lockers.of(status)
    return f"{user} (process {pids[0]})" if pids else user


def _alive(lease: Lease, status: os.stat_result, lockers: LockHolders, *, free: bool) -> Lease | None:
    """Return a lease as it counts, or None where it is dead; only one that was made again needs no lock."""
    if free and not lease.by_shim:
        return None
    if _has_its_shim(lease, lockers):
        return lease
    return None if free or _is_feigned(status, lease, lockers) else replace(lease, shim=0)


def _has_its_shim(lease: Lease, lockers: LockHolders) -> bool:
    """Tell whether the process that a lease names is its shim: its memory counts as the lease's.

    A process of another user is not, whatever the lease says. Nor is one that only has the same number here: the
    lease's scheduler may count processes for itself, in a container.
    """
    if not lease.shim or lockers.user(lease.shim) != lease.uid:
        return False
    return lease.shim_id in ("", _identity(lease.shim))


def _identity(pid: int) -> str:
    """Return what tells a process from all others of this machine, in any pid namespace; `gone` where it has ended."""
    try:
        return _identity_of(pid, os.stat(f"/proc/{pid}").st_ino)
    except OSError:
        return "gone"


@lru_cache(maxsize=1024)
def _identity_of(pid: int, inode: int) -> str:
    """Return a process's identity, cached by its folder in /proc: many leases are read while all others wait."""
    return f"{_namespace()}.{start_time(pid)}"


@cache
def _namespace() -> int:
    """Return the inode of this process's pid namespace; pids mean something only within it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_feigned(status: os.stat_result, lease: Lease, lockers: LockHolders) -> bool:
    """Return whether a lease without its shim is kept locked by another user, to make it look alive.

    The kernel lists a lock under the process that took it: the scheduler, also when only the shim or the rest of its
    tree has it any more. That process is named in the lease, so a lock under another number is another user's. What
    cannot be judged counts as alive: a lock that is not listed here, and in a container the process that the lease
    names, since its number may mean nothing there.
    """
    pids = lockers.of(status)
    if lease.locker and pids and lease.locker not in pids:
        return True
    return lockers.are_other_users(status) and (bool(lease.shim) or not _has_shims(status.st_uid))


def _has_shims(uid: int) -> bool:
    """Tell whether a user runs anything that could be the shim of a lease that does not name its shim."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid and b"shim.py" in _command_line(name):
                return True
        except OSError:
            continue
    return False


def _command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _parse(name: str, match: re.Match[str], block: bytes) -> Lease:
    who = (name, int(match[1]), match[2], int(match[3]), int(match[4]))
    try:
        data = unpack_block(block) or {}
        return _read(who, data, "" if data.get("version") == VERSION else user_name_soon(who[1]))
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError):
        return Lease(*who, shim=0, reserved={}, load={}, unreadable=user_name_soon(who[1]))


def _read(who: tuple[str, int, str, int, int], data: Mapping[str, Any], unreadable: str) -> Lease:
    """Return the lease of a record; shim, bytes and load mean the same in every version."""
    return Lease(
        *who,
        shim=int(data["shim"]),
        shim_id=str(data.get("shim_id", "")),
        reserved={str(key): untrusted.size(bytes_) for key, bytes_ in data["bytes"].items()},
        load={str(key): untrusted.amount(load) for key, load in data["load"].items()},
        unreadable=unreadable,
        alone=bool(data.get("alone", False)),
        locker=int(data.get("locker", 0)) if data.get("namespace") == _namespace() == FIRST_NAMESPACE else 0,
        by_shim=who[0].endswith(_BY_SHIM) and bool(data.get("shim_id", "")),
        since=untrusted.amount(data.get("since", 0.0)),
        expected=untrusted.amount(data.get("expected", 0.0)),
    )


def _inode(directory: int, name: str) -> int:
    """Return the number of a file's inode; 0 where there is no such file."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
    except OSError:
        return 0


def of_another_user(directory: Path) -> str:
    """Return a sentence that names the owner of a lease directory who can remove the leases of others there.

    It is empty for a directory of root or of this user, and where there is none.
    """
    who = _owned_by(directory)
    if not who:
        return ""
    return (
        f"the lease directory {directory}{who}: this run makes its own again within a second; "
        "as root, while nothing runs: scheduler devices init"
    )


def _owned_by(directory: Path) -> str:
    """Return who besides root and this user may remove any lease, as the end of a sentence; empty for no other user."""
    try:
        uid = os.lstat(directory).st_uid
    except OSError:
        return ""
    if uid in (0, os.getuid()):
        return ""
    return f", which belongs to {user_name_soon(uid)} (user {uid}), who can remove the leases of others there"
