"""`scheduler list [RUN] [--state S]`: the tasks of a run and where they stand."""

from __future__ import annotations

import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.model import State
from scheduler.errors import UsageError
from scheduler.view import tables
from scheduler.wiring import reading


def main(argv: list[str]) -> int:
    """Print a run's tasks."""
    parser = Parser("list", "The tasks of a run and where they stand.", "scheduler list 12 --state failed")
    parser.add_argument("run", nargs="?", metavar="RUN", help="number or name; without it the latest")
    parser.add_argument("--state", dest="wanted", metavar="S", help="only these, e.g. waiting or failed,oom")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    telling = reading.Telling(reading.find_run(settings_from(args), args.run))
    try:
        rows = telling.rows(_states(args.wanted))
        if args.json:
            tables.write_json(telling.run_facts(), rows, sys.stdout)
        else:
            sys.stdout.write(f"run {telling.info.number}  {telling.info.what}\n")
            tables.write_table(rows, sys.stdout)
    finally:
        telling.close()
    return 0


def _states(text: str | None) -> frozenset[State] | None:
    if text is None:
        return None
    try:
        return frozenset(State(word.strip()) for word in text.split(","))
    except ValueError as exc:
        raise UsageError(f"--state {text}: a task is {', '.join(State)}") from exc
