"""Submitting tasks to a standing queue: the client's side, which loads fast."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.ports import Answer, Request
from scheduler.core.tasks.fields import RowForm
from scheduler.errors import InputError, StateError, UsageError
from scheduler.runtime.paths import RunPaths, StatePaths, find_places
from scheduler.runtime.python_envs import Python
from scheduler.runtime.settings import YES, Settings
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.queue.queue_link import find_queue
from scheduler.store.queue.submission import Submission, accepted_before
from scheduler.store.queue.submitted_shells import keep_shell
from scheduler.store.run import requests
from scheduler.store.run.shell_state import this_shell
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.core.tasks.row_source import InputRow

PATIENCE = 30.0
"""Seconds to wait for the answer of a running scheduler."""
TRIES = 10
"""How often a queue is started or asked, if its scheduler ends each time before it has answered."""


@dataclass(frozen=True, slots=True)
class AcceptedSubmission:
    """The tasks of an accepted submission."""

    run: int
    tasks: tuple[int, ...]
    hints: tuple[str, ...] = ()
    """Sentences about the start of the queue, if this submission started the queue."""


def submit(
    form: RowForm,
    rows: Iterable[InputRow],
    python: Python,
    settings: Settings,
    name: str,
    start: Callable[[StatePaths, str, Settings], Sequence[str]] | None = None,
) -> AcceptedSubmission:
    """Send rows to the queue of that name and return their ids once they are durable; start the queue's scheduler if
    necessary.

    `start` starts the scheduler, by default in a copy of this process. Relative directories of rows start at this
    process's directory. Raise InputError for invalid rows, StateError if nothing can be accepted.
    """
    home = find_places(settings.state or None)
    form, sent = _rooted(form, rows, os.getcwd())
    if not sent:
        return AcceptedSubmission(0, ())
    token, shell, hints = os.urandom(5).hex(), this_shell(), list[str]()
    with _in_memory(shell.secrets()) as secrets:
        for _ in range(TRIES):
            queue = find_queue(home, name)
            if queue is None or not is_locked(queue.root):
                hints += (start or _start)(home, name, settings)
                continue
            digest = keep_shell(queue.shells, shell, python)
            own = RowForm(form.columns, form.defaults, form.append, form.template, digest, form.now)
            own.adapts = settings.launcher_args == YES
            said = Submission(token, own, sent, secrets, _nodes_asked_for(settings))
            answer = _ask(queue, Request(RunRequest.SUBMIT, (), said.to_dict()), name)
            if answer is not None:
                tasks = _accepted(answer)
                return AcceptedSubmission(queue.number, tasks, (*hints, *_elsewhere(answer, name, settings)))
            if tasks := accepted_before(queue.journal, token):  # asked again, a full disk would refuse what is accepted
                return AcceptedSubmission(queue.number, tasks, tuple(hints))
    raise StateError(f"the scheduler of the queue {name} ended several times before it had answered: see {home.runs}")


def _nodes_asked_for(settings: Settings) -> str:
    """Return the nodes that a flag of this submission names; the setting applies only when a queue is started."""
    return settings.on if settings.source.get("on") == "flag" else ""


def _elsewhere(answer: Answer, name: str, settings: Settings) -> list[str]:
    """Return a hint if the queue does not run where the settings say."""
    there = str(answer.facts.get("on", settings.on))
    if not settings.on or {*there.split()} == {*settings.on.split()}:
        return []
    return [f"the queue {name} runs on {there or 'its own machine'} until it has ended, and not on {settings.on}"]


def _rooted(form: RowForm, rows: Iterable[InputRow], directory: str) -> tuple[RowForm, list[InputRow]]:
    """Return the rows with absolute directories, and their form; relative directories start at `directory`."""
    index = form.known.get("Directory")
    columns = form.columns if index is not None else (*form.columns, "Directory")
    made = []
    for row, cells, terms, nth in rows:
        own = [*cells] if index is not None else [*cells, ""]
        place = index if index is not None else -1
        own[place] = os.path.normpath(os.path.join(directory, own[place].strip()))
        made.append((row, own, terms, nth))
    return RowForm(columns, form.defaults, form.append, form.template, now=form.now), made


def _start(home: StatePaths, name: str, settings: Settings) -> Sequence[str]:
    from scheduler.app.queue.standing_queue import ensure_started  # only the first submission needs all of it

    return ensure_started(home, name, settings)


def _ask(queue: RunPaths, request: Request, name: str) -> Answer | None:
    """Return the answer of the queue's scheduler; None if it ended before it answered, or if its answer is lost.

    A request that has no answer yet is withdrawn at Ctrl-C. Raise StateError if a running scheduler does not answer.
    """
    path = requests.post(queue, request)
    try:
        answers = requests.fetch(queue, path, PATIENCE)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    if answers is not None:
        return answers[0] if answers else None
    if is_locked(queue.root):
        raise StateError(
            f"the scheduler of the queue {name} has not answered for {PATIENCE:g} s: it accepts the tasks "
            f"when it continues; scheduler list r{queue.number} shows whether it has"
        )
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return None


def _accepted(answer: Answer) -> tuple[int, ...]:
    """Return the ids in an answer; raise the error that it reports."""
    if answer.done:
        return answer.tasks
    if "message" in answer.facts:
        raise InputError("", str(answer.facts["message"]), answer.facts["row"], answer.facts["column"])
    raise StateError(answer.says) if answer.facts.get("state") else UsageError(answer.says)


@contextlib.contextmanager
def _in_memory(values: Mapping[str, str]) -> Iterator[str]:
    """Yield the path of an in-memory file with some values, readable by processes of this user within the block."""
    if not values:
        yield ""
        return
    fd = os.memfd_create("submission", os.MFD_CLOEXEC)
    try:
        os.write(fd, json.dumps(values).encode("utf-8", "surrogateescape"))
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)
