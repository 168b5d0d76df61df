"""The start of processes, and the inspection of processes that are not children of this one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from scheduler.runtime import shim
from scheduler.runtime.shim import is_stopped, start_time

Child = subprocess.Popen[bytes]

LAST_MOMENT = 1.0
"""The longest wait for a killed process to end, in seconds: a process in an uninterruptible call may never end."""
_PR_SET_PDEATHSIG = 1
_LONGEST_PAUSE = 0.05
_LONGEST_ANSWER = 1 << 20


_LOAD_AND_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "exec(compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec'))"
)
"""Run a file as Python does, but without the working directory on the path, and without keeping the memory of the
compiler. Otherwise each fork would copy the page table entries for this memory."""


def start_server(shim_path: Path, sock: socket.socket, *, plain: bool = False) -> Child:
    """Start the fork server, with `sock` as its end of the socket; the caller then closes `sock`.

    A `plain` server has the settings and packages of the user's Python. Raise OSError if no process can be started.
    """
    python = [sys.executable] if plain else isolated_python()
    return _start(
        [*python, "-c", _LOAD_AND_RUN, str(shim_path), str(sock.fileno())],
        pass_fds=(sock.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "LD_BIND_NOW": "1"},  # else each child would search the libraries for functions again
    )


def start_child(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = (), tied: bool = False
) -> Child:
    """Start a helper in a session of its own, with unbuffered pipes for its stdin and stdout.

    The kernel kills a `tied` helper when the thread that started it ends, even if a signal has stopped the helper
    before its first line.
    """
    prepare = _tie_to_parent() if tied else None
    return _start(argv, env=env, pass_fds=pass_fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, prepare=prepare)


def start_link(argv: Sequence[str], errors: int, sock: socket.socket | None = None, *, tied: bool = True) -> Child:
    """Start the program that carries a link to a node, with pipes for its stdin and stdout, and stderr in a file.

    A program that carries many links has a socket as its stdin instead. The kernel kills a `tied` program when the
    thread that started it ends.
    """
    pipe = subprocess.PIPE
    given, out = (pipe, pipe) if sock is None else (sock.fileno(), errors)
    return _start(argv, stdin=given, stdout=out, stderr=errors, prepare=_tie_to_parent() if tied else None)


def _tie_to_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """Return the function that a new process calls before it executes its program, to get this signal when its parent
    ends.

    PyDLL keeps the interpreter's lock: the new process is a copy of one thread, which goes on holding it.
    """
    import ctypes  # only runs start such a helper

    prctl, parent = ctypes.PyDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def answer(
    argv: Sequence[str], text: str = "", patience: float = 5.0, env: Mapping[str, str] | None = None, cwd: str = "/"
) -> tuple[int, str]:
    """Run a small program to its end, with `text` as its input; return its exit code and its output.

    The output goes into memory, so that a background process of the program blocks nothing. Raise TimeoutExpired after
    `patience` seconds, with the program killed, and OSError if it cannot be started.
    """
    with _text_to_read(text) as given, open(os.memfd_create("out", os.MFD_CLOEXEC), "r+b", buffering=0) as out:
        child = subprocess.Popen(argv, stdin=given, stdout=out, stderr=out, env=env, start_new_session=True, cwd=cwd)
        try:
            code = child.wait(patience)
        except BaseException:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is in a call that cannot be interrupted
                child.wait(LAST_MOMENT)
            raise
        return code, os.pread(out.fileno(), _LONGEST_ANSWER, 0).decode(errors="replace")


@contextlib.contextmanager
def _text_to_read(text: str) -> Iterator[int]:
    fd = os.memfd_create("given", os.MFD_CLOEXEC)
    try:
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def start_in_front(argv: Sequence[str], env: Mapping[str, str]) -> Child:
    """Start a command with this process's terminal and streams; it gets HUP at the end of this process.

    Raise OSError if it cannot be started.
    """
    return subprocess.Popen(argv, env=env, preexec_fn=_tie_to_parent(signal.SIGHUP))  # noqa: PLW1509 - as below


def start_copy(work: Callable[[int], int]) -> tuple[int, int]:
    """Run `work` in a copy of this process; return its pid, and the pipe from which to read what `work` writes to the
    descriptor that it is given.

    The result of `work` is the copy's exit code. Call this before there are threads. Raise OSError if no process can be
    started.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if not pid:
        os.close(read)
        _be_copy(work, write)
    os.close(write)
    return pid, read


def _be_copy(work: Callable[[int], int], write: int) -> NoReturn:
    """Run the work and end the process, whatever happens: the caller of `start_copy` continues only in its parent."""
    code = 1
    try:
        code = work(write)
    except BaseException:  # noqa: BLE001 - it is printed with the copy's errors, and shown by the exit code
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def leave_terminal(log: Path) -> None:
    """Start a session without a terminal; the standard streams then go to the log."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number, fd in ((0, null), (1, file), (2, file)):
        os.dup2(fd, number)
    os.close(null)
    os.close(file)


def wait_for(pid: int) -> int:
    """Return the exit code of a copy; 128 plus the signal's number if a signal ended it, 0 if it is unknown.

    The code is unknown if this process ignores SIGCHLD, perhaps because its parent did: the kernel then keeps no exit
    codes.
    """
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0
    return code if code >= 0 else 128 - code


def _start(
    argv: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    prepare: Callable[[], None] | None = None,
) -> Child:
    return subprocess.Popen(
        argv,
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - `tie` takes no lock, and makes two system calls
    )


def isolated_python() -> list[str]:
    """Return the command that starts this interpreter without the user's Python settings. The encoding of file names
    stays that of this process.
    """
    return [sys.executable, "-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}"]


def tree(pid: int) -> list[int]:
    """Return all descendants of a process, nearest first."""
    return shim.descendants(pid, shim.children_finder())


def empty_group(group: str, deadline: float) -> bool:
    """Kill every process in an attempt's control group, and remove it; return False if `deadline` seconds were too
    few.
    """
    end = time.monotonic() + deadline
    pause = 0.001
    shim.kill_group(group)
    while os.path.exists(group) and not shim.is_empty_group(group):
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    shim.remove_group(group)
    return True


def signal_one(pid: int, start: int, number: int) -> None:
    """Signal this process, but no later process with its pid. Raise ProcessLookupError if it has ended.

    With a pidfd of the kernel this is safe. Before Linux 5.3 there is only the pid, which a later process may have.
    """
    fd = _pidfd(pid)
    try:
        if start_time(pid) != start:
            raise ProcessLookupError
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)
    finally:
        if fd >= 0:
            os.close(fd)


def continue_stopped(pid: int, start: int = 0) -> bool:
    """Continue a process that a signal has stopped; return whether it was stopped.

    `start` is its start time, if known: another process with its pid is left alone.
    """
    start = start or start_time(pid)
    try:
        if start and is_stopped(pid):
            signal_one(pid, start, signal.SIGCONT)
            return True
    except (ProcessLookupError, PermissionError):
        return False
    return False


Examine = Callable[[int, Callable[[], bool]], bool]
"""A function that takes a pid and a function that examines this process. It returns what that function returns, or
raises TimeoutError."""


def sweep(
    cookie: str,
    deadline: float,
    session: int = 0,
    start: int = 0,
    log: str = "",
    dead: shim.Claim | None = None,
    examine: Examine = lambda _, look: look(),
) -> list[int]:
    """Kill what a dead shim left behind, until nothing is left or `deadline` seconds are over; return what survives, or
    may survive.

    The seconds count from the end of the first search, which examines every process and takes longest. On a busy
    machine some process always ends before it can be examined, so another search is needed. Later searches examine only
    new processes.

    The processes bear the cookie in their environment, but some programs overwrite or clear their environment. So other
    processes belong to the task too: those that are still in the `session` that the task's first process led (its pid,
    and its `start` time), those that can write to its `log`, and those whose parent is now the fork server that the
    claim of the `dead` shim names. Processes that began before the session do not belong to it.

    The memory of a process that hangs in the kernel may not be readable: then `examine` raises TimeoutError, and that
    process may survive.
    """
    mark = os.fsencode(f"{shim.COOKIE}={cookie}")
    file = _identity(log)
    end = 0.0
    pause = 0.001
    others: set[int] = set()
    while True:
        found, missed = _kill_marked(
            lambda pid: examine(pid, lambda: _bears(pid, mark) or _is_in(pid, session, start) or _writes(pid, file)),
            others,
            start,
        )
        if dead is not None:
            missed += _kill_orphans(dead, found)
        if not found and not missed:
            return []
        end = end or time.monotonic() + deadline
        if found:
            _wait_for(found, pause)
        else:
            time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        if time.monotonic() >= end:
            return sorted([*found, *missed])


def _kill_orphans(dead: shim.Claim, found: dict[int, int]) -> list[int]:
    """Kill what dead shims of that server left behind, and add these processes to `found`; return the pids of processes
    that may still be left.

    The kernel moves a shim's children to the server a moment after it has released its locks: until then they are not
    found.
    """
    if start_time(dead.shim) == dead.shim_start and not _is_zombie(dead.shim):
        return [dead.shim]
    known = {pid: _pidfd(pid) for pid in shim.orphans(dead.server, dead.server_start) if not _is_zombie(pid)}
    still = {pid for pid in shim.orphans(dead.server, dead.server_start) if not _is_zombie(pid)}
    for pid in known.keys() & still - found.keys():
        found[pid] = known.pop(pid)
        _send(pid, found[pid], signal.SIGKILL)
    for fd in known.values():
        if fd >= 0:
            os.close(fd)
    return sorted((known.keys() | still) - found.keys())


def _kill_marked(belongs: Callable[[int], bool], others: set[int], start: int) -> tuple[dict[int, int], list[int]]:
    """Kill each process that belongs to the task as soon as it is found, because it may be about to fork.

    Return {pid: pidfd} of the killed processes, and the pids of the processes that could not be examined, or ended
    before they were: they may have belonged to the task, and may have forked. A process that began before `start` does
    not belong to the task. The newest processes are examined first, and a process that does not belong to the task is
    examined only once, so no chain of forks escapes for long.
    """
    found, missed = dict[int, int](), list[int]()
    listed = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    others &= listed
    for pid in sorted(listed - others, reverse=True):
        owner = _owner(pid)
        own = owner == os.getuid()
        if own and 0 < start_time(pid) < start:
            others.add(pid)
            continue
        fd = -1
        try:
            fd = _pidfd(pid) if own and belongs(pid) else -1
            mine = own and belongs(pid)
        except TimeoutError:
            mine, owner = False, -1
        if mine:
            found[pid] = fd
            _send(
                pid, fd, signal.SIGKILL
            )  # killed at once: a process that is only stopped would stay so if this one were killed
            continue
        if fd >= 0:
            os.close(fd)
        if owner == -1 or (own and _is_zombie(pid)):
            missed.append(pid)
        if owner != -1:
            others.add(pid)
    return found, missed


def _pidfd(pid: int) -> int:
    """Return a descriptor that always means this process; -1 if the kernel cannot provide one."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _bears(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def _is_in(pid: int, session: int, start: int) -> bool:
    """Tell whether a process is in the session; a session's number is reused only after its last member has ended."""
    if not session:
        return False
    try:
        here = os.getsid(pid) == session
    except OSError:
        return False
    return here and start_time(session) in (0, start) and not _is_zombie(pid)


def _identity(path: str) -> tuple[int, int]:
    """Return the device and inode of a file, which identify it whatever its name is."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _writes(pid: int, file: tuple[int, int]) -> bool:
    """Tell whether a process has a file open for writing; a process that only reads it does not count."""
    if not file[1]:
        return False
    with contextlib.suppress(OSError):
        return any(_is_open_to_write(pid, fd, file) for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def _is_open_to_write(pid: int, fd: str, file: tuple[int, int]) -> bool:
    """Tell whether a descriptor of a process refers to this file and is open for writing.

    The file itself is examined last, because a call on a dead network mount may never return. Since Linux 5.14 the
    inode is known beforehand.
    """
    try:
        if not os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/"):
            return False
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb", buffering=0) as info:
            said = dict(line.split(None, 1) for line in info.read().splitlines() if line.startswith((b"flags", b"ino")))
        if int(said[b"flags:"], 8) & os.O_ACCMODE == os.O_RDONLY or int(said.get(b"ino:", file[1])) != file[1]:
            return False
        status = os.stat(f"/proc/{pid}/fd/{fd}")
    except (OSError, KeyError):
        return False
    return (status.st_dev, status.st_ino) == file


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True


def _wait_for(killed: Mapping[int, int], patience: float) -> None:
    """Wait a moment for the kernel to end the killed processes."""
    poll = select.poll()
    for fd in killed.values():
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    poll.poll(patience * 1000)
    for fd in killed.values():
        if fd >= 0:
            os.close(fd)


def _send(pid: int, pidfd: int, number: int) -> None:
    with contextlib.suppress(OSError):
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
