"""The program of a lease's attempt: it holds devices for its guest, a process that no shim started.

It holds them as long as the guest lives. `python -I -S lease_holder.py GUEST/TOKEN/GRACE WHAT…` starts it. GUEST has
the format of `core/tasks/guest`, TOKEN is the name of the socket on which the guest waits, GRACE the seconds between a
stop signal and KILL. WHAT describes the use of the lease; the holder ignores it, and only the task's class depends on
it. The holder and the guest exchange lines of JSON over the socket:

    {"granted": the environment of the attempt}    to the guest, once
    {"end": exit code, "why": a sentence}          from the guest: it no longer needs the devices

The holder ends with that code, or with 0 when the guest ends without such a message. A pidfd shows the guest's end,
whatever ended it. A signal that stops the attempt is passed on to the guest, and KILL follows shortly before it would
reach the holder. This module uses the standard library only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import NoReturn

if __name__ == "__main__":  # this file is started by its path, without any setting of the user
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from scheduler.runtime.shim import COOKIE, boot_id, start_time

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that are passed on to the guest."""
REFUSED = 69
"""The exit code of a holder whose guest cannot be reached (EX_UNAVAILABLE)."""
_PEER = struct.Struct("3i")


def address(token: str) -> str:
    """Return the address of the socket with that token: an abstract name without a file, which disappears with its
    process.
    """
    return f"\0gpu-batch-scheduler.lease.{token}"


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the process at the other end of a socket, as the kernel knows them."""
    pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def identity(pid: int) -> str:
    """Return the pid namespace of this process, and the start time of the process `pid` in it."""
    return f"{os.stat('/proc/self/ns/pid').st_ino}.{start_time(pid)}"


class HolderWait:
    """The wait for the end of the guest, or for the guest's message that it no longer needs the devices."""

    def __init__(self, pidfd: int, sock: socket.socket, grace: float) -> None:
        self._pidfd = pidfd
        self._sock = sock
        self._grace = grace
        self._kill_at: float | None = None
        """The time at which the guest is killed; None: the guest was not asked to stop."""
        self._signals, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in STOPS:
            signal.signal(number, lambda *_: None)

    def end(self) -> tuple[int, str]:
        """Return the exit code and the sentence with which the lease ends."""
        poll = select.poll()
        for fd in (self._pidfd, self._sock.fileno(), self._signals):
            poll.register(fd, select.POLLIN)
        said = b""
        while True:
            ready = {fd for fd, _ in poll.poll(self._left())}
            if self._signals in ready:
                self._pass_on(os.read(self._signals, 64))
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = float("inf")
                self._send(signal.SIGKILL)
            if self._sock.fileno() in ready:
                part = self._read()
                said += part
                if b"\n" in said:
                    word = json.loads(said)
                    return int(word["end"]), str(word["why"])
                if not part:  # the guest executes another program, or has ended
                    poll.unregister(self._sock.fileno())
                    continue
            if self._pidfd in ready:
                return 0, ""

    def _read(self) -> bytes:
        with suppress(OSError):
            return self._sock.recv(1 << 16)
        return b""

    def _left(self) -> float | None:
        """Return the milliseconds until the guest is killed; None if the guest is not going to be killed."""
        if self._kill_at is None or self._kill_at == float("inf"):
            return None
        return max(0.0, self._kill_at - time.monotonic()) * 1000

    def _pass_on(self, numbers: bytes) -> None:
        for number in numbers:
            self._send(number)
            if number not in (signal.SIGUSR1, signal.SIGUSR2) and self._kill_at is None:
                self._kill_at = time.monotonic() + 0.9 * self._grace

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


def hold(text: str) -> int:
    """Hold the devices for the guest until it ends or gives them back, and return the exit code."""
    guest, token, grace = text.rsplit("/", 2)
    number, who, boot = guest.split(":")
    pid = int(number)
    watch = HolderWait(_opened(pid, who, boot), _connected(pid, token), float(grace))
    code, why = watch.end()
    if why:
        _log(why)
    return code


def _opened(pid: int, who: str, boot: str) -> int:
    """Return a descriptor that becomes readable when the guest ends."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        _refuse(f"process {pid}, which asked for the lease, has ended")
    except OSError as exc:
        _refuse(f"process {pid} cannot be watched ({exc.strerror}): a lease needs Linux 5.3 or later")
    if who.partition(".")[0] != identity(pid).partition(".")[0]:
        _refuse(f"process {pid} is in a container with pids of its own: start scheduler lease where the queue runs")
    if (who, boot) != (identity(pid), boot_id()):
        _refuse(f"process {pid}, which asked for the lease, has ended")
    return fd


def _connected(pid: int, token: str) -> socket.socket:
    """Return the socket to the guest, after the environment was sent over it."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(address(token))
        if peer(sock) != (pid, os.getuid()):
            _refuse(f"a process other than {pid} waits for the lease")
        environ = {name: text for name, text in os.environ.items() if name != COOKIE}
        sock.sendall(json.dumps({"granted": environ}).encode() + b"\n")
    except OSError:
        _refuse(f"process {pid} does not wait for this lease any more")
    return sock


def _log(sentence: str) -> None:
    """Write a sentence to the log of the attempt."""
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def _refuse(sentence: str) -> NoReturn:
    _log(f"scheduler: {sentence}")
    sys.exit(REFUSED)


if __name__ == "__main__":
    sys.exit(hold(sys.argv[1]))
