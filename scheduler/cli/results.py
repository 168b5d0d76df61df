"""`scheduler results [RUN]`: show the result of each task."""

from __future__ import annotations

import sys

from scheduler.app.observe import run_facts, run_reader
from scheduler.cli.parsing import Parser, settings_from
from scheduler.ui.export import tables
from scheduler.ui.terminal import closing


def main(argv: list[str]) -> int:
    """Print the results of a run as a table, CSV, JSON or Markdown."""
    parser = Parser(
        "results", "Show the result of each task of a run.", "scheduler results r12 --csv > results.csv"
    ).common()
    parser.run()
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="all columns, comma-separated")
    how.add_argument("--json", action="store_true", help="all columns and the run, as JSON")
    how.add_argument("--md", action="store_true", help="all columns, as a Markdown table")
    parser.secrets()
    args = parser.parse_args(argv)
    reader = run_reader.RunReader(run_facts.find_run(settings_from(args), args.run))
    try:
        rows = reader.rows(secrets=args.show_secrets)
        if args.json:
            tables.write_json(reader.run_facts(), rows, sys.stdout)
        elif args.csv:
            tables.write_csv(rows, sys.stdout)
        elif args.md:
            tables.write_markdown(rows, sys.stdout)
        else:
            tables.write_table(rows, sys.stdout)
            for line in closing.total_lines(reader.totals(), reader.info.number):
                sys.stdout.write(line + "\n")
    finally:
        reader.close()
    return 0
