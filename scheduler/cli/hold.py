"""`scheduler hold [ID…|RUN]`: keep waiting tasks from starting until they are released."""

from __future__ import annotations

from scheduler.cli import asking


def main(argv: list[str]) -> int:
    """Ask the run's scheduler, or leave it to the next one."""
    parser = asking.parser(
        "hold",
        "Keep waiting tasks from starting until they are released; what runs goes on.",
        "scheduler hold 17-40,52",
    )
    args = parser.parse_args(argv)
    return asking.ask(args, asking.meant(args), "hold")
