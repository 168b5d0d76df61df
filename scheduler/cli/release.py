"""`scheduler release [ID…|RUN]`: let held tasks wait for their turn again."""

from __future__ import annotations

from scheduler.cli import asking


def main(argv: list[str]) -> int:
    """Ask the run's scheduler, or leave it to the next one."""
    parser = asking.parser("release", "Let held tasks wait for their turn again.", "scheduler release --run 12")
    args = parser.parse_args(argv)
    return asking.ask(args, asking.meant(args), "release")
