"""The client's side of a lease: a task of the user's queue whose devices this process uses itself.

The task is `execution/lease_holder`, which waits its turn and is watched like any other task; it hands its environment
to this process, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.app.queue.submit import submit
from scheduler.core.control import messages
from scheduler.core.control.request_kinds import RunRequest, Verb
from scheduler.core.model import UNFINISHED, State
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.ports import Request
from scheduler.core.tasks.guest import Guest
from scheduler.errors import InputError, LeaseTimeout, NoLease, SchedulerError, StateError, UsageError
from scheduler.execution import lease_holder
from scheduler.inputs import one_command
from scheduler.runtime.paths import StatePaths, find_places
from scheduler.runtime.processes import isolated_python
from scheduler.runtime.python_envs import Python
from scheduler.runtime.settings import Settings
from scheduler.runtime.shim import boot_id
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import requests
from scheduler.store.run.catalog import RunCatalog
from scheduler.units import duration
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.app.observe.run_reader import RunReader

Start = Callable[[StatePaths, str, Settings], Sequence[str]]
PAUSE = 0.2
"""Seconds between two looks at the journal, while the lease is not granted."""
REASONS = (0.1, 30.0)
"""The shortest and longest pause, in seconds, between two questions why the lease waits."""
PATIENCE = 1.0
"""Seconds to wait for an answer to the question why the lease waits."""
BEGINNING = 10.0
"""Seconds after which `wait=False` gives up. A lease that does not have to wait is granted within this time."""
_OWN = frozenset({"PYTHONUNBUFFERED", "PWD", "OLDPWD", "SHLVL", "_"})
"""Variables of an attempt that concern only its own process."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for a lease: its purpose, the fields of its task, and the queue that it goes to."""

    what: Sequence[str]
    """Words that distinguish leases with different memory needs: the command, or the program that asks."""
    fields: Mapping[str, str]
    """The fields of the lease's task, by column."""
    grace: float
    queue: str
    settings: Settings
    python: Python


def this_process() -> Guest:
    """Return this process as the guest of a task."""
    return Guest(os.getpid(), lease_holder.identity(os.getpid()), boot_id())


class LeaseClient:
    """One lease of this process, from its request to its end."""

    def __init__(self, wanted: LeaseRequest, start: Start | None = None) -> None:
        """Ask for a lease. Raise UsageError for fields that no task can have, StateError if no queue can be started.

        `start` starts the queue's scheduler, by default in a copy of this process.
        """
        self._wanted, self._start = wanted, start
        self._home = find_places(wanted.settings.state or None)
        self._connection: socket.socket | None = None
        self._reader: RunReader | None = None
        self._due, self._pause = time.monotonic() + REASONS[0], REASONS[0]
        """The time of the next question why the lease waits, and the pause after that question."""
        self._said = ""
        self._reason: tuple[str, str] = ("", "")
        """The reason and the device of `_said`, which is the last known sentence about why the lease waits."""
        token = secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(lease_holder.address(token))
            self._listener.listen(4)
            self.run, self.task, self.hints = self._submit(token)
        except BaseException:
            self._listener.close()
            raise

    def _submit(self, token: str) -> tuple[int, int, Sequence[str]]:
        wanted, guest = self._wanted, this_process()
        command = [*isolated_python(), lease_holder.__file__, f"{guest}/{token}/{wanted.grace:g}", *wanted.what]
        fields = {**wanted.fields, "LeaseFor": str(guest)}
        try:
            form, rows = one_command.cells(command, fields, wanted.python.path, "none")
            accepted = submit(form, rows, wanted.python, wanted.settings, wanted.queue, self._start)
        except InputError as exc:
            raise UsageError(f"{exc.column}: {exc.message}" if exc.column else exc.message) from exc
        return accepted.run, accepted.tasks[0], accepted.hints

    # ---- waiting for it ----

    def wait(self, patience: float, tell: Callable[[str], None] = lambda sentence: None) -> dict[str, str]:
        """Wait until the lease is granted; return those of its variables that this process does not have.

        After `patience` seconds raise LeaseTimeout; with 0, raise NoLease if the lease is not granted at once. `tell`
        is called with each new reason why the lease waits. The request is withdrawn when any exception is raised.
        """
        began = time.monotonic()
        try:
            while (granted := self._granted()) is None:
                self._check()
                self._explain(tell, must_not=patience <= 0)
                waited = time.monotonic() - began
                if waited >= (patience or BEGINNING):
                    why = self._said or f"task {self.task} waits"
                    raise LeaseTimeout(f"no lease within {duration(waited)}: {why}; it was withdrawn")
        except BaseException:
            self.withdraw()
            raise
        self._listener.close()
        self._close_reader()
        return {name: text for name, text in granted.items() if os.environ.get(name) != text and name not in _OWN}

    def _granted(self) -> Mapping[str, str] | None:
        """Return the environment of the attempt, if the holder of the lease connects within a moment."""
        if not select.select([self._listener], [], [], PAUSE)[0]:
            return None
        made, _ = self._listener.accept()
        made.settimeout(5.0)
        with contextlib.suppress(OSError, ValueError, KeyError):
            if lease_holder.peer(made)[1] == os.getuid():
                said = b""
                while not said.endswith(b"\n") and (part := made.recv(1 << 16)):
                    said += part
                granted: Mapping[str, str] = json.loads(said)["granted"]
                self._connection = made
                made.settimeout(None)
                return granted
        made.close()
        return None

    def _check(self) -> None:
        """Raise NoLease if the task has ended; start the queue's scheduler again if it was killed."""
        reader = self._read()
        state = reader.brain.state(self.task)
        if state not in UNFINISHED:
            raise NoLease(f"no lease: {self._why_ended(reader, state)}")
        if is_locked(reader.info.places.root):
            return
        if reader.brain.draining:
            raise NoLease(f"no lease: the queue was stopped; scheduler resume r{self.run} continues it")
        if self._start is not None:
            self._start(self._home, self._wanted.queue, self._wanted.settings)
            return
        from scheduler.app.queue.standing_queue import ensure_started  # needed only if the scheduler was killed

        ensure_started(self._home, self._wanted.queue, self._wanted.settings)

    def _read(self) -> RunReader:
        if self._reader is None:
            from scheduler.app.observe.run_reader import RunReader  # a lease that is granted at once does not need it

            self._reader = RunReader(RunCatalog(self._home).info(self.run), only_states=True)
        else:
            self._reader.catch_up()
        return self._reader

    def _why_ended(self, reader: RunReader, state: State) -> str:
        """Return why the task has ended before the lease was granted."""
        history = reader.history_of(self.task)
        log = self._home.run(self.run).task_log(self.task, len(history.attempts) or 1)
        said = history.refused or _last_line(log)
        return f"task {self.task} is {state}{f': {said}' if said else ''}"

    def _explain(self, tell: Callable[[str], None], *, must_not: bool) -> None:
        """From time to time, pass the reason why the lease waits to `tell` if that reason has changed. With `must_not`,
        raise NoLease if the lease waits.
        """
        if time.monotonic() < self._due:
            return
        places = self._home.run(self.run)
        path = requests.post(places, Request(RunRequest.WHY, (self.task,)))
        answers = requests.fetch(places, path, PATIENCE)
        if answers is None:
            path.unlink(missing_ok=True)
        self._pause = REASONS[0] if must_not else min(2 * self._pause, REASONS[1])
        self._due = time.monotonic() + self._pause
        for answer in answers or ():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._hear(Refusal.from_dict(answer.facts["refusal"]), tell, must_not=must_not)

    def _hear(self, refusal: Refusal, tell: Callable[[str], None], *, must_not: bool) -> None:
        """Note why the lease waits, and pass the reason on as `_explain` does."""
        if refusal.reason is Reason.NEXT:
            return
        said, before = messages.line(refusal), self._reason
        self._said, self._reason = said, (refusal.reason, refusal.device)
        if must_not:
            raise NoLease(f"no lease now: {said}; it was withdrawn")
        if before != self._reason:
            tell(said)

    # ---- its end ----

    @property
    def connection(self) -> socket.socket:
        """The socket to the holder of a granted lease; it is readable once that holder has ended."""
        assert self._connection is not None
        return self._connection

    def release(self, code: int = 0, why: str = "") -> None:
        """Give the devices back; the task ends with exit code `code`, and `why` is written to its log."""
        if self._connection is None:
            return
        with contextlib.suppress(OSError):  # the holder has ended before
            self._connection.sendall(json.dumps({"end": code, "why": why}).encode() + b"\n")
        self._connection.close()
        self._connection = None

    def leave(self) -> None:
        """Close this process's copy of a lease that belongs to its parent process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def withdraw(self) -> None:
        """Cancel the task of a lease that is no longer wanted."""
        self._listener.close()
        self._close_reader()
        with contextlib.suppress(SchedulerError):
            from scheduler.app.control.run_requests import ask
            from scheduler.app.control.targets import Target

            ask(Target(RunCatalog(self._home).info(self.run), (self.task,)), Verb.CANCEL)

    def _close_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(StateError):
                self._reader.close()
            self._reader = None


def _last_line(path: Path) -> str:
    """Return the last line that the holder of a lease wrote to its log before it ended."""
    with contextlib.suppress(OSError):
        return (path.read_text(encoding="utf-8", errors="replace").splitlines() or [""])[-1].removeprefix("scheduler: ")
    return ""
