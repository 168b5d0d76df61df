"""The engine for this machine: every attempt is a local process under its own shim."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.core.events import Exited, Started
from scheduler.core.model import Outcome
from scheduler.core.ports import Key, Launch
from scheduler.errors import StateError
from scheduler.execution import exit_classifier
from scheduler.execution.cleanup import Leftovers, Remover
from scheduler.execution.exit_classifier import OutputReader
from scheduler.execution.fork_server import ForkServer, ShimClient, ShimPool, order_values
from scheduler.execution.stopped_helpers import StoppedHelpers
from scheduler.runtime import processes, shim
from scheduler.runtime.shim import Claim, ClaimState, Record
from scheduler.runtime.threads import BoundedCalls
from scheduler.values import dataclass, field

PATIENCE = 10.0
"""Seconds within which a shim must answer an order; afterwards the engine looks at the claim to see what happened."""
IN_FLIGHT = 32
"""The number of orders that may be unanswered: more orders would only wait in the server until their time limit."""
SWEEP = 0.1
"""Seconds that one search for processes may take: `collect` must not delay the loop."""
LOOK = 0.1
"""Seconds that reading the data of one process may take: if the process hangs in the kernel, the read may hang too."""
MOST_UNREADABLE = 16
"""The most reads of processes that may hang at the same time; each keeps a thread busy."""
LOOK_AGAIN = 0.2
UNANSWERED = 1.0
"""Seconds without an answer after which the engine looks for stopped shims that have not reported their pid."""


_SERVER_DIED = "the server that starts tasks died before it answered"
_SHIM_DIED = "its shim died before it answered"


@dataclass(slots=True)
class _Attempt:
    """The engine's state of an attempt that is not over."""

    task: int
    attempt: int
    folder: str
    stderr: str = ""
    """The file for the attempt's standard error, if it is separate from the log."""
    directory: str = ""
    """The attempt's working directory; unknown if an earlier scheduler started the attempt."""
    ordered: bool = False
    """True if this scheduler launched the attempt, so that a missing claim means that the attempt never ran."""
    reason: str = ""
    """The reason to report if it turns out that the attempt never ran."""
    sent: float = 0.0
    retried: bool = False
    claim: Claim | None = None
    """The claim of the attempt's shim, once the attempt is known to have started."""
    pidfd: int = -1
    """The pidfd of a shim that an earlier scheduler started; -1 if there is none."""
    shim: ShimClient | None = None
    """The shim that was given the order of the attempt, and will report the attempt's end."""
    once: bool = False
    """True if the attempt's shim must not run another attempt."""
    asked: list[int] = field(default_factory=list)
    """Signals for a shim that has not answered yet."""

    @property
    def key(self) -> Key:
        return self.task, self.attempt

    @property
    def claim_path(self) -> str:
        return shim.claim_path(self.folder, self.attempt)


class LocalEngine:
    """The engine that runs attempts under shims that outlive it; only the files in `tasks_dir` show what became of the
    attempts.

    Call `collect` once a second even if `fileno` stays quiet: only `collect` notices an unresponsive server, and
    processes that cannot be killed.
    """

    def __init__(
        self,
        tasks_dir: Path,
        server: ForkServer,
        cookie_prefix: str,
        *,
        patience: float = PATIENCE,
        log_max: int = shim.LOG_MAX,
    ) -> None:
        """Prepare the engine; `server` forks its shims, and is started with the first launch."""
        self._tasks = os.path.abspath(tasks_dir)
        self._cookie_prefix = cookie_prefix
        self._patience = patience
        self._log_max = log_max
        self._grouped = True
        self._spare = False
        self._mend: Callable[[], None] = lambda: None
        self._server = server
        self._attempts: dict[Key, _Attempt] = {}
        self._queue: deque[tuple[_Attempt, Launch]] = deque()
        self._sent: dict[Key, _Attempt] = {}
        self._unsettled: dict[Key, _Attempt] = {}
        """Attempts whose state must be checked again."""
        self._by_pidfd: dict[int, _Attempt] = {}
        self._remover = Remover()
        self._stopped = StoppedHelpers()
        self._outputs = OutputReader()
        self._looks = BoundedCalls(LOOK, MOST_UNREADABLE)
        self._ran: set[Key] = set()
        """Attempts whose exit record was read, which shows that their claims are not fences."""
        self._events: list[Started | Exited] = []
        self._collecting = False
        """True while events are collected: a new event then need not make the engine's descriptor readable."""
        self._looked = 0.0
        self._epoll = select.epoll()
        self._shims = ShimPool(self._server, self._epoll)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `collect` has something to return."""
        return self._epoll.fileno()

    def living(self) -> list[tuple[int, int, int, int]]:
        """Return (task, attempt, pid of its shim, its own pid) of every attempt that is known to run."""
        return [(*a.key, a.claim.shim, a.claim.pid) for a in self._attempts.values() if a.claim]

    # The port

    def loosen(self, output: Sequence[int] = ()) -> None:
        """Let background processes of tasks outlive the tasks, as in a plain shell. Call this before the first launch.

        `output` are the descriptors to which tasks write in place of their logs.
        """
        self._spare = self._server.loose = True
        self._server.output = tuple(output)

    def mend_code(self, mend: Callable[[], None]) -> None:
        """Call `mend` each time before the server is started. Set this before the first launch.

        `mend` makes sure that the server's code exists, or raises OSError or StateError.
        """
        self._mend = mend

    def ungroup(self) -> None:
        """Leave attempts in the control group of this process. Call this before the first launch."""
        self._grouped = False

    def warm(self) -> None:
        """Start the server before there is anything to launch; a failure is reported with the first launch."""
        with contextlib.suppress(OSError, StateError):
            self._start_server()

    def launch(self, order: Launch) -> None:
        """Start an attempt. Never raise: if the order cannot be given, the attempt ends as UNSTARTED."""
        attempt = self._take_on(order.task, order.attempt)
        attempt.once = order.once or self._spare
        attempt.stderr = order.stderr and os.path.join(order.directory, order.stderr)
        attempt.directory, attempt.ordered = order.directory, True
        self._queue.append((attempt, order))
        self._pump()

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Signal the attempt's shim, now or as soon as the attempt has one."""
        known = self._attempts.get((task, attempt))
        if known is not None:
            known.asked.append(signal.SIGUSR1 if kill else signal.SIGTERM)
            self._send_asked(known)

    def adopt(self, task: int, attempt: int) -> None:
        """Find out from its claim what became of an attempt.

        Raise StateError if the claim was made on another machine, because the attempt may still live there.
        """
        claim = shim.read_claim(shim.claim_path(self._folder(task), attempt))
        if claim is not None and _is_unmanaged(claim):
            raise StateError(
                f"attempt {attempt} of task {task} was started on {claim.hostname}, "
                f"this is {shim.hostname()}: resume the run there"
            )
        adopted = self._take_on(task, attempt)
        adopted.reason = "it had not started when its scheduler ended"
        self._settle(adopted)

    def collect(self) -> list[Started | Exited]:
        """Return the events since the last call, without waiting."""
        self._collecting = True
        for fd, _ in self._epoll.poll(0):
            if (client := self._shims.at(fd)) is not None:
                self._read_answers(client)
            elif fd in self._by_pidfd:
                self._shim_ended(self._by_pidfd[fd])
            elif fd == self._bell:
                os.eventfd_read(self._bell)
            else:
                self._check_server()
        self._look_again()
        self._pump()
        self._collecting = False
        events, self._events = self._events, []
        return events

    def has_ended(self, task: int, attempt: int) -> bool:
        """Tell whether an attempt has ended, by its exit record and the lock of its claim."""
        path = shim.claim_path(self._folder(task), attempt)
        return shim.read_record(path) is not None or shim.claim_state(path) is ClaimState.FREE

    def troubles(self) -> list[str]:
        """Return sentences for the user about the processes that start and supervise tasks, and about files that cannot
        be read in time, each once.
        """
        return [*self._stopped.news(), *self._outputs.news()]

    def forget(self, task: int, attempt: int) -> None:
        """Remove the files of an attempt whose Exited is committed; keep a log that is not empty.

        A fence stays as long as the run exists, so that a shim that receives the order late finds that the attempt was
        given up.
        """
        folder = self._folder(task)
        claim = shim.claim_path(folder, attempt)
        stays = (task, attempt) not in self._ran and _is_fence(claim)
        self._ran.discard((task, attempt))
        logs = (shim.log_path(folder, attempt), shim.errors_path(folder, attempt))
        in_use = any(key[0] == task for key in self._attempts)
        self._remover.remove(Leftovers(() if stays else (claim,), logs, "" if in_use else folder))

    def close(self) -> None:
        """Close everything; orders that were not sent yet have no effect."""
        for _, order in self._queue:
            _close(order.lease_fd)
        self._queue.clear()
        for pid, start in self._helpers(time.monotonic()).items():
            processes.continue_stopped(pid, start)
        self._shims.close()
        self._server.end(idle=not self._attempts)
        self._remover.close()
        self._outputs.close()
        self._looks.close()
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
        if not self._server.lives:
            self._mend()
        if self._server.start():
            self._epoll.register(self._server.fileno(), select.EPOLLIN)

    def _pump(self) -> None:
        """Send the queued orders that can be sent now."""
        while self._queue and len(self._sent) < IN_FLIGHT and self._has_server():
            attempt, order = self._queue.popleft()
            try:
                if not self._send(attempt, order):
                    self._queue.appendleft((attempt, order))
                    return
            except OSError as error:
                if isinstance(error, ConnectionError) and not attempt.retried:
                    attempt.retried = True
                    self._queue.appendleft((attempt, order))
                    self._check_server()
                    continue
                self._hinder(attempt, f"it could not be started: {error.strerror}")
            else:
                attempt.sent = time.monotonic()
                self._sent[attempt.key] = attempt
            _close(order.lease_fd)

    def _has_server(self) -> bool:
        """Make sure that the server runs; if it cannot be started, end every queued attempt as UNSTARTED."""
        try:
            self._start_server()
        except (OSError, StateError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            for attempt, order in self._queue:
                self._hinder(attempt, f"it could not be started: {why}")
                _close(order.lease_fd)
            self._queue.clear()
            return False
        return True

    def _send(self, attempt: _Attempt, order: Launch) -> bool:
        """Give the order to a shim; return False if no shim can take it now. Raise OSError if nothing was sent."""
        values = order_values(order, attempt.folder, self._cookie(attempt), self._log_max, self._spare, self._grouped)
        held = [fd for fd in (order.lease_fd, order.kept_fd) if fd >= 0]
        attempt.shim = self._shims.give(attempt.key, values, held, once=attempt.once)
        return attempt.shim is not None

    def _read_answers(self, client: ShimClient) -> None:
        """Read the answers of a shim."""
        with contextlib.suppress(EOFError):
            while (message := client.receive()) is not None:
                attempt = self._attempts.get(client.key) if client.key is not None else None
                if attempt is None:
                    break  # the attempt was given up meanwhile
                if "ended" in message:
                    attempt.shim = None
                    self._shims.free(client, once=attempt.once)
                    self._ended(attempt, shim.record_of(message["ended"]))
                    return
                if "failed" in message:
                    self._failed(client, attempt, message["failed"])
                    break
                self._began(client, attempt, shim.claim_of(message["started"]))
            else:
                return
        self._channel_ended(client)

    def _began(self, client: ShimClient, attempt: _Attempt, claim: Claim) -> None:
        client.process = claim.shim, claim.shim_start
        if not client.served:
            self._server.last_answer = time.monotonic()  # older shims answer even if the server hangs
        self._sent.pop(attempt.key, None)
        self._started(attempt, claim)
        self._send_asked(attempt)

    def _failed(self, client: ShimClient, attempt: _Attempt, failure: Mapping[str, Any]) -> None:
        """End an attempt that its shim could not start; if it had started, its claim shows what became of it."""
        if attempt.claim is None and self._sent.pop(attempt.key, None) is not None:
            client.key = attempt.shim = None
            end = self._hinder if failure["short"] else self._lose
            end(attempt, f"it could not be started: {failure['error']}")

    def _channel_ended(self, client: ShimClient) -> None:
        """Settle the attempt of a shim that died or was never forked."""
        attempt = self._attempts.get(client.key) if client.key is not None else None
        if attempt is None:
            self._shims.drop(client)
        else:
            self._give_up(attempt, attempt.reason or (_SHIM_DIED if client.served else _SERVER_DIED))

    def _check_server(self) -> None:
        """Give up the unanswered orders of a server that has died."""
        if not self._server.check():
            self._server_ended(_SERVER_DIED)

    def _server_ended(self, reason: str) -> None:
        self._server.kill()
        for attempt in list(self._sent.values()):
            if attempt.shim is None or not attempt.shim.served:
                self._give_up(attempt, reason)

    def _give_up(self, attempt: _Attempt, reason: str) -> None:
        """Stop waiting for an answer; the attempt's claim shows what became of the attempt."""
        self._sent.pop(attempt.key, None)
        attempt.reason = reason
        if attempt.shim is not None:
            attempt.shim.key = None
            self._shims.drop(attempt.shim)
            attempt.shim = None
        self._settle(attempt)

    def _look_again(self) -> None:
        """Look again at unsettled attempts, idle and stopped shims, and unanswered orders."""
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN:
            return
        self._looked = now
        for attempt in list(self._unsettled.values()):
            self._settle(attempt)
        self._shims.dismiss(now)
        if self._stopped.is_due(now):
            self._stopped.look(self._helpers(now), now)
        self._lose_patience(now)

    def _helpers(self, now: float) -> dict[int, int]:
        """Return the pids of the known processes that start and supervise tasks, with their start times.

        A start time of 0 means that the process's pid cannot be reused.
        """
        found = {a.claim.shim: a.claim.shim_start for a in self._attempts.values() if a.claim}
        found |= self._shims.processes()
        found |= dict([self._server.former])
        if server := self._server.pid:
            found[server] = 0
            if any(now - attempt.sent > UNANSWERED for attempt in self._sent.values()):
                found |= {pid: shim.start_time(pid) for pid in shim.shims(server)}
        found.pop(0, None)
        return found

    def _lose_patience(self, now: float) -> None:
        late = [attempt for attempt in self._sent.values() if now - attempt.sent > self._patience]
        for attempt in late:
            if attempt.shim is not None and attempt.shim.served:
                self._give_up(attempt, f"its shim did not answer in {self._patience:g} s")
            elif now - self._server.last_answer > self._patience:
                self._server_ended(f"the server that starts tasks did not answer in {self._patience:g} s")
                return

    # What became of an attempt

    def _settle(self, attempt: _Attempt) -> None:
        """Judge an attempt by the lock of its claim; if that is impossible now, check it again later."""
        path = attempt.claim_path
        self._unsettled[attempt.key] = attempt
        with contextlib.suppress(OSError):  # the disk is full, or there are no descriptors left: try again later
            if attempt.claim is None and shim.claim_state(path) is ClaimState.ABSENT:
                shim.fence(path, *attempt.key)
            if shim.claim_state(path) is ClaimState.LOCKED:
                self._follow(attempt)
            if shim.claim_state(path) is not ClaimState.LOCKED:
                self._end(attempt)

    def _follow(self, attempt: _Attempt) -> None:
        """Watch a living shim for its end. The caller then checks the lock again, because the pid may have been reused
        by then.
        """
        claim = attempt.claim or shim.read_claim(attempt.claim_path)
        if claim is None:
            return
        if attempt.claim is None:
            self._started(attempt, claim)
        try:
            pidfd = os.pidfd_open(claim.shim)
            if shim.start_time(claim.shim) == claim.shim_start:
                self._watch(attempt, pidfd)
            else:
                os.close(pidfd)  # the shim is in another pid namespace: only its claim can be examined
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
        self._report(Started(*attempt.key, claim.pid, claim.start, claim.shim))

    def _send_asked(self, attempt: _Attempt) -> None:
        """Send the shim its signals; use its pid only if the kernel is older than 5.3 and has no pidfd."""
        claim = attempt.claim
        if claim is None:
            return
        for number in attempt.asked:
            with contextlib.suppress(ProcessLookupError):
                if attempt.pidfd >= 0:
                    signal.pidfd_send_signal(attempt.pidfd, number)
                else:
                    processes.signal_one(claim.shim, claim.shim_start, number)
        if attempt.asked:
            processes.continue_stopped(claim.shim, claim.shim_start)
        attempt.asked.clear()

    def _shim_ended(self, attempt: _Attempt) -> None:
        self._unwatch(attempt)
        self._settle(attempt)

    def _end(self, attempt: _Attempt) -> None:
        """End an attempt whose claim is free: its record shows how it ended. If there is no record, the attempt is lost
        once its process tree is empty.
        """
        record = shim.read_record(attempt.claim_path)
        claim = attempt.claim or shim.read_claim(attempt.claim_path)
        if record is not None:
            if attempt.claim is None and claim is not None:
                self._started(attempt, claim)
            self._ended(attempt, record)
        elif self._is_empty(attempt, claim):
            never_ran = attempt.ordered and (claim is None or claim.fence)
            end = self._hinder if never_ran else self._lose
            end(attempt, exit_classifier.why_lost(claim, attempt.reason))

    def _ended(self, attempt: _Attempt, record: Record) -> None:
        self._ran.add(attempt.key)
        read = partial(self._outputs.read, shim.log_path(attempt.folder, attempt.attempt), attempt.stderr)
        self._over(attempt, exit_classifier.exited(attempt.key, record, read, attempt.directory))

    def _is_empty(self, attempt: _Attempt, claim: Claim | None) -> bool:
        """Kill what is left of the attempt's process tree; return whether nothing is left."""
        led = (claim.pid, claim.start) if claim is not None else (0, 0)
        if claim is not None and claim.boot_id != shim.boot_id():
            return True
        cookie = self._cookie(attempt)
        ours = shim.group_name(f"{self._cookie_prefix}.")
        grouped = claim is not None and os.path.basename(claim.group).startswith(ours)
        if claim is not None and grouped and not processes.empty_group(claim.group, SWEEP):
            return False
        log = shim.log_path(attempt.folder, attempt.attempt)
        return not processes.sweep(cookie, SWEEP, *led, log, claim, self._looks.call)

    def _lose(self, attempt: _Attempt, reason: str) -> None:
        self._over(attempt, Exited(*attempt.key, Outcome.LOST, reason=reason))

    def _hinder(self, attempt: _Attempt, reason: str) -> None:
        """End an attempt that never ran, without a fault of its task."""
        self._over(attempt, Exited(*attempt.key, Outcome.UNSTARTED, reason=reason))

    def _over(self, attempt: _Attempt, exited: Exited) -> None:
        self._unwatch(attempt)
        del self._attempts[attempt.key]
        self._unsettled.pop(attempt.key, None)
        self._report(exited)

    def _report(self, event: Started | Exited) -> None:
        self._events.append(event)
        if not self._collecting:
            os.eventfd_write(self._bell, 1)


def _is_unmanaged(claim: Claim) -> bool:
    """Tell whether a claim was made on another machine, so that its lock says nothing on this machine."""
    return not claim.fence and not shim.is_here(claim.boot_id, claim.machine_id, claim.hostname)


def _is_fence(path: str) -> bool:
    claim = shim.read_claim(path)
    return claim is not None and claim.fence


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
