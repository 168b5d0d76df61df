"""Locks on files: taken, and looked at."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

ROOT = 0


def take_lock(fd: int, patience: float = 0.05) -> None:
    """Lock a file; raises BlockingIOError where somebody has it, but not for one who only looks whether it is free."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.001)


def is_locked(path: Path) -> bool:
    """Whether a scheduler holds a run."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_free(fd: int) -> bool:
    """Whether nobody holds the lock; whoever probes lets go at once by closing."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
    return True


def make_locked(directory: int, name: str, record: bytes) -> int:
    """A new file with a record in it, and its lock; nobody else may read it before it has both."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o600, dir_fd=directory)
    except FileExistsError:
        os.unlink(name, dir_fd=directory)
        fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        take_lock(fd)
        os.pwrite(fd, record, 0)
        os.fchmod(fd, 0o644)
    except OSError:
        os.unlink(name, dir_fd=directory)
        os.close(fd)
        raise
    return fd


class Lockers:
    """Who took which lock: what the kernel lists, read at the first question."""

    def __init__(self) -> None:
        self._pids: _Listed | None = None
        self._users: dict[int, int | None] = {}

    def of(self, file: os.stat_result) -> list[int]:
        """The processes that took a lock on a file; none that cannot be seen.

        A file system without a disk of its own may tell another device than the kernel lists: there it is whoever
        locked a file of the same number.
        """
        if self._pids is None:
            self._pids = _listed()
        listed = self._pids.get(file.st_ino, [])
        device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
        here = [pid for where, pid in listed if where == device]
        return here if here or os.major(file.st_dev) else [pid for _, pid in listed]

    def user(self, pid: int) -> int | None:
        """Whose process it is; None where there is none, or nobody may know."""
        if pid not in self._users:
            self._users[pid] = user_of(pid)
        return self._users[pid]

    def are_strangers(self, file: os.stat_result) -> bool:
        """Whether it is certain that a file is locked, and by nobody but processes of other users than its owner."""
        pids, owner = self.of(file), file.st_uid
        return bool(pids) and all(self.user(pid) not in (owner, ROOT, None) for pid in pids)


def user_of(pid: int) -> int | None:
    """Its real user: /proc/PID itself belongs to root where a process does not let itself be looked into."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Uid:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


_Listed = dict[int, list[tuple[str, int]]]
"""{inode: (device, pid) of each}."""


def _listed() -> _Listed:
    """All flocks that are held; who only waits for one has an arrow in its line."""
    found: _Listed = {}
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for words in map(str.split, lines):
        if "FLOCK" in words and "->" not in words:
            device, _, inode = words[-3].rpartition(":")
            found.setdefault(int(inode), []).append((device, int(words[-4])))
    return found
