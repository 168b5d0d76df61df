"""`scheduler logs ID [-f]`: what a task printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import StateError, UsageError
from scheduler.view.sink import hint
from scheduler.view.words import Cleaner

if TYPE_CHECKING:
    from scheduler.wiring.waiting import Log


def main(argv: list[str]) -> int:
    """Print the log of its last attempt; with -f what comes, too, until the task is over."""
    parser = Parser("logs", "What a task printed in its last attempt.", "scheduler logs 17 -f").common()
    parser.add_argument("task", metavar="ID", help="a task: 17, last")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-f", "--follow", action="store_true", help="go on, over all attempts, until the task is over")
    how.add_argument("--json", action="store_true", help="as JSON, with its path")
    args = parser.parse_args(argv)
    from scheduler.wiring.addressing import tasks
    from scheduler.wiring.waiting import Log

    targets = tasks(settings_from(args), [args.task])
    if len(targets) != 1 or len(targets[0].tasks) != 1:
        raise UsageError(f"logs {args.task}: one task at a time, like scheduler logs {targets[0].tasks[0]}")
    log = Log(targets[0].info, targets[0].tasks[0])
    if args.follow:
        return _follow(log)
    if not log.attempt and _waits(log):
        raise StateError(_none(log))
    if args.json:
        text = b"".join(log.news()).decode("utf-8", "replace")
        facts = {"run": log.info.number, "task": log.task, "attempt": log.attempt, "log": log.path, "text": text}
        sys.stdout.write(json.dumps({"format": 1, **facts}) + "\n")
        return 0
    _show(log.news())
    return 0


def _show(chunks: Iterable[bytes]) -> None:
    """What a task printed, as it stands where it goes into a file or a pipe; a terminal gets nothing to act upon."""
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return
    cleaner = Cleaner()
    for chunk in chunks:
        sys.stdout.write(cleaner.clean(chunk))
        sys.stdout.flush()
    sys.stdout.write(cleaner.clean(b"", last=True))


def _follow(log: Log) -> int:
    _show(log.follow(lambda attempt: hint(f"attempt {attempt} of task {log.task}")))
    if not log.attempt and _waits(log):
        raise StateError(_none(log))
    return 0


def _waits(log: Log) -> bool:
    """Whether a task that has printed nothing has not even been started; says so where it has."""
    from scheduler.core.model import UNFINISHED
    from scheduler.wiring.waiting import state_of

    state = state_of(log.info, log.task)
    if state not in UNFINISHED:
        hint(f"task {log.task} of run {log.info.number} printed nothing: {state}")
    return state in UNFINISHED


def _none(log: Log) -> str:
    return (
        f"task {log.task} of run {log.info.number} has not been started yet: scheduler logs {log.task} -f waits for "
        f"that while its run goes on (scheduler list {log.info.number} shows how it stands)"
    )
