"""`scheduler set ID…|RUN`: change the fields of waiting tasks, or the limits of a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from scheduler.cli import request_flags
from scheduler.cli.flags import FIELD_VALUES
from scheduler.cli.parsing import Parser
from scheduler.core.control.requests import DEVICES, JOBS, PER_DEVICE, WINDOW
from scheduler.core.queue import start_window
from scheduler.core.tasks import begin
from scheduler.core.tasks.fields import BEGIN, SETTABLE
from scheduler.errors import UsageError
from scheduler.runtime import clock

if TYPE_CHECKING:
    from scheduler.app.control.targets import Target


def main(argv: list[str]) -> int:
    """Check the new values, then send the request to the run's scheduler, or record it for the next scheduler of the
    run.
    """
    args = _parser().parse_args(argv)
    fields = _fields(args)
    limits = _limits(args)
    if bool(fields) == bool(limits):
        raise UsageError(
            "set: change either fields of tasks (--priority -5) or limits of a run (-j 4, --max-per-device, --devices)"
        )
    if limits:
        return request_flags.ask(args, _runs(args), "limit", limits)
    return request_flags.ask(args, request_flags.targets_of(args), "set", fields)


def _parser() -> Parser:
    made = request_flags.parser(
        "set",
        "Change the fields of waiting tasks, or the limits of a run. Of running tasks only --priority and --retries\n"
        "change. An empty value removes one: after --memory '' the memory is learned again.",
        "scheduler set 17-40 --priority -5\n         scheduler set r12 -j 8 --devices 0-2",
    )
    tasks = made.add_argument_group("task fields (of waiting and held tasks, and of those that will be tried again)")
    for field in SETTABLE:
        tasks.add_argument(
            field.flag, dest=f"field_{field.attribute}", metavar=FIELD_VALUES[field.column], help=field.help
        )
    run = made.add_argument_group("limits of a run")
    run.add_argument("-j", "--jobs", metavar="N", help="maximum number of tasks of this run at once; 0 pauses it")
    run.add_argument("--max-per-device", metavar="N", help="maximum number of tasks per device, if memory allows")
    run.add_argument(
        "--devices", metavar="DEVICES", help="the run's GPUs on which new tasks may start, such as 0-2; or all"
    )
    run.add_argument(
        "--window", metavar="TIMES", help="local times in which tasks may start, such as 20:00-07:00; '': at any time"
    )
    return made


def _fields(args: argparse.Namespace) -> dict[str, str]:
    """Return the new values of task fields by column; raise UsageError for a value that a list could not have."""
    texts = {}
    for field in SETTABLE:
        text = getattr(args, f"field_{field.attribute}")
        if text is None:
            continue
        try:
            if field.column == BEGIN and text.strip():
                text = begin.absolute(text, clock.wall())
            _ = field.read(text) if text.strip() else None
        except (ValueError, ArithmeticError) as exc:
            raise UsageError(f"{field.flag}: {exc}") from exc
        texts[field.column] = text
    return texts


def _limits(args: argparse.Namespace) -> dict[str, str]:
    limits = {JOBS: args.jobs, PER_DEVICE: args.max_per_device, DEVICES: args.devices, WINDOW: args.window}
    for flag, least in ((JOBS, 0), (PER_DEVICE, 1)):
        text = limits[flag]
        if text and not (text.isascii() and text.isdecimal() and least <= int(text) <= 10**6):
            raise UsageError(f"{flag} {text}: give a whole number from {least}, or '' for no limit")
    if args.devices == "":
        raise UsageError("--devices: name devices, such as 0-2, or all")
    if args.window:
        try:
            start_window.parse(args.window)
        except ValueError as exc:
            raise UsageError(f"--window: {exc}") from exc
    return {flag: text for flag, text in limits.items() if text is not None}


def _runs(args: argparse.Namespace) -> list[Target]:
    """Return the run whose limits are to change; raise UsageError if the command line names tasks, because tasks have
    no limits.
    """
    from scheduler.app.control.targets import Target
    from scheduler.app.observe.run_facts import find_run
    from scheduler.cli.parsing import settings_from
    from scheduler.store.run.catalog import run_word

    several = len(args.who) + (args.run is not None) > 1 or any("," in word for word in args.who)
    if args.task is not None or several:
        raise UsageError("set: -j, --max-per-device, --devices and --window apply to one run, not to tasks")
    return [Target(find_run(settings_from(args), run_word(args.run) or next(iter(args.who), None)))]
