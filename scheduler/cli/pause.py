"""`scheduler pause [RUN|--all]`: start nothing more until the run is unpaused, or for a time."""

from __future__ import annotations

from scheduler.cli import flags, pause_targets
from scheduler.core.control.requests import PAUSE, SAVE
from scheduler.errors import UsageError
from scheduler.runtime import clock


def main(argv: list[str]) -> int:
    """Send the request to each run's scheduler, or record it for the next scheduler of the run."""
    parser = pause_targets.parser(
        "pause",
        "Start no more tasks until scheduler unpause, or for a time. Running tasks continue.",
        "scheduler pause --all --for 1h",
    )
    parser.add_argument("--for", dest="time", metavar="TIME", help="tasks start again after this time, such as 1h")
    parser.add_argument(
        "--stop", action="store_true", help="also ask running Resumable tasks to save; they come back afterwards"
    )
    args = parser.parse_args(argv)
    until = 0.0
    if args.time is not None:
        seconds = flags.duration("--for", args.time)
        if not 0 < seconds <= flags.LARGEST:
            raise UsageError(f"--for {args.time}: give a time above 0, such as 1h")
        until = clock.wall() + seconds
    said = {PAUSE: repr(until), **({SAVE: "yes"} if args.stop else {})}
    return pause_targets.ask(args, said)
