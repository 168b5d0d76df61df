"""The runs that `pause` and `unpause` change: one by number or name, the latest, or all that have not ended."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scheduler.cli import request_flags
from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.control.request_kinds import RunRequest
from scheduler.errors import NoSuchRun, UsageError

if TYPE_CHECKING:
    from scheduler.app.control.targets import Target


def parser(verb: str, description: str, example: str) -> Parser:
    """Build the parser of a verb that applies to whole runs."""
    made = Parser(verb, description, example).common()
    made.run()
    made.add_argument("--all", action="store_true", help="all my runs and queues on this machine that have not ended")
    return made.json()


def ask(args: argparse.Namespace, said: Mapping[str, str]) -> int:
    """Send the request with the values in `said` to each run, and print the answers."""
    return request_flags.ask(args, _targets(args), RunRequest.LIMIT, said)


def _targets(args: argparse.Namespace) -> list[Target]:
    from scheduler.app.control.targets import Target
    from scheduler.app.observe.run_facts import all_runs, facts_of_run, find_run

    settings = settings_from(args)
    if not args.all:
        return [Target(find_run(settings, args.run))]
    if args.run is not None:
        raise UsageError(f"--all means every run: leave {args.run} out, or --all")
    here = [info for info in all_runs(settings) if not info.elsewhere]
    found = [Target(info) for info in here if info.alive or not facts_of_run(info)["over"]]
    if not found:
        raise NoSuchRun("you have no unfinished run: scheduler list shows recently ended tasks")
    return found
