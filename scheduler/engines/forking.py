"""The server that forks shims, and the shims that are given one order after another."""

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

from scheduler import processes, shim

if TYPE_CHECKING:
    from scheduler.core.ports import Key, Launch

INLINE = 16000
"""Bytes of an order that is a message by itself; a longer one is read from memory that comes with the message."""
LONGEST = 2 * shim.BLOCK
"""Bytes of an answer: a claim or a record, and what is around it."""
REST = 1.0
"""Seconds for which a shim without an attempt is kept for the next one."""
_ASSUMED = shim.Order._field_defaults


class Server:
    """The fork server: a process that may die, and is started again when it is needed."""

    def __init__(self, shim_path: Path, base_env: Mapping[str, str], bounds: Mapping[str, Any]) -> None:
        self.output: tuple[int, ...] = ()
        self.native: Path | None = None
        """The compiled shim, as long as nothing speaks against it."""
        self.ready = False
        """Whether its shims take one order after another: it was asked, and answered; earlier versions don't."""
        self._shim_path = shim_path
        self._base_env = dict(base_env)
        self._bounds = dict(bounds)
        self._process: processes.Child | None = None
        self._sock: socket.socket | None = None
        self.heard = 0.0

    @property
    def lives(self) -> bool:
        """As far as is known."""
        return self._sock is not None

    def fileno(self) -> int:
        """Readable when there are messages, or the end."""
        return self._sock.fileno() if self._sock is not None else -1

    def start(self) -> bool:
        """Make sure that it runs; True: it had to be started. Raises OSError where it cannot be."""
        if self._sock is not None:
            return False
        with _memory(self._base_env) as base, _memory(self._bounds) as bounds:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            try:
                with theirs:
                    self._process = self._run(theirs)
                socket.send_fds(ours, [b"base"], [base])
                if self._bounds:  # never sent to a shim of a version that does not know the word
                    socket.send_fds(ours, [b"bounds"], [bounds])
                if self.output:
                    socket.send_fds(ours, [b"output"], self.output)
                ours.send(b"ready")  # a word without descriptors, which every version passes by that does not know it
            except OSError:
                ours.close()
                raise
        self._sock, self.ready = ours, False
        return True

    def _run(self, sock: socket.socket) -> processes.Child:
        if self.native is not None:
            try:
                return processes.start_server(self._shim_path, sock, self.native)
            except OSError:  # made for another machine, or on a disk from which nothing may be started
                self.native = None
        return processes.start_server(self._shim_path, sock)

    def order(self, order: Mapping[str, Any], held: Sequence[int]) -> bool:
        """Have a shim forked for this order alone; False: it can take no more now. Raises OSError: nothing was sent."""
        assert self._sock is not None
        with _memory(order) as memory, contextlib.suppress(BlockingIOError):
            socket.send_fds(self._sock, [b"order"], [memory, *held])
            return True
        return False

    def fork(self) -> Shim | None:
        """Have a shim forked that takes orders; None: it can take no more now. Raises OSError: nothing was sent."""
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
        return Shim(ours)

    def messages(self) -> Iterator[dict[str, Any]]:
        """All answers that are there; at their end the server is known to be dead."""
        while self._sock is not None:
            data = heard(self._sock)
            if data is None:
                return
            if not data:
                self.kill()
                return
            self.heard = time.monotonic()
            message = json.loads(data)
            if "ready" in message:
                self.ready = True
            else:
                yield message

    def kill(self) -> None:
        """Be sure that it is dead; a compiled one that never said anything is not tried again."""
        if not self.heard:
            self.native = None
        if self._process is not None:
            self._process.kill()
        self.end()

    def end(self, patience: float = 2.0) -> None:
        """Close the socket; the server works off what it was sent, and ends."""
        if self._sock is not None:
            self._sock.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._sock = self._process = None


class Shim:
    """One shim, at the other end of a channel that nobody else has: where that ends, it is dead or will never be.

    It is given an order only after the end of the one before was heard, so nothing that is meant for one attempt, a
    stop signal above all, can reach a later one. Without a channel it ends, once its attempt is over.
    """

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self.fd = channel.fileno()
        self.key: Key | None = None
        """Of the attempt that it was given, and that is not over."""
        self.served = 0
        self.idle_since = 0.0

    def order(self, key: Key, order: Mapping[str, Any], held: Sequence[int]) -> None:
        """Give it its next attempt. Raises OSError, with nothing sent."""
        said = json.dumps(order).encode()
        if len(said) <= INLINE:
            socket.send_fds(self._channel, [said], held)
        else:
            with _memory(order) as memory:
                socket.send_fds(self._channel, [b"order"], [memory, *held])
        self.key = key

    def hear(self) -> dict[str, Any] | None:
        """The next answer; None: there is no more now. Raises EOFError at the end of the channel."""
        data = heard(self._channel)
        if data is None:
            return None
        if not data:
            raise EOFError
        message: dict[str, Any] = json.loads(data.decode())
        return message

    def close(self) -> None:
        """Let it end, now or when its attempt is over."""
        self._channel.close()


class Shims:
    """Those of one scheduler: at work, or idle for a moment before the next attempt."""

    def __init__(self, server: Server, epoll: select.epoll) -> None:
        self._server = server
        self._epoll = epoll
        self._by_fd: dict[int, Shim] = {}
        """By the descriptors of their channels."""
        self._idle: list[Shim] = []
        """The longest first."""

    def at(self, fd: int) -> Shim | None:
        """Whose channel that is."""
        return self._by_fd.get(fd)

    def give(self, key: Key, order: Mapping[str, Any], held: Sequence[int], *, once: bool) -> Shim | None:
        """Give an order to an idle one, or a new one; None: none can be had now. Raises OSError, with nothing sent."""
        while (one := self._next(once)) is not None:
            try:
                one.order(key, order, held)
            except ConnectionError:  # it died with nothing to do
                self.drop(one)
            except OSError:
                self.drop(one)
                raise
            else:
                return one
        return None

    def _next(self, once: bool) -> Shim | None:
        """The one that was at work last; a new one where none is idle, or where it is to be used once."""
        if self._idle and not once:
            return self._idle.pop()
        one = self._server.fork()
        if one is not None:
            self._by_fd[one.fd] = one
            self._epoll.register(one.fd, select.EPOLLIN)
        return one

    def free(self, one: Shim, *, once: bool) -> None:
        """Its attempt is over."""
        one.key = None
        one.served += 1
        if once:
            self.drop(one)
        else:
            one.idle_since = time.monotonic()
            self._idle.append(one)

    def drop(self, one: Shim) -> None:
        """Have nothing more to do with it; it ends, once its attempt is over."""
        del self._by_fd[one.fd]
        self._epoll.unregister(one.fd)  # a copy of this process may keep the channel open a little longer
        if one in self._idle:
            self._idle.remove(one)
        one.close()

    def dismiss(self, now: float) -> None:
        """Let those end that have been idle for long enough."""
        while self._idle and now - self._idle[0].idle_since > REST:
            self.drop(self._idle[0])

    def close(self) -> None:
        """Let all of them end, each once its attempt is over."""
        for one in list(self._by_fd.values()):
            self.drop(one)


def said_of(
    order: Launch, folder: str, cookie: str, log_max: int = shim.LOG_MAX, spare: bool = False, grouped: bool = True
) -> dict[str, Any]:
    """An order without what a shim assumes by itself: a run's copy may be of a version that knew less."""
    said = {
        "task": order.task,
        "attempt": order.attempt,
        "argv": order.argv,
        "directory": os.path.abspath(order.directory),
        "env": order.env,
        "folder": folder,
        "cookie": cookie,
    }
    more = {
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
    }
    said.update((name, value) for name, value in more.items() if value != _ASSUMED[name])
    return said


def heard(sock: socket.socket) -> bytes | None:
    """The next message; None: there is none now; empty: there will be no more."""
    while True:
        try:
            return sock.recv(LONGEST)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            continue  # told once, before the answers that are still to be read


@contextlib.contextmanager
def _memory(values: Mapping[str, Any]) -> Iterator[int]:
    """A descriptor with JSON to read: unlike a message, it may be as long as it likes."""
    fd = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        data = json.dumps(values).encode()
        while data:
            data = data[os.write(fd, data) :]
        yield fd
    finally:
        os.close(fd)
