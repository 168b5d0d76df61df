"""`scheduler release [ID…|RUN]`: let held tasks start again."""

from __future__ import annotations

from scheduler.cli import request_flags


def main(argv: list[str]) -> int:
    """Send the request to the run's scheduler, or record it for the next scheduler of the run."""
    parser = request_flags.parser("release", "Let held tasks start again.", "scheduler release --run r12")
    args = parser.parse_args(argv)
    return request_flags.ask(args, request_flags.targets_of(args), "release")
