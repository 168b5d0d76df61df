"""`scheduler logs ID…|RUN [-f] [-n N] [--failed]`: print the output of tasks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.cli import flags, request_flags
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.errors import StateError, UsageError
from scheduler.ui.terminal.sink import hint
from scheduler.ui.text import TextCleaner, clean

if TYPE_CHECKING:
    from scheduler.app.control.targets import Target
    from scheduler.app.observe.wait import TaskLogReader

FEW = 10
"""The number of last lines that are printed for each task if the command line names several tasks."""


def main(argv: list[str]) -> int:
    """Print the log of each task's last attempt; with -f, follow the log of one task until the task has ended."""
    args = _parser().parse_args(argv)
    most = flags.optional_count("-n", args.lines)
    from scheduler.app.control.targets import runs_or_tasks
    from scheduler.app.observe.wait import TaskLogReader

    if not args.who and not args.failed:
        raise UsageError("logs: name tasks or a run, such as scheduler logs 17 or scheduler logs r3; or give --failed")
    targets = runs_or_tasks(settings_from(args), args.who, None, None)
    single = len(targets) == 1 and len(targets[0].tasks) == 1 and not args.failed
    if not single:
        if args.follow:
            raise UsageError("logs -f follows the output of one task: scheduler top shows all of them")
        return _several(targets, args, most)
    log = TaskLogReader(targets[0].info, targets[0].tasks[0])
    if args.follow:
        if most is not None:
            raise UsageError("logs -f prints the whole output: leave -n out")
        return _follow(log)
    if not log.attempt and _has_not_started(log):
        raise StateError(_not_started(log))
    if args.json:
        show((), {"run": log.info.number, **_facts(log, most)}, as_json=True)
        return 0
    _show(log.news() if most is None else [log.last_lines(most)])
    return 0


def _parser() -> Parser:
    parser = Parser(
        "logs",
        "Print the output of a task's last attempt; of several tasks or a run the last lines of each.",
        "scheduler logs 17 -f\n         scheduler logs r3 --failed -n 20",
    ).common()
    parser.add_argument(
        "who", nargs="*", metavar="ID|RUN", help=f"{request_flags.IDS}; or a run: r3 or a name (all its tasks)"
    )
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        help=f"only the last N lines of each task (default: all of one task, {FEW} of several)",
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="only tasks that failed or ran out of memory or time (default: latest run)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "-f", "--follow", action="store_true", help="follow the output, through all attempts, until the task has ended"
    )
    how.add_argument("--json", action="store_true", help="print JSON, with the path of each log")
    return parser


def _several(targets: Sequence[Target], args: argparse.Namespace, most: int | None) -> int:
    """Print the last lines of several tasks, each under its id, name and state; tasks without output are left out."""
    from scheduler.app.observe.wait import logs_of

    found: list[dict[str, Any]] = []
    for target in targets:
        for log, name, state in logs_of(target, failed=args.failed):
            if args.json:
                found.append({"run": log.info.number, **_facts(log, most or FEW), "name": name, "state": str(state)})
            else:
                sys.stdout.write(f"{chr(10) if found else ''}==> task {log.task}  {clean(name)}  {state}\n")
                sys.stdout.flush()
                text = log.last_lines(most or FEW)
                _show([text, b"" if text.endswith(b"\n") or not text else b"\n"])
                found.append({})
    if args.json:
        show((), {"tasks": found}, as_json=True)
    elif not found:
        hint("none of these tasks failed" if args.failed else "none of these tasks has any output")
    return 0


def _facts(log: TaskLogReader, most: int | None) -> dict[str, Any]:
    text = b"".join(log.news()) if most is None else log.last_lines(most)
    return {"task": log.task, "attempt": log.attempt, "log": log.path, "text": text.decode("utf-8", "replace")}


def _show(chunks: Iterable[bytes]) -> None:
    """Print chunks of a log: unchanged to a file or a pipe, without control sequences to a terminal."""
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
    """Tell whether a task without a log has not started yet; if it has ended, print a hint instead."""
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
