"""Machine-wide promises: one locked file per living attempt, in a directory that all users' schedulers share."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from scheduler.core.house import House
from scheduler.core.model import Placement, Ticket, Waiter
from scheduler.core.promises import Lease, Taken
from scheduler.errors import LeaseError
from scheduler.people import user_name_soon
from scheduler.shim import BLOCK, pack_block, start_time, unpack_block
from scheduler.store import closures, hearsay
from scheduler.store.houserules import Follower
from scheduler.store.locks import Lockers, is_free, make_locked, user_of
from scheduler.store.tickets import Tickets

VERSION = 1
RUNTIME = Path("/run/gpu-batch-scheduler")
FALLBACK = Path("/tmp/.gpu-batch-scheduler")
PATIENCE = 5.0
"""Seconds to wait for the directory's mutex before its holder is named; it is held for under a millisecond."""
_NAME = re.compile(r"(\d+)\.([0-9a-f-]+)\.(\d+)\.(\d+)\Z")


def find_directory(said: str | None) -> Path:
    """Where leases lie: as said, else one an administrator made, else one under /tmp that the first user makes."""
    if said:
        return Path(said).absolute()
    return RUNTIME if RUNTIME.is_dir() else FALLBACK


def make_directory(said: str | None) -> Path:
    """The same, made where it is not there; raises LeaseError where it cannot be trusted."""
    directory = find_directory(said)
    os.close(_open_directory(directory))
    return directory


class Ledger:
    """This run's leases, and a look at everybody else's; nobody ever writes another's file."""

    def __init__(self, directory: Path, run: str, boot: str) -> None:
        self.directory = directory
        self._path = str(directory)
        self._uid = os.getuid()
        self._run = run
        self._boot = boot
        self.has_looked = False
        """Whether this run's own leases have been looked at, too."""
        self._fd = _open_directory(directory)
        self._tickets = Tickets(self._fd, self._uid, run)
        self._follower = Follower(self._uid)
        self._rules = self._follower.now()

    @property
    def uid(self) -> int:
        """Whose leases these are."""
        return self._uid

    def leave(self) -> None:
        """This run waits for nothing any more."""
        self._tickets.leave()

    def close(self) -> None:
        """Let go of the directory."""
        self._tickets.forget()
        os.close(self._fd)

    def deciding(self) -> Session:
        """The mutex of the whole machine: nobody else decides while the block runs, so keep it short."""
        return Session(self)

    def _lock(self) -> None:
        """Lock the directory that has the name now: others find no other, should somebody have removed ours."""
        self._wait_for_lock()
        while not self._is_there():
            fd = _open_directory(self.directory)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
            self._wait_for_lock()

    def _is_there(self) -> bool:
        try:
            ours, named = os.fstat(self._fd), os.stat(self._path, follow_symlinks=False)
            return ours.st_ino == named.st_ino and ours.st_dev == named.st_dev
        except FileNotFoundError:
            return False

    def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + PATIENCE
        pause = 0.0002
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            if time.monotonic() > deadline:
                raise LeaseError(
                    f"the lease directory {self.directory} has been locked for {PATIENCE:g}s by {_holder(self._fd)}: "
                    "nothing is started before that ends"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.01)

    def name(self, task: int, attempt: int) -> str:
        """What the lease of an attempt of this run is called."""
        return f"{self._uid}.{self._run}.{task}.{attempt}"

    def rewrite(self, placement: Placement, shim: int) -> bool:
        """Bring the file of a living lease up to date; False where there is none any more."""
        try:
            fd = os.open(
                self.name(placement.task, placement.attempt),
                os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                dir_fd=self._fd,
            )
        except OSError:
            return False
        try:
            with self.deciding():
                before = unpack_block(os.pread(fd, BLOCK, 0)) or {}
                times = {name: float(before.get(name, 0.0)) for name in ("since", "expected")}
                os.pwrite(fd, self._record(placement, shim, times), 0)
        finally:
            os.close(fd)
        return True

    def drop(self, task: int, attempt: int) -> None:
        """Remove what a lost attempt left; the shim of any other has done it."""
        try:
            os.unlink(self.name(task, attempt), dir_fd=self._fd)
        except OSError:
            return

    def _record(self, placement: Placement, shim: int, times: Mapping[str, float]) -> bytes:
        return pack_block(
            {
                **times,
                "alone": placement.alone,
                "version": VERSION,
                "shim": shim,
                "shim_id": _identity(shim) if shim else "",
                "boot": self._boot,
                "bytes": dict(placement.promise),
                "load": placement.load,
            }
        )


class Session:
    """The directory while its mutex is held."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._listed: list[str] | None = None

    def __enter__(self) -> Session:
        ledger = self._ledger
        ledger._rules = ledger._follower.now()
        if ledger._rules.names_groups:  # who is in them may take a while to be told: not while all others wait
            closures.standing(ledger._fd, os.listdir(ledger._fd), ledger._rules.allows, time.time())
        ledger._lock()
        return self

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._ledger._fd, fcntl.LOCK_UN)

    @property
    def _names(self) -> list[str]:
        """What lies there: nobody else writes while the mutex is held, and our own is skipped."""
        if self._listed is None:
            self._listed = os.listdir(self._ledger._fd)
        return self._listed

    def others(self) -> list[Lease]:
        """Every living lease that is not this run's; dead ones of this user are removed on the way.

        This run's own are looked at once, for what an earlier scheduler of it took and never used.
        """
        ledger = self._ledger
        mine = f"{ledger._uid}.{ledger._run}."
        skip = mine if ledger.has_looked else ""
        found = list(_living(ledger._fd, self._names, ledger._uid, skip=skip))
        ledger.has_looked = True
        return [lease for lease in found if not lease.name.startswith(mine)]

    def take(self, placement: Placement) -> Taken:
        """Write this placement's lease and lock it, before anybody else can decide."""
        ledger = self._ledger
        name = ledger.name(placement.task, placement.attempt)
        times = {"since": round(time.time(), 3), "expected": placement.expected}
        try:
            fd = make_locked(ledger._fd, name, ledger._record(placement, 0, times))
        except OSError as exc:
            why = f"{exc.strerror}{_whose(ledger._fd, name)}"
            raise LeaseError(f"cannot write a lease in {ledger.directory}: {why}") from exc
        return Taken(f"{ledger._path}/{name}", fd)

    def waiters(self) -> list[Waiter]:
        """Every other scheduler that waits for room."""
        return self._ledger._tickets.others(self._names)

    def wait(self, ticket: Ticket | None) -> None:
        """Let everybody know for what this run waits."""
        self._ledger._tickets.show(ticket)

    def house(self) -> House:
        """What this user may hold, and where it starts nothing."""
        ledger = self._ledger
        found = closures.standing(ledger._fd, self._names, ledger._rules.allows, time.time())
        return House(ledger._rules.caps, closures.for_others(found, ledger._uid, user_name_soon))


def living(directory: Path) -> list[Lease]:
    """Every living lease of this machine, for views: without the mutex, so only nearly of one moment."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return list(_living(fd, os.listdir(fd)))
    finally:
        os.close(fd)


def distrust(directory: Path) -> str:
    """Why leases in this directory cannot be trusted or written, and behind a colon the cure; empty where all is well.

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
            return f"you may not write in the lease directory {directory}: sudo chmod 1777 {directory}"
        return _who_locks(fd, directory)
    finally:
        os.close(fd)


def _who_locks(fd: int, directory: Path) -> str:
    """Who keeps everybody from deciding; no scheduler has the mutex for so long that all of some looks find it."""
    for _ in range(20):
        if is_free(fd):
            return ""
        time.sleep(0.01)
    holder = _holder(fd)
    return (
        f"the lease directory {directory} is locked by {holder}, nothing starts before that ends: end it, or ask for it"
    )


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
    _check_directory(path, os.fstat(fd))
    return fd


def _check_directory(path: Path, status: os.stat_result) -> None:
    """Refuse a directory in which others could remove or replace our leases."""
    open_to_others = status.st_mode & 0o022
    if open_to_others and not status.st_mode & stat.S_ISVTX:
        raise LeaseError(f"{path} can be written by others and is not sticky: sudo chmod 1777 {path}")
    if status.st_uid not in (0, os.getuid()) and not open_to_others:
        raise LeaseError(f"{path} belongs to user {status.st_uid} and you may not write there: sudo chmod 1777 {path}")


def _living(directory: int, names: Iterable[str], cleaner: int | None = None, *, skip: str = "") -> Iterator[Lease]:
    lockers = Lockers()
    for name in names:
        match = None if skip and name.startswith(skip) else _NAME.match(name)
        if match:
            lease = _look(directory, name, match, lockers, cleaner)
            if lease is not None:
                yield lease


def _look(directory: int, name: str, match: re.Match[str], lockers: Lockers, cleaner: int | None) -> Lease | None:
    """One file: a living lease, or None for what is dead, planted or gone; `cleaner` takes its own dead ones away."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != int(match[1]):
            return None
        lease = None if is_free(fd) else _parse(name, match, os.pread(fd, BLOCK, 0))
        if lease is not None:
            has_shim = _has_its_shim(lease, lockers)
            if not _is_feigned(status, lease, lockers, has_shim=has_shim):
                return lease if has_shim else replace(lease, shim=0)
        if status.st_uid == cleaner:
            os.unlink(name, dir_fd=directory)
        return None
    except OSError:
        return None
    finally:
        os.close(fd)


def _has_its_shim(lease: Lease, lockers: Lockers) -> bool:
    """Whether the process that it names is its shim: what that holds is taken for what was promised.

    Somebody else's process is not, whatever the lease says, nor is one that only has the same number here: the lease's
    scheduler may count processes for itself, in a container.
    """
    if not lease.shim or lockers.user(lease.shim) != lease.uid:
        return False
    return lease.shim_id in ("", _identity(lease.shim))


def _identity(pid: int) -> str:
    """What no two processes of this machine have in common, whoever counts them."""
    try:
        return _identity_of(pid, os.stat(f"/proc/{pid}").st_ino)
    except OSError:
        return "gone"


@lru_cache(maxsize=1024)
def _identity_of(pid: int, inode: int) -> str:
    """Looked up once for each folder of a process: many leases are looked at while all others wait."""
    return f"{_namespace()}.{start_time(pid)}"


@cache
def _namespace() -> int:
    """Within which our pids mean something."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_feigned(status: os.stat_result, lease: Lease, lockers: Lockers, *, has_shim: bool) -> bool:
    """Whether strangers keep a dead lease locked to make it look alive.

    The kernel lists a lock under the process that took it, the scheduler, even when only the shim has it any more. Its
    number may have been given to a stranger since, so a lease with a shim of its owner's is believed.
    """
    if lease.shim:
        return not has_shim and lockers.are_strangers(status)
    return lockers.are_strangers(status) and not _has_shims(status.st_uid)


def _has_shims(uid: int) -> bool:
    """Whether a user has anything running that could be the shim of a lease that does not name its own."""
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
        return Lease(*who, shim=0, promised={}, load={}, unreadable=user_name_soon(who[1]))


def _read(who: tuple[str, int, str, int, int], data: Mapping[str, Any], unreadable: str) -> Lease:
    """A lease as it says; what a newer version calls shim, bytes and load is what this one does."""
    return Lease(
        *who,
        shim=int(data["shim"]),
        shim_id=str(data.get("shim_id", "")),
        promised={str(key): hearsay.size(bytes_) for key, bytes_ in data["bytes"].items()},
        load={str(key): hearsay.amount(load) for key, load in data["load"].items()},
        unreadable=unreadable,
        alone=bool(data.get("alone", False)),
        since=hearsay.amount(data.get("since", 0.0)),
        expected=hearsay.amount(data.get("expected", 0.0)),
    )


def _whose(directory: int, name: str) -> str:
    """Who has taken a name of ours; empty where nobody has."""
    try:
        uid = os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid
    except OSError:
        return ""
    return f" (user {uid} has put {name} there)"


def _holder(fd: int) -> str:
    """Who holds the lock of a file."""
    pids = Lockers().of(os.fstat(fd))
    return _named(pids[0]) if pids else "a process that cannot be seen from here"


def _named(pid: int) -> str:
    user = user_of(pid)
    return f"process {pid}" if user is None else f"process {pid} of user {user}"
