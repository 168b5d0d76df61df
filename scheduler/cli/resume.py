"""`scheduler resume [RUN]`: take a run over after a crash, a reboot or Ctrl-C."""

from __future__ import annotations

import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.wiring import reading, starting


def main(argv: list[str]) -> int:
    """Adopt what runs, read what ended, start what waits."""
    parser = Parser(
        "resume",
        "Take a run over that no scheduler holds: nothing runs twice, nothing is forgotten.",
        "scheduler resume 12",
    ).common()
    parser.add_argument("run", nargs="?", metavar="RUN", help="number or name; without it the latest")
    parser.add_argument("--json", action="store_true", help="at the end, print the results as JSON on standard output")
    args = parser.parse_args(argv)
    settings = settings_from(args)
    info = reading.find_run(settings, args.run)
    session = starting.take_over(info, settings)
    try:
        ended = session.go(sys.stderr if args.json else sys.stdout, session.resuming_words())
        if args.json:
            session.write_json(sys.stdout)
    finally:
        session.close()
    return ended.exit_code
