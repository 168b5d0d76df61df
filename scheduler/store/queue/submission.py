"""Submissions to a queue: their form in a request, and their receiver in the queue's scheduler.

The receiver accepts each submission only once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.ports import Answer, Request, SubmissionResult
from scheduler.core.tasks.fields import BadCell, RowForm, pack_cells, unpack_cells
from scheduler.errors import InputError, StateError, UsageError
from scheduler.store.queue.visible_devices import VISIBLE, limited
from scheduler.values import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.core.tasks.row_source import InputRow
    from scheduler.store.run.journal_reader import JournalReader
    from scheduler.store.run.run_store import SqliteRunStore

FORMAT = "1"
MOST_TOKENS = 128
"""The number of latest submissions whose tokens the journal keeps, because a client may ask again after a crash."""
OTHER_VERSION = (
    "the queue's scheduler is of another version and cannot read this submission: scheduler stop queue lets its "
    "running tasks end, the next submit starts it again"
)

OTHER_NODES = (
    "the queue runs on {}, and keeps its nodes until it has ended: leave --on out, or start another queue with --queue "
    "NAME"
)


@dataclass(frozen=True, slots=True)
class Submission:
    """Rows to be accepted together, with all other values that the queue's scheduler needs to accept them."""

    token: str
    """A random string that identifies the submission, so that it is accepted only once even if the client sends it
    again.
    """
    form: RowForm
    rows: Sequence[InputRow]
    secrets: str = ""
    """The path of an in-memory file with variables that must not be written to a disk; the file exists while the client
    waits.
    """
    on: str = ""
    """The nodes on which the queue must run; empty: the queue may run anywhere."""

    def to_dict(self) -> dict[str, str]:
        """Return the submission as the strings of a request."""
        rows = [[row, nth, pack_cells(cells)] for row, cells, _, nth in self.rows]
        return {
            "format": FORMAT,
            "token": self.token,
            "form": self.form.pack(),
            "rows": json.dumps(rows),
            "secrets": self.secrets,
            "on": self.on,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Submission:
        """Return the submission that `to_dict` wrote; raise KeyError, TypeError or ValueError for anything else."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}")
        form = RowForm.unpack(data["form"])
        rows = []
        for row, nth, text in json.loads(data["rows"]):
            cells = unpack_cells(text)
            rows.append((int(row), cells, form.terms(cells), int(nth)))
        return cls(data["token"], form, rows, data["secrets"], data.get("on", ""))


class SubmissionReceiver:
    """The receiver of submissions in the scheduler of a queue."""

    def __init__(self, store: SqliteRunStore, mark: str, on: str = "") -> None:
        """Prepare to accept submissions into a run. `mark` is the fact of the run's journal with the tokens that were
        accepted so far, and `on` names the run's nodes.
        """
        self._store = store
        self._on = on
        self._batches: dict[str, int] = dict(json.loads(mark)) if mark else {}
        """The batch of each of the latest accepted submissions, by the submission's token."""

    def accept(self, request: Request) -> SubmissionResult:
        """Accept a submission durably, or refuse it; the answer has the ids of its tasks, or the reason."""
        try:
            submission = Submission.from_dict(request.said)
        except (BadCell, KeyError, TypeError, ValueError):
            return SubmissionResult(Answer((), False, OTHER_VERSION))
        if submission.token in self._batches:
            return SubmissionResult(Answer(_tasks(self._store.journal, self._batches[submission.token]), True, ""))
        self._store.shells.learn_secrets(submission.form.shell, _read_secrets(submission.secrets))
        tokens = {**self._batches, submission.token: self._store.next_batch}
        tokens = dict(list(tokens.items())[-MOST_TOKENS:])
        visible = ""
        try:
            self._refuse_other_nodes(submission.on)
            shell = self._store.shells.of(submission.form.shell)
            form, rows, visible = limited(submission.form, submission.rows, shell.task_shell.environ)
            batches = self._store.accept_more(form, [rows], {"mark": json.dumps(tokens)})
        except InputError as exc:
            if visible and exc.column == "Device":
                exc.message += f" ({VISIBLE}={visible} in the shell that submits)"
            facts = {"message": exc.message, "row": exc.row, "column": exc.column}
            return SubmissionResult(Answer((), False, str(exc), facts))
        except UsageError as exc:  # about the nodes
            return SubmissionResult(Answer((), False, str(exc)))
        except StateError as exc:
            return SubmissionResult(Answer((), False, str(exc), {"state": True}))
        self._batches = tokens
        if self._store.source is not None:
            self._store.source.accepted()
        tasks = [task for batch in batches for task in range(batch.first, batch.first + len(batch.terms))]
        return SubmissionResult(Answer(tuple(tasks), True, "", {"on": self._on}), batches)

    def _refuse_other_nodes(self, on: str) -> None:
        if on and {*on.split()} != {*self._on.split()}:
            raise UsageError(OTHER_NODES.format(self._on or "its own machine"))


def accepted_before(path: Path, token: str) -> tuple[int, ...]:
    """Return the ids of the tasks of a submission whose answer was lost, as the journal has them.

    Return None if the submission was not accepted, or if the journal cannot be read now; then the client can send the
    submission again.
    """
    from scheduler.store.run.journal_reader import JournalReader  # hardly any client comes here

    with contextlib.suppress(StateError), contextlib.closing(JournalReader.read(path)) as journal:
        batches = json.loads(journal.meta().get("mark") or "{}")
        return _tasks(journal, batches[token]) if token in batches else ()
    return ()


def _tasks(journal: JournalReader, batch: int) -> tuple[int, ...]:
    """Return the ids of the tasks of an accepted batch."""
    for submitted in journal.submissions(batch - 1):
        if submitted.batch == batch:
            return tuple(range(submitted.first, submitted.first + len(submitted.terms)))
    return ()


def _read_secrets(path: str) -> dict[str, str]:
    """Return the variables from an in-memory file of the client; empty if the client has ended."""
    if not path:
        return {}
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8") as file:
            file.seek(0)
            return {str(name): str(text) for name, text in json.load(file).items()}
    return {}
