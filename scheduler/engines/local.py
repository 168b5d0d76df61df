"""The engine for the machine in front of us: every attempt is a local process under its own shim."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler import processes, shim
from scheduler.core.events import Exited, Started
from scheduler.core.model import Outcome
from scheduler.core.ports import Key, Launch
from scheduler.engines import ends
from scheduler.engines.forking import Server, Shim, Shims, said_of
from scheduler.engines.removal import Leftovers, Remover
from scheduler.errors import StateError
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

_SERVER_DIED = "the server that starts tasks died before it answered"
_SHIM_DIED = "its shim died before it answered"


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
    """Of a shim that an earlier scheduler started, or a server of an earlier version."""
    shim: Shim | None = None
    """Which it was given to, and which tells of its end."""
    once: bool = False
    """Whether that shim is to have no other attempt."""
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
        self._server = Server(shim_path, base_env, bounds or {})
        self._attempts: dict[Key, _Attempt] = {}
        self._queue: deque[tuple[_Attempt, Launch]] = deque()
        self._sent: dict[Key, _Attempt] = {}
        self._unsettled: dict[Key, _Attempt] = {}
        """Those of which only another look can tell more."""
        self._by_pidfd: dict[int, _Attempt] = {}
        self._remover = Remover()
        self._ran: set[Key] = set()
        """Those whose record was read, and whose claim is no fence therefore."""
        self._told: list[Started | Exited] = []
        self._looked = 0.0
        self._epoll = select.epoll()
        self._shims = Shims(self._server, self._epoll)
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
        attempt.once = order.once or self._spare
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
            if (one := self._shims.at(fd)) is not None:
                self._hear(one)
            elif fd in self._by_pidfd:
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
        """Have the files of an attempt removed whose Exited is committed, but not a log with something in it.

        A fence stays: an order may be late, and must find the attempt given up for as long as the run exists.
        """
        folder = self._folder(task)
        files = [shim.record_path(folder, attempt)]
        if (task, attempt) in self._ran or not _is_fence(shim.claim_path(folder, attempt)):
            files.append(shim.claim_path(folder, attempt))
        self._ran.discard((task, attempt))
        logs = (shim.log_path(folder, attempt), shim.errors_path(folder, attempt))
        stays = any(key[0] == task for key in self._attempts)
        self._remover.remove(Leftovers(files, logs, "" if stays else folder))

    def close(self) -> None:
        """Let go of everything; orders that were not sent yet are as if they had never been given."""
        for _, order in self._queue:
            _close(order.lease_fd)
        self._queue.clear()
        self._shims.close()
        self._server.end()
        self._remover.close()
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
        """Send what can be taken now."""
        while self._queue and len(self._sent) < IN_FLIGHT:
            attempt, order = self._queue.popleft()
            try:
                self._start_server()
                if not self._send(attempt, order):
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

    def _send(self, attempt: _Attempt, order: Launch) -> bool:
        """Give the order to a shim; False: none can be had now. Raises OSError, with nothing sent."""
        said = said_of(order, attempt.folder, self._cookie(attempt), self._log_max, self._spare, self._grouped)
        held = [fd for fd in (order.lease_fd, order.kept_fd) if fd >= 0]
        if not self._server.ready:
            return self._server.order(said, held)
        attempt.shim = self._shims.give(attempt.key, said, held, once=attempt.once)
        return attempt.shim is not None

    def _hear(self, one: Shim) -> None:
        """Take in what a shim tells."""
        with contextlib.suppress(EOFError):
            while (message := one.hear()) is not None:
                attempt = self._attempts.get(one.key) if one.key is not None else None
                if attempt is None:
                    break  # it was given up meanwhile
                if "ended" in message:
                    attempt.shim = None
                    self._shims.free(one, once=attempt.once)
                    self._ended(attempt, shim.record_of(message["ended"]))
                    return
                if "failed" in message:
                    self._failed(one, attempt, message["failed"]["error"])
                    break
                self._began(one, attempt, shim.claim_of(message["started"]))
            else:
                return
        self._channel_ended(one)

    def _began(self, one: Shim, attempt: _Attempt, claim: Claim) -> None:
        if not one.served:
            self._server.heard = time.monotonic()  # those that it forked before tell for long after it hangs
        self._sent.pop(attempt.key, None)
        self._started(attempt, claim)
        self._send_asked(attempt)

    def _failed(self, one: Shim, attempt: _Attempt, error: str) -> None:
        """Nothing runs, unless it had begun: then its claim says what became of it."""
        if attempt.claim is None:
            one.key = attempt.shim = None
            self._refused(*attempt.key, error)

    def _channel_ended(self, one: Shim) -> None:
        """It died, or was never forked."""
        attempt = self._attempts.get(one.key) if one.key is not None else None
        if attempt is None:
            self._shims.drop(one)
        else:
            self._give_up(attempt, attempt.reason or (_SHIM_DIED if one.served else _SERVER_DIED))

    def _listen(self) -> None:
        for message in self._server.messages():
            if "started" in message:
                self._answered(shim.claim_of(message["started"]))
            else:
                said = message["failed"]
                self._refused(said["task"], said["attempt"], said["error"])
        if not self._server.lives:
            self._server_ended(_SERVER_DIED)

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
        for attempt in list(self._sent.values()):
            if attempt.shim is None or not attempt.shim.served:
                self._give_up(attempt, reason)

    def _give_up(self, attempt: _Attempt, reason: str) -> None:
        """Wait for no answer: its claim says what became of it."""
        self._sent.pop(attempt.key, None)
        attempt.reason = reason
        if attempt.shim is not None:
            attempt.shim.key = None
            self._shims.drop(attempt.shim)
            attempt.shim = None
        self._settle(attempt)

    def _look_again(self) -> None:
        """Attend to those that nothing else would bring up."""
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN:
            return
        self._looked = now
        for attempt in list(self._unsettled.values()):
            self._settle(attempt)
        self._shims.dismiss(now)
        self._lose_patience(now)

    def _lose_patience(self, now: float) -> None:
        late = [attempt for attempt in self._sent.values() if now - attempt.sent > self._patience]
        for attempt in late:
            if attempt.shim is not None and attempt.shim.served:
                self._give_up(attempt, f"its shim did not answer in {self._patience:g} s")
            elif now - self._server.heard > self._patience:
                self._server_ended(f"the server that starts tasks did not answer in {self._patience:g} s")
                return

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
                else:
                    processes.signal_one(claim.shim, claim.shim_start, number)
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
            self._ended(attempt, record)
        elif self._is_empty(attempt, claim):
            self._lose(attempt, _why_lost(attempt, claim))

    def _ended(self, attempt: _Attempt, record: Record) -> None:
        self._ran.add(attempt.key)
        log = shim.log_path(attempt.folder, attempt.attempt)
        self._over(attempt, ends.exited(attempt.key, record, log, attempt.stderr))

    def _is_empty(self, attempt: _Attempt, claim: Claim | None) -> bool:
        """Whether nothing of its tree is left; kills what is."""
        led = (claim.pid, claim.start) if claim is not None else (0, 0)
        if claim is not None and claim.boot_id != processes.boot_id():
            return True
        cookie = self._cookie(attempt)
        ours = shim.group_name(f"{self._cookie_prefix}.")
        grouped = claim is not None and os.path.basename(claim.group).startswith(ours)
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


def _why_lost(attempt: _Attempt, claim: Claim | None) -> str:
    if claim is None or claim.fence:
        return attempt.reason
    if claim.boot_id != processes.boot_id():
        return "the machine was restarted while it ran"
    return "its shim was killed"


def _is_foreign(claim: Claim) -> bool:
    """Whether its lock says nothing here."""
    return not claim.fence and not processes.is_here(claim.boot_id, claim.machine_id, claim.hostname)


def _is_fence(path: str) -> bool:
    claim = shim.read_claim(path)
    return claim is not None and claim.fence


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
