"""`scheduler hold [ID…|RUN]`: keep waiting tasks from starting until they are released."""

from __future__ import annotations

from scheduler.cli import request_flags


def main(argv: list[str]) -> int:
    """Send the request to the run's scheduler, or record it for the next scheduler of the run."""
    parser = request_flags.parser(
        "hold",
        "Keep waiting tasks from starting until they are released; running tasks continue.",
        "scheduler hold 17-40,52",
    )
    args = parser.parse_args(argv)
    return request_flags.ask(args, request_flags.targets_of(args), "hold")
