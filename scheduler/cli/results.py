"""`scheduler results [RUN]`: what became of each task."""

from __future__ import annotations

import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.view import closing, tables
from scheduler.wiring import reading


def main(argv: list[str]) -> int:
    """Print a run's results in the asked format."""
    parser = Parser(
        "results", "What became of each task of a run.", "scheduler results 12 --csv > results.csv"
    ).common()
    parser.add_argument("run", nargs="?", metavar="RUN", help="number or name; without it the latest")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="all columns, comma-separated")
    how.add_argument("--json", action="store_true", help="all columns and the run, as JSON")
    how.add_argument("--md", action="store_true", help="all columns, as a Markdown table")
    parser.secrets()
    args = parser.parse_args(argv)
    telling = reading.Telling(reading.find_run(settings_from(args), args.run))
    try:
        rows = telling.rows(secrets=args.show_secrets)
        if args.json:
            tables.write_json(telling.run_facts(), rows, sys.stdout)
        elif args.csv:
            tables.write_csv(rows, sys.stdout)
        elif args.md:
            tables.write_markdown(rows, sys.stdout)
        else:
            tables.write_table(rows, sys.stdout)
            for line in closing.total_lines(telling.totals(), telling.info.number):
                sys.stdout.write(line + "\n")
    finally:
        telling.close()
    return 0
