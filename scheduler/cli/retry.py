"""`scheduler retry [RUN|ID…]`: queue failed, timed-out and cancelled tasks again."""

from __future__ import annotations

from scheduler.cli import request_flags


def main(argv: list[str]) -> int:
    """Send the request to the run's scheduler, or record it for the next scheduler of the run."""
    parser = request_flags.parser(
        "retry",
        "Queue tasks again that failed, ran out of memory or time, or were cancelled.",
        "scheduler retry 17",
    )
    args = parser.parse_args(argv)
    return request_flags.ask(args, request_flags.targets_of(args), "retry")
