"""`scheduler doctor`: check what works on this machine, and explain how to fix what does not."""

from __future__ import annotations

import sys
from shutil import get_terminal_size

from scheduler import __version__
from scheduler.cli.flags import add_on
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.ui.terminal.sink import hint

NARROWEST, WIDEST = 60, 100


def main(argv: list[str]) -> int:
    """Print the report; return 1 if a problem must be fixed, else 0."""
    parser = Parser(
        "doctor",
        "Check what works on this machine, and explain how to fix what does not. Nothing is changed without --clean.\n"
        "Each line begins with ok, !! (needs attention) or -- (not present). Exit code 1: something must be fixed.",
        "scheduler doctor",
    ).common()
    parser.add_argument("--json", action="store_true", help="print JSON, with all settings")
    parser.add_argument(
        "--clean", action="store_true", help="first end unused MPS daemons that your killed schedulers left"
    )
    add_on(parser)
    args = parser.parse_args(argv)
    if args.clean:
        from scheduler.app.run.mps_setup import clean_left

        for sentence in clean_left(settings_from(args)):
            hint(sentence) if args.json else sys.stdout.write(f"{sentence}\n")
    from scheduler.app.doctor.checks import examine

    page = examine({"state": args.state, "on": args.on}, __version__)
    width = min(WIDEST, max(NARROWEST, get_terminal_size((WIDEST, 24)).columns))
    show(page.lines(width), page.to_dict(), as_json=args.json)
    return page.exit_code
