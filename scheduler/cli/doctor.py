"""`scheduler doctor`: what the scheduler sees and can do here, and the cure for what is missing."""

from __future__ import annotations

import json
import sys
from shutil import get_terminal_size

from scheduler import __version__
from scheduler.cli.parsing import Parser, settings_from
from scheduler.view import doctor
from scheduler.view.sink import hint

NARROWEST, WIDEST = 60, 100


def main(argv: list[str]) -> int:
    """Print the page; exit code 1 where something has to be repaired."""
    parser = Parser(
        "doctor",
        "What the scheduler sees and can do here, and the cure for what is missing. Changes nothing but by --clean.\n"
        "Before each line: ok; !! needs attention; -- is not there. Exit code 1 where something has to be repaired.",
        "scheduler doctor",
    ).common()
    parser.add_argument("--json", action="store_true", help="as JSON, with all settings")
    parser.add_argument(
        "--clean", action="store_true", help="first end what killed schedulers of yours left: MPS daemons without users"
    )
    args = parser.parse_args(argv)
    if args.clean:
        from scheduler.wiring.sharing import clean_left

        for sentence in clean_left(settings_from(args)):
            hint(sentence) if args.json else sys.stdout.write(f"{sentence}\n")
    from scheduler.wiring.examining import examine

    found = examine({"state": args.state}, __version__)
    page = doctor.page(found)
    if args.json:
        sys.stdout.write(json.dumps(doctor.data(found, page), indent=1) + "\n")
    else:
        width = min(WIDEST, max(NARROWEST, get_terminal_size((WIDEST, 24)).columns))
        sys.stdout.writelines(line + "\n" for line in doctor.lines(page, width))
    return page.exit_code
