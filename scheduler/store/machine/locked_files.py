"""Locks on files: taking and inspecting them."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = 0
MOST_NAMED = 3
"""The most processes that one sentence names."""
LONGEST_COMMAND = 120
"""The most characters of a command line that are shown."""


def take_lock(fd: int, patience: float = 0.05) -> None:
    """Lock a file. Raise BlockingIOError if another process holds the lock for `patience` seconds; a process that only
    checks the lock releases it sooner.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.001)


def open_directory(path: Path) -> int:
    """Open a directory in order to lock it, without following a symbolic link. Raise OSError if it cannot be opened."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def why_not_lockable(fd: int) -> str:
    """Return why locks do not work on the file system of an open file or directory, in the kernel's words; an empty
    string if they do.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return ""
    except OSError as exc:
        return (exc.strerror or str(exc)).lower()
    return ""


def is_locked(directory: Path) -> bool:
    """Tell whether a scheduler has locked a run's directory."""
    try:
        fd = open_directory(directory)
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
    """Tell whether a file is not locked. Then the caller must close the file, to release the shared lock that this
    check took.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
    return True


def is_held_long(fd: int) -> bool:
    """Tell whether a lock that is normally held for milliseconds is still held at each of several checks."""
    for _ in range(20):
        if is_free(fd):
            return False
        time.sleep(0.01)
    return True


def make_locked(directory: int, name: str, record: bytes) -> int:
    """Create a file, lock it and write a record into it; return its descriptor. Other users can read the file only
    after that.

    Raise FileExistsError if a file has this name already.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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


class LockHolders:
    """The processes that took each lock, as the kernel lists them; the list is read on the first call."""

    def __init__(self) -> None:
        self._pids: _Listed | None = None
        self._users: dict[int, int | None] = {}

    def of(self, file: os.stat_result) -> list[int]:
        """Return the visible processes that took a lock on a file.

        For a file system without a block device, the device number of the file may differ from the one in the kernel's
        list of locks. Then return all processes that locked any file with that inode number.
        """
        if self._pids is None:
            self._pids = _listed()
        listed = self._pids.get(file.st_ino, [])
        device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
        here = [pid for where, pid in listed if where == device]
        return here if here or os.major(file.st_dev) else [pid for _, pid in listed]

    def user(self, pid: int) -> int | None:
        """Return the user of a process; None if the process has ended or must not be inspected."""
        if pid not in self._users:
            self._users[pid] = user_of(pid)
        return self._users[pid]

    def are_other_users(self, file: os.stat_result) -> bool:
        """Tell whether a file is certainly locked, and only by processes of users other than its owner."""
        pids, owner = self.of(file), file.st_uid
        return bool(pids) and all(self.user(pid) not in (owner, ROOT, None) for pid in pids)


def holder(fd: int, *, command: bool = False) -> str:
    """Return, for a sentence, the process that holds the lock of an open file; with `command`, add the command line of
    a living holder.
    """
    pids = LockHolders().of(os.fstat(fd))
    if not pids:
        return "a process that cannot be seen from here"
    if user_of(pids[0]) is not None:
        said = _command(pids[0]) if command else ""
        return f"{named(pids[0])} ({said})" if said else named(pids[0])
    heirs = " and ".join(map(named, sorted(_heirs(os.fstat(fd)))[:MOST_NAMED]))
    left = f"process {pids[0]}, which has ended and left its lock to"
    return f"{left} {heirs}" if heirs else f"{left} a process that only root can find: sudo scheduler doctor names it"


def named(pid: int) -> str:
    """Return the pid and the user of a process, in words."""
    user = user_of(pid)
    return f"process {pid}" if user is None else f"process {pid} of user {user}"


def _command(pid: int) -> str:
    """Return the beginning of a process's command line; empty if it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    said = " ".join(word.decode("utf-8", "replace") for word in words)
    shown = "".join(char if char.isprintable() else "?" for char in said)
    return shown if len(shown) <= LONGEST_COMMAND else f"{shown[:LONGEST_COMMAND]}..."


def having_open(matches: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Yield the pid and the descriptor of each process that has a matching file open, among the processes that this
    user may inspect.

    `matches` is called with the path of an open file in the kernel's form.
    """
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in _listdir(f"/proc/{pid}/fd"):
            if matches(_target(f"/proc/{pid}/fd/{fd}")):
                yield int(pid), fd


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # the process has ended, or is another user's
        return []


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # the descriptor was closed
        return ""


def _heirs(file: os.stat_result) -> set[int]:
    """Return the processes that inherited a descriptor with a lock on a file."""
    return {pid for pid, fd in having_open(lambda path: path.startswith("/")) if _has_lock(pid, fd, file)}


def _has_lock(pid: int, fd: str, file: os.stat_result) -> bool:
    """Tell whether this descriptor of a process holds a lock on a file. No other file is touched, because it may be on
    a network mount that does not respond.
    """
    try:
        said = Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="ascii", errors="replace")
        if "lock:" not in said or f":{file.st_ino} " not in said:
            return False
        status = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino)


def user_of(pid: int) -> int | None:
    """Return a process's real user. (The owner of /proc/PID does not tell: it is root if the process is not
    dumpable.)
    """
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Uid:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


_Listed = dict[int, list[tuple[str, int]]]
"""The held locks: {inode: (device, pid) of each lock}."""


def _listed() -> _Listed:
    """Return all held flocks, without the lines of waiting processes, which the kernel marks with an arrow."""
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
