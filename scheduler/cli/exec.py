"""`scheduler exec -- CMD`: run one task now, pass on its output and its exit code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

from scheduler.cli import flags, submit
from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.attempts.launch_spec import APART
from scheduler.core.tasks.command import ONE_SHOT
from scheduler.core.tasks.fields import BadCell
from scheduler.core.tasks.shell_syntax import refuse_shell_syntax
from scheduler.errors import InputError, UsageError
from scheduler.runtime.settings import Settings
from scheduler.store.queue.queue_link import USUAL

LEARNING_SETTINGS = ("profile", "settle", "margin")
SETTINGS = ("python", "launcher_args", "on", "log_max", *flags.DEVICE_SETTINGS, *LEARNING_SETTINGS)
"""The settings that are flags of `exec`."""


def parser() -> Parser:
    """Build the parser of `exec`."""
    what = (
        "Run one task in your queue as soon as its turn among all users comes. Its output and its exit code are passed "
        "on."
    )
    example = "scheduler exec --device 2 -- python train.py --lr 0.1"
    more_words = "write a command of several words after --, or in quotes"
    made = Parser("exec", what, example, more_words=more_words).common()
    made.add_argument(
        "command",
        nargs="?",
        metavar="COMMAND",
        help="the whole command in quotes, or its words after --; it is run without a shell",
    )
    made.add_argument("-d", "--detach", action="store_true", help="submit it to your queue; print the task's id")
    made.add_argument("--json", action="store_true", help="with -d: print run and task as JSON")
    flags.add_settings(made, "python", "log_max", python="interpreter for a script that is named without a program")
    fields = made.add_argument_group("task fields")
    flags.add_task_fields(fields, leave_out=("ThreadPercentage",))  # it has an effect only under MPS, never used here
    flags.add_launcher_args(made)
    flags.add_on(made)
    devices = made.add_argument_group("devices (with these, or with CUDA_VISIBLE_DEVICES set, it is a run of its own)")
    flags.add_devices(devices)
    flags.add_settings(devices, *flags.DEVICE_SETTINGS)
    flags.add_settings(
        made.add_argument_group("memory profiles (with these it is a run of its own)"), *LEARNING_SETTINGS
    )
    return made


def main(argv: list[str]) -> int:
    """Accept the task, run it, and return its exit code."""
    argv, words = flags.split_at_command(argv)
    args = parser().parse_args(argv)
    if args.json and not args.detach:
        raise UsageError("--json goes with -d; without it the task's own output is printed")
    settings = settings_from(args, *SETTINGS)
    command, fields = _command(args.command, words), flags.checked_fields(flags.task_fields(args))
    own = _settings_of_a_run(args)
    if args.detach:
        _refuse_settings_of_a_run(own)
        python = submit.chosen_python(settings)
        rows = submit.one_command(command, fields, python, ONE_SHOT)
        return submit.send("", rows, python, settings, USUAL, as_json=args.json)
    from scheduler.app.run import exec

    if "Stderr" not in fields and exec.streams_differ():
        fields = {**fields, "Stderr": APART}
    if own or (os.environ.get("CUDA_VISIBLE_DEVICES") and not settings.on):
        return _run_alone(command, fields, settings, args.devices)
    return _submit(command, fields, settings)


def _submit(command: Sequence[str], fields: Mapping[str, str], settings: Settings) -> int:
    """Run the task in the user's standing queue, and return its exit code."""
    from scheduler.app.queue import exec_client
    from scheduler.app.queue.submit import submit as accept

    python = submit.chosen_python(settings)
    form, rows, _ = submit.one_command(command, fields, python, ONE_SHOT)
    try:
        accepted = accept(form, rows, python, settings, USUAL)
    except InputError as exc:
        raise UsageError(flags.about_flag(exc)) from exc
    submit.print_hints(accepted.hints)
    return exec_client.follow(accepted, USUAL, fields, settings)


def _run_alone(command: Sequence[str], fields: Mapping[str, str], settings: Settings, devices: str) -> int:
    """Run the task as a separate run, with devices and settings of its own, and return its exit code."""
    from scheduler.app.run import exec
    from scheduler.app.run.options import RunOptions, this_python
    from scheduler.app.run.task_list import one_listing

    listing = one_listing(command, fields, this_python(settings), ONE_SHOT)
    options = RunOptions(devices=devices, keep_going=True)
    try:
        return exec.run(listing, options, settings, exec.exec_view).exit_code
    except InputError as exc:
        raise UsageError(flags.about_flag(exc)) from exc


def _settings_of_a_run(args: argparse.Namespace) -> list[str]:
    """Return those of the given flags that apply to a whole run, and not to one task of the queue."""
    given = ["--devices"] if args.devices != "auto" else []
    names = [name for name in SETTINGS if name not in ("python", "launcher_args", "on")]
    return given + [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]


def _refuse_settings_of_a_run(given: Sequence[str]) -> None:
    """Raise UsageError for flags that cannot apply to one task of the queue."""
    if given:
        raise UsageError(
            f"{given[0]} does not go with -d: the task joins the queue, which has its own. Leave it out, name a device "
            "with --device, or write the task into a list for scheduler run -d"
        )


def _command(quoted: str | None, words: Sequence[str] | None) -> Sequence[str]:
    """Return the command as words: from one quoted string, or from the words after `--`."""
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
