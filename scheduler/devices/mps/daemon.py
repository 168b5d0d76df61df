"""The private MPS daemon of one user on one GPU: its directory, its users, its start and its stop."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from scheduler.devices.mps.compute_mode import ComputeMode
from scheduler.devices.mps.control import (
    DIRECTORY,
    LIMIT,
    LOG_DIRECTORY,
    LONGEST,
    PERCENTAGE,
    DaemonSilent,
    MpsControl,
)
from scheduler.devices.mps.daemon_discovery import SERVER
from scheduler.errors import DeviceError
from scheduler.runtime.processes import answer

PATIENCE = 30.0
"""Seconds to wait for the directory's lock, while another run starts or stops the daemon."""
START = 15.0
"""Seconds within which a daemon must start; a real daemon takes 0.005 s."""
GONE = 5.0
"""Seconds within which a daemon must end; a daemon that takes longer is killed."""
_PREFIX = "mps"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class MpsHome:
    """The directory of one daemon. The daemon runs as long as a file in `users` is locked: by a run of this user, or by
    tasks of such a run, which may outlive their scheduler because they hold a copy of its descriptor.
    """

    def __init__(self, root: Path, uuid: str, program: str, environ: Mapping[str, str], name: str = "") -> None:
        self.root = root / (name or f"{_PREFIX}.{os.getuid()}.{_digest(uuid)}")
        self.uuid = uuid
        self.pipes = self.root / "pipe"
        self.logs = self.root / "log"
        self.users = self.root / "users"
        kept = {name: text for name, text in environ.items() if name not in (PERCENTAGE, LIMIT)}
        self._env = {**kept, LOG_DIRECTORY: str(self.logs), "CUDA_VISIBLE_DEVICES": uuid}
        self.control = MpsControl(program, self.pipes, self._env)
        self.mode = ComputeMode(self.root / "compute_mode", uuid, environ)

    def check(self) -> None:
        """Check that a daemon could run in this directory. Raise DeviceError if its path is too long."""
        longest = len(os.fsencode(str(self.pipes / "control_privileged")))
        if longest > LONGEST:
            raise DeviceError(
                f"its directory {self.pipes} is too long for the sockets of MPS ({longest} bytes, {LONGEST} at most): "
                "name a shorter lease directory with SCHEDULER_LEASES"
            )

    def enter(self, *, exclusive: bool = False) -> int:
        """Become a user of the daemon, which is started if it does not answer; return the locked descriptor that shows
        this use. Raise DeviceError if the daemon cannot be used.
        """
        self.check()
        self._make()
        with self._alone():
            fd, path = self._new_user()
            try:
                self._be_up()
                if exclusive:
                    self.mode.exclude()
            except BaseException:
                path.unlink()
                os.close(fd)
                self._stop_if_unused()
                raise
        return fd

    def revive(self) -> bool:
        """Start the daemon again if it has died while in use; return whether that was necessary. Raise DeviceError if
        it cannot be started.
        """
        with self._alone():
            return self._be_up()

    def is_running(self) -> bool:
        """Tell whether the process of the daemon exists, even if the daemon does not answer."""
        return not all(self._members().values())

    def leave(self, fd: int) -> None:
        """Stop using the daemon; the last user stops it. Tasks that are still running are users too."""
        with self._alone():
            os.close(fd)
            self._stop_if_unused()

    def clean(self) -> bool:
        """Stop a daemon that a killed scheduler left without users; return whether there was one. Raise DeviceError if
        its directory stays locked, or if the compute mode cannot be restored.
        """
        if not self.root.is_dir():
            return False
        with self._alone():
            left = self.is_left()
            return self._stop_if_unused() and left

    def is_left(self) -> bool:
        """Tell whether there is a daemon without users, or a compute mode to restore; change nothing."""
        with self._opened("users") as users:
            used = any(_is_locked(name, users) for name in _names(users))
        return not used and (bool(self._members()) or self.mode.is_changed())

    # ---- its directory ----

    def _make(self) -> None:
        try:
            for folder in (self.root, self.pipes, self.logs, self.users):
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private(folder)
        except OSError as exc:
            raise DeviceError(f"{self.root} cannot be made: {(exc.strerror or str(exc)).lower()}") from exc

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the directory while the block runs: meanwhile no other scheduler starts or stops the
        daemon.
        """
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            deadline = time.monotonic() + PATIENCE
            while not _lock(fd):
                if time.monotonic() > deadline:
                    raise DeviceError(f"{self.root}/lock has been held for {PATIENCE:g} s by another run of yours")
                time.sleep(0.01)
            yield
        finally:
            os.close(fd)

    def _new_user(self) -> tuple[int, Path]:
        path = self.users / f"{os.getpid()}.{time.monotonic_ns()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd, path

    def in_use(self) -> bool:
        """Tell whether the daemon has users, and remove the files of users that have exited."""
        with self._opened("users") as users:
            for name in [name for name in _names(users) if not _is_locked(name, users)]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=users)
            return bool(_names(users))

    @contextlib.contextmanager
    def _opened(self, *names: str) -> Iterator[int]:
        """Yield the descriptor of the directory; -1 if there is none, or if another user's directory is in its place.

        The owner of the lease directory can replace it at any moment: a path may then lead elsewhere, but a descriptor
        does not.
        """
        fd = -1
        try:
            for name in (str(self.root), *names):
                before, fd = fd, _open_own(name, fd)
                if before >= 0:
                    os.close(before)
                if fd < 0:
                    break
            yield fd
        finally:
            if fd >= 0:
                os.close(fd)

    # ---- the daemon ----

    def _be_up(self) -> bool:
        """Start the daemon unless it answers, and check that it gives tasks all threads; return whether it had to be
        started. Raise DeviceError if it cannot be started, or if it limits the threads.
        """
        started = not self._answers()
        if started:
            self._kill_members(daemons_only=True)
            self._start()
        percentage = self.control.percentage()
        if percentage != 100.0:
            raise DeviceError(
                f"its daemon gives tasks {percentage:g}% of the threads at most, which this scheduler has not set"
            )
        return started

    def _answers(self) -> bool:
        try:
            self.control.percentage()
        except DaemonSilent:
            return False
        return True

    def _start(self) -> None:
        env = {**self._env, DIRECTORY: str(self.pipes)}
        try:
            code, said = answer([self.control.program, "-d"], "", START, env)
        except subprocess.TimeoutExpired as exc:
            self._kill_members()
            raise DeviceError(f"its daemon did not start within {START:g} s; {self._last_word()}") from exc
        except OSError as exc:
            raise DeviceError(f"{self.control.program} cannot be started: {exc.strerror}") from exc
        if code or not self._answers():
            self._kill_members()
            raise DeviceError(f"its daemon did not start ({said.strip() or f'exit {code}'}); {self._last_word()}")

    def _last_word(self) -> str:
        try:
            lines = (self.logs / "control.log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return f"its log ends with {lines[-1]!r}" if lines else f"there is nothing in {self.logs}"

    def _stop_if_unused(self) -> bool:
        if self.in_use():
            return False
        with contextlib.suppress(DaemonSilent):
            self.control.quit(GONE)
        deadline = time.monotonic() + 1.0
        while self._members() and time.monotonic() < deadline:
            time.sleep(0.005)
        self._kill_members()
        with self._opened() as root:
            if root >= 0:
                shutil.rmtree(self.pipes.name, ignore_errors=True, dir_fd=root)
        self.mode.restore()
        return True

    def _members(self) -> dict[int, bool]:
        """Return the processes of this daemon, which are found by a variable in their environment, as {pid: whether it
        is a server}.
        """
        mark = os.fsencode(f"{DIRECTORY}={self.pipes}")
        return {pid: server for pid, server in _mps_processes() if mark in _bytes(pid, "environ").split(b"\0")}

    def _kill_members(self, *, daemons_only: bool = False) -> None:
        deadline = time.monotonic() + 2.0
        while members := [pid for pid, server in self._members().items() if not (server and daemons_only)]:
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)


def homes_left(root: Path, program: str, environ: Mapping[str, str]) -> list[MpsHome]:
    """Return the directories in `root` of daemons that this user runs, or ran; directories of other users are
    left out.
    """
    prefix = f"{_PREFIX}.{os.getuid()}."
    try:
        names = sorted(name for name in os.listdir(root) if name.startswith(prefix) and _is_own(root / name))
    except OSError:
        return []
    return [MpsHome(root, "", program, environ, name) for name in names]


def _digest(uuid: str) -> str:
    """Return a short name of a GPU or MIG instance for paths, which must fit into socket addresses. It is a hash,
    because several UUIDs on one machine may begin with equal characters.
    """
    return hashlib.sha256(uuid.encode()).hexdigest()[:13]


def _is_own(folder: Path) -> bool:
    """Tell whether a directory belongs to this user; in another user's directory, a symbolic link could lead to files
    of this user.
    """
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _check_private(folder: Path) -> None:
    """Make a directory accessible to this user only. Raise DeviceError if it belongs to another user."""
    status = folder.lstat()
    if not _is_own(folder):
        raise DeviceError(f"{folder} belongs to user {status.st_uid}, not to you: ask that user or root to remove it")
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _open_own(name: str, within: int) -> int:
    """Open a directory `name` of this user inside the directory `within`; return -1 if there is no such directory."""
    try:
        fd = os.open(name, _FOLDER, dir_fd=within if within >= 0 else None)
    except OSError:
        return -1
    if os.fstat(fd).st_uid == os.getuid():
        return fd
    os.close(fd)
    return -1


def _names(folder: int) -> list[str]:
    return os.listdir(folder) if folder >= 0 else []


def _is_locked(name: str, folder: int) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        return not _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mps_processes() -> Iterator[tuple[int, bool]]:
    """Yield the pid of each running daemon and server of MPS, and whether it is a server; client programs of the daemon
    are left out.
    """
    for name in os.listdir("/proc"):
        if name.isdigit() and _bytes(int(name), "comm").startswith(b"nvidia-cuda-mps"):
            pid = int(name)
            line = _bytes(pid, "cmdline")
            if SERVER in line or b"-d" in line.split(b"\0"):  # a dead process has no line
                yield pid, SERVER in line


def _bytes(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""
