"""`scheduler doctor`: what the scheduler sees and can do here, and the cure for what is missing."""

from __future__ import annotations

import json
import sys
from shutil import get_terminal_size

from scheduler import __version__
from scheduler.cli.parsing import Parser
from scheduler.view import doctor

NARROWEST, WIDEST = 60, 100


def main(argv: list[str]) -> int:
    """Print the page; exit code 1 where something has to be repaired."""
    parser = Parser(
        "doctor",
        "What the scheduler sees and can do here, and the cure for what is missing. Changes nothing.\n"
        "Before each line: ok; !! needs attention; -- is not there. Exit code 1 where something has to be repaired.",
        "scheduler doctor",
    ).common()
    parser.add_argument("--json", action="store_true", help="as JSON, with all settings")
    args = parser.parse_args(argv)
    from scheduler.wiring.examining import examine

    found = examine({"state": args.state}, __version__)
    page = doctor.page(found)
    if args.json:
        sys.stdout.write(json.dumps(doctor.data(found, page), indent=1) + "\n")
    else:
        width = min(WIDEST, max(NARROWEST, get_terminal_size((WIDEST, 24)).columns))
        sys.stdout.writelines(line + "\n" for line in doctor.lines(page, width))
    return page.exit_code
