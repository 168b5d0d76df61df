"""`scheduler exec -- CMD`: run one task now, pass on its output and its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from scheduler.app.run import exec
from scheduler.app.run.options import RunOptions, this_python
from scheduler.app.run.task_list import TaskList, one_listing
from scheduler.cli import flags
from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.tasks.command import ONE_SHOT
from scheduler.core.tasks.fields import FIELDS, BadCell
from scheduler.core.tasks.shell_syntax import refuse_shell_syntax
from scheduler.errors import InputError, UsageError
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.sink import hint

LEARNING_SETTINGS = ("profile", "settle", "margin")
SETTINGS = ("python", "log_max", *flags.DEVICE_SETTINGS, *LEARNING_SETTINGS)
"""Settings that are flags of `exec`."""


def parser() -> Parser:
    """Build the parser of `exec`."""
    what = "Run one task as soon as its turn among all users comes. Its output and its exit code are passed on."
    made = Parser("exec", what, "scheduler exec --device 2 -- python train.py --lr 0.1").common()
    made.add_argument(
        "command",
        nargs="?",
        metavar="COMMAND",
        help="the whole command in quotes, or its words after --; it is run without a shell",
    )
    made.add_argument("-d", "--detach", action="store_true", help="run in the background; print the task's id")
    made.add_argument("--json", action="store_true", help="with -d: print run, task and pid as JSON")
    flags.add_settings(made, "python", "log_max", python="interpreter for a script that is named without a program")
    fields = made.add_argument_group("task fields")
    flags.add_task_fields(fields, leave_out=("ThreadPercentage",))  # it has an effect only under MPS, never used here
    devices = made.add_argument_group("devices")
    flags.add_devices(devices)
    flags.add_settings(devices, *flags.DEVICE_SETTINGS)
    flags.add_settings(made.add_argument_group("memory profiles"), *LEARNING_SETTINGS)
    return made


def main(argv: list[str]) -> int:
    """Accept the task, run it, and return its exit code."""
    argv, words = flags.split_at_command(argv)
    args = parser().parse_args(argv)
    if args.json and not args.detach:
        raise UsageError("--json goes with -d; without it the task's own output is printed")
    settings = settings_from(args, *SETTINGS)
    command = _command(args.command, words)
    python = this_python(settings)
    fields = flags.task_fields(args)
    apart = "Stderr" not in fields and not args.detach and exec.streams_differ()
    listing = one_listing(command, {**fields, **({"Stderr": "apart"} if apart else {})}, python, ONE_SHOT)
    options = RunOptions(devices=args.devices, keep_going=True)
    try:
        if args.detach:
            return _detached(listing, options, settings, python, as_json=args.json)
        return exec.run(listing, options, settings, python, exec.exec_view).exit_code
    except InputError as exc:
        raise UsageError(about_flag(exc)) from exc


def _detached(listing: TaskList, options: RunOptions, settings: Settings, python: str, *, as_json: bool) -> int:
    """Run the task in a process without a terminal, and print its id."""
    from scheduler.app.run import detach, run_loop, start

    started = detach.detach(lambda: (start.begin(listing, options, settings, python), ()), run_loop.first_lines)
    if started.trouble:
        raise detach.as_error(started)
    for sentence in started.hints:
        hint(sentence)
    facts = {"format": 1, "run": started.number, "task": started.first, "pid": started.pid, "log": started.log}
    sys.stdout.write((json.dumps(facts) if as_json else str(started.first)) + "\n")
    return 0


def _command(quoted: str | None, words: Sequence[str] | None) -> Sequence[str]:
    """Return the command: one quoted string, or the words after `--`."""
    if words is None:
        _refuse_shell_syntax(quoted or "")
        return [quoted] if quoted is not None else []
    if quoted is not None:
        raise UsageError(f"give the command once: {quoted!r} stands before -- and another command after it")
    return words


def _refuse_shell_syntax(quoted: str) -> None:
    try:
        refuse_shell_syntax(quoted)
    except BadCell as exc:
        raise UsageError(str(exc)) from exc


def about_flag(exc: InputError) -> str:
    """Return the message of an input error, with the flag instead of the column."""
    if exc.column is None:
        return str(exc)
    flag = next((field.flag for field in FIELDS if field.column == exc.column and field.flag), "")
    return f"{flag}: {exc.message}" if flag else exc.message
