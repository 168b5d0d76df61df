"""The engine for the machine in front of us: every attempt is a local process under its own shim."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler import processes, shim
from scheduler.core import firstrows, mps, outofmemory
from scheduler.core.events import Exited, Started
from scheduler.core.model import HOST, Outcome
from scheduler.core.ports import Key, Launch
from scheduler.errors import StateError
from scheduler.paths import open_plain
from scheduler.shim import Claim, ClaimState, Record

PATIENCE = 10.0
"""Seconds in which an order has to be answered, before what became of it is looked for in its claim."""
IN_FLIGHT = 32
"""Orders sent and not yet answered: more would only wait in the server, where their patience runs out."""
SWEEP = 0.1
"""Seconds one sweep may take: `collect` must not keep the loop waiting."""
LOOK_AGAIN = 0.2
OFTEN = 100
"""Launches after which a shim that costs less is worth a compiler's second."""

_OUTCOMES = {
    "exited": Outcome.SUCCEEDED,
    "signalled": Outcome.FAILED,
    "spawn": Outcome.FAILED,
    "timeout": Outcome.TIMEOUT,
    "stopped": Outcome.INTERRUPTED,
}
_LAST_WORDS = (signal.SIGABRT, signal.SIGBUS)
"""By these a program ends that found no memory: after std::bad_alloc, and where /dev/shm is full."""


@dataclass(slots=True)
class _Attempt:
    """What the engine knows of an attempt that is not over."""

    task: int
    attempt: int
    folder: str
    stderr: str = ""
    """Where it writes its errors, if that is not its log."""
    reason: str = ""
    """Why it would be lost if it never came to run."""
    sent: float = 0.0
    retried: bool = False
    claim: Claim | None = None
    """Of the shim, once it is known to have started."""
    pidfd: int = -1
    asked: list[int] = field(default_factory=list)
    """Signals for a shim that has not answered yet."""

    @property
    def key(self) -> Key:
        return self.task, self.attempt

    @property
    def claim_path(self) -> str:
        return shim.claim_path(self.folder, self.attempt)

    @property
    def record_path(self) -> str:
        return shim.record_path(self.folder, self.attempt)


class LocalEngine:
    """Runs attempts under shims that outlive it; the files in `tasks_dir` alone say what became of them.

    Call `collect` once a second even if `fileno` stays quiet: a server that does not answer and processes
    that do not die are only looked at there.
    """

    def __init__(
        self,
        tasks_dir: Path,
        shim_path: Path,
        base_env: Mapping[str, str],
        cookie_prefix: str,
        *,
        patience: float = PATIENCE,
        bounds: Mapping[str, Any] | None = None,
        log_max: int = shim.LOG_MAX,
    ) -> None:
        """`bounds`, as the shim reads them, are the umask and limits of tasks where they differ from this process's."""
        self._tasks = os.path.abspath(tasks_dir)
        self._cookie_prefix = cookie_prefix
        self._patience = patience
        self._log_max = log_max
        self._grouped = True
        self._spare = False
        self._launched = 0
        self._often: Callable[[], None] = lambda: None
        self._server = _Server(shim_path, base_env, bounds or {})
        self._attempts: dict[Key, _Attempt] = {}
        self._queue: deque[tuple[_Attempt, Launch]] = deque()
        self._sent: dict[Key, _Attempt] = {}
        self._unsettled: dict[Key, _Attempt] = {}
        """Those of which only another look can tell more."""
        self._by_pidfd: dict[int, _Attempt] = {}
        self._ran: set[Key] = set()
        """Those whose record was read, and whose claim is no fence therefore."""
        self._told: list[Started | Exited] = []
        self._looked = 0.0
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `collect` has something to tell."""
        return self._epoll.fileno()

    def living(self) -> list[tuple[int, int, int, int]]:
        """(task, attempt, pid of its shim, its own pid) of all that is known to run."""
        return [(*a.key, a.claim.shim, a.claim.pid) for a in self._attempts.values() if a.claim]

    # The port

    def loosen(self, output: Sequence[int] = ()) -> None:
        """Have tasks run as from a plain shell: what they start in the background lives on after them.

        `output` are the descriptors that they write to in place of their logs. To be said before the first launch.
        """
        self._spare = True
        self._server.output = tuple(output)

    def prefer(self, native: Path | None, often: Callable[[], None] = lambda: None) -> None:
        """Start shims from the compiled program where there is one and it works; to be said before the first launch.

        Where there is none `often` is called, once so much was launched that it would be worth having.
        """
        self._server.native = native
        if native is None:
            self._often = often

    def ungroup(self) -> None:
        """Leave attempts in the control group that we are in; to be said before the first launch."""
        self._grouped = False

    def warm(self) -> None:
        """Start the server before there is anything to launch; if that fails, the launch will tell."""
        with contextlib.suppress(OSError):
            self._start_server()

    def launch(self, order: Launch) -> None:
        """Start an attempt; never raises: an order that cannot be given is told as LOST."""
        attempt = self._take_on(order.task, order.attempt)
        attempt.stderr = order.stderr and os.path.join(order.directory, order.stderr)
        self._queue.append((attempt, order))
        self._pump()
        self._launched += 1
        if self._launched == OFTEN:
            self._often()

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Signal its shim, now or as soon as it has one."""
        known = self._attempts.get((task, attempt))
        if known is not None:
            known.asked.append(signal.SIGUSR1 if kill else signal.SIGTERM)
            self._send_asked(known)

    def adopt(self, task: int, attempt: int) -> None:
        """Find out from its claim what became of it.

        Raises StateError where the claim was made on another machine: it may live there still.
        """
        claim = shim.read_claim(shim.claim_path(self._folder(task), attempt))
        if claim is not None and _is_foreign(claim):
            raise StateError(
                f"attempt {attempt} of task {task} was started on {claim.hostname}, "
                f"this is {processes.hostname()}: take the run over there"
            )
        adopted = self._take_on(task, attempt)
        adopted.reason = "it had not started when its scheduler ended"
        self._settle(adopted)

    def collect(self) -> list[Started | Exited]:
        """What happened since the last call."""
        for fd, _ in self._epoll.poll(0):
            if fd in self._by_pidfd:
                self._shim_ended(self._by_pidfd[fd])
            elif fd != self._bell:
                self._listen()
        self._look_again()
        self._pump()
        told, self._told = self._told, []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        return told

    def forget(self, task: int, attempt: int) -> None:
        """Remove the files of an attempt whose Exited is committed, but not a log with something in it.

        A fence stays: an order may be late, and must find the attempt given up for as long as the run exists.
        """
        folder = self._folder(task)
        if (task, attempt) in self._ran or not _is_fence(shim.claim_path(folder, attempt)):
            _unlink(shim.claim_path(folder, attempt))
        self._ran.discard((task, attempt))
        _unlink(shim.record_path(folder, attempt))
        _unlink_empty(shim.log_path(folder, attempt))
        _unlink_empty(shim.errors_path(folder, attempt))
        with contextlib.suppress(OSError):
            if not any(key[0] == task for key in self._attempts):
                os.rmdir(folder)

    def close(self) -> None:
        """Let go of everything; orders that were not sent yet are as if they had never been given."""
        for _, order in self._queue:
            _close(order.lease_fd)
        self._queue.clear()
        self._server.end()
        for fd in (*self._by_pidfd, self._bell):
            os.close(fd)
        self._by_pidfd.clear()
        self._epoll.close()

    # Orders and answers

    def _take_on(self, task: int, attempt: int) -> _Attempt:
        new = _Attempt(task, attempt, self._folder(task))
        self._attempts[new.key] = new
        return new

    def _folder(self, task: int) -> str:
        return f"{self._tasks}/{task}"

    def _cookie(self, attempt: _Attempt) -> str:
        return f"{self._cookie_prefix}.{attempt.task}.{attempt.attempt}"

    def _start_server(self) -> None:
        if self._server.start():
            self._epoll.register(self._server.fileno(), select.EPOLLIN)

    def _pump(self) -> None:
        """Send what the server can take now."""
        while self._queue and len(self._sent) < IN_FLIGHT:
            attempt, order = self._queue.popleft()
            try:
                self._start_server()
                if not self._server.order(self._order_of(attempt, order), order.lease_fd, order.kept_fd):
                    self._queue.appendleft((attempt, order))
                    return
            except OSError as error:
                if isinstance(error, ConnectionError) and not attempt.retried:
                    attempt.retried = True
                    self._queue.appendleft((attempt, order))
                    self._listen()  # to the end: what it still told, and that it is dead
                    continue
                self._lose(attempt, f"it could not be started: {error.strerror}")
            else:
                attempt.sent = time.monotonic()
                self._sent[attempt.key] = attempt
            _close(order.lease_fd)

    def _order_of(self, attempt: _Attempt, order: Launch) -> shim.Order:
        return shim.Order(
            order.task,
            order.attempt,
            list(order.argv),
            os.path.abspath(order.directory),
            dict(order.env),
            attempt.folder,
            self._cookie(attempt),
            order.timeout,
            order.grace,
            order.stop_signal,
            order.lease,
            order.warn,
            self._log_max,
            self._spare,
            order.stdout,
            order.stderr,
            list(order.ending),
            self._grouped,
        )

    def _listen(self) -> None:
        for message in self._server.messages():
            if "started" in message:
                self._answered(Claim(**message["started"]))
            else:
                self._refused(**message["failed"])
        if not self._server.lives:
            self._server_ended("the server that starts tasks died before it answered")

    def _answered(self, claim: Claim) -> None:
        attempt = self._sent.pop((claim.task, claim.attempt), None)
        if attempt is not None:
            self._started(attempt, claim)
            self._settle(attempt)

    def _refused(self, task: int, attempt: int, error: str) -> None:
        known = self._sent.pop((task, attempt), None)
        if known is not None:
            self._lose(known, f"it could not be started: {error}")

    def _server_ended(self, reason: str) -> None:
        self._server.kill()
        sent, self._sent = self._sent, {}
        for attempt in sent.values():
            attempt.reason = reason
            self._settle(attempt)

    def _look_again(self) -> None:
        """Attend to those that nothing else would bring up."""
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN:
            return
        self._looked = now
        for attempt in list(self._unsettled.values()):
            self._settle(attempt)
        waiting_since = min((a.sent for a in self._sent.values()), default=now)
        if now - max(waiting_since, self._server.heard) > self._patience:
            self._server_ended(f"the server that starts tasks did not answer in {self._patience:g} s")

    # What became of an attempt

    def _settle(self, attempt: _Attempt) -> None:
        """Go by the claim's lock; what cannot be settled now is looked at again."""
        path = attempt.claim_path
        self._unsettled[attempt.key] = attempt
        with contextlib.suppress(OSError):  # a full disk, or no more descriptors: better next time
            if attempt.claim is None and shim.claim_state(path) is ClaimState.ABSENT:
                shim.fence(path, *attempt.key)
            if shim.claim_state(path) is ClaimState.LOCKED:
                self._follow(attempt)
            if shim.claim_state(path) is not ClaimState.LOCKED:
                self._end(attempt)

    def _follow(self, attempt: _Attempt) -> None:
        """Its shim lives: be woken by its end. The caller looks at the lock again, for the pid's sake."""
        claim = attempt.claim or shim.read_claim(attempt.claim_path)
        if claim is None:
            return
        if attempt.claim is None:
            self._started(attempt, claim)
        try:
            pidfd = os.pidfd_open(claim.shim)
            if processes.start_time(claim.shim) == claim.shim_start:
                self._watch(attempt, pidfd)
            else:
                os.close(pidfd)  # it is in another pid namespace: all there is to look at is its claim
        except ProcessLookupError:
            return
        finally:
            self._send_asked(attempt)

    def _watch(self, attempt: _Attempt, pidfd: int) -> None:
        del self._unsettled[attempt.key]
        attempt.pidfd = pidfd
        self._by_pidfd[pidfd] = attempt
        self._epoll.register(pidfd, select.EPOLLIN)

    def _unwatch(self, attempt: _Attempt) -> None:
        if attempt.pidfd >= 0:
            del self._by_pidfd[attempt.pidfd]
            os.close(attempt.pidfd)
            attempt.pidfd = -1

    def _started(self, attempt: _Attempt, claim: Claim) -> None:
        attempt.claim = claim
        self._tell(Started(*attempt.key, claim.pid, claim.start, claim.shim))

    def _send_asked(self, attempt: _Attempt) -> None:
        """Signal the shim; by its pid only where the kernel (before 5.3) has no better name for it."""
        claim = attempt.claim
        if claim is None:
            return
        for number in attempt.asked:
            with contextlib.suppress(ProcessLookupError):
                if attempt.pidfd >= 0:
                    signal.pidfd_send_signal(attempt.pidfd, number)
                elif processes.start_time(claim.shim) == claim.shim_start:
                    os.kill(claim.shim, number)
        attempt.asked.clear()

    def _shim_ended(self, attempt: _Attempt) -> None:
        self._unwatch(attempt)
        self._settle(attempt)

    def _end(self, attempt: _Attempt) -> None:
        """Its claim is free: the record says how it ended, or nobody knows."""
        record = shim.read_record(attempt.record_path)
        claim = attempt.claim or shim.read_claim(attempt.claim_path)
        if record is not None:
            if attempt.claim is None and claim is not None:
                self._started(attempt, claim)
            self._ran.add(attempt.key)
            self._over(attempt, _exited(attempt, record))
        elif self._is_empty(attempt, claim):
            self._lose(attempt, _why_lost(attempt, claim))

    def _is_empty(self, attempt: _Attempt, claim: Claim | None) -> bool:
        """Whether nothing of its tree is left; kills what is."""
        led = (claim.pid, claim.start) if claim is not None else (0, 0)
        if claim is not None and claim.boot_id != processes.boot_id():
            return True
        cookie = self._cookie(attempt)
        grouped = claim is not None and os.path.basename(claim.group) == shim.group_name(cookie)
        if claim is not None and grouped and not processes.empty_group(claim.group, SWEEP):
            return False
        return not processes.sweep(cookie, SWEEP, *led, shim.log_path(attempt.folder, attempt.attempt))

    def _lose(self, attempt: _Attempt, reason: str) -> None:
        self._over(attempt, Exited(*attempt.key, Outcome.LOST, reason=reason))

    def _over(self, attempt: _Attempt, exited: Exited) -> None:
        self._unwatch(attempt)
        del self._attempts[attempt.key]
        self._unsettled.pop(attempt.key, None)
        self._tell(exited)

    def _tell(self, event: Started | Exited) -> None:
        self._told.append(event)
        os.eventfd_write(self._bell, 1)


class _Server:
    """The fork server: a process that may die, and is started again when it is needed."""

    def __init__(self, shim_path: Path, base_env: Mapping[str, str], bounds: Mapping[str, Any]) -> None:
        self.output: tuple[int, ...] = ()
        self.native: Path | None = None
        """The compiled shim, as long as nothing speaks against it."""
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
            except OSError:
                ours.close()
                raise
        self._sock = ours
        return True

    def _run(self, sock: socket.socket) -> processes.Child:
        if self.native is not None:
            try:
                return processes.start_server(self._shim_path, sock, self.native)
            except OSError:  # made for another machine, or on a disk from which nothing may be started
                self.native = None
        return processes.start_server(self._shim_path, sock)

    def order(self, order: shim.Order, lease_fd: int, kept_fd: int = -1) -> bool:
        """Have one shim forked; False: it cannot take more now. Raises OSError, with nothing sent."""
        assert self._sock is not None
        with _memory(_said(order)) as memory:
            try:
                socket.send_fds(self._sock, [b"order"], [memory, *(fd for fd in (lease_fd, kept_fd) if fd >= 0)])
            except BlockingIOError:
                return False
        return True

    def messages(self) -> Iterator[dict[str, Any]]:
        """All answers that are there; at their end the server is known to be dead."""
        while self._sock is not None:
            try:
                data = self._sock.recv(shim.BLOCK)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # told once, before the answers that are still to be read
            if not data:
                self.kill()
                return
            self.heard = time.monotonic()
            yield json.loads(data)

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


def _said(order: shim.Order) -> dict[str, Any]:
    """An order without what a shim assumes by itself: a run's copy may be of a version that knew less."""
    default = shim.Order._field_defaults
    return {name: value for name, value in order._asdict().items() if name not in default or value != default[name]}


def _exited(attempt: _Attempt, record: Record) -> Exited:
    outcome, reason, ran = _outcome(attempt, record)
    return Exited(
        *attempt.key,
        outcome,
        code=record.code,
        signal=record.signal,
        reason=reason,
        peak={HOST: record.max_rss},
        seconds=record.seconds,
        cpu_seconds=record.cpu_seconds,
        leftovers=record.leftovers,
        part=ran.part if ran else "",
        asked=ran.asked if ran else 0,
        position=ran.position if ran else None,
        last=firstrows.last_line(_last_output(attempt)) if outcome is Outcome.FAILED else "",
        mps=mps.what_failed(_last_output(attempt)) if outcome is Outcome.FAILED else "",
    )


def _outcome(attempt: _Attempt, record: Record) -> tuple[Outcome, str, outofmemory.Ran | None]:
    """How it ended, in the words of the core, why where that needs saying, and which memory ran out."""
    plain = _OUTCOMES.get(record.outcome, Outcome.FAILED)
    if record.outcome not in ("exited", "signalled") or record.code == 0:
        return plain, record.error, None
    if outofmemory.killed_for_memory(record.signal, record.code, record.oom_kills):
        return Outcome.OOM, "killed by the kernel for memory", outofmemory.Ran(outofmemory.HOST)
    spoke = record.code is not None or record.signal in _LAST_WORDS
    ran = outofmemory.what_ran_out(_last_output(attempt)) if spoke else None
    if ran is None:
        return Outcome.FAILED, record.error, None
    end = f"signal {record.signal}" if record.code is None else f"exit {record.code}"
    memory = "GPU memory" if ran.part == outofmemory.GPU else "host memory"
    return Outcome.OOM, f"{end}, out of {memory} by its own words", ran


def _last_output(attempt: _Attempt) -> str:
    return _tail(shim.log_path(attempt.folder, attempt.attempt)) + (_tail(attempt.stderr) if attempt.stderr else "")


def _tail(path: str) -> str:
    try:
        with open_plain(Path(path)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - outofmemory.TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _why_lost(attempt: _Attempt, claim: Claim | None) -> str:
    if claim is None or claim.fence:
        return attempt.reason
    if claim.boot_id != processes.boot_id():
        return "the machine was restarted while it ran"
    return "its shim was killed"


def _is_foreign(claim: Claim) -> bool:
    """Whether its lock says nothing here."""
    return not claim.fence and not processes.is_here(claim.boot_id, claim.machine_id, claim.hostname)


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


def _is_fence(path: str) -> bool:
    claim = shim.read_claim(path)
    return claim is not None and claim.fence


def _unlink_empty(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.stat(path).st_size == 0:
            os.unlink(path)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
