"""The log of Python tasks (received, finished, skipped, failed), written to standard error and to a file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping

from scheduler.core.events import Event, Exited
from scheduler.core.model import NAMED, Job, Outcome, Placement, shown_in
from scheduler.core.ports import View
from scheduler.ui.terminal.plain_view import ending

_IN_FILE = logging.Formatter(
    # The name of the older tool's file, for all modules that write: scripts search the log for it.
    "%(asctime)s gpu_task_scheduler.py[line:%(lineno)d] %(levelname)s %(message)s",
    "%a, %d %b %Y %H:%M:%S",
)
_ON_CONSOLE = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def task_logger(path: str | None) -> logging.Logger:
    """Return a new logger, so that two schedulers in one process do not print lines twice; the caller must close it."""
    logger = logging.Logger("gpu_task_scheduler", logging.INFO)  # noqa: LOG001  # of this scheduler alone
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(_ON_CONSOLE)
    logger.addHandler(console)
    if path:
        file = logging.FileHandler(path)
        file.setFormatter(_IN_FILE)
        logger.addHandler(file)
    return logger


class TaskLog(View):
    """A view that writes the older tool's log in addition to calling the view that it wraps."""

    def __init__(
        self,
        inner: View,
        logger: logging.Logger,
        job: Callable[[int], Job],
        labels: Mapping[str, str],
        log_of: Callable[[int, int], str],
    ) -> None:
        """Write to `logger`; `log_of` returns the path of an attempt's output, by task and attempt."""
        super().__init__(inner)
        self._logger = logger
        self._job = job
        self._labels = labels
        self._log_of = log_of
        self._workers: dict[int, str] = {}

    def show(self, event: Event, at: float) -> None:
        """Write a line for the start and for the end of each task."""
        super().show(event, at)
        if isinstance(event, Placement):
            self._workers[event.task] = self._worker(event)
            self._logger.info("%s receives task %s", self._workers[event.task], self._job(event.task).name)
        elif isinstance(event, Exited):
            self._ended(event)

    def _ended(self, event: Exited) -> None:
        worker, name = self._workers.get(event.task, "unknown"), self._job(event.task).name
        if event.outcome is Outcome.INTERRUPTED:
            self._logger.info("%s stops task %s (%s)", worker, name, ending(event))
        elif event.outcome is not Outcome.SUCCEEDED:
            log = self._log_of(event.task, event.attempt)
            self._logger.error("%s fails task %s (%s; log %s)", worker, name, ending(event), log)
        elif "skipped" in event.result:
            self._logger.info("%s skips task %s (%s)", worker, name, event.result["skipped"])
        else:
            self._logger.info("%s finishes task %s", worker, name)

    def _worker(self, event: Placement) -> str:
        """Return the word `gpu` followed by the entry of the list of GPUs on which the task runs."""
        shown = shown_in(event.reservation)
        if shown[0].startswith(NAMED):
            return "gpu" + shown[0].split(":", 2)[2]
        numbers = [self._labels.get(key, key) for key in shown]
        return ",".join(numbers).replace("GPU ", "gpu", 1).replace("GPU ", "")

    def say(self, sentence: str) -> None:
        """Write a message of the run to the log."""
        super().say(sentence)
        self._logger.info("%s", sentence)

    def hang_up(self) -> None:
        """Stop writing to a console that was closed; continue with the files."""
        super().hang_up()
        for handler in list(self._logger.handlers):
            if not isinstance(handler, logging.FileHandler):
                self._logger.removeHandler(handler)
