"""`exec` as a client of the standing queue: it shows the output of a task, and turns signals into requests."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Mapping, Sequence

from scheduler.app.queue.submit import AcceptedSubmission
from scheduler.app.run.exec import ExecResult, output_files, waits_for
from scheduler.core.control.request_kinds import NOW, RunRequest, Verb
from scheduler.core.events import Asked, Depended, Event, Exited, Refused, Skipped, Started
from scheduler.core.model import UNFINISHED, Placement, State
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import Request, View
from scheduler.errors import StateError
from scheduler.runtime.event_sources import SignalReader
from scheduler.runtime.paths import StatePaths, find_places
from scheduler.runtime.settings import Settings
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import requests
from scheduler.store.run.catalog import RunCatalog
from scheduler.store.run.journal_reader import JournalReader
from scheduler.ui.terminal.exec_view import ExecView

PAUSES = (0.01, 0.1)
"""The shortest and longest pause, in seconds, between two looks at the journal."""
REASONS = (0.3, 30.0)
"""The shortest and longest pause, in seconds, between two questions why the task waits."""
PATIENCE = 1.0
"""Seconds to wait for an answer to the question why the task waits."""


def follow(accepted: AcceptedSubmission, queue: str, fields: Mapping[str, str], settings: Settings) -> int:
    """Pass on the output of the only accepted task until it has ended, and return its exit code.

    `fields` are the task's fields by their columns. Signals become requests about the task, so that the queue itself
    goes on.
    """
    with contextlib.closing(ExecClient(find_places(settings.state or None), accepted, queue, fields, settings)) as made:
        return made.follow()


class ExecClient:
    """The foreground process that follows one task of a queue. It reads the journal, and asks the queue's scheduler by
    requests.
    """

    def __init__(
        self,
        home: StatePaths,
        accepted: AcceptedSubmission,
        queue: str,
        fields: Mapping[str, str],
        settings: Settings,
    ) -> None:
        """Begin to handle signals as requests about the task, which is accepted already."""
        self._signals = SignalReader()
        self._home = home
        self._queue = queue
        self._settings = settings
        (self._task,) = accepted.tasks
        self._info = RunCatalog(home).info(accepted.run)
        self._journal = JournalReader.read(self._info.places.journal)
        self._seen = self._journal.reach()[1]
        self._state = State.WAITING
        self._ended: Exited | None = None
        self._is_running = False
        self._goes_on = True
        """False after the first Ctrl-C: the task gets no other attempt."""
        self._due, self._pause = time.monotonic() + REASONS[0], REASONS[0]
        """The time of the next question why the task waits, and the pause after that question."""
        labels = self._reader_labels()
        files = output_files(self._info.places, fields.get("Stdout", ""), fields.get("Stderr", ""))
        waits = waits_for(settings, self._info.meta["token"], labels)
        self._view = ExecView(View(), files, waits, lambda task: self._state)

    def _reader_labels(self) -> dict[str, str]:
        import json

        labels: dict[str, str] = json.loads(self._info.meta.get("labels", "{}"))
        return labels

    def close(self) -> None:
        """Restore the caller's signal handlers, and close the journal."""
        self._signals.close()
        self._journal.close()

    def follow(self) -> int:
        """Return the exit code once the task has ended, or once a signal ended the wait."""
        self._take([one.event for one in self._journal.task_events(self._task) if one.seq <= self._seen])
        pause = PAUSES[0]
        while self._state in UNFINISHED:
            for word in self._signals.collect():
                if self._obey(word):
                    return 128 + self._signals.last
            alive = is_locked(self._info.places.root)
            if self._look():
                pause = PAUSES[0]
            elif not alive and not self._start_again():
                return self._result().exit_code
            else:
                self._explain()
                select.select([self._signals], [], [], pause)
                pause = min(2 * pause, PAUSES[1])
        return self._result().exit_code

    def _result(self) -> ExecResult:
        last, code = self._ended, None
        if last is not None:
            code = last.code if last.signal is None else 128 + last.signal
        signal = 0 if self._goes_on else self._signals.last
        return ExecResult(self._info.number, self._task, self._state, code, signal)

    # ---- what happened ----

    def _look(self) -> bool:
        """Read what was recorded since the last look; return whether anything was recorded."""
        new = list(self._journal.events(self._seen))
        if new:
            self._seen = new[-1].seq
            self._take([one.event for one in new])
        return bool(new)

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Placement | Started | Exited | Refused):
                if event.task == self._task:
                    self._taken(event)
            elif isinstance(event, Asked | Depended | Skipped) and (not event.tasks or self._task in event.tasks):
                self._read_state()

    def _taken(self, event: Placement | Started | Exited | Refused) -> None:
        """Note an event of the task itself. The journal contains the task's placement before the task starts."""
        self._is_running = isinstance(event, Placement | Started)
        if isinstance(event, Exited):
            self._ended = event
        if not self._is_running:
            self._read_state()
        self._view.show(event, 0.0)
        if isinstance(event, Exited) and self._state in UNFINISHED and not self._goes_on:
            self._ask(Verb.CANCEL)

    def _read_state(self) -> None:
        """Read the task's state from the whole journal, because the rules of the scheduler decide whether the task gets
        another attempt.
        """
        self._is_stopped()

    def _is_stopped(self) -> bool:
        """Read the task's state; return whether the queue starts no more tasks."""
        from scheduler.app.observe.run_reader import RunReader

        with contextlib.closing(RunReader(self._info, only_states=True)) as reader:
            self._state = reader.brain.state(self._task)
            return reader.brain.draining

    def _start_again(self) -> bool:
        """Start the queue's scheduler again if it was killed; return False if it was stopped on request, because then
        nothing starts any more.
        """
        from scheduler.app.queue.standing_queue import ensure_started

        if self._is_stopped() and self._state in UNFINISHED:
            runs = "runs on" if self._is_running else "waits"
            self._view.tell(
                f"the queue was stopped, and task {self._task} {runs}: scheduler resume r{self._info.number} "
                "continues it"
            )
            return False
        if self._state in UNFINISHED:
            ensure_started(self._home, self._queue, self._settings)
        return True

    # ---- why it waits ----

    def _explain(self) -> None:
        """From time to time, print why the task waits, if the reason has changed."""
        if self._is_running or time.monotonic() < self._due:
            return
        path = requests.post(self._info.places, Request(RunRequest.WHY, (self._task,)))
        answers = requests.fetch(self._info.places, path, PATIENCE)
        if answers is None:
            path.unlink(missing_ok=True)
        for answer in answers or ():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._view.waits([Refusal.from_dict(answer.facts["refusal"])])
        self._pause = min(2 * self._pause, REASONS[1])
        self._due = time.monotonic() + self._pause

    # ---- signals ----

    def _obey(self, word: RunRequest) -> bool:
        """Carry out what a signal asks for; return whether this process must end."""
        if word == RunRequest.HANGUP:
            self._view.hang_up()
            return False
        task = self._task
        if word == RunRequest.LEAVE:
            self._view.tell(
                f"detached: task {task} stays in the queue (scheduler logs {task} -f, scheduler cancel {task})"
            )
            return True
        self._look()  # the task may have started since
        self._goes_on = False
        if not self._is_running:
            self._ask(Verb.CANCEL)
        elif word == RunRequest.DRAIN:
            self._ask(Verb.SET, {"Retries": "0"})
            self._view.tell(
                f"task {task} runs to its end and is not tried again (Ctrl-C or INT again stops it, Ctrl-\\ or QUIT "
                "leaves it running)"
            )
        else:
            self._stop_it(now=word == RunRequest.KILL)
        return False

    def _stop_it(self, *, now: bool) -> None:
        if now:
            self._view.tell(f"killing task {self._task} now")
        else:
            self._view.tell(
                f"stopping task {self._task}: stop signal, grace, then KILL (once more kills it now; it counts as "
                "cancelled)"
            )
        self._ask(Verb.CANCEL, {NOW: "yes"} if now else {})

    def _ask(self, what: Verb, said: Mapping[str, str] | None = None) -> None:
        """Ask the queue's scheduler, or its next one, to change the task."""
        from scheduler.app.control.run_requests import ask
        from scheduler.app.control.targets import Target

        try:
            ask(Target(self._info, (self._task,)), what, said)
        except StateError as exc:
            self._view.tell(str(exc))
