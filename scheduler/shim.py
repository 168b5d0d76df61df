"""The process that every attempt runs under: it holds the claim and the lease, and leaves the exit record.

`python -I -S shim.py FD` is a fork server. FD is a SOCK_SEQPACKET socket; each datagram is one word, and what
it is about comes with it as descriptors (no order is too long that way):

    base   + memfd with JSON {name: value}         the environment that all later tasks build on
    bounds + memfd with JSON {umask, limits}       what they get instead of the server's; limits: {name: [soft, hard]}
    output + two descriptors                       where later tasks write, in place of their logs
    ready                                          answered with {"ready": 1}: it knows the next word
    shim   + a socket like FD, its channel         fork one shim, which runs one attempt after another
    order  + memfd with JSON `Order` + lease       fork one shim for this attempt alone; a third descriptor, if
                                                   there is one, is only kept open for as long as the attempt lives

Over its channel a shim is given orders the same way, or with the JSON itself as the word, each only when the attempt
before is over. It answers with JSON, over its channel or, where it has none, over the server's socket:

    {"started": the claim}
    {"ended": the record}                          over its channel only; from now on it may be given another order
    {"failed": {task, attempt, error}}             nothing runs, and nothing ever will; it ends

The server ends at end-of-file. A shim ends at that of its channel too, but never before its attempt is over: for that
it needs nobody. To a shim SIGTERM means stop (stop signal,
grace, then the whole tree) and SIGUSR1 means kill; before it signals anybody it runs the `ending` of its order.

An attempt's files lie in its task's folder: a claim (flocked by its shim for as long as it lives, so a free one is
over), a record and a log. Their formats live here.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import gc
import itertools
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import socket

FORMAT = 1
MSG_DONTWAIT = 0x40
"""Of socket, which is not loaded by whoever only reads formats."""
INLINE = 16384
"""Bytes of a message, the longest: what is longer is read from memory that comes with it."""
BLOCK = 4096
"""Claim, record and lease are one block each: reserved before it is needed, written and read at once."""
COOKIE = "SCHEDULER_COOKIE"
GROUP = "scheduler-"
"""What the names of all control groups of attempts begin with."""
TICK = 5.0
"""Longest wait while a clock is running; a longer one was a suspended machine, and counts as one."""
TOUCH = 6 * 3600.0
"""The lease is made to look used so often: the cleaners of /tmp remove what nobody has used for days."""
LINGER = 0.1
"""What a task leaves behind may end by itself for so long (a `tee` that still writes), then it gets TERM."""
LEFTOVER_GRACE = 2.0
ENDING = 20.0
"""Seconds that the command may take which an order has run before anybody is signalled."""
OOM_SCORE = 500
LOG_MAX = 1 << 30
"""A log never grows above this while it is written at less than `LOG_RATE`; its head and its tail are kept."""
LOG_RATE = 1 << 30
"""Bytes a second that a task may have begun to write since its log was last looked at."""
LOG_LOOKS = (0.01, 1.0)
"""Least and most seconds between looks at a log."""

_COLLAPSE_RANGE = 8
"""Of fallocate: the blocks behind a range move to its beginning; ext4, XFS and a few others can."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SYS_CLONE3, _CLONE_INTO_CGROUP = 435, 0x200000000
_WAITED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_BLOCKED = (*_WAITED, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)
"""By the shim; the last two would be ignored else, and so by its task, to which a command is not used."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


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
    warn: tuple[int, float] | None = None
    """A signal that is sent so many seconds before the time limit."""
    log_max: int = LOG_MAX
    spare: bool = False
    """What it leaves behind lives on, and keeps the lease for as long as it does."""
    stdout: str = ""
    stderr: str = ""
    """Files for its output and its errors, in its directory unless they are absolute; empty: the log."""
    ending: list[str] = []  # noqa: RUF012 - of a tuple with names, never changed
    """A command that is run to its end before anybody of its tree is signalled."""
    cgroup: bool = True
    """It gets a control group of its own where that can be."""


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
    group: str = ""
    """The folder of the control group that its tree is in, where it has one."""
    format: int = FORMAT


class Record(NamedTuple):
    """How an attempt ended: exited, signalled, timeout, stopped or spawn (it could not be made to run)."""

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
    oom_kills: int = 0
    """How often the kernel killed for memory, anywhere on this machine, while it ran; 0 where it exited with 0."""
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


def errors_path(folder: str, attempt: int) -> str:
    """Where its errors go, if they are kept apart and beside it."""
    return f"{folder}/{attempt}.err"


def read_claim(path: str) -> Claim | None:
    """The claim, or None where there is none that can be read."""
    values = _read_block(path, Claim._fields)
    return Claim(**values) if values else None


def read_record(path: str) -> Record | None:
    """The exit record, or None where none was completed; final only once the claim is free."""
    values = _read_block(path, Record._fields)
    return Record(**values) if values else None


def claim_of(values: Mapping[str, Any]) -> Claim:
    """A claim as it was told, of which this version may not know all."""
    return Claim(**_known(values, Claim._fields))


def record_of(values: Mapping[str, Any]) -> Record:
    """The same of an exit record."""
    return Record(**_known(values, Record._fields))


def _known(values: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in fields}


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
    with suppress(FileExistsError):
        os.close(take_claim(path, Claim(task, attempt, fence=True, boot_id=boot_id()), fcntl.LOCK_UN))
        return True
    return False


def take_claim(path: str, claim: Claim, lock: int = fcntl.LOCK_EX) -> int:
    """Make the claim and return its lock; raises FileExistsError where somebody has it.

    It is locked first and shown then: a claim that can be seen and is free is over.
    """
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, _CREATE | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, lock | fcntl.LOCK_NB)
        os.write(fd, pack_block(claim._asdict()))
        os.link(temporary, path)
    except OSError:
        os.close(fd)
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
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # the checksum is true of nonsense, too: somebody wrote it on purpose
        return None
    return values if isinstance(values, dict) else None


def _read_block(path: str, fields: tuple[str, ...]) -> dict[str, Any]:
    """The fields that this version knows; nothing where there is no whole block."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return {}
    values = unpack_block(os.read(fd, BLOCK))
    os.close(fd)
    return _known(values or {}, fields)


# The control group of an attempt
#
# Who is forked into a group cannot leave it by anything that takes no rights: no session, no double fork, no cleared
# environment, no other user. So one write ends all of them, forks that are under way included, also when the shim is
# dead. It is a plain group below the one that the scheduler is in: no controllers, nobody is moved, no limit changes
# hands. It is the shim's, for all its attempts, since nobody is left in it when one is over: to fork into it costs next
# to nothing, to make one 0.05 to 0.1 ms of processor. To move a process at the moment of need took 0.5 ms each, 5 at
# worst, would race with whoever forks, and could not find who has left the tree of a killed shim. Where
# groups cannot be made (no cgroup v2, not delegated to this user, a kernel before 5.14) there are none.


def group_name(cookie: str) -> str:
    """What the group of an attempt is called."""
    return f"{GROUP}{cookie}"


def kill_group(group: str) -> None:
    """End everybody in a group, and in those below it."""
    with suppress(OSError), open(f"{group}/cgroup.kill", "wb", buffering=0) as file:
        file.write(b"1")


def is_empty_group(group: str) -> bool:
    """Whether nobody is in a group, nor in those below it."""
    return "populated 0" in _text(f"{group}/cgroup.events")


def remove_group(group: str) -> None:
    """Remove a group and those below it, as far as nobody is in them."""
    try:
        os.rmdir(group)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            return
        _remove_below(group)
        with suppress(OSError):
            os.rmdir(group)


def _remove_below(group: str) -> None:
    with suppress(OSError), os.scandir(group) as entries:
        for path in [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]:
            remove_group(path)


# What /proc says


def boot_id() -> str:
    """This boot of the kernel."""
    return _text("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """This installation, or nothing where it has no name."""
    return _text("/etc/machine-id")


def hostname() -> str:
    """This machine, as it calls itself."""
    return os.uname().nodename


def is_here(boot: str, machine: str, host: str) -> bool:
    """Whether they name this machine, now or before a reboot; one boot is one kernel, whatever its containers say."""
    return boot == boot_id() or (machine, host) == (machine_id(), hostname())


def oom_kills() -> int:
    """How often the kernel has killed for memory since boot; 0 where it does not count."""
    count = _text("/proc/vmstat").partition("\noom_kill ")[2].split(None, 1)
    return int(count[0]) if count else 0


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
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read().decode(errors="replace").strip()
    return ""


# The shim: one attempt


class Watch:
    """Waits for whatever can happen to one running task, until nothing of its tree is left."""

    def __init__(
        self, main: int, order: Order, log: Log, group: str = "", next_signal: Callable[[float], int] | None = None
    ) -> None:
        self.status: int | None = None
        self.why = ""
        self.max_rss = 0
        self.cpu_seconds = 0.0
        self.leftovers = 0
        self.group_killed = False
        self.left = False
        """Whether some of its tree is left to live on."""
        self._main = main
        self._order = order
        self._group = group
        self._next_signal = next_signal or _next_signal
        self._began = self._last = _boot_seconds()
        self._now = 0.0
        """Seconds in which this process was awake: a suspended machine must not time its tasks out."""
        self._limit = math.inf if order.timeout is None else order.timeout
        self._warn_at = self._limit - order.warn[1] if order.warn else math.inf
        self._log = log
        self._stop_at = math.inf
        self._term_at = math.inf
        self._kill_at = math.inf
        self._pause = 0.001
        self._ending = list(order.ending)
        """What is still to be run before anybody is signalled."""
        self._helper = 0
        self._helper_until = math.inf
        self._touch_at = TOUCH

    def run(self) -> None:
        """Return when the last descendant has been reaped, or when what is left is to live on."""
        while self._reap():
            if self._order.spare and self.status is not None and not self.why:
                self.left, self.leftovers = True, len(_own_tree())
                break
            self._act()
            self._wait()
        if not self.why and self._ended_by_term() and signal.SIGTERM in signal.sigpending():
            self.why = "stopped"
        self._log.look(self._now)

    def seconds(self) -> float:
        """How long it has been going on, suspended or not."""
        return _boot_seconds() - self._began

    def _reap(self) -> bool:
        """Collect who has ended; are there others?"""
        last, self._last = self._last, _boot_seconds()
        self._now += min(self._last - last, TICK + 1.0)
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.max_rss = max(self.max_rss, used.ru_maxrss * 1024)
            self.cpu_seconds += used.ru_utime + used.ru_stime
            if pid == self._main:
                self._main_ended(status)
            if pid == self._helper:
                self._helper = 0

    def _main_ended(self, status: int) -> None:
        self.status = status
        self._limit = self._warn_at = math.inf
        self._term_at = self._now if self.why else self._now + LINGER
        if not self.why:
            self._kill_at = self._now + LEFTOVER_GRACE

    def _act(self) -> None:
        if self._now >= self._log.next_look:
            self._log.look(self._now)
        if self._now >= self._touch_at:
            self._touch_at = self._now + TOUCH
            with suppress(OSError):
                os.utime(self._order.lease, follow_symlinks=False)
        if self._now >= self._warn_at and self._order.warn:
            self._warn_at = math.inf
            _signal([self._main], self._order.warn[0])
        if self._now >= self._limit:
            self._stop("timeout")
        if self._now >= min(self._stop_at, self._term_at, self._kill_at) and self._may_signal():
            self._signal()

    def _may_signal(self) -> bool:
        """Whether what has to be done before the first signal is done; begins it where it is not."""
        if self._ending:
            command, self._ending = self._ending, []
            self._helper_until = self._now + ENDING
            with suppress(OSError):  # then there is nothing to wait for
                self._helper = _fork_helper(command)
        if self._helper and self._now >= self._helper_until:
            _signal([self._helper], signal.SIGKILL)
            self._helper = 0
        return not self._helper

    def _signal(self) -> None:
        """The steps of the ladder that are due."""
        if self._now >= self._stop_at:
            self._stop_at = math.inf
            self._kill_at = min(self._kill_at, self._now + self._order.grace)
            if self.status is None:
                _signal([self._main], self._order.stop_signal, signal.SIGCONT)
        if self._now >= self._term_at:
            self._term_at = math.inf
            self.leftovers = _signal(_own_tree(), signal.SIGTERM, signal.SIGCONT)
        if self._now >= self._kill_at:
            if self._group:
                kill_group(self._group)
                self.group_killed = True
            _signal(_own_tree(), signal.SIGSTOP, signal.SIGKILL)

    def _stop(self, why: str) -> None:
        self.why = why
        self._limit = self._warn_at = math.inf
        self._stop_at = self._now

    def _wait(self) -> None:
        if self._now >= self._kill_at and not self._helper:
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, 1.0)
            return
        due = self._helper_until if self._helper else min(self._stop_at, self._term_at, self._kill_at)
        next_ = max(self._now, min(self._limit, self._warn_at, due, self._log.next_look, self._touch_at))
        number = self._next_signal(min(next_ - self._now, TICK))
        if number not in (0, signal.SIGCHLD):
            self._obey(number)

    def _obey(self, number: int) -> None:
        """Stop or kill, unless the task ended by itself just before."""
        self._reap()
        if not self.why and (self.status is None or (number == signal.SIGTERM and self._ended_by_term())):
            self._stop("stopped")
        if number == signal.SIGUSR1:
            self._kill_at = self._now

    def _ended_by_term(self) -> bool:
        """Whether TERM ended it; where we got one too, a session or the machine is being ended, and it by that."""
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGTERM


def _fork_helper(command: list[str]) -> int:
    """A child that becomes the command, in a session of its own; it has nothing of ours but where we write."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execv(command[0], command)
        finally:
            os._exit(127)
    return pid


class Log:
    """Keeps the log of one attempt, which the task itself writes, below its limit: head and tail stay."""

    def __init__(self, path: str, most: int, fallocate: Callable[[int, int, int, int], int]) -> None:
        self.next_look = 0.0
        self.fd = os.open(path, _CREATE | os.O_APPEND, 0o600)
        """The task's own, which writes only at the end."""
        self._most = most
        self._fallocate = fallocate
        self._missing = 0
        self._last = (0.0, 0)

    def look(self, now: float) -> None:
        """Cut its middle out where it has come too near to the limit; the faster it grows, the sooner the next look."""
        size = os.fstat(self.fd).st_size
        rate = (size - self._last[1]) / max(now - self._last[0], LOG_LOOKS[0])
        if size > self._most // 4 * 3:
            with suppress(OSError):  # the task is worth more than its log
                self._cut(size)
            size = os.fstat(self.fd).st_size
        self._last = (now, size)
        room = (self._most - size) / max(2 * rate, LOG_RATE)
        self.next_look = now + min(max(room, LOG_LOOKS[0]), LOG_LOOKS[1])

    def _cut(self, size: int) -> None:
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            block = os.fstatvfs(fd).f_bsize
            block = block if block <= self._most // 8 else 1
            head = self._most // 4 // block * block
            length = (size - head - self._most // 4) // block * block
            if self._fallocate(fd, _COLLAPSE_RANGE, head, length):
                _move(fd, head + length, head)
            self._missing += length
            kept = f"the log is kept below {self._most >> 10:,} KiB (--log-max)"
            note = f"\n[scheduler: {self._missing >> 10:,} KiB of output are missing here: {kept}]\n"
            os.pwrite(fd, note.encode(), head)
        finally:
            os.close(fd)


def _move(fd: int, source: int, target: int) -> None:
    """The same where the file system cannot: what comes between the last read and the cut is lost as well."""
    while data := os.pread(fd, 1 << 20, source):
        os.pwrite(fd, data, target)
        source, target = source + len(data), target + len(data)
    os.ftruncate(fd, target)


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _next_signal(seconds: float) -> int:
    """Wait for one of ours; 0: none came."""
    info = signal.sigtimedwait(_WAITED, seconds)
    return info.si_signo if info is not None else 0


def _own_tree() -> list[int]:
    return descendants(os.getpid(), children_finder())


def _signal(pids: list[int], *numbers: int) -> int:
    """Send everybody each of the signals in turn; to how many?"""
    for number, pid in itertools.product(numbers, pids):
        with suppress(ProcessLookupError, PermissionError):  # gone, or a setuid program: then it is waited for
            os.kill(pid, number)
    return len(pids)


class Home(NamedTuple):
    """What the server finds out once, for all its shims."""

    prctl: Callable[[int, int], int]
    fallocate: Callable[[int, int, int, int], int]
    boot_id: str
    machine_id: str
    hostname: str
    env: Mapping[str, str]
    bounds: Mapping[str, Any] = {}
    output: tuple[int, ...] = ()
    """Where tasks write, where that is not their logs."""
    groups: str = ""
    """The control group below which shims make those of their attempts, where that can be."""
    next_signal: Callable[[float], int] = _next_signal
    clone: Callable[[int], int] = lambda _folder: -1
    """Forks into the control group whose folder is open; less than 0: it cannot."""
    group: Group | None = None
    """For this shim's attempts."""
    shim: int = 0
    start: int = 0
    """Of the shim itself, once it is one."""
    oom_score: int = OOM_SCORE


class Group:
    """The control group of a shim, which is made with its first attempt and lasts for as long as the shim does."""

    def __init__(self, groups: str, clone: Callable[[int], int]) -> None:
        self.path = ""
        self._groups = groups
        self._clone = clone
        self._folder = -1

    def fork(self, cookie: str) -> tuple[int, str]:
        """Fork, into the group where that can be: the pid, and where; tried twice, as servers remove empty ones."""
        for _ in range(2 if self._groups else 0):
            with suppress(OSError):  # no more of them are allowed
                self._open(cookie)
                pid = self._clone(self._folder)
                if pid >= 0:
                    return pid, self.path
                self.close()
        return os.fork(), ""

    def _open(self, cookie: str) -> None:
        if self._folder < 0:
            self.path = self.path or f"{self._groups}/{group_name(cookie)}"
            os.mkdir(self.path, 0o755)
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def tidy(self, *, killed: bool) -> None:
        """Nobody is in it any more; what a task made below it is not for the next one.

        Nor is a group that was `killed`: Linux (6.18 at least) kills at birth whoever is forked into one, as it
        compares how often that was killed with how often the group of the parent was.
        """
        if killed:
            self.close()
            self.path = ""
        elif self._folder >= 0 and os.fstat(self._folder).st_nlink != 2:
            _remove_below(self.path)

    def close(self) -> None:
        """Remove it, as far as nobody is in it."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1
            remove_group(self.path)


class Begun(NamedTuple):
    """An attempt that was started, and what is open for it."""

    main: int
    channel: socket.socket
    """To its task, until that is the command."""
    log: Log
    claim: Claim
    lock: int
    record: int
    began: float
    kills: int
    next_signal: Callable[[float], int]


def begin(home: Home, order: Order, held: list[int]) -> Begun:
    """Start an attempt: claim first, then the task; raises, with nothing started, where that cannot be."""
    log = _open_log(home, order)
    main, group, channel = _fork_task(home, order, held, log.fd)
    claim = _claim_of(home, order, main)._replace(group=group)
    lock = take_claim(claim_path(order.folder, order.attempt), claim)
    record = os.open(record_path(order.folder, order.attempt), _CREATE, 0o600)
    os.posix_fallocate(record, 0, BLOCK)  # the end must be writable on a disk that is full by then
    begun = Begun(main, channel, log, claim, lock, record, time.time(), oom_kills(), home.next_signal)
    channel.send(b"go")
    return begun


def _open_log(home: Home, order: Order) -> Log:
    """In its folder, which an attempt before may have removed at this moment."""
    for _ in range(3):
        try:
            os.mkdir(order.folder, 0o700)
        except FileExistsError:
            pass
        except FileNotFoundError:
            os.makedirs(order.folder, 0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            return Log(log_path(order.folder, order.attempt), order.log_max, home.fallocate)
    return Log(log_path(order.folder, order.attempt), order.log_max, home.fallocate)


def finish(order: Order, begun: Begun) -> tuple[Record, Watch]:
    """Watch over it to its end, which is on the disk then; its watch tells whether some of it is left to live on.

    Who is left has the lease's descriptor: it is over when the last of them is.
    """
    watch = Watch(begun.main, order, begun.log, begun.claim.group, begun.next_signal)
    watch.run()
    record = _ended(begun, watch, _last_words(begun.channel))
    os.pwrite(begun.record, pack_block(record._asdict()), 0)
    os.fsync(begun.record)
    if not watch.left:
        with suppress(OSError):  # none was given, or its directory has gone
            os.unlink(order.lease)
    return record, watch


def _last_words(channel: socket.socket) -> bytes:
    """Why the child did not become the command; nothing if it did, or was killed before it could."""
    with suppress(ConnectionResetError):
        return channel.recv(BLOCK)
    return b""


def _claim_of(home: Home, order: Order, main: int) -> Claim:
    who = (home.shim, home.start, main, start_time(main))
    return Claim(order.task, order.attempt, order.cookie, *who, home.boot_id, home.machine_id, home.hostname)


def _ended(begun: Begun, watch: Watch, said: bytes) -> Record:
    """The record of an attempt whose tree is empty; `said` is what kept it from becoming the command."""
    exit_code = os.waitstatus_to_exitcode(watch.status or 0)
    code, number = (exit_code, None) if exit_code >= 0 else (None, -exit_code)
    outcome, error = watch.why or ("exited" if number is None else "signalled"), ""
    if said:
        outcome = "spawn"
        code, error = json.loads(said)
    return Record(
        outcome,
        code,
        number,
        error,
        begun.main,
        begun.claim.start,
        begun.began,
        time.time(),
        watch.seconds(),
        watch.max_rss,
        watch.cpu_seconds,
        watch.leftovers,
        oom_kills() - begun.kills if code != 0 else 0,
        begun.claim.boot_id,
    )


def _fork_task(home: Home, order: Order, held: list[int], log: int) -> tuple[int, str, socket.socket]:
    """Fork the child that becomes the command once it is told to go; what it answers is why it could not.

    Its pid, its control group if it has one, and where it answers.
    """
    import socket  # the server has it already

    channel, far_end = socket.socketpair()
    merged = {**home.env, **order.env, COOKIE: order.cookie}
    env = {name: value for name, value in merged.items() if value is not None}
    found = _found(order.argv[0], env.get("PATH", ""))
    pid, group = home.group.fork(order.cookie) if home.group and order.cgroup else (os.fork(), "")
    if pid == 0:
        try:
            _become_task(home, order, (log, *held), env, found, far_end)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not return into the parent's code
            far_end.send(json.dumps(_why_not(error, order)).encode())
        finally:
            os._exit(1)
    far_end.close()
    if home.oom_score < OOM_SCORE:  # when memory runs out the task should go, not shim or scheduler
        with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as score:
            score.write(b"%d" % OOM_SCORE)
    return pid, group, channel


def _found(command: str, path: str) -> str:
    """Where a command probably lies: to try the others costs an exception each."""
    if "/" in command:
        return command
    candidates = (f"{folder}/{command}" for folder in path.split(":") if folder)
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), "")


def _become_task(
    home: Home, order: Order, fds: tuple[int, ...], env: dict[str, str], found: str, channel: socket.socket
) -> None:
    """Leave everything behind that belongs to the shim, but its locks; then be the command."""
    log, *held = fds
    os.setsid()
    home.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    out, err = home.output or (log, log)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in held:
        os.set_inheritable(fd, True)
    if os.getppid() == home.shim and channel.recv(2):
        if home.bounds:
            _set_bounds(home.bounds)
        os.chdir(order.directory)
        if order.stdout or order.stderr:
            _redirect(order)
        if found and found != order.argv[0]:
            with suppress(OSError):
                os.execve(found, order.argv, env)
        os.execvpe(order.argv[0], order.argv, env)


def _redirect(order: Order) -> None:
    """What its row wants elsewhere than in its log: the first attempt begins a file anew, later ones go on in it."""
    anew = os.O_TRUNC if order.attempt == 1 else 0
    for number, path in ((1, order.stdout), (2, order.stderr)):
        if path:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | anew, 0o666)
            os.dup2(file, number)


def _set_bounds(bounds: Mapping[str, Any]) -> None:
    """The umask and the limits of the shell that the run was started from; the shim itself goes on without."""
    if "umask" in bounds:
        os.umask(bounds["umask"])
    for name, (soft, hard) in bounds.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (soft, hard))


def _why_not(error: Exception, order: Order) -> tuple[int, str]:
    """The code a shell would give, and what was wrong with what."""
    if not isinstance(error, OSError):
        return 126, str(error)[:400]
    in_directory = error.filename == order.directory
    missing = isinstance(error, FileNotFoundError) and not in_directory
    if error.filename in (order.stdout, order.stderr):
        return 126, f"{str(error.filename)[:400]} cannot take its output: {error.strerror}"
    what = order.directory if in_directory else order.argv[0]
    return 127 if missing else 126, f"{what[:400]}: {error.strerror}"


# The server, and the shims that it forks


def serve(fd: int) -> None:
    """Fork shims as they are asked for over the socket, until its other end is closed."""
    import socket  # only here: whoever reads formats from this file should not pay for it

    home = _prepare()
    with socket.socket(fileno=fd) as sock:
        sock.set_inheritable(False)
        while (heard := _hear(sock)) is not None:
            word, fds = heard
            if word == b"ready":
                _tell(sock, {"ready": 1})
            elif word == b"base":
                home = home._replace(env=_read_all(fds[0]))
            elif word == b"bounds":
                home = home._replace(bounds=_read_all(fds[0]))
            elif word == b"output":
                home = home._replace(output=tuple(map(os.dup, fds)))
            elif word == b"shim":
                _fork_lasting(home, fds[0], sock)
            elif fds:
                _fork_shim(home, fds, sock)
            for received in fds:
                os.close(received)


def _hear(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """The next word and what came with it; None: there will be no more."""
    import socket  # whoever calls this has it already

    while True:
        try:
            word, fds, _, _ = socket.recv_fds(sock, INLINE, 3)
        except ConnectionResetError:
            continue  # told once when the scheduler dies with answers unread; its orders are still there
        for received in fds:
            os.set_inheritable(received, False)
        return (word, fds) if word else None


def _prepare() -> Home:
    """Do once what every shim needs: signals, imports, and a memory that forks share."""
    import ctypes  # only here: the package imports this module too, and should not pay for it
    import warnings  # noqa: F401 - os.execvpe imports it in each child otherwise

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, _BLOCKED)
    os.chdir("/")
    libc = ctypes.CDLL(None)
    fallocate = getattr(libc, "fallocate64", None) or libc.fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    home = Home(libc.prctl, fallocate, boot_id(), machine_id(), os.uname().nodename, {})
    home = home._replace(groups=own_group(), clone=_cloner(ctypes), next_signal=_waiter(ctypes))
    home = home._replace(groups=_where_groups_can_be(home))
    gc.disable()
    gc.freeze()
    return home


def own_group() -> str:
    """The folder of the cgroup v2 that this process is in, if this user may make others in it."""
    path = next((line[3:] for line in _text("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    folders = (f"{mount}{path.rstrip('/')}" for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if path)
    return next((folder for folder in folders if os.access(f"{folder}/cgroup.procs", os.W_OK)), "")


def _where_groups_can_be(home: Home) -> str:
    """The group that we are in, if one below it can be forked into and killed; what dead shims left there goes."""
    if not home.groups:
        return ""
    with suppress(OSError), os.scandir(home.groups) as entries:
        for path in [entry.path for entry in entries if entry.name.startswith(GROUP)]:
            if is_empty_group(path):
                remove_group(path)
    group = Group(home.groups, home.clone)
    heard, alive = os.pipe2(os.O_CLOEXEC)
    pid, path = group.fork(f"try.{os.getpid()}")
    if pid == 0:
        os.write(alive, b"!")
        os._exit(0)
    os.close(alive)
    can = os.read(heard, 1) == b"!" and bool(path) and os.access(f"{path}/cgroup.kill", os.W_OK)
    os.close(heard)
    with suppress(ChildProcessError):  # it went without a word, as SIGCHLD is ignored
        os.waitpid(pid, 0)
    group.close()
    return home.groups if can else ""


def _waiter(ctypes: Any) -> Callable[[float], int]:
    """The call sigtimedwait as it is: Python's makes up a signal where we were frozen beyond the end of the wait."""
    libc = ctypes.CDLL(None)
    waited = ctypes.create_string_buffer(128)
    libc.sigemptyset(waited)
    for number in _WAITED:
        libc.sigaddset(waited, int(number))

    def next_signal(seconds: float) -> int:
        whole = int(seconds)
        most = (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))
        return max(0, int(libc.sigtimedwait(waited, None, most)))

    return next_signal


def _cloner(ctypes: Any) -> Callable[[int], int]:
    """The call clone3 with CLONE_INTO_CGROUP, which the C library has no name for; else like fork.

    PyDLL keeps the interpreter's lock: the child, a copy of its only thread, goes on holding it.
    """
    syscall = ctypes.PyDLL(None).syscall
    syscall.restype = ctypes.c_long

    def clone(folder: int) -> int:
        said = (_CLONE_INTO_CGROUP, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, folder)
        arguments = (ctypes.c_uint64 * len(said))(*said)
        return int(syscall(ctypes.c_long(_SYS_CLONE3), arguments, ctypes.c_size_t(8 * len(said))))

    return clone


def _fork_lasting(home: Home, fd: int, server: socket.socket) -> None:
    """A shim that takes one order after another over a channel of its own, each once the one before is over."""
    import socket  # the server has it already

    with socket.socket(fileno=os.dup(fd)) as channel:
        child = False
        try:
            child = os.fork() == 0
            if child:
                server.close()
                os.close(fd)
                _serve_alone(_as_shim(home), channel)
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler has to hear of it
            _tell_failure(channel, Order(0, 0, [], "", {}, "", ""), error)
        finally:
            if child:
                os._exit(0)


def _serve_alone(home: Home, channel: socket.socket) -> None:
    while (heard := _hear(channel)) is not None:
        word, held = heard
        while signal.sigtimedwait(_WAITED, 0):
            pass  # a stop that came too late for the attempt before is not meant for this one
        memory = held.pop(0) if word == b"order" else -1
        order = _order(_read_all(memory) if memory >= 0 else json.loads(word))
        begun = _begun(home, order, held, channel)
        if begun is None:
            return
        ended = _finished(order, begun)
        if ended is None:
            return
        record, watch = ended
        begun.channel.close()
        is_there = os.fstat(begun.record).st_nlink > 0
        for fd in (begun.log.fd, begun.record, *held, *((memory,) if memory >= 0 else ()), begun.lock):
            with suppress(OSError):  # some file systems say only now that they had no room for what the task wrote
                os.close(fd)
        is_told = is_there and _tell(channel, {"ended": record._asdict()})  # else nobody may believe the end
        if watch.left or not is_told:
            break  # who is left lives on; an end that was not told is looked for once the channel ends
        if home.group:
            home.group.tidy(killed=watch.group_killed)
    if home.group:
        home.group.close()


def _fork_shim(home: Home, fds: list[int], sock: socket.socket) -> None:
    """A shim for one order alone, as a scheduler of an earlier version asks for it."""
    order = _order(_read_all(fds[0]))
    child = False
    try:
        child = os.fork() == 0
        if child:
            home = _as_shim(home)
        if child and (begun := _begun(home, order, fds[1:], sock)):
            sock.close()
            _finished(order, begun)
            if home.group:
                home.group.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler has to hear of it
        _tell_failure(sock, order, error)
    finally:
        if child:
            os._exit(0)


def _as_shim(home: Home) -> Home:
    """Have a session of its own, collect whoever is left by its children, and know itself."""
    os.setsid()
    home.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    score = _text("/proc/self/oom_score_adj")
    group = Group(home.groups, home.clone) if home.groups else None
    me = os.getpid()
    return home._replace(group=group, shim=me, start=start_time(me), oom_score=int(score or OOM_SCORE))


def _order(said: Mapping[str, Any]) -> Order:
    return Order(**_known(said, Order._fields))


def _finished(order: Order, begun: Begun) -> tuple[Record, Watch] | None:
    """Its end, and who watched over it; None, and it stands in its log why it has no record."""
    try:
        return finish(order, begun)
    except Exception as error:  # noqa: BLE001 - nobody listens to anything but its end any more
        with open(log_path(order.folder, order.attempt), "a", encoding="utf-8") as log:
            log.write(f"scheduler: the shim of this attempt failed: {error!r}\n")
    return None


def _begun(home: Home, order: Order, held: list[int], sock: socket.socket) -> Begun | None:
    """The attempt, started; or None, and the scheduler was told why."""
    try:
        begun = begin(home, order, held)
    except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler has to hear of it
        _tell_failure(sock, order, error)
        return None
    _tell(sock, {"started": begun.claim._asdict()})
    return begun


def _read_all(fd: int) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    return values


def _tell_failure(sock: socket.socket, order: Order, error: Exception) -> None:
    _tell(sock, {"failed": {"task": order.task, "attempt": order.attempt, "error": str(error)[:400]}})


def _tell(sock: socket.socket, message: Mapping[str, Any]) -> bool:
    """Say it if anybody listens: a scheduler that has gone finds the claim. Whether it can be heard."""
    with suppress(OSError):
        sock.send(json.dumps(message).encode(), MSG_DONTWAIT)
        return True
    return False


if __name__ == "__main__":
    serve(int(sys.argv[1]))
