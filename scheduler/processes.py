"""Every start of a process, and every look at processes that are not our children."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from scheduler import shim
from scheduler.shim import boot_id, hostname, is_here, machine_id, start_time

Child = subprocess.Popen[bytes]
Answer = TypeVar("Answer")

__all__ = [
    "Child",
    "answer",
    "ask_aside",
    "boot_id",
    "empty_group",
    "hostname",
    "is_here",
    "isolated_python",
    "leave_terminal",
    "machine_id",
    "signal_one",
    "spent_aside",
    "start_aside",
    "start_child",
    "start_copy",
    "start_server",
    "start_time",
    "sweep",
    "tree",
    "trees",
    "wait_for",
]

_LONGEST_PAUSE = 0.05
_PR_SET_PDEATHSIG = 1
_LONGEST_ANSWER = 1 << 20


def start_server(shim_path: Path, sock: socket.socket, native: Path | None = None) -> Child:
    """Start the server that forks shims, with `sock` as its end of the socket; close it here then.

    `native` is the same program compiled, which goes by the same name. Raises OSError where no process can be started.
    """
    python = isolated_python() if native is None else []
    return _start(
        [*python, str(shim_path), str(sock.fileno())],
        executable=native,
        pass_fds=(sock.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def start_child(argv: Sequence[str], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> Child:
    """Start a helper in a session of its own, with unbuffered pipes for its stdin and stdout."""
    return _start(argv, env=env, pass_fds=pass_fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def answer(
    argv: Sequence[str], text: str = "", patience: float = 5.0, env: Mapping[str, str] | None = None, cwd: str = "/"
) -> tuple[int, str]:
    """Run a small program to its end, with `text` to read: its exit code, and all that it wrote.

    It writes into memory, so that what it leaves in the background keeps nobody waiting. Raises
    TimeoutExpired after `patience` seconds, with the program killed, and OSError where it cannot be started.
    """
    with _text_to_read(text) as given, open(os.memfd_create("said", os.MFD_CLOEXEC), "r+b", buffering=0) as said:
        child = subprocess.Popen(argv, stdin=given, stdout=said, stderr=said, env=env, start_new_session=True, cwd=cwd)
        try:
            code = child.wait(patience)
        except BaseException:
            child.kill()
            child.wait()
            raise
        return code, os.pread(said.fileno(), _LONGEST_ANSWER, 0).decode(errors="replace")


@contextlib.contextmanager
def _text_to_read(text: str) -> Iterator[int]:
    fd = os.memfd_create("given", os.MFD_CLOEXEC)
    try:
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def start_copy(work: Callable[[int], int]) -> tuple[int, int]:
    """Run `work` in a copy of this process: its pid, and where to read what it tells on the descriptor it is given.

    What `work` returns is the copy's exit code. To be called before there are threads. Raises OSError.
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
    """The copy ends here, whatever happens: what called `start_copy` goes on in its parent alone."""
    code = 1
    try:
        code = work(write)
    except BaseException:  # noqa: BLE001 - it goes where the copy's errors go, and the exit code tells
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def start_aside(work: Callable[[], bytes], seconds: int) -> tuple[int, int]:
    """Have a copy of this process work something out: its pid, and where to read the answer; nothing if it fails.

    The copy leads a session of its own, has nothing of ours open, gives way to everybody else, and ends with us or once
    it has used so many seconds of processor time. Raises OSError where there can be none.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # our Ctrl-C must not reach our handlers
    pid, starter = -1, os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        raise
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(write)
    if not pid:
        _be_aside(work, write, seconds, before, starter)
    return pid, read


def _be_aside(work: Callable[[], bytes], write: int, seconds: int, mask: Iterable[int], starter: int) -> NoReturn:
    code = 1
    try:
        import ctypes
        import gc
        import resource

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        gc.disable()  # going through all objects would copy the memory that we share
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(3, write)
        os.closerange(write + 1, 1 << 20)
        spent = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + seconds, int(spent) + seconds))
        os.nice(10)
        answer_ = memoryview(work())
        while answer_:
            answer_ = answer_[os.write(write, answer_) :]
        code = 0
    except BaseException:  # noqa: BLE001 - whoever asked finds no answer, and there is nobody else to be told
        pass
    finally:
        os._exit(code)


def ask_aside(work: Callable[[], Answer], seconds: int) -> Answer | None:
    """What a copy of this process works out; None where it failed. Nothing that it changes is changed here."""
    import pickle  # 2 ms that no light verb pays

    try:
        pid, read = start_aside(lambda: pickle.dumps(work()), seconds)
    except OSError:
        return None
    with os.fdopen(read, "rb") as file:
        said = file.read()
    wait_for(pid)
    if not said:
        return None
    found: Answer = pickle.loads(said)
    return found


def spent_aside() -> float:
    """Seconds of processor time that all children of this process took which are over."""
    times = os.times()
    return times.children_user + times.children_system


def leave_terminal(log: Path) -> None:
    """Go on in a session of its own, without a terminal; what is written to the standard streams goes into the log."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number, fd in ((0, null), (1, file), (2, file)):
        os.dup2(fd, number)
    os.close(null)
    os.close(file)


def wait_for(pid: int) -> int:
    """The exit code of a copy; 128 and the signal's number where one ended it, 0 where nobody is told.

    (Whoever ignores SIGCHLD passes that on to what he starts, and the kernel then keeps no exit codes.)
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
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    executable: Path | None = None,
) -> Child:
    return subprocess.Popen(
        argv,
        bufsize=0,
        executable=executable,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def isolated_python() -> list[str]:
    """This interpreter, deaf to its surroundings, but with our idea of what bytes file names are made of."""
    return [sys.executable, "-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}"]


def tree(pid: int) -> list[int]:
    """All descendants of a process, nearest first."""
    return shim.descendants(pid, shim.children_finder())


def trees(pids: Iterable[int]) -> dict[int, list[int]]:
    """The descendants of several processes, for the price of one look where the kernel keeps no lists."""
    children = shim.children_finder()
    return {pid: shim.descendants(pid, children) for pid in pids}


def empty_group(group: str, deadline: float) -> bool:
    """Kill everybody in the control group of an attempt, and remove it; False: not within so many seconds."""
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
    """Signal this process and none that was given its pid since; ProcessLookupError where it has gone.

    The kernel has a name for it that is never given away; before 5.3 there is only its pid.
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


def sweep(cookie: str, deadline: float, session: int = 0, start: int = 0, log: str = "") -> list[int]:
    """Kill what a dead shim left behind, until nothing is left or `deadline` seconds are over: who survives, or may?

    They count from the end of the first look: that is at everybody and takes longest, so that somebody may always have
    ended meanwhile; the next ones are only at who has come since.

    Its processes bear the cookie in their environment. Some programs write over theirs or clear it, so whoever is
    still in the `session` that the task led (its pid, and its `start` time), or can write to its `log`, belongs to it
    too.
    """
    mark = os.fsencode(f"{shim.COOKIE}={cookie}")
    file = _identity(log)
    end = 0.0
    pause = 0.001
    others: set[int] = set()
    while True:
        found, missed = _kill_marked(
            lambda pid: _bears(pid, mark) or _is_in(pid, session, start) or _writes(pid, file), others
        )
        if not found and not missed:
            return []
        end = end or time.monotonic() + deadline
        if found:
            _wait_for(found, pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if time.monotonic() >= end:
            return sorted([*found, *missed])


def _kill_marked(belongs: Callable[[int], bool], others: set[int]) -> tuple[dict[int, int], list[int]]:
    """Kill each process that belongs, as soon as it is seen (it may be about to fork): {pid: pidfd}.

    Told, too, is who ended before he could be looked at: he may have belonged, and have forked before that. The newest
    come first, and who was seen not to belong is looked at once only: so nobody in a chain of forks gets away for long.
    """
    found, missed = dict[int, int](), list[int]()
    listed = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    others &= listed
    for pid in sorted(listed - others, reverse=True):
        owner = _owner(pid)
        own = owner == os.getuid()
        fd = _pidfd(pid) if own and belongs(pid) else -1
        if own and belongs(pid):
            found[pid] = fd
            _send(pid, fd, signal.SIGKILL)  # nobody is only stopped, to stay so where we are killed ourselves
            continue
        if fd >= 0:
            os.close(fd)
        if owner == -1 or (own and _is_zombie(pid)):
            missed.append(pid)
        if owner != -1:
            others.add(pid)
    return found, missed


def _pidfd(pid: int) -> int:
    """A descriptor that cannot come to mean another process; -1 where there are none, or no more."""
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
    """A session's number is not given away while it has members: only another leader makes it another one."""
    if not session:
        return False
    try:
        here = os.getsid(pid) == session
    except OSError:
        return False
    return here and start_time(session) in (0, start) and not _is_zombie(pid)


def _identity(path: str) -> tuple[int, int]:
    """By which a file is known, whatever it is called."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _writes(pid: int, file: tuple[int, int]) -> bool:
    """Whether a process has a file open to write; who reads it may be anybody."""
    if not file[1]:
        return False
    with contextlib.suppress(OSError):
        return any(_is_open_to_write(pid, fd, file) for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def _is_open_to_write(pid: int, fd: str, file: tuple[int, int]) -> bool:
    try:
        status = os.stat(f"/proc/{pid}/fd/{fd}")
        if (status.st_dev, status.st_ino) != file:
            return False
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb", buffering=0) as info:
            flags = info.read().partition(b"flags:")[2].split(None, 1)[0]
    except (OSError, IndexError):
        return False
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True


def _wait_for(killed: Mapping[int, int], patience: float) -> None:
    """Give the kernel a moment to carry it out."""
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
