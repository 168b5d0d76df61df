"""The process that every attempt runs under. It holds the claim and the lease, and writes the exit record.

`python -I -S shim.py FD` is a fork server. FD is a SOCK_SEQPACKET socket. Each datagram is one word; its argument comes
with it as descriptors, so its length has no limit:

    base   + memfd with JSON {name: value}         the environment that all later tasks start from
    bounds + memfd with JSON {umask, limits}       replaces the server's own; limits: {name: [soft, hard]}
    output + two descriptors                       stdout and stderr of later tasks, in place of their logs
    loose                                          processes that tasks leave behind live on, outside of the server
    warm   + memfd with JSON {python, program, modules, path}   load a Python program and modules: from now on a task
                                                   whose command begins with `python program` is a fork of the server
                                                   that calls the program's `main`, and starts no interpreter
    shim   + a socket like FD, its channel         fork one shim, which runs one attempt after another

A shim takes orders over its channel, each only after the end of the attempt before:

    the JSON of an `AttemptOrder` + the lease's descriptor, if there is one + descriptors that are only kept open for
                                                   as long as the attempt lives
    order  + memfd with that JSON + the same descriptors, where the JSON is longer than INLINE

A shim answers over its channel, in JSON:

    {"started": the claim}
    {"ended": the record}                          from now on the shim accepts another order
    {"failed": {task, attempt, error, short}}      the attempt does not run and never will; the shim ends; `short` says
                                                   that the machine was short of processes, memory or disk space

The server takes no more words after end-of-file. It ends when it has no more children: the kernel makes it the parent
of what a killed shim leaves behind, and so the processes of such an attempt are found (`orphans`). A shim ends at the
end of its channel too, but never before its attempt is over. SIGTERM asks a shim to stop its attempt (stop signal,
grace period, then SIGKILL for the whole tree) and SIGUSR1 to kill it. Before the first signal the shim runs the
`ending` of its order; a task that saves when it is asked to stop gets its stop signal before that.

An attempt's files lie in its task's folder: a claim and a log. The shim holds a flock on the claim for as long as it
lives; a claim without a lock belongs to an attempt that is over. Its first block says who runs the attempt, its second
block is the exit record, empty until the end. This module defines their formats.
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
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    import socket

FORMAT = 1
MSG_DONTWAIT = 0x40
"""The value of `socket.MSG_DONTWAIT`, so that readers of the formats need not load `socket`."""
INLINE = 16384
"""The longest message, in bytes: a longer order is read from memory whose descriptor is sent."""
BLOCK = 4096
"""The size of a claim, a record and a lease, in bytes: each is one block, which is allocated before it is needed, and
is read and written as a whole."""
COOKIE = "SCHEDULER_COOKIE"
NAME = "scheduler-shim"
"""The kernel's name for the server and its shims (`comm`): a fork keeps the name, and every exec replaces it."""
GROUP = "scheduler-"
"""The beginning of the names of all control groups of attempts."""
TICK = 5.0
"""The longest wait while a clock is running, in seconds. If a wait took longer, the machine was suspended, and only
this much time is counted."""
FENCE_LOOK = 0.5
"""Seconds between two reads of the file that says until when an attempt may live."""
TOUCH = 6 * 3600.0
"""Seconds between updates of the lease's file times, because cleaners of /tmp remove files that were not used for
days."""
LINGER = 0.1
"""Seconds for which processes that a task leaves behind, such as a `tee` that still writes, may end by themselves
before they get TERM."""
LEFTOVER_GRACE = 2.0
ENDING = 20.0
"""Seconds that the `ending` command of an order may take. If it takes longer, it is killed, and the first signal is
sent to the task."""
OOM_SCORE = 500
LOG_MAX = 1 << 30
"""The limit of a log in bytes; its head and its tail are kept. What is written while the shim waits may exceed it.

At `LOG_RATE` or less a log stays below the limit if the shim gets a processor at once. On two cores with five times as
many busy processes, a log of 50 MiB on ext4 came to 131 MiB at 800 MB/s, and one on tmpfs to 75 MiB at 430 MB/s."""
LOG_RATE = 1 << 30
"""The rate, in bytes per second, that is assumed for a task until the next check, even if it was slower so far."""
LOG_HURRY = 64 << 20
"""The rate, in bytes per second, above which a log is cut in the way that takes equally long on every file system."""
LOG_LOOKS = (0.005, 1.0)
"""The shortest and the longest time between checks of a log, in seconds."""

_COLLAPSE_RANGE = 8
"""A mode of fallocate that moves the blocks after a range to its beginning. ext4, XFS and a few others support it."""
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_SYS_CLONE3, _CLONE_INTO_CGROUP = 435, 0x200000000
_WAITED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_BLOCKED = (*_WAITED, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that the shim blocks. Otherwise Python would ignore the last two, and the task would
inherit that, which commands do not expect."""
_AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ")
"""The beginnings of the names of variables that the loader, the C library or Python read when a process starts."""
_AT_ONCE = "PYTHONUNBUFFERED"
"""The only variable with a beginning from _AT_START that every task gets; a program that the server has loaded obeys it
as well."""
_SHORT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a machine that lacks processes, memory or open files."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNREACHABLE = (
    errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.ENODEV, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH
)  # fmt: skip
"""Errors of a file system that does not answer."""
_AWAY = (*_UNREACHABLE, errno.ENOENT, errno.EACCES)
"""Errors of a directory that cannot be entered now, but may become available again: it existed when its row was
accepted."""
_set_mask: Callable[..., object] = getattr(signal.pthread_sigmask, "__wrapped__", signal.pthread_sigmask)
"""`signal.pthread_sigmask` without the layer that turns the old mask into enums, because a child does not need the old
mask."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class ClaimState(StrEnum):
    """The state of an attempt according to the lock of its claim."""

    ABSENT = "absent"
    LOCKED = "locked"
    FREE = "free"


class AttemptOrder(NamedTuple):
    """The description of one attempt for its shim."""

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
    """A signal, and how many seconds before the time limit it is sent."""
    log_max: int = LOG_MAX
    spare: bool = False
    """True if processes that the task leaves behind live on, and keep the lease as long as they do."""
    stdout: str = ""
    stderr: str = ""
    """The files for stdout and stderr, relative to the task's directory or absolute; empty: the log."""
    ending: list[str] = []  # noqa: RUF012 - of a tuple with names, never changed
    """A command that runs to its end before the first signal to the task's tree."""
    cgroup: bool = True
    """True if the attempt gets a control group of its own where that is possible."""
    lasting: bool = True
    """True if the attempt's record must survive a power failure."""
    bounds: Mapping[str, Any] | None = None
    """The umask and the limits of the shell that the task was submitted from; None: those of the run."""
    limits: list[str] = []  # noqa: RUF012 - of a tuple with names, never changed
    """The lines that are written into `dmem.max` of the attempt's control group before the command starts."""
    until: str = ""
    """A file with the time, in seconds since boot, until which the attempt may live; empty: without limit. The agent
    that hears from the attempt's scheduler writes a later time."""
    saves: bool = False
    """True if the task gets its stop signal before the `ending`, so that it can still save."""


class Claim(NamedTuple):
    """The claim of an attempt: the shim that runs it, and where. A fence is a claim that prevents the attempt from
    ever running.
    """

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
    """The folder of the control group of the task's tree; empty if there is none."""
    server: int = 0
    """The fork server of the shim, which becomes the parent of processes that a killed shim leaves behind."""
    server_start: int = 0
    format: int = FORMAT


class Record(NamedTuple):
    """The end of an attempt: exited, signalled, timeout, stopped, fenced (it was not allowed to live longer), or spawn
    (its program could not be started).
    """

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
    """The number of processes on this machine that the kernel killed for lack of memory during the attempt; 0 if it
    exited with 0."""
    boot_id: str = ""
    hindrance: str = ""
    """The cause, other than the task itself, that prevented the start of the task's program: `machine` or `directory`;
    otherwise empty."""
    format: int = FORMAT


# The files of an attempt


def claim_path(folder: str, attempt: int) -> str:
    """Return the path of an attempt's claim."""
    return f"{folder}/.claim.{attempt}"


def log_path(folder: str, attempt: int) -> str:
    """Return the path of an attempt's log."""
    return f"{folder}/{attempt}.log"


def errors_path(folder: str, attempt: int) -> str:
    """Return the path of an attempt's standard error, if that is kept in a file of its own next to the log."""
    return f"{folder}/{attempt}.err"


def read_claim(path: str) -> Claim | None:
    """Return the claim, or None if there is no readable one."""
    values = _read_block(path, 0, Claim._fields)
    return Claim(**values) if {"task", "attempt"} <= values.keys() else None


def read_record(path: str) -> Record | None:
    """Return the exit record in a claim, or None if none was completed. It is final only once the claim is free."""
    values = _read_block(path, BLOCK, Record._fields)
    return Record(**values) if "outcome" in values else None


def claim_of(values: Mapping[str, Any]) -> Claim:
    """Return the claim that a shim reported, without fields that this version does not know."""
    return Claim(**_known(values, Claim._fields))


def record_of(values: Mapping[str, Any]) -> Record:
    """Return the exit record that a shim reported, without fields that this version does not know."""
    return Record(**_known(values, Record._fields))


def _known(values: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in fields}


def claim_state(path: str) -> ClaimState:
    """Return whether an attempt's shim is alive, judged by the lock of its claim alone."""
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
    """Create the claim of an attempt without a shim, so that the attempt never runs. Return False if the claim already
    existed.
    """
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.close(take_claim(path, Claim(task, attempt, fence=True, boot_id=boot_id()), fcntl.LOCK_UN))
        return True
    return False


def take_claim(path: str, claim: Claim, lock: int = fcntl.LOCK_EX) -> int:
    """Create the claim and return its locked descriptor. Raise FileExistsError if it already existed.

    The file is locked before it gets its name: a visible claim that is free belongs to an attempt that has ended. It
    has room for the exit record, so that the end can be written even if the disk is full by then.
    """
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, _CREATE | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, lock | fcntl.LOCK_NB)
        os.posix_fallocate(fd, 0, 2 * BLOCK)
        os.pwrite(fd, pack_block(claim._asdict()), 0)
        os.link(temporary, path)
    except OSError:
        os.close(fd)
        raise
    finally:
        os.unlink(temporary)
    return fd


def pack_block(values: Mapping[str, Any]) -> bytes:
    """Return one block with the values and a checksum, which shows whether it was written completely."""
    text = json.dumps(values).encode()
    block = b"%08x %s\n" % (binascii.crc32(text), text)
    if len(block) > BLOCK:
        raise ValueError(f"{len(block)} bytes do not fit a block of {BLOCK}")
    return block.ljust(BLOCK, b"\0")


def unpack_block(block: bytes) -> dict[str, Any] | None:
    """Return the values of a block; None if it is empty, torn or damaged."""
    crc, _, text = block.partition(b"\n")[0].partition(b" ")
    if crc != b"%08x" % binascii.crc32(text):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # a checksum can be right for nonsense that was written on purpose
        return None
    return values if isinstance(values, dict) else None


def _read_block(path: str, offset: int, fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that this version knows from a block of a file; none if there is no whole block."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return {}
    block = b""
    with suppress(OSError):  # it is a pipe
        block = os.pread(fd, BLOCK, offset)
    os.close(fd)
    return _known(unpack_block(block) or {}, fields)


# The control group of an attempt
#
# A process that is forked into a group cannot leave it without privileges: not by a session, a double fork, a cleared
# environment or another user. So one write kills all processes of the group, including forks that are under way, and
# also when the shim is dead. The group is a plain one below the scheduler's own group: it has no controllers, no
# process is moved and no limit changes. A shim uses one group for all its attempts, since the group is empty when an
# attempt is over. Forking into a group costs next to nothing; creating a group costs 0.05 to 0.1 ms of processor time.
# Moving processes only when it is needed would cost 0.5 ms for each process (5 ms at worst) and would race with forks,
# and processes that have left the tree of a killed shim could not be found. No groups are used where they cannot be
# created: without cgroup v2, where it is not delegated to this user, or on a kernel before 5.14.


def group_name(cookie: str) -> str:
    """Return the name of an attempt's control group."""
    return f"{GROUP}{cookie}"


def kill_group(group: str) -> None:
    """Kill every process in a control group and in the groups below it."""
    with suppress(OSError), open(f"{group}/cgroup.kill", "wb", buffering=0) as file:
        file.write(b"1")


def limit_group(group: str, lines: list[str]) -> None:
    """Set the limits of a group on GPU memory; each region has a line of its own, as the kernel wants it."""
    for line in lines:
        with suppress(OSError):
            _write(f"{group}/dmem.max", line.encode() + b"\n")


def is_empty_group(group: str) -> bool:
    """Tell whether no process is in a control group or in the groups below it."""
    return "populated 0" in _text(f"{group}/cgroup.events")


def remove_group(group: str) -> None:
    """Remove a control group and the groups below it, if they are empty."""
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
    """Return the id of this boot of the kernel."""
    return _text("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Return the id of this installation, or an empty string if it has none."""
    return _text("/etc/machine-id")


def hostname() -> str:
    """Return the host name of this machine."""
    return os.uname().nodename


def is_here(boot: str, machine: str, host: str) -> bool:
    """Tell whether the ids name this machine, now or before a reboot. One boot is one kernel, whatever its
    containers report.
    """
    return boot == boot_id() or (machine, host) == (machine_id(), hostname())


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot; 0 if it does not count them."""
    count = _text("/proc/vmstat").partition("\noom_kill ")[2].split(None, 1)
    return int(count[0]) if count else 0


def start_time(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 if there is no such process."""
    stat = _stat(f"/proc/{pid}/stat")
    return int(stat[19]) if stat else 0


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped a process. A process that a debugger has stopped does not count."""
    return _stat(f"/proc/{pid}/stat")[:1] == ["T"]


def children_finder(proc: str = "/proc") -> Callable[[int], list[int]]:
    """Return a function that lists the children of a process: from the kernel's own lists, or from one scan if there
    are none.
    """
    if os.path.exists(f"{proc}/self/task/{os.getpid()}/children"):
        return lambda pid: _listed_children(proc, pid)
    table: dict[int, list[int]] = {}
    for name in os.listdir(proc):
        if name.isdigit() and (stat := _stat(f"{proc}/{name}/stat")):
            table.setdefault(int(stat[1]), []).append(int(name))
    return lambda pid: table.get(pid, [])


def descendants(root: int, children: Callable[[int], list[int]]) -> list[int]:
    """Return all processes below `root`, nearest first."""
    found = {root: None}
    todo = [root]
    for pid in todo:
        new = [child for child in children(pid) if child not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return todo[1:]


def lease_members(
    shim: int, guest: int, children: Callable[[int], list[int]], shims: Collection[int] = ()
) -> list[int]:
    """Return the processes of a lease: those below its shim, its guest (a process that the shim did not start), and
    those below the guest.

    The guest may have started a scheduler: the trees of its `shims` are left out, as they have leases of their own.
    """
    below = descendants(shim, children)
    if not guest:
        return below
    return [guest, *descendants(guest, lambda pid: [child for child in children(pid) if child not in shims]), *below]


def orphans(server: int, start: int) -> list[int]:
    """Return the processes that dead shims of a fork server have left behind, nearest first.

    They are the children of the server that it did not fork itself, and all processes below them. A child with the
    server's name has not executed another program since it was forked, so it is a shim.
    """
    if not server or start_time(server) != start:
        return []
    children = children_finder()
    found: list[int] = []
    for child in children(server):
        if _text(f"/proc/{child}/comm") != NAME:
            found += [child, *descendants(child, children)]
    return found


def shims(server: int) -> list[int]:
    """Return the shims among the children of a fork server, with or without an attempt."""
    return [child for child in children_finder()(server) if _text(f"/proc/{child}/comm") == NAME]


def _listed_children(proc: str, pid: int) -> list[int]:
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return []
    lists = (_text(f"{proc}/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for children in lists for child in children.split()]


def _stat(path: str) -> list[str]:
    """Return the fields of a `stat` file after the name: state, parent, … start time. The name may itself contain
    blanks and brackets.
    """
    return _text(path).rpartition(")")[2].split(None, 20)[:20]


def _text(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    parts = []
    with suppress(OSError):
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    os.close(fd)
    return b"".join(parts).decode(errors="replace").strip()


# The shim: one attempt


class Watch:
    """The supervision of one running task, until its process tree is empty."""

    def __init__(
        self,
        main: int,
        order: AttemptOrder,
        log: LogKeeper,
        group: str = "",
        next_signal: Callable[[float], int] | None = None,
    ) -> None:
        self.status: int | None = None
        self.why = ""
        self.max_rss = 0
        self.cpu_seconds = 0.0
        self.leftovers = 0
        self.group_killed = False
        self.left = False
        """True if processes of the task's tree live on."""
        self._main = main
        self._order = order
        self._group = group
        self._next_signal = next_signal or _next_signal
        self._began = self._last = _boot_seconds()
        self._now = 0.0
        """Seconds for which this process was awake: time in suspension does not count against a time limit."""
        self._limit = math.inf if order.timeout is None else order.timeout
        self._warn_at = self._limit - order.warn[1] if order.warn else math.inf
        self._log = log
        self._stop_at = math.inf
        self._term_at = math.inf
        self._kill_at = math.inf
        self._pause = 0.001
        self._ending = list(order.ending)
        """The command that must still run before the first signal."""
        self._helper = 0
        self._helper_until = math.inf
        self._touch_at = TOUCH
        self._fence_at = 0.0 if order.until else math.inf
        self._until = 0.0

    def run(self) -> None:
        """Wait until the last descendant has been reaped, or until the rest of the tree is to live on."""
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
        """Return how long the attempt has been running, in seconds, including time in suspension."""
        return _boot_seconds() - self._began

    def _reap(self) -> bool:
        """Reap the processes that have ended; return whether others are left."""
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
        if self._now >= self._fence_at:
            self._look_at_fence()
        if self._now >= self._warn_at and self._order.warn:
            self._warn_at = math.inf
            _signal([self._main], self._order.warn[0])
        if self._now >= self._limit:
            self._stop("timeout")
        if self._order.saves and self._now >= self._stop_at:
            self._ask_to_stop()
        if self._now >= min(self._stop_at, self._term_at, self._kill_at) and self._may_signal():
            self._signal()

    def _look_at_fence(self) -> None:
        """Stop the task once the time is over until which it may live; if the file with that time cannot be read, the
        last known time stays valid.
        """
        self._fence_at = self._now + FENCE_LOOK
        self._until = max(self._until, living_until(self._order.until))
        if self._last >= self._until and not self.why and self.status is None:
            self._fence_at = math.inf
            self._stop("fenced")

    def _may_signal(self) -> bool:
        """Return whether the `ending` command is done; start it if it has not been started."""
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
        """Send the signals that are due."""
        if self._now >= self._stop_at:
            self._ask_to_stop()
        if self._now >= self._term_at:
            self._term_at = math.inf
            self.leftovers = _signal(_own_tree(), signal.SIGTERM, signal.SIGCONT)
        if self._now >= self._kill_at:
            if self._group:
                kill_group(self._group)
                self.group_killed = True
            _signal(_own_tree(), signal.SIGSTOP, signal.SIGKILL)

    def _ask_to_stop(self) -> None:
        """Send the stop signal; the task's tree is killed after the grace period."""
        self._stop_at = math.inf
        self._kill_at = min(self._kill_at, self._now + self._order.grace)
        if self.status is None:
            _signal([self._main], self._order.stop_signal, signal.SIGCONT)

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
        looks = min(self._log.next_look, self._touch_at, self._fence_at)
        next_ = max(self._now, min(self._limit, self._warn_at, due, looks))
        number = self._next_signal(min(next_ - self._now, TICK))
        if number not in (0, signal.SIGCHLD):
            self._obey(number)

    def _obey(self, number: int) -> None:
        """Stop or kill the task, unless it has just ended by itself."""
        self._reap()
        if not self.why and (self.status is None or (number == signal.SIGTERM and self._ended_by_term())):
            self._stop("stopped")
        if number == signal.SIGUSR1:
            self._kill_at = self._now

    def _ended_by_term(self) -> bool:
        """Tell whether TERM ended the task. If the shim got TERM too, the session or the machine was being ended."""
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGTERM


def _fork_helper(command: list[str]) -> int:
    """Fork a child that executes the command in a session of its own; it inherits only the shim's output."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execv(command[0], command)
        finally:
            os._exit(127)
    return pid


class LogKeeper:
    """The size limit of one attempt's log, which the task itself writes: its head and its tail are kept."""

    def __init__(self, path: str, most: int, fallocate: Callable[[int, int, int, int], int]) -> None:
        self.next_look = 0.0
        self.fd = os.open(path, _CREATE | os.O_APPEND, 0o600)
        """The task's own descriptor, which only appends."""
        self._most = most
        self._fallocate = fallocate
        self._missing = 0
        self._last = (0.0, 0)

    def look(self, now: float) -> None:
        """Cut the middle out of the log when it comes near the limit. The faster the log grows, the sooner it is
        checked again.
        """
        size = os.fstat(self.fd).st_size
        rate = (size - self._last[1]) / max(now - self._last[0], LOG_LOOKS[0])
        if size > self._most // 4 * 3:
            with suppress(OSError):  # the task is worth more than its log
                self._cut(size, in_a_hurry=rate > LOG_HURRY)
            size = os.fstat(self.fd).st_size
        self._last = (now, size)
        room = (self._most - size) / max(2 * rate, LOG_RATE)
        self.next_look = now + min(max(room, LOG_LOOKS[0]), LOG_LOOKS[1])

    def _cut(self, size: int, *, in_a_hurry: bool) -> None:
        """Cut the middle out; in a hurry by copying, because ext4 writes the whole file to disk before it moves
        blocks.
        """
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            block = os.fstatvfs(fd).f_bsize
            block = block if block <= self._most // 8 else 1
            head = self._most // 4 // block * block
            length = (size - head - self._most // 4) // block * block
            if in_a_hurry or self._fallocate(fd, _COLLAPSE_RANGE, head, length):
                end, lost = _move(fd, head + length, head)
                if lost:
                    note = self._note(lost)
                    os.pwrite(fd, note, end - len(note))
                self._missing += max(0, os.fstat(fd).st_size - end - length)  # with what came since the last check
                os.ftruncate(fd, end)
            self._missing += length
            os.pwrite(fd, self._note(self._missing), head)
        finally:
            os.close(fd)

    def _note(self, missing: int) -> bytes:
        kept = f"the log is kept below {self._most >> 10:,} KiB (--log-max)"
        return f"\n[scheduler: {missing >> 10:,} KiB of output are missing here: {kept}]\n".encode()


def _move(fd: int, source: int, target: int) -> tuple[int, int]:
    """Copy everything after the position `source` to the position `target`; return the end of the copy, and the number
    of bytes that came too fast to be copied.

    The copy goes on while each round has less than half as much to copy as the one before.
    """
    most, size = sys.maxsize, os.fstat(fd).st_size
    while 0 < size - source <= most:
        most = (size - source) // 2
        while source < size and (data := os.pread(fd, min(1 << 20, size - source), source)):
            os.pwrite(fd, data, target)
            source, target = source + len(data), target + len(data)
        size = os.fstat(fd).st_size
    return target, max(0, size - source)


def living_until(path: str) -> float:
    """Return the time, in seconds since boot, that a file contains; 0 if it contains none."""
    try:
        return float(_text(path) or 0.0)
    except ValueError:
        return 0.0


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _next_signal(seconds: float) -> int:
    """Wait for one of the shim's signals and return it; 0 if none came."""
    info = signal.sigtimedwait(_WAITED, seconds)
    return info.si_signo if info is not None else 0


def _own_tree() -> list[int]:
    return descendants(os.getpid(), children_finder())


def _signal(pids: list[int], *numbers: int) -> int:
    """Send each of the signals in turn to every process; return the number of processes."""
    for number, pid in itertools.product(numbers, pids):
        with suppress(ProcessLookupError, PermissionError):  # gone, or a setuid program: then it is waited for
            os.kill(pid, number)
    return len(pids)


class WarmProgram(NamedTuple):
    """A Python program that the server has loaded, so that its tasks start without an interpreter."""

    python: str
    path: str
    main: Callable[[list[str]], int]
    module: Any

    def runs(self, home: ServerContext, order: AttemptOrder) -> bool:
        """Tell whether a fork of the server can run this task: its command begins with the loaded program, and it
        changes no variable that is only read when a process starts.
        """
        changed = (name for name, value in order.env.items() if home.env.get(name) != value and name != _AT_ONCE)
        return order.argv[:2] == [self.python, self.path] and not any(name.startswith(_AT_START) for name in changed)

    def become(self, prctl: Callable[[int, bytes], int], argv: list[str], env: dict[str, str]) -> NoReturn:
        """Run the program to its end in this process, in which nothing of the shim may remain."""
        code = 1
        try:
            prctl(_PR_SET_NAME, os.path.basename(self.python).encode())
            os.environ.clear()
            os.environ.update(env)
            sys.argv[:] = argv[1:]
            sys.modules["__main__"] = self.module
            _show_at_once()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_IGN)
            gc.enable()
            code = self.main(sys.argv)
            _finish_interpreter()
        except BaseException:  # noqa: BLE001 - no error may return into the shim's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)


def _show_at_once() -> None:
    """Make printed output appear in the log at once, as PYTHONUNBUFFERED does for an interpreter."""
    import io  # the interpreter has loaded it

    old, raw = sys.stdout, io.FileIO(1, "w", closefd=False)
    new = io.TextIOWrapper(raw, old.encoding, old.errors, write_through=True)  # as -u does
    sys.stdout = sys.__stdout__ = new  # type: ignore[misc]  # a task may print to either


def _finish_interpreter() -> None:
    """Do what the end of an interpreter does for a program: join its threads, call its exit functions, flush."""
    import atexit

    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # it was replaced or closed
            stream.flush()


class ServerContext(NamedTuple):
    """The values that the server determines once, for all its shims."""

    prctl: Callable[[int, int | bytes], int]
    fallocate: Callable[[int, int, int, int], int]
    boot_id: str
    machine_id: str
    hostname: str
    env: Mapping[str, str]
    bounds: Mapping[str, Any] = {}
    output: tuple[int, ...] = ()
    """The descriptors to which tasks write in place of their logs."""
    groups: str = ""
    """The control group below which shims create groups for their attempts; empty if that is impossible."""
    warm: WarmProgram | None = None
    """The Python program that the server has loaded; None: it has loaded none."""
    next_signal: Callable[[float], int] = _next_signal
    clone: Callable[[int], int] = lambda _folder: -1
    """A function that forks into the control group whose folder is open; it returns less than 0 if it cannot."""
    group: ShimCgroup | None = None
    """The control group for this shim's attempts."""
    server: int = 0
    server_start: int = 0
    scheduler: int = 0
    shim: int = 0
    start: int = 0
    """The pid and the start time of the shim itself, once this process is a shim."""
    oom_score: int = OOM_SCORE


class ShimCgroup:
    """The control group of a shim, created with its first attempt; it exists as long as the shim."""

    def __init__(self, groups: str, clone: Callable[[int], int]) -> None:
        self.path = ""
        self._groups = groups
        self._clone = clone
        self._folder = -1

    def fork(self, cookie: str) -> tuple[int, str]:
        """Fork, into the group if possible; return the pid and the group. Try twice, because servers remove empty
        groups.
        """
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
        """Prepare the empty group for the next attempt: remove what a task created below it.

        A group that was `killed` is not used again: Linux (6.18 at least) kills every process that is forked into such
        a group, because it compares how often the group was killed with how often the group of the forking process was.
        """
        if killed:
            self.close()
            self.path = ""
        elif self._folder >= 0 and os.fstat(self._folder).st_nlink != 2:
            _remove_below(self.path)

    def close(self) -> None:
        """Remove the group if it is empty."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1
            remove_group(self.path)


class StartedAttempt(NamedTuple):
    """A started attempt, and the descriptors that are open for it."""

    main: int
    words: int
    """The pipe to which the child writes why it could not execute the command."""
    log: LogKeeper
    claim: Claim
    lock: int
    """The descriptor of the claim, which is locked; the record is written to it."""
    began: float
    kills: int
    next_signal: Callable[[float], int]


def begin(home: ServerContext, order: AttemptOrder, held: list[int]) -> StartedAttempt:
    """Start an attempt: fork its child, create the claim, then let the child execute the command. If that is
    impossible, raise an error; the command is then not executed.
    """
    log = _open_log(home, order)
    main, group, go, words = _fork_task(home, order, held, log.fd)
    claim = _claim_of(home, order, main, group)
    lock = take_claim(claim_path(order.folder, order.attempt), claim)
    begun = StartedAttempt(main, words, log, claim, lock, time.time(), oom_kills(), home.next_signal)
    os.eventfd_write(go, 1)
    os.close(go)
    return begun


def _open_log(home: ServerContext, order: AttemptOrder) -> LogKeeper:
    """Open the log in its folder, which the cleanup of an earlier attempt may be removing at this moment."""
    for _ in range(3):
        try:
            os.mkdir(order.folder, 0o700)
        except FileExistsError:
            pass
        except FileNotFoundError:
            os.makedirs(order.folder, 0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            return LogKeeper(log_path(order.folder, order.attempt), order.log_max, home.fallocate)
    return LogKeeper(log_path(order.folder, order.attempt), order.log_max, home.fallocate)


def finish(order: AttemptOrder, begun: StartedAttempt) -> tuple[Record, Watch]:
    """Supervise the attempt to its end and write the record; the watch shows whether processes of the task live on.

    Processes that live on hold the lease's descriptor, so the lease ends with the last of them.
    """
    watch = Watch(begun.main, order, begun.log, begun.claim.group, begun.next_signal)
    watch.run()
    record = _ended(begun, watch, os.read(begun.words, BLOCK))
    os.pwrite(begun.lock, pack_block(record._asdict()), BLOCK)
    if order.lasting:
        os.fsync(begun.lock)
    if not watch.left:
        with suppress(OSError):  # none was given, or its directory has gone
            os.unlink(order.lease)
    return record, watch


def _claim_of(home: ServerContext, order: AttemptOrder, main: int, group: str) -> Claim:
    return Claim(
        order.task, order.attempt, order.cookie, home.shim, home.start, main, start_time(main),
        home.boot_id, home.machine_id, home.hostname, False, group, home.server, home.server_start,
    )  # fmt: skip


def _ended(begun: StartedAttempt, watch: Watch, failure: bytes) -> Record:
    """Return the record of an ended attempt; `failure` says why the child did not execute the command, and is empty if
    it did.
    """
    exit_code = os.waitstatus_to_exitcode(watch.status or 0)
    code, number = (exit_code, None) if exit_code >= 0 else (None, -exit_code)
    outcome, error, hindrance = watch.why or ("exited" if number is None else "signalled"), "", ""
    if failure:
        outcome = "spawn"
        code, error, hindrance = json.loads(failure)
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
        hindrance,
    )


def _fork_task(home: ServerContext, order: AttemptOrder, held: list[int], log: int) -> tuple[int, str, int, int]:
    """Fork the child that executes the command once it is told to; if it cannot, it writes the reason to a pipe.

    Return its pid, its control group (empty: none), the eventfd that tells it to execute the command, and the pipe.
    """
    go = os.eventfd(0, os.EFD_CLOEXEC)
    words, answer = os.pipe()
    merged = {**home.env, **order.env, COOKIE: order.cookie}
    env = {name: value for name, value in merged.items() if value is not None}
    warm = home.warm is not None and home.warm.runs(home, order)
    grouped = home.group and order.cgroup and not warm  # Python goes on only in a fork that it made itself
    pid, group = home.group.fork(order.cookie) if home.group and grouped else (os.fork(), "")
    if pid == 0:
        try:
            _become_task(home, order, (log, *held), env, go)
        except Exception as error:  # noqa: BLE001 - no error may return into the parent's code
            os.write(answer, json.dumps(_why_not(error, order)).encode())
        finally:
            os._exit(1)
    os.close(answer)
    if group:
        limit_group(group, order.limits)
    if home.oom_score < OOM_SCORE:  # when memory runs out the task should go, not shim or scheduler
        with suppress(OSError):
            _write(f"/proc/{pid}/oom_score_adj", b"%d" % OOM_SCORE)
    return pid, group, go, words


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def _found(command: str, path: str) -> str:
    """Return the probable path of a command: each path that execvpe tries in vain costs an exception."""
    if "/" not in command:
        for folder in path.split(":"):
            if folder and os.access(f"{folder}/{command}", os.X_OK):
                return f"{folder}/{command}"
        return ""
    return command


def _become_task(
    home: ServerContext,
    order: AttemptOrder,
    fds: tuple[int, ...],
    env: dict[str, str],
    go: int,
) -> None:
    """Close everything that belongs to the shim except its locks; then execute the command.

    Only this process accesses the files that a row names, because an access to a dead network mount may never return.
    """
    log, *held = fds
    os.setsid()
    home.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _set_mask(signal.SIG_SETMASK, ())
    out, err = home.output or (log, log)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in held:
        os.set_inheritable(fd, True)
    if os.getppid() == home.shim and os.eventfd_read(go):
        if bounds := home.bounds if order.bounds is None else order.bounds:
            _set_bounds(bounds)
        os.chdir(order.directory)
        if order.stdout or order.stderr:
            _redirect(order)
        if home.warm is not None and home.warm.runs(home, order):
            _close_all_but((0, 1, 2, *held))
            home.warm.become(home.prctl, order.argv, env)
        found = _found(order.argv[0], env.get("PATH", ""))
        if found and found != order.argv[0]:
            with suppress(OSError):
                os.execve(found, order.argv, env)
        os.execvpe(order.argv[0], order.argv, env)


def _close_all_but(kept: tuple[int, ...]) -> None:
    """Close the descriptors that an exec would close."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the descriptor of this listing, closed already
                os.close(int(name))


def _redirect(order: AttemptOrder) -> None:
    """Redirect output to the files that the row names: the first attempt truncates a file, later ones append to it."""
    anew = os.O_TRUNC if order.attempt == 1 else 0
    for number, path in ((1, order.stdout), (2, order.stderr)):
        if path:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | anew, 0o666)
            os.dup2(file, number)


def _set_bounds(bounds: Mapping[str, Any]) -> None:
    """Give the task the umask and the limits of the shell from which the run was started or the task was submitted; the
    shim itself keeps its own.
    """
    if "umask" in bounds:
        os.umask(bounds["umask"])
    for name, (soft, hard) in bounds.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (soft, hard))


def _hindrance(error: Exception, order: AttemptOrder) -> str:
    """Return the cause, other than the task itself, that prevented the start of a task: `machine` or `directory`;
    otherwise an empty string.
    """
    number = error.errno if isinstance(error, OSError) else errno.ENOMEM if isinstance(error, MemoryError) else 0
    if number in _SHORT:
        return "machine"
    in_directory = isinstance(error, OSError) and error.filename == order.directory
    if number in (_AWAY if in_directory else (*_UNREACHABLE, *_FULL)):
        return "directory"
    return ""


def _why_not(error: Exception, order: AttemptOrder) -> tuple[int, str, str]:
    """Return the exit code that a shell would give, the error as a sentence, and what prevented the start."""
    return (*_what_was_wrong(error, order), _hindrance(error, order))


def _what_was_wrong(error: Exception, order: AttemptOrder) -> tuple[int, str]:
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
    """Carry out the messages that arrive on the socket until its other end is closed; each message `shim` forks a shim.
    Then wait until all shims have ended.
    """
    import socket  # only here: readers of the formats should not pay for it

    home = _prepare()
    with socket.socket(fileno=fd) as sock:
        sock.set_inheritable(False)
        while (message := _receive(sock)) is not None:
            word, fds = message
            if word == b"base":
                home = home._replace(env=_read_all(fds[0]))
            elif word == b"bounds":
                home = home._replace(bounds=_read_all(fds[0]))
            elif word == b"output":
                home = home._replace(output=tuple(map(os.dup, fds)))
            elif word == b"loose":
                home.prctl(_PR_SET_CHILD_SUBREAPER, 0)
            elif word == b"warm":
                home = home._replace(warm=_warmed(_read_all(fds[0])))
            elif word == b"shim":
                _fork_shim(home, fds[0], sock)
            for received in fds:
                os.close(received)
    _outlive_shims(home)


def _warmed(values: Mapping[str, Any]) -> WarmProgram | None:
    """Load a program and modules; return None if that fails, so that each of its tasks starts an interpreter."""
    import importlib
    import types

    sys.path[:] = [*values["path"]] or sys.path
    module = types.ModuleType("scheduler.runtime.task_launcher")
    module.__file__ = values["program"]
    try:
        with open(values["program"], "rb") as file:
            exec(compile(file.read(), values["program"], "exec"), module.__dict__)
        for name in values["modules"]:
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a module of the user raises anything; the task will report it again
        return None
    if len(sys._current_frames()) > 1:
        return None  # a module has started a thread, which no fork would have
    sys.modules[module.__name__] = module
    gc.collect()
    gc.freeze()
    return WarmProgram(values["python"], values["program"], module.main, module)


_REST = 1.0
"""The longest time between two checks of its shims by a server without a scheduler, in seconds."""


def _outlive_shims(home: ServerContext) -> None:
    """Wait for the end of the last child, and notice it at once, so that the server does not live longer than needed
    after its scheduler has ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it was ignored until now, and is blocked: it ends the wait below
    with suppress(ChildProcessError):  # none is left
        while True:
            _continue_shims()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            home.next_signal(_REST)


def _continue_shims() -> None:
    """Continue every shim of this server that a signal has stopped; after the scheduler's end nothing else would."""
    for child in shims(os.getpid()):
        if is_stopped(child):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)


def _receive(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next word and its descriptors; None at the end of the socket."""
    import socket  # every caller has loaded it already

    while True:
        try:
            word, fds, _, _ = socket.recv_fds(sock, INLINE, 3)
        except ConnectionResetError:
            continue  # reported once when the scheduler dies with answers unread; its orders can still be read
        for received in fds:
            os.set_inheritable(received, False)
        return (word, fds) if word else None


def _prepare() -> ServerContext:
    """Do once what every shim needs: set signals, import modules, and prepare memory that forks share."""
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
    libc.prctl(_PR_SET_NAME, NAME.encode())
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # a stopped server would not notice the end of its scheduler
    home = ServerContext(libc.prctl, fallocate, boot_id(), machine_id(), os.uname().nodename, {})
    home = home._replace(server=os.getpid(), server_start=start_time(os.getpid()), scheduler=os.getppid())
    home = home._replace(groups=own_group(), clone=_cloner(ctypes), next_signal=_waiter(ctypes))
    home = home._replace(groups=_where_groups_can_be(home))
    gc.disable()
    gc.freeze()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # each fork copies the page table entries of all pages, including free ones
    return home


def own_group() -> str:
    """Return the folder of this process's group (cgroup v2), if this user may create other groups in it."""
    path = next((line[3:] for line in _text("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    folders = (f"{mount}{path.rstrip('/')}" for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if path)
    return next((folder for folder in folders if os.access(f"{folder}/cgroup.procs", os.W_OK)), "")


def _where_groups_can_be(home: ServerContext) -> str:
    """Return this process's group if groups below it can be forked into and killed; remove what dead shims left
    there.
    """
    if not home.groups:
        return ""
    with suppress(OSError), os.scandir(home.groups) as entries:
        for path in [entry.path for entry in entries if entry.name.startswith(GROUP)]:
            if is_empty_group(path):
                remove_group(path)
    group = ShimCgroup(home.groups, home.clone)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid, path = group.fork(f"try.{os.getpid()}")
    if pid == 0:
        os.write(writer, b"!")
        os._exit(0)
    os.close(writer)
    can = os.read(reader, 1) == b"!" and bool(path) and os.access(f"{path}/cgroup.kill", os.W_OK)
    os.close(reader)
    with suppress(ChildProcessError):  # it leaves no exit code, because SIGCHLD is ignored
        os.waitpid(pid, 0)
    group.close()
    return home.groups if can else ""


def _waiter(ctypes: Any) -> Callable[[float], int]:
    """Return a function that calls the system's sigtimedwait. Python's own function would report a signal that did not
    come if the process was frozen past the end of the wait.
    """
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
    """Return a function that calls clone3 with CLONE_INTO_CGROUP, which the C library does not wrap; it returns what
    fork returns.

    PyDLL keeps the interpreter's lock: the child, a copy of its only thread, continues to hold it.
    """
    syscall = ctypes.PyDLL(None).syscall
    syscall.restype = ctypes.c_long

    def clone(folder: int) -> int:
        fields = (_CLONE_INTO_CGROUP, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, folder)
        arguments = (ctypes.c_uint64 * len(fields))(*fields)
        return int(syscall(ctypes.c_long(_SYS_CLONE3), arguments, ctypes.c_size_t(8 * len(fields))))

    return clone


def _fork_shim(home: ServerContext, fd: int, server: socket.socket) -> None:
    """Fork a shim that runs one attempt after another, as the channel `fd` orders them."""
    import socket  # the server has it already

    with socket.socket(fileno=os.dup(fd)) as channel:
        child = False
        try:
            child = os.fork() == 0
            if child:
                server.close()
                os.close(fd)
                _run_attempts(_as_shim(home), channel)
        except Exception as error:  # noqa: BLE001 - the scheduler has to know of every failure
            _tell_failure(channel, AttemptOrder(0, 0, [], "", {}, "", ""), error)
        finally:
            if child:
                _continue_server(home)
                os._exit(0)


def _continue_server(home: ServerContext) -> None:
    """Continue a fork server without a scheduler if a signal has stopped it: nothing else would do so."""
    fields = _stat(f"/proc/{home.server}/stat") if os.getppid() == home.server else []
    if fields and int(fields[1]) != home.scheduler:
        with suppress(OSError):
            os.kill(home.server, signal.SIGCONT)


def _run_attempts(home: ServerContext, channel: socket.socket) -> None:
    """Run the attempts that are ordered over the channel, until it ends or the end of an attempt cannot be reported."""
    while (message := _receive(channel)) is not None:
        word, held = message
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
        is_there = os.fstat(begun.lock).st_nlink > 0
        for fd in (begun.log.fd, begun.words, *held, *((memory,) if memory >= 0 else ()), begun.lock):
            with suppress(OSError):  # some file systems say only now that they had no room for what the task wrote
                os.close(fd)
        is_told = is_there and _tell(channel, {"ended": record._asdict()})  # an end without its record does not count
        if watch.left or not is_told:
            break  # processes are left to live on; an end that was not reported is searched for once the channel ends
        if home.group:
            home.group.tidy(killed=watch.group_killed)
    if home.group:
        home.group.close()


def _as_shim(home: ServerContext) -> ServerContext:
    """Start a session, become a subreaper, and return a context for this process as the shim."""
    os.setsid()
    home.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    home.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # a stopped one would not notice that server and scheduler are gone
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    score = _text("/proc/self/oom_score_adj")
    group = ShimCgroup(home.groups, home.clone) if home.groups else None
    me = os.getpid()
    return home._replace(group=group, shim=me, start=start_time(me), oom_score=int(score or OOM_SCORE))


def _order(values: Mapping[str, Any]) -> AttemptOrder:
    return AttemptOrder(**_known(values, AttemptOrder._fields))


def _finished(order: AttemptOrder, begun: StartedAttempt) -> tuple[Record, Watch] | None:
    """Supervise the attempt to its end, and return its record and its watch. Return None if the supervision failed; the
    log of the attempt then says why there is no record.
    """
    try:
        return finish(order, begun)
    except Exception as error:  # noqa: BLE001 - the end of the process is the only report that is left
        with open(log_path(order.folder, order.attempt), "a", encoding="utf-8") as log:
            log.write(f"scheduler: the shim of this attempt failed: {error!r}\n")
    return None


def _begun(home: ServerContext, order: AttemptOrder, held: list[int], sock: socket.socket) -> StartedAttempt | None:
    """Start the attempt and report it; return None if it could not be started and the scheduler was told why."""
    try:
        begun = begin(home, order, held)
    except Exception as error:  # noqa: BLE001 - the scheduler has to know of every failure
        _tell_failure(sock, order, error)
        return None
    _tell(sock, {"started": begun.claim._asdict()})
    return begun


def _read_all(fd: int) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    return values


def _tell_failure(sock: socket.socket, order: AttemptOrder, error: Exception) -> None:
    number = error.errno if isinstance(error, OSError) else 0
    short = isinstance(error, MemoryError) or number in (*_SHORT, *_FULL, *_UNREACHABLE, errno.EROFS)
    failure = {"task": order.task, "attempt": order.attempt, "error": str(error)[:400], "short": short}
    _tell(sock, {"failed": failure})


def _tell(sock: socket.socket, message: Mapping[str, Any]) -> bool:
    """Send a message if the scheduler listens; return whether it was sent. A later scheduler learns the content from
    the claim.
    """
    with suppress(OSError):
        sock.send(json.dumps(message).encode(), MSG_DONTWAIT)
        return True
    return False


if __name__ == "__main__":
    serve(int(sys.argv[-1]))
