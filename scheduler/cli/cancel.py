"""`scheduler cancel ID…`: end tasks for good, whether they run or wait."""

from __future__ import annotations

from scheduler.cli import asking
from scheduler.cli.parsing import Parser, settings_from


def main(argv: list[str]) -> int:
    """Ask the run's scheduler, or leave it to the next one."""
    parser = Parser(
        "cancel",
        "End tasks for good: what runs is stopped (stop signal, grace, KILL of its tree), what waits never starts.",
        "scheduler cancel 17-40,52",
    ).common()
    parser.add_argument("who", nargs="+", metavar="ID", help=f"{asking.IDS} (scheduler stop ends a whole run)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    from scheduler.wiring.addressing import tasks

    return asking.ask(args, tasks(settings_from(args), args.who), "cancel")
