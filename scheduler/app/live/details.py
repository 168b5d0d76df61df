"""The reader of what a task's page shows: a thread, because a log may be on a mount that does not answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from scheduler.app.live.tracker_links import TrackerLinks
from scheduler.app.observe.metric_files import AttemptMetrics
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.model import State
from scheduler.core.ports import Request
from scheduler.core.reporting.memory_timeline import AttemptTrack, MemoryTimeline, Step
from scheduler.core.tasks.redaction import shown, without_secrets
from scheduler.errors import SchedulerError
from scheduler.runtime.paths import open_within
from scheduler.runtime.threads import start_thread
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import requests
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.task_texts import TaskTexts
from scheduler.ui.live.ports import TaskDetails
from scheduler.ui.text import TextCleaner, scheduler_ended

PERIOD = 0.5
"""Seconds between two reads while a page is open."""
WHY_PERIOD = 3.0
"""Seconds between two requests that ask the scheduler why a task waits."""
PATIENCE = 2.0
TAIL = 1 << 16
"""The number of bytes that are read from the end of a log."""
MOST_LINES = 1000


class TaskReader:
    """The reader of one run's tasks; its thread lives while a page is open."""

    def __init__(self, info: RunInfo, state: Callable[[int], State]) -> None:
        self._info = info
        self._state = state
        self._lock = threading.Condition()
        self._task: int | None = None
        self._running = False
        self._latest: TaskDetails | None = None
        self._why: tuple[int, State | None, float, str] = (0, None, 0.0, "")

    def want(self, task: int | None) -> None:
        """Read this task repeatedly from now on; None: read nothing."""
        with self._lock:
            if task == self._task:
                return
            self._task = task
            self._lock.notify()
            if task is not None and not self._running:
                self._running = start_thread(self._read_all) is not None

    def details(self) -> TaskDetails | None:
        """Return the result of the last read; None before the first one."""
        return self._latest

    def _read_all(self) -> None:
        while True:
            with self._lock:
                task = self._task
                if task is None:
                    self._running = False
                    return
            try:
                self._latest = self.read(task)
            except (SchedulerError, OSError, LookupError) as exc:
                self._latest = TaskDetails(task, trouble=str(exc))
            with self._lock:
                if self._task == task:
                    self._lock.wait(PERIOD)

    def read(self, task: int) -> TaskDetails:
        """Read now what the page of a task shows. Raise SchedulerError, OSError or LookupError if that is
        impossible.
        """
        with closing(JournalReader.read(self._info.places.journal)) as journal:
            timeline = MemoryTimeline()
            for recorded in journal.task_events(task):
                timeline.take(recorded.event, recorded.at)
            port = timeline.tracks[-1].attempt.port if timeline.tracks else 0
            line = self._command(journal, task, port)
            attempt = timeline.tracks[-1].attempt.number if timeline.tracks else 0
            links = TrackerLinks(self._info.places, journal).of_task(task, attempt) if attempt else ()
            labels = json.loads(self._info.meta.get("labels", "{}"))
        attempts = [track.attempt for track in timeline.tracks]
        last = timeline.tracks[-1] if timeline.tracks else None
        memory = {labels.get(key, key): steps for key, steps in (_to_the_end(last) if last is not None else {}).items()}
        places = self._info.places
        log = str(places.task_log(task, last.attempt.number)) if last is not None else ""
        metrics = AttemptMetrics(self._info).record(task, last.attempt) if last is not None else None
        lines, trouble = _tail(Path(log), places.root) if log else ((), "")
        return TaskDetails(task, line, self._reason(task), attempts, memory, metrics, log, lines, links, trouble)

    def _command(self, journal: JournalReader, task: int, port: int) -> str:
        texts, row = TaskTexts(journal), journal.row(task)
        return shown(texts.started(row, texts.spec(row), task, self._info.meta["python"], port))

    def _reason(self, task: int) -> str:
        """Return why a task waits, in the words of its scheduler; empty for a task that runs or has ended."""
        state, now = self._state(task), time.monotonic()
        if state is not State.WAITING:
            return ""
        known, known_state, at, words = self._why
        if (known, known_state) != (task, state) or now >= at + WHY_PERIOD:
            words = self._ask(task)
            self._why = (task, state, now, words)
        return words

    def _ask(self, task: int) -> str:
        info = self._info
        if info.elsewhere or not is_locked(info.places.root):
            return scheduler_ended(info.number)
        answers = requests.ask(info.places, Request(RunRequest.WHY, (task,)), PATIENCE)
        return without_secrets(answers[0].says) if answers else ""


def _to_the_end(track: AttemptTrack) -> dict[str, list[Step]]:
    """Return the memory of an attempt, with the last recorded step prolonged to the attempt's end or to now."""
    end = track.attempt.ended or time.time()
    return {key: [*steps, (end, *steps[-1][1:])] for key, steps in track.steps.items() if steps}


def _tail(path: Path, root: Path) -> tuple[list[str], str]:
    """Return the last lines of a log, and why it cannot be read; text that a progress bar overwrote is left out."""
    try:
        with open_within(path, root) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            data = file.read(TAIL)
    except FileNotFoundError:
        return [], ""
    except OSError as exc:
        return [], f"the log is not shown: {(exc.strerror or str(exc)).lower()}"
    text = TextCleaner().clean(data.replace(b"\r\n", b"\n"), last=True)
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    if size > TAIL:
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines[-MOST_LINES:], ""
