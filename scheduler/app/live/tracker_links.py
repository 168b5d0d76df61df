"""The addresses under which trackers show the tasks of a run, from the logs and the variables of its tasks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from scheduler.core.reporting import trackers
from scheduler.core.tasks.fields import RowForm
from scheduler.errors import StateError
from scheduler.runtime.paths import RunPaths, open_within
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.run.shell_state import kept
from scheduler.store.task_texts import TaskTexts

LOG_HEAD, LOG_TAIL = 16 << 10, 8 << 10
"""The bytes at both ends of a log in which trackers print their addresses."""


class TrackerLinks:
    """The addresses of one run's tasks at Weights & Biases and MLflow."""

    def __init__(self, places: RunPaths, journal: JournalReader) -> None:
        self._places, self._texts = places, TaskTexts(journal)
        self._shells: dict[str, Mapping[str, str]] = {}

    def named(self, tasks: Iterable[int]) -> dict[int, list[str]]:
        """Return the addresses that the variables of each task name, by task; leave out tasks without addresses."""
        if not any(self._may_name(form) for form in self._texts.known_forms()):
            return {}
        found = {task: self._named(task) for task in tasks}
        return {task: addresses for task, addresses in found.items() if addresses}

    def of_task(self, task: int, attempt: int) -> list[str]:
        """Return the addresses that an attempt has printed, and those that its variables name."""
        return of_log(self._places, task, attempt, self.named([task]).get(task, ()))

    def _may_name(self, form: RowForm) -> bool:
        """Tell whether rows of this form may have a variable that names a run."""
        texts = (*form.defaults.values(), *self._shell(form.shell))
        return "Env" in form.known or any(name in text for name in trackers.VARIABLES for text in texts)

    def _named(self, task: int) -> list[str]:
        row = self._texts.journal.row(task)
        shell = self._shell(self._texts.form(row).shell)
        return trackers.identified({**shell, **dict(self._texts.spec(row).env)})

    def _shell(self, digest: str) -> Mapping[str, str]:
        """Return the variables of the shell from which rows were submitted; for an empty digest, the variables of the
        run.
        """
        if digest not in self._shells:
            self._shells[digest] = {}
            with contextlib.suppress(StateError):
                found = kept(self._places.shells / digest if digest else self._places.env)
                self._shells[digest] = found.environ if found is not None else {}
        return self._shells[digest]


def of_log(places: RunPaths, task: int, attempt: int, named: Iterable[str] = ()) -> list[str]:
    """Return the addresses in the first and the last part of an attempt's log, then those `named` addresses that are
    not among them.
    """
    text = ""
    with contextlib.suppress(OSError), open_within(places.task_log(task, attempt), places.root) as file:
        text = file.read(LOG_HEAD).decode("utf-8", "replace")
        if (size := os.fstat(file.fileno()).st_size) > LOG_HEAD:
            file.seek(max(LOG_HEAD, size - LOG_TAIL))
            text += "\n" + file.read(LOG_TAIL).decode("utf-8", "replace")
    return trackers.addresses(text, named)


def links_of_tasks(places: RunPaths, attempts: Mapping[int, int]) -> dict[int, list[str]]:
    """Return the addresses of each task's newest attempt, by task; leave out tasks without addresses."""
    with contextlib.closing(JournalReader.read(places.journal)) as journal:
        named = TrackerLinks(places, journal).named(attempts)
    found = {task: of_log(places, task, attempt, named.get(task, ())) for task, attempt in attempts.items()}
    return {task: addresses for task, addresses in found.items() if addresses}
