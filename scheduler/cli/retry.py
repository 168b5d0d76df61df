"""`scheduler retry [RUN|ID…]`: failed, timed out and cancelled tasks wait again."""

from __future__ import annotations

from scheduler.cli import asking


def main(argv: list[str]) -> int:
    """Ask the run's scheduler, or leave it to the next one."""
    parser = asking.parser(
        "retry", "Let tasks wait again that failed, ran out of memory or time, or were cancelled.", "scheduler retry 17"
    )
    args = parser.parse_args(argv)
    return asking.ask(args, asking.meant(args), "retry")
