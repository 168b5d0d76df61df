"""The fork server and its shims from the engine's side: each shim is given one order after another."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.runtime import processes, shim

if TYPE_CHECKING:
    from scheduler.core.ports import Key, Launch

INLINE = 16000
"""The longest order that is sent as a message, in bytes; a longer order is put into a memory file, whose descriptor is
sent."""
LONGEST = 2 * shim.BLOCK
"""The longest answer of a shim, in bytes: a claim or a record, and the JSON around it."""
NOTE = 64
"""The size in bytes of the file that names the server; the file is overwritten, never truncated."""
BREATH = 0.05
"""Seconds between looks at a server that has to end: a signal may stop it at any moment, and then it must be
continued."""
REST = 1.0
"""Seconds for which a shim without an attempt is kept for the next one."""


class ForkServer:
    """The process and the socket of the fork server. The process may die; it is started again when needed."""

    def __init__(
        self,
        shim_path: Path,
        base_env: Mapping[str, str],
        bounds: Mapping[str, Any] | None = None,
        note: Path | None = None,
    ) -> None:
        """Prepare the server; `bounds`, as the shim reads them, are the umask and the limits of tasks if they differ
        from this process's own. The file `note` names the server for the next scheduler of the run."""
        self.former = _read_note(note)
        """The pid and the start time of the last server of an earlier scheduler; it may still exist, stopped by a
        signal."""
        self.output: tuple[int, ...] = ()
        self.lasting = True
        """True if the ends of attempts must survive a power failure."""
        self.warm: Mapping[str, Any] = {}
        """The program that the server loads, as the shim reads it; empty: none."""
        self.loose = False
        """True if background processes of tasks outlive their tasks."""

        self._shim_path = shim_path
        self._base_env = dict(base_env)
        self._bounds = dict(bounds or {})
        self._note = note
        self._process: processes.Child | None = None
        self._sock: socket.socket | None = None
        self.last_answer = 0.0

    @property
    def lives(self) -> bool:
        """True if the server is running, as far as this process knows."""
        return self._sock is not None

    @property
    def pid(self) -> int:
        """The pid of the server's process; 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when the server has ended."""
        return self._sock.fileno() if self._sock is not None else -1

    def start(self) -> bool:
        """Start the server unless it is running; return whether it was started. Raise OSError if it cannot be
        started.
        """
        if self._sock is not None:
            return False
        with _memory(self._base_env) as base, _memory(self._bounds) as bounds, _memory(self.warm) as warm:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            try:
                with theirs:
                    self._process = processes.start_server(self._shim_path, theirs, plain=bool(self.warm))
                socket.send_fds(ours, [b"base"], [base])
                if self._bounds:
                    socket.send_fds(ours, [b"bounds"], [bounds])
                if self.output:
                    socket.send_fds(ours, [b"output"], self.output)
                if self.loose:
                    ours.send(b"loose")
                if self.warm:
                    socket.send_fds(ours, [b"warm"], [warm])
            except OSError:
                ours.close()
                raise
        self._sock = ours
        self._write_note(self._process.pid)
        return True

    def _write_note(self, pid: int) -> None:
        if self._note is None:
            return
        with contextlib.suppress(OSError):  # a full disk: the file only helps if a signal has stopped the server
            fd = os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(fd, f"{pid} {shim.start_time(pid)}".encode().ljust(NOTE), 0)
            finally:
                os.close(fd)

    def fork(self) -> ShimClient | None:
        """Order a new shim; return None if the server can take no order now. Raise OSError if nothing was sent."""
        assert self._sock is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._sock, [b"shim"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                if isinstance(error, BlockingIOError):
                    return None
                raise
        return ShimClient(ours)

    def check(self) -> bool:
        """Tell whether the server is alive; clean up if its socket has ended. Nothing else arrives on that socket."""
        while self._sock is not None and (data := receive(self._sock)) is not None:
            if not data:
                self.kill()
        return self.lives

    def kill(self) -> None:
        """Kill the server process and close its socket."""
        if self._process is not None:
            self._process.kill()
        self.end()

    def end(self, patience: float = 2.0, *, idle: bool = False) -> None:
        """Close the socket, so that the server ends after the last of its shims. Wait `patience` seconds at most.

        With `idle`, no shim has an attempt, so all shims end now.
        """
        process, sock = self._process, self._sock
        self._process = self._sock = None
        end = time.monotonic() + patience
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            while not _is_at_end(sock, BREATH) and time.monotonic() < end:
                _continue(process)
            sock.close()
        if process is not None and (idle or not processes.tree(process.pid)):
            _wait_for(process, end)


class ShimClient:
    """One shim, at the other end of its own channel. When the channel ends, the shim is dead or was never forked.

    A shim gets an order only after the end of the earlier attempt was received, so nothing meant for one attempt, above
    all a stop signal, can reach a later one. A shim whose channel is closed ends after its attempt.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self.fd = channel.fileno()
        self.key: Key | None = None
        """The unfinished attempt that the shim was given; None if the shim is idle."""
        self.process = (0, 0)
        """The pid and the start time of the shim, once it has reported an attempt."""
        self.served = 0
        self.idle_since = 0.0

    def order(self, key: Key, order: Mapping[str, Any], held: Sequence[int]) -> None:
        """Give the shim its next attempt. Raise OSError if nothing was sent."""
        message = json.dumps(order).encode()
        if len(message) <= INLINE:
            socket.send_fds(self._channel, [message], held)
        else:
            with _memory(order) as memory:
                socket.send_fds(self._channel, [b"order"], [memory, *held])
        self.key = key

    def receive(self) -> dict[str, Any] | None:
        """Return the next answer; None if there is none now. Raise EOFError at the end of the channel."""
        data = receive(self._channel)
        if data is None:
            return None
        if not data:
            raise EOFError
        message: dict[str, Any] = json.loads(data.decode())
        return message

    def close(self) -> None:
        """Close the channel: the shim ends, now or when its attempt is over."""
        self._channel.close()


class ShimPool:
    """The shims of one scheduler: each is busy, or idle for a moment before the next attempt."""

    def __init__(self, server: ForkServer, epoll: select.epoll) -> None:
        self._server = server
        self._epoll = epoll
        self._by_fd: dict[int, ShimClient] = {}
        """The shims, each by the descriptor of its channel."""
        self._idle: list[ShimClient] = []
        """The idle shims; the one that has been idle longest comes first."""

    def processes(self) -> dict[int, int]:
        """Return the pids and start times of the shims that have reported an attempt."""
        return dict(client.process for client in self._by_fd.values())

    def at(self, fd: int) -> ShimClient | None:
        """Return the shim whose channel has this descriptor."""
        return self._by_fd.get(fd)

    def give(self, key: Key, order: Mapping[str, Any], held: Sequence[int], *, once: bool) -> ShimClient | None:
        """Give an order to an idle shim or a new one; return None if no shim can take it now. Raise OSError if nothing
        was sent.
        """
        while (client := self._next(once)) is not None:
            try:
                client.order(key, {**order, "lasting": self._server.lasting}, held)
            except ConnectionError:  # the idle shim has died
                self.drop(client)
            except OSError:
                self.drop(client)
                raise
            else:
                return client
        return None

    def _next(self, once: bool) -> ShimClient | None:
        """Return the idle shim that was busy last; a new one if none is idle, or with `once`, which means that the shim
        will run only one attempt.
        """
        if self._idle and not once:
            return self._idle.pop()
        client = self._server.fork()
        if client is not None:
            self._by_fd[client.fd] = client
            self._epoll.register(client.fd, select.EPOLLIN)
        return client

    def free(self, client: ShimClient, *, once: bool) -> None:
        """Mark a shim as idle after its attempt, or let it end if it was to be used `once`."""
        client.key = None
        client.served += 1
        if once:
            self.drop(client)
        else:
            client.idle_since = time.monotonic()
            self._idle.append(client)

    def drop(self, client: ShimClient) -> None:
        """Remove a shim from the pool and close its channel; it ends once its attempt is over."""
        del self._by_fd[client.fd]
        self._epoll.unregister(client.fd)  # a copy of this process may keep the channel open a little longer
        if client in self._idle:
            self._idle.remove(client)
        client.close()

    def dismiss(self, now: float) -> None:
        """Let shims end that have been idle for long enough."""
        while self._idle and now - self._idle[0].idle_since > REST:
            self.drop(self._idle[0])

    def close(self) -> None:
        """Let all shims end, each after its attempt."""
        for client in list(self._by_fd.values()):
            self.drop(client)


def order_values(
    order: Launch, folder: str, cookie: str, log_max: int = shim.LOG_MAX, spare: bool = False, grouped: bool = True
) -> dict[str, Any]:
    """Return the fields of the `AttemptOrder` that a shim gets for a launch."""
    return {
        "task": order.task,
        "attempt": order.attempt,
        "argv": order.argv,
        "directory": os.path.abspath(order.directory),
        "env": order.env,
        "folder": folder,
        "cookie": cookie,
        "timeout": order.timeout,
        "grace": order.grace,
        "stop_signal": order.stop_signal,
        "lease": order.lease,
        "warn": order.warn,
        "log_max": log_max,
        "spare": spare,
        "stdout": order.stdout,
        "stderr": order.stderr,
        "ending": list(order.ending),
        "cgroup": grouped,
        "bounds": order.bounds,
        "limits": list(order.limits),
        "until": order.until,
        "saves": order.saves,
    }


def receive(sock: socket.socket) -> bytes | None:
    """Return the next message; None if there is none now, and an empty one at the end of the socket."""
    while True:
        try:
            return sock.recv(LONGEST)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            continue  # reported once; there may still be answers to read


def _is_at_end(sock: socket.socket, patience: float) -> bool:
    """Discard messages until the other end is closed, for `patience` seconds at most; tell whether it was closed in
    time.
    """
    until = time.monotonic() + patience
    poll = select.poll()  # unlike select, poll accepts a descriptor of any number
    poll.register(sock, select.POLLIN)
    while (left := until - time.monotonic()) > 0 and poll.poll(1000 * left):
        if not receive(sock):
            return True
    return False


def _continue(process: processes.Child | None) -> None:
    if process is not None:
        processes.continue_stopped(process.pid)


def _wait_for(process: processes.Child, end: float) -> None:
    """Wait for the end of a server, until the time `end` at most; continue it whenever a signal has stopped it."""
    while process.poll() is None and time.monotonic() < end:
        processes.continue_stopped(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(BREATH)


def _read_note(path: Path | None) -> tuple[int, int]:
    """Return the pid and the start time of the server that a file names; zeros if there is no server."""
    if path is None:
        return 0, 0
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            pid, start = map(int, os.pread(fd, NOTE, 0).split())
            return (pid, start) if start else (0, 0)
        finally:
            os.close(fd)
    return 0, 0


@contextlib.contextmanager
def _memory(values: Mapping[str, Any]) -> Iterator[int]:
    """Yield the descriptor of a memory file with the values as JSON; unlike a message, it may have any length."""
    fd = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        data = json.dumps(values).encode()
        while data:
            data = data[os.write(fd, data) :]
        yield fd
    finally:
        os.close(fd)
