"""The store of the lease directory: small files of one block each, in a directory to which any user may add files.

A record is a file whose name contains its owner. It holds one block of JSON with a checksum, and it is valid as long as
its creator, or a process that inherited its descriptor, keeps it locked, unless its kind has another rule. Records of
other users are never trusted: they are opened without following links, must belong to the user in their name, and for
each user only a limited number is read. A file that was found invalid is not opened again: names are never reused, so
it can never become valid.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from scheduler.runtime.shim import BLOCK, unpack_block
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine.locked_files import LockHolders, is_free, make_locked

T = TypeVar("T")

SETTLED = 50_000_000
"""Nanoseconds after which another change of a file is certain to change its ctime, because the kernel's clock advances
in steps.
"""
NONSENSE = (ValueError, OverflowError, TypeError, KeyError, AttributeError)
"""The errors that can occur when fields are read, because another user may have written anything into them."""
MOST_BYTES = 1 << 60
LONGEST = 1e11
"""The largest plausible number in a record: a time in seconds since the epoch; every other quantity is smaller."""
_RANDOM_BYTES = 8
"""The number of random bytes in each name; other users cannot predict such a name and create the file first."""
MANY = 20_000
"""The number of files in the directory above which each decision takes noticeably longer."""
_SAMPLE = 50
"""The number of files in the sample that shows which user owns the most files."""
_TRIES = 3
"""The number of names that are tried for one record; a second name is hardly ever needed."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FILE = (errno.ELOOP, errno.ENXIO)
"""The errors that are raised when a symbolic link or a socket is opened."""


class RecordFile(NamedTuple):
    """The file of a record, as it was at the time of one check."""

    status: os.stat_result
    is_free: bool
    """True if no process holds a lock on the file."""
    lockers: LockHolders

    def user(self, *, with_process: bool = True) -> str:
        """Return, for a sentence, the name of the file's owner, and the process that locked the file if the kernel
        lists one.
        """
        name = user_name_soon(self.status.st_uid)
        pids = self.lockers.of(self.status) if with_process else []
        return f"{name} (process {pids[0]})" if pids else name


class RecordKind(Generic[T]):
    """A kind of record: how its files are named, read and checked."""

    prefix: tuple[str, ...]
    pattern: re.Pattern[str]
    """The pattern of a complete file name; its first group is the user id of the owner."""
    most: int
    """The most records of one user that are read."""
    plural: str
    is_cached = False
    """True if a record is read again only after its file has changed."""

    def lives_unlocked(self, name: re.Match[str]) -> bool:
        """Tell whether a record may be valid although no process locks its file."""
        return False

    def parse(self, name: re.Match[str], said: Mapping[str, Any]) -> T | None:
        """Return the record in a file; if the file does not contain a valid one, return None or raise an error of
        NONSENSE.
        """
        raise NotImplementedError

    def nonsense(self, name: re.Match[str]) -> T | None:
        """Return the record to assume for a file that is alive but has invalid content."""
        return None

    def judge(self, record: T, file: RecordFile) -> T | None:
        """Return a record with only the values that are valid now; None if it is dead."""
        return record


class RecordDirectory:
    """The records of one open directory. Dead files of the user `uid` are removed; dead files of other users are only
    ignored.
    """

    def __init__(self, fd: int, uid: int = -1) -> None:
        self.fd = fd
        self.crowded: dict[int, str] = {}
        """The users who have more records than are read, each with the limit in words."""
        self._uid = uid
        self._worthless: set[str] = set()
        self._cache: dict[str, tuple[int, Any]] = {}
        """The records that were read, by name, each with the ctime of its file at that time."""
        self._is_exclusive = False
        self._listed: list[str] | None = None
        self._sample: list[str] = []
        """The names of some of the files; empty unless the directory has more than MANY files."""

    def hold(self, *, exclusive: bool) -> None:
        """Note whether the directory's mutex is held: meanwhile, no other scheduler creates files."""
        self._is_exclusive, self._listed = exclusive, None

    @contextmanager
    def listed_once(self) -> Iterator[None]:
        """Use one list of names for all reads of the block, because another user may have put many files into the
        directory.
        """
        self._listed = self.names()
        try:
            yield
        finally:
            self._listed = None

    def read(self, kind: RecordKind[T], wanted: Callable[[re.Match[str]], object] = bool) -> Iterator[T]:
        """Yield the valid records of a kind whose names `wanted` accepts; remove dead records of this user."""
        names = [name for name in self.names() if name.startswith(kind.prefix)]
        if not names:
            return
        lockers, counts, now = LockHolders(), Counter[int](), time.time_ns()
        for name in names:
            match = kind.pattern.match(name)
            if match is None:
                self._worthless.add(name)
            elif wanted(match):
                owner = int(match[1])
                if counts[owner] >= kind.most:
                    self.crowded[owner] = f"{kind.most:,} {kind.plural}"
                    continue
                look = self._look(kind, match, owner, lockers, now)
                counts[owner] += not look[1]  # also an invalid file that is locked: it is opened each time
                if look[0] is not None:
                    yield look[0]

    def names(self) -> list[str]:
        """Return all names that are not known to be invalid; while the mutex is held, the directory is listed only
        once.
        """
        if self._listed is not None:
            return self._listed
        try:
            everything = os.listdir(self.fd)
        except OSError:  # it was removed
            everything = []
        if len(self._worthless) + len(self._cache) > 2 * len(everything) + 1000:
            self._worthless.intersection_update(everything)
            self._cache = {name: self._cache[name] for name in everything if name in self._cache}
        self._sample = everything[:: len(everything) // _SAMPLE] if len(everything) > MANY else []
        names = [name for name in everything if name not in self._worthless]
        if self._is_exclusive:
            self._listed = names
            self.crowded.clear()
        return names

    def filler(self) -> int | None:
        """Return the user who owns the most files, judged by a sample; None if the directory has too few files to delay
        decisions.
        """
        owners = Counter[int]()
        for name in self._sample:
            with contextlib.suppress(OSError):
                owners[os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_uid] += 1
        return owners.most_common(1)[0][0] if owners else None

    def make(self, stem: str, record: bytes, end: str = "") -> tuple[str, int]:
        """Create a locked file with a record in it, under a new name that begins with `stem` and ends with `end`;
        return the name and the descriptor.

        Raise OSError if that fails.
        """
        for left in reversed(range(_TRIES)):
            name = f"{stem}{os.urandom(_RANDOM_BYTES).hex()}{end}"
            try:
                return name, make_locked(self.fd, name, record)
            except FileExistsError:
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def _look(
        self, kind: RecordKind[T], match: re.Match[str], owner: int, lockers: LockHolders, now: int
    ) -> tuple[T | None, bool]:
        """Read one file. Return its record, or None if the file has no valid one, and whether the file is dead, is not
        its owner's regular file, or is gone.
        """
        try:
            opened = self._open(match.string, owner)
        except OSError:
            return None, False
        if opened is None:
            return None, True
        fd, status = opened
        try:
            free, unlocked = is_free(fd), kind.lives_unlocked(match)
            record = None if free and not unlocked else self._record(kind, match, fd, status, now)
            found = None if record is None else kind.judge(record, RecordFile(status, free, lockers))
            if found is None and free and not (unlocked and record is None):
                self._bury(match.string, fd)
            return found, found is None and free
        except OSError:
            return None, False
        finally:
            os.close(fd)

    def _open(self, name: str, owner: int) -> tuple[int, os.stat_result] | None:
        """Open a regular file of this owner for reading; return None for any other file, which is not opened again.

        Raise OSError if the owner delays the opening by a kernel lease on the file.
        """
        try:
            fd = os.open(name, _READ, dir_fd=self.fd)
        except OSError as exc:
            if exc.errno == errno.EWOULDBLOCK:
                raise
            if exc.errno in _NO_FILE or (exc.errno == errno.EACCES and self._is_exclusive):
                self._worthless.add(name)
            return None
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == owner:
            return fd, status
        os.close(fd)
        self._worthless.add(name)
        return None

    def _record(self, kind: RecordKind[T], match: re.Match[str], fd: int, status: os.stat_result, now: int) -> T | None:
        """Return the record in a file; take it from the cache if the file has not changed since it was read."""
        record: T | None
        changed, record = self._cache.get(match.string, (-1, None))
        if changed == status.st_ctime_ns:
            return record
        try:
            record = kind.parse(match, unpack_block(os.pread(fd, BLOCK, 0)) or {})
        except NONSENSE:
            record = kind.nonsense(match)
        if kind.is_cached and 0 <= status.st_ctime_ns <= now - SETTLED:
            self._cache[match.string] = status.st_ctime_ns, record
        return record

    def _bury(self, name: str, fd: int) -> None:
        """Discard a dead file: remove it if it belongs to this user; otherwise ignore it from now on.

        A new file is not mistaken for a dead one: its creator holds the mutex while it creates the file unreadable for
        others, locks it, and makes it readable.
        """
        status = os.fstat(fd)
        if status.st_uid == self._uid:
            if self._is_exclusive:
                os.unlink(name, dir_fd=self.fd)
        elif status.st_nlink and (self._is_exclusive or status.st_mode & stat.S_IROTH):
            self._worthless.add(name)


@contextmanager
def opened(directory: Path) -> Iterator[RecordDirectory]:
    """Open a directory for the block, without taking its mutex. Raise OSError if it cannot be opened."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield RecordDirectory(fd)
    finally:
        os.close(fd)


def read_all(directory: Path, kind: RecordKind[T], wanted: Callable[[re.Match[str]], object] = bool) -> list[T]:
    """Return the records of a directory, for views. The mutex is not taken, so the records may be from slightly
    different times.
    """
    try:
        with opened(directory) as records:
            return list(records.read(kind, wanted))
    except OSError:
        return []


def size(said: Any) -> int:
    """Return a number of bytes that is at least 0. Raise ValueError if the number exceeds the memory of any machine."""
    number = int(said)
    if number > MOST_BYTES:
        raise ValueError("no machine has that much memory")
    return max(0, number)


def amount(said: Any) -> float:
    """Return a number that is at least 0. Raise ValueError if the value is not a number, or not finite."""
    number = float(said)
    if not number <= LONGEST:
        raise ValueError(f"{number} is no amount")
    return max(0.0, number)


class OwnRecord:
    """The only record of its kind that a run has; its file lasts until the run leaves or its scheduler dies."""

    def __init__(self, stem: str) -> None:
        """Prepare without creating a file; the names of all files of the run begin with `stem`."""
        self._stem = stem
        self._name = ""
        self._fd = -1

    def leave(self, directory: int) -> None:
        """Remove the file, if there is one."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=directory)
        os.close(self._fd)
        self._fd = -1

    def forget(self, records: RecordDirectory) -> None:
        """Remove the file, and other files that an earlier scheduler of this run may have left."""
        self.leave(records.fd)
        for name in records.names():
            if name.startswith(self._stem):
                with contextlib.suppress(OSError):  # another user put it there
                    os.unlink(name, dir_fd=records.fd)
