"""`scheduler logs ID [-f]`: print the output of a task."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.errors import StateError, UsageError
from scheduler.ui.terminal.sink import hint
from scheduler.ui.text import TextCleaner

if TYPE_CHECKING:
    from scheduler.app.observe.wait import TaskLogReader


def main(argv: list[str]) -> int:
    """Print the log of the task's last attempt; with -f, follow it until the task has ended."""
    parser = Parser("logs", "Print the output of a task's last attempt.", "scheduler logs 17 -f").common()
    parser.add_argument("task", metavar="ID", help="a task: 17, last")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "-f", "--follow", action="store_true", help="follow the output, through all attempts, until the task has ended"
    )
    how.add_argument("--json", action="store_true", help="print JSON, with the log's path")
    args = parser.parse_args(argv)
    from scheduler.app.control.targets import tasks
    from scheduler.app.observe.wait import TaskLogReader

    targets = tasks(settings_from(args), [args.task])
    if len(targets) != 1 or len(targets[0].tasks) != 1:
        raise UsageError(f"logs {args.task}: name one task, such as scheduler logs {targets[0].tasks[0]}")
    log = TaskLogReader(targets[0].info, targets[0].tasks[0])
    if args.follow:
        return _follow(log)
    if not log.attempt and _has_not_started(log):
        raise StateError(_not_started(log))
    if args.json:
        text = b"".join(log.news()).decode("utf-8", "replace")
        facts = {"run": log.info.number, "task": log.task, "attempt": log.attempt, "log": log.path, "text": text}
        show((), facts, as_json=True)
        return 0
    _show(log.news())
    return 0


def _show(chunks: Iterable[bytes]) -> None:
    """Print chunks of a log: unchanged into a file or a pipe, without control sequences on a terminal."""
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return
    cleaner = TextCleaner()
    for chunk in chunks:
        sys.stdout.write(cleaner.clean(chunk))
        sys.stdout.flush()
    sys.stdout.write(cleaner.clean(b"", last=True))


def _follow(log: TaskLogReader) -> int:
    _show(log.follow(lambda attempt: hint(f"attempt {attempt} of task {log.task}")))
    if not log.attempt and _has_not_started(log):
        raise StateError(_not_started(log))
    return 0


def _has_not_started(log: TaskLogReader) -> bool:
    """Tell whether a task without a log has not started yet; print a hint if it has ended."""
    from scheduler.app.observe.wait import state_of
    from scheduler.core.model import UNFINISHED

    state = state_of(log.info, log.task)
    if state not in UNFINISHED:
        hint(f"task {log.task} of run {log.info.number} has no output: {state}")
    return state in UNFINISHED


def _not_started(log: TaskLogReader) -> str:
    return (
        f"task {log.task} of run {log.info.number} has not started yet: scheduler logs {log.task} -f waits for it, "
        f"scheduler list r{log.info.number} shows its state"
    )
