"""`scheduler cancel ID…`: cancel running or waiting tasks for good."""

from __future__ import annotations

from scheduler.cli import request_flags
from scheduler.cli.parsing import Parser, settings_from


def main(argv: list[str]) -> int:
    """Send the request to the run's scheduler, or record it for the next scheduler of the run."""
    parser = Parser(
        "cancel",
        "Cancel tasks for good: running ones are stopped (stop signal, grace, KILL), waiting ones never start.",
        "scheduler cancel 17-40,52",
    ).common()
    parser.add_argument("who", nargs="+", metavar="ID", help=f"{request_flags.IDS} (scheduler stop stops a whole run)")
    parser.json()
    args = parser.parse_args(argv)
    from scheduler.app.control.targets import tasks

    return request_flags.ask(args, tasks(settings_from(args), args.who), "cancel")
