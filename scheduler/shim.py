"""The process that every attempt runs under: it holds the claim and the lease, and leaves the exit record.

`python -I -S shim.py FD` is a fork server. FD is a SOCK_SEQPACKET socket; each datagram is one word, what it is
about comes with it as descriptors (no order is too long that way):

    base   + memfd with JSON {name: value}         the environment that all later tasks build on
    order  + memfd with JSON `Order` + lease       fork one shim, which runs one attempt

Each shim answers once over the same socket, with JSON, and then lets go of it:

    {"started": the claim}
    {"failed": {task, attempt, error}}             nothing runs, and nothing ever will

The server ends at end-of-file, the shims don't: they need nobody. To a shim SIGTERM means stop (stop signal, grace,
then the whole tree) and SIGUSR1 means kill. The files of an attempt are those in its task's folder: a claim (flocked
for as long as the shim lives, so "free" means that it is over), a record and a log. Their formats live here.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import gc
import json
import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

FORMAT = 1
BLOCK = 4096
"""Claim, record and lease are one block each: short enough to be reserved before it is needed, and read at once."""
COOKIE = "SCHEDULER_COOKIE"
TICK = 5.0
"""Longest wait while a clock is running; a longer one was a suspend or a stopped process, and counts as one."""
LINGER = 0.1
"""What a task leaves behind may end by itself for so long (a `tee` that still writes), then it gets TERM."""
LEFTOVER_GRACE = 2.0
OOM_SCORE = 500

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WAITED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_BLOCKED = (*_WAITED, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

Prctl = Callable[[int, int], int]


class ClaimState(StrEnum):
    """What the lock of a claim says about its attempt."""

    ABSENT = "absent"
    LOCKED = "locked"
    FREE = "free"


class Order(NamedTuple):
    """All that a shim needs to know about its attempt."""

    task: int
    attempt: int
    argv: list[str]
    directory: str
    env: dict[str, str | None]
    folder: str
    cookie: str
    timeout: float | None = None
    grace: float = 30.0
    stop_signal: int = int(signal.SIGTERM)
    lease: str = ""


class Claim(NamedTuple):
    """Who runs an attempt, and where; a fence is a claim by which nobody ever will."""

    task: int
    attempt: int
    cookie: str = ""
    shim: int = 0
    shim_start: int = 0
    pid: int = 0
    start: int = 0
    boot_id: str = ""
    machine_id: str = ""
    hostname: str = ""
    fence: bool = False
    format: int = FORMAT


class Record(NamedTuple):
    """How an attempt ended: exited, signalled, timeout, stopped or spawn (the command could not be started)."""

    outcome: str
    code: int | None = None
    signal: int | None = None
    error: str = ""
    pid: int = 0
    start: int = 0
    began: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    max_rss: int = 0
    cpu_seconds: float = 0.0
    leftovers: int = 0
    boot_id: str = ""
    format: int = FORMAT


# The files of an attempt


def claim_path(folder: str, attempt: int) -> str:
    """Where an attempt's claim stands."""
    return f"{folder}/.claim.{attempt}"


def record_path(folder: str, attempt: int) -> str:
    """Where an attempt's exit record stands."""
    return f"{folder}/.record.{attempt}"


def log_path(folder: str, attempt: int) -> str:
    """Where an attempt's output goes."""
    return f"{folder}/{attempt}.log"


def read_claim(path: str) -> Claim | None:
    """The claim, or None where there is none that can be read."""
    values = _read_block(path, Claim._fields)
    return Claim(**values) if values else None


def read_record(path: str) -> Record | None:
    """The exit record, or None where none was completed; final only once the claim is free."""
    values = _read_block(path, Record._fields)
    return Record(**values) if values else None


def claim_state(path: str) -> ClaimState:
    """Whether an attempt's shim lives, by its lock alone."""
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        return ClaimState.ABSENT
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ClaimState.LOCKED
    finally:
        os.close(fd)
    return ClaimState.FREE


def fence(path: str, task: int, attempt: int) -> bool:
    """Make the claim in nobody's name, so that the attempt never runs; False: somebody has it."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    fd = take_claim(path, Claim(task, attempt, fence=True, boot_id=boot_id()), fcntl.LOCK_UN)
    if fd is not None:
        os.close(fd)
    return fd is not None


def take_claim(path: str, claim: Claim, lock: int = fcntl.LOCK_EX) -> int | None:
    """Make the claim and return its lock; None: somebody has it.

    It is locked first and shown then: a claim that can be seen and is free is over.
    """
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, _CREATE | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, lock | fcntl.LOCK_NB)
        os.write(fd, pack_block(claim._asdict()))
        os.link(temporary, path)
    except OSError as error:
        os.close(fd)
        if isinstance(error, FileExistsError):
            return None
        raise
    finally:
        os.unlink(temporary)
    return fd


def pack_block(values: Mapping[str, Any]) -> bytes:
    """One block that knows by its checksum whether it was written to the end."""
    text = json.dumps(values).encode()
    block = b"%08x %s\n" % (binascii.crc32(text), text)
    if len(block) > BLOCK:
        raise ValueError(f"{len(block)} bytes do not fit a block of {BLOCK}")
    return block.ljust(BLOCK, b"\0")


def unpack_block(block: bytes) -> dict[str, Any] | None:
    """What was packed; None: it is empty, torn or damaged."""
    crc, _, text = block.partition(b"\n")[0].partition(b" ")
    if crc != b"%08x" % binascii.crc32(text):
        return None
    values: dict[str, Any] = json.loads(text)
    return values


def _read_block(path: str, fields: tuple[str, ...]) -> dict[str, Any]:
    """The fields that this version knows; nothing where there is no whole block."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return {}
    values = unpack_block(os.read(fd, BLOCK))
    os.close(fd)
    return {name: value for name, value in (values or {}).items() if name in fields}


# What /proc says


def boot_id() -> str:
    """This boot of the kernel."""
    return _text("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """This installation, or nothing where it has no name."""
    return _text("/etc/machine-id")


def start_time(pid: int) -> int:
    """When a process started, in ticks since boot; 0: there is no such process."""
    stat = _stat(f"/proc/{pid}/stat")
    return int(stat[19]) if stat else 0


def children_finder(proc: str = "/proc") -> Callable[[int], list[int]]:
    """How to find the children of a process now: the kernel's own lists, or one scan where it keeps none."""
    if os.path.exists(f"{proc}/self/task/{os.getpid()}/children"):
        return lambda pid: _listed_children(proc, pid)
    table: dict[int, list[int]] = {}
    for name in os.listdir(proc):
        if name.isdigit() and (stat := _stat(f"{proc}/{name}/stat")):
            table.setdefault(int(stat[1]), []).append(int(name))
    return lambda pid: table.get(pid, [])


def descendants(root: int, children: Callable[[int], list[int]]) -> list[int]:
    """All processes below `root`, nearest first."""
    found = {root: None}
    todo = [root]
    for pid in todo:
        new = [child for child in children(pid) if child not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return todo[1:]


def _listed_children(proc: str, pid: int) -> list[int]:
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return []
    lists = (_text(f"{proc}/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for children in lists for child in children.split()]


def _stat(path: str) -> list[str]:
    """The fields behind the name, which may hold blanks and brackets itself: state, parent, …"""
    return _text(path).rpartition(")")[2].split()


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


# The shim: one attempt


class Clock:
    """Seconds that this process was awake: a suspended machine must not time its tasks out."""

    def __init__(self) -> None:
        self.now = 0.0
        self._last = boot_seconds()

    def advance(self) -> float:
        """The time now; whatever took longer than a tick counts as little more than one."""
        last, self._last = self._last, boot_seconds()
        self.now += min(self._last - last, TICK + 1.0)
        return self.now


def boot_seconds() -> float:
    """Seconds since boot, suspended ones included; no clock change touches it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Watch:
    """Waits for whatever can happen to one running task, until nothing of its tree is left."""

    def __init__(self, main: int, order: Order) -> None:
        self.main = main
        self.order = order
        self.status: int | None = None
        self.why = ""
        self.leftovers = 0
        self._clock = Clock()
        self._limit = math.inf if order.timeout is None else order.timeout
        self._term_at = math.inf
        self._kill_at = math.inf
        self._pause = 0.001

    def run(self) -> None:
        """Return when the last descendant has been reaped."""
        while self._reap():
            self._act(self._clock.advance())
            self._wait()

    def _reap(self) -> bool:
        """Collect who has ended; are there others?"""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main:
                self.status = status
                self._main_ended(self._clock.advance())

    def _main_ended(self, now: float) -> None:
        self._limit = math.inf
        self._term_at = now if self.why else now + LINGER
        if not self.why:
            self._kill_at = now + LEFTOVER_GRACE

    def _act(self, now: float) -> None:
        if now >= self._limit:
            self._stop("timeout", now)
        if now >= self._term_at:
            self._term_at = math.inf
            self.leftovers = self._signal_all(signal.SIGTERM, signal.SIGCONT)
        if now >= self._kill_at:
            self._signal_all(signal.SIGSTOP, signal.SIGKILL)

    def _stop(self, why: str, now: float) -> None:
        self.why = why
        self._limit = math.inf
        self._kill_at = now + self.order.grace
        _kill(self.main, self.order.stop_signal)
        _kill(self.main, signal.SIGCONT)

    def _signal_all(self, *signals: int) -> int:
        tree = descendants(os.getpid(), children_finder())
        for number in signals:
            for pid in tree:
                _kill(pid, number)
        return len(tree)

    def _wait(self) -> None:
        now = self._clock.now
        if now >= self._kill_at:
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, 1.0)
            return
        until = min(self._limit, self._term_at, self._kill_at)
        info = signal.sigtimedwait(_WAITED, 3600.0 if until == math.inf else min(until - now, TICK))
        if info is not None and info.si_signo != signal.SIGCHLD:
            self._obey(info.si_signo)

    def _obey(self, number: int) -> None:
        """Stop or kill, unless the task ended by itself just before."""
        self._reap()
        now = self._clock.advance()
        if self.status is None and not self.why:
            self._stop("stopped", now)
        if number == signal.SIGUSR1:
            self._kill_at = now


def run_attempt(order: Order, base: Mapping[str, str], sock: socket.socket, prctl: Prctl, lease: int) -> None:
    """Run one attempt from its claim to its record; raises, with nothing started, where it may or can not run."""
    os.setsid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.makedirs(order.folder, 0o700, exist_ok=True)
    task = _fork_task(order, base, prctl, lease)
    claim = _claim_of(order, task.pid)
    lock = take_claim(claim_path(order.folder, order.attempt), claim)
    if lock is None:
        raise FileExistsError(errno.EEXIST, "the attempt was given up before it could start")
    record_fd = os.open(record_path(order.folder, order.attempt), _CREATE, 0o600)
    os.posix_fallocate(record_fd, 0, BLOCK)  # room for it now: the end must be writable on a disk that is full by then
    began, boot_began = time.time(), boot_seconds()
    task.open_gate()
    _tell(sock, {"started": claim._asdict()})
    sock.close()
    watch = Watch(task.pid, order)
    watch.run()
    record = _ending(watch, task)._replace(
        start=claim.start, began=began, ended=time.time(), seconds=boot_seconds() - boot_began, boot_id=claim.boot_id
    )
    os.pwrite(record_fd, pack_block(record._asdict()), 0)
    os.fsync(record_fd)
    with suppress(OSError):  # none was given, or its directory has gone
        os.unlink(order.lease)


class _Task(NamedTuple):
    """The forked child, which waits at a gate until its claim is made and then becomes the user's command."""

    pid: int
    gate: int
    errors: int

    def open_gate(self) -> None:
        os.write(self.gate, b"\n")
        os.close(self.gate)

    def error(self) -> tuple[int | None, str]:
        """Why it did not become the command; only to be asked once it has ended."""
        text = os.read(self.errors, BLOCK)
        code, error = json.loads(text) if text else (None, "")
        return code, error


def _fork_task(order: Order, base: Mapping[str, str], prctl: Prctl, lease: int) -> _Task:
    log = os.open(log_path(order.folder, order.attempt), _CREATE | os.O_APPEND, 0o600)
    gate, gate_end = os.pipe()
    errors, errors_end = os.pipe()
    shim = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(gate_end)
        try:
            _become_task(order, base, prctl, shim, gate, log, lease)
        except Exception as error:  # the child of a fork must never return into its parent's code
            os.write(errors_end, json.dumps(_spawn_error(error, order)).encode())
        finally:
            os._exit(1)
    for fd in (gate, errors_end, log):
        os.close(fd)
    return _Task(pid, gate_end, errors)


def _become_task(
    order: Order, base: Mapping[str, str], prctl: Prctl, shim: int, gate: int, log: int, lease: int
) -> None:
    """Leave everything behind that belongs to the shim, but the lease; then run the command."""
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _volunteer_for_oom()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a command should not
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(log, 1)
    os.dup2(log, 2)
    if lease >= 0:
        os.set_inheritable(lease, True)
    merged = {**base, **order.env, COOKIE: order.cookie}
    env = {name: value for name, value in merged.items() if value is not None}
    if os.getppid() != shim or not os.read(gate, 1):
        return
    os.chdir(order.directory)
    os.execvpe(order.argv[0], order.argv, env)


def _volunteer_for_oom() -> None:
    """When the machine runs out of memory the kernel should choose the task, not its shim or the scheduler."""
    path = "/proc/self/oom_score_adj"
    if int(_text(path) or 0) < OOM_SCORE:
        with suppress(OSError), open(path, "wb", buffering=0) as file:  # a sandbox may forbid it
            file.write(b"%d" % OOM_SCORE)


def _spawn_error(error: Exception, order: Order) -> tuple[int, str]:
    """The code a shell would give, and what was wrong with what."""
    if not isinstance(error, OSError):
        return 126, str(error)
    at_chdir = error.filename == order.directory
    what = order.directory if at_chdir else order.argv[0]
    missing = isinstance(error, FileNotFoundError) and not at_chdir
    return 127 if missing else 126, f"{what}: {error.strerror}"[:400]


def _claim_of(order: Order, main: int) -> Claim:
    shim, host = os.getpid(), os.uname().nodename
    who = (shim, start_time(shim), main, start_time(main))
    return Claim(order.task, order.attempt, order.cookie, *who, boot_id(), machine_id(), host)


def _ending(watch: Watch, task: _Task) -> Record:
    exit_code = os.waitstatus_to_exitcode(watch.status or 0)
    code, number = (exit_code, None) if exit_code >= 0 else (None, -exit_code)
    outcome = watch.why or ("exited" if number is None else "signalled")
    spawn_code, error = task.error()
    if error:
        outcome, code = "spawn", spawn_code
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Record(
        outcome,
        code,
        number,
        error,
        pid=task.pid,
        max_rss=used.ru_maxrss * 1024,
        cpu_seconds=used.ru_utime + used.ru_stime,
        leftovers=watch.leftovers,
    )


# The server: one shim for each order


def serve(fd: int) -> None:
    """Fork a shim for every order that comes over the socket, until its other end is closed."""
    prctl = _prepare()
    base: dict[str, str] = {}
    with socket.socket(fileno=fd) as sock:
        sock.set_inheritable(False)
        while True:
            try:
                word, fds, _, _ = socket.recv_fds(sock, 64, 2)
            except ConnectionResetError:
                continue  # told once when the scheduler dies with answers unread; its orders are still to be read
            for received in fds:
                os.set_inheritable(received, False)
            if not word:
                return
            if word == b"base":
                base = _read_all(fds[0])
            elif fds:
                _fork_shim(sock, base, prctl, fds)
            for received in fds:
                os.close(received)


def _prepare() -> Prctl:
    """Do once what every shim needs: signals, imports, and a memory that forks share."""
    import ctypes  # only here: the package reads claims and records through this module, without paying for it
    import warnings  # noqa: F401 - os.execvpe imports it in each child otherwise

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, _BLOCKED)
    os.chdir("/")
    prctl: Prctl = ctypes.CDLL(None, use_errno=True).prctl
    gc.disable()
    gc.freeze()
    return prctl


def _fork_shim(sock: socket.socket, base: Mapping[str, str], prctl: Prctl, fds: list[int]) -> None:
    try:
        if os.fork():
            return
    except OSError as error:
        order = Order(**_read_all(fds[0]))
        _tell_failure(sock, order, error)
        return
    order = Order(0, 0, [], "", {}, "", "")
    try:
        order = Order(**_read_all(fds[0]))
        run_attempt(order, base, sock, prctl, fds[1] if len(fds) > 1 else -1)
    except Exception as error:  # whatever it is, the scheduler has to hear of it while it can
        _tell_failure(sock, order, error)
    finally:
        os._exit(0)


def _read_all(fd: int) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    return values


def _tell_failure(sock: socket.socket, order: Order, error: Exception) -> None:
    if sock.fileno() < 0:  # it has started, so nobody listens any more: the log is where people look
        with open(log_path(order.folder, order.attempt), "a", encoding="utf-8") as log:
            log.write(f"scheduler: the shim of this attempt failed: {error!r}\n")
        return
    _tell(sock, {"failed": {"task": order.task, "attempt": order.attempt, "error": str(error)[:400]}})


def _tell(sock: socket.socket, message: Mapping[str, Any]) -> None:
    """Say it if anybody listens: a scheduler that has gone finds the claim."""
    with suppress(OSError):
        sock.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or a setuid program's: then it is waited for
        os.kill(pid, number)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
