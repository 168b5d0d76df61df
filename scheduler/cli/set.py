"""`scheduler set ID…|RUN`: change what waiting tasks ask for, or what a run's new starts may use."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from scheduler.cli import asking
from scheduler.cli.parsing import Parser
from scheduler.core.control import DEVICES, JOBS, PER_DEVICE
from scheduler.core.fields import SETTABLE
from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.wiring.addressing import Target


def main(argv: list[str]) -> int:
    """Check what is said, then ask the run's scheduler, or leave it to the next one."""
    args = _parser().parse_args(argv)
    fields = _fields(args)
    limits = _limits(args)
    if bool(fields) == bool(limits):
        raise UsageError(
            "set: say what is to change, of tasks (--priority -5) or of a run (-j 4, --max-per-device, --devices)"
        )
    if limits:
        return asking.ask(args, _runs(args), "limit", limits)
    return asking.ask(args, asking.meant(args), "set", fields)


def _parser() -> Parser:
    made = asking.parser(
        "set",
        "Change what waiting tasks ask for, or what new starts of a run may use; what runs goes on as it is.\n"
        "An empty value takes one back: --memory '' is learned again.",
        "scheduler set 17-40 --priority -5\n         scheduler set 12 -j 8 --devices 0-2",
    )
    tasks = made.add_argument_group("of tasks that wait, are held, or are to be tried again")
    for field in SETTABLE:
        tasks.add_argument(field.flag, dest=f"field_{field.attribute}", metavar="X", help=field.help)
    run = made.add_argument_group("of a run (here a number is a run's)")
    run.add_argument("-j", "--jobs", metavar="N", help="tasks of this run at once; 0 pauses it")
    run.add_argument("--max-per-device", metavar="N", help="tasks at once on a device, if their memory fits")
    run.add_argument(
        "--devices", metavar="WHICH", help="the GPUs of this run that new starts may use, like 0-2; or all"
    )
    return made


def _fields(args: argparse.Namespace) -> dict[str, str]:
    """What is said of tasks, by column; refuses what no cell could say either."""
    said = {}
    for field in SETTABLE:
        text = getattr(args, f"field_{field.attribute}")
        if text is None:
            continue
        try:
            _ = field.read(text) if text.strip() else None
        except (ValueError, ArithmeticError) as exc:
            raise UsageError(f"{field.flag}: {exc}") from exc
        said[field.column] = text
    return said


def _limits(args: argparse.Namespace) -> dict[str, str]:
    said = {JOBS: args.jobs, PER_DEVICE: args.max_per_device, DEVICES: args.devices}
    for flag, least in ((JOBS, 0), (PER_DEVICE, 1)):
        text = said[flag]
        if text and not (text.isascii() and text.isdecimal() and least <= int(text) <= 10**6):
            raise UsageError(f"{flag} {text}: write a whole number from {least}, or '' for no limit")
    if args.devices == "":
        raise UsageError("--devices: say which, like 0-2, or all")
    return {flag: text for flag, text in said.items() if text is not None}


def _runs(args: argparse.Namespace) -> list[Target]:
    """The one run that is meant: a number is one here, since tasks have no such limits."""
    from scheduler.cli.parsing import settings_from
    from scheduler.wiring.addressing import Target
    from scheduler.wiring.reading import find_run

    several = len(args.who) + (args.run is not None) > 1 or any("," in word for word in args.who)
    if args.task is not None or several:
        raise UsageError("set: -j, --max-per-device and --devices are of one run, not of tasks")
    return [Target(find_run(settings_from(args), args.run or next(iter(args.who), None)))]
