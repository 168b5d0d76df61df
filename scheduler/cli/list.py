"""`scheduler list [RUN] [--state S]`: the tasks of a run and where they stand."""

from __future__ import annotations

import sys
import time

from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.model import State
from scheduler.errors import UsageError
from scheduler.view import ahead, tables
from scheduler.wiring import reading


def main(argv: list[str]) -> int:
    """Print a run's tasks."""
    parser = Parser("list", "The tasks of a run and where they stand.", "scheduler list 12 --state failed")
    parser.add_argument("run", nargs="?", metavar="RUN", help="number or name; without it the latest")
    parser.add_argument("--state", dest="wanted", metavar="S", help="only these, e.g. waiting or failed,oom")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.secrets()
    args = parser.parse_args(argv)
    telling = reading.Telling(reading.find_run(settings_from(args), args.run))
    try:
        foreseen = reading.foreseen(telling.info)
        rows = ahead.with_expected(telling.rows(_states(args.wanted), secrets=args.show_secrets), foreseen)
        if args.json:
            tables.write_json({**telling.run_facts(), "expected": ahead.of_program(foreseen)}, rows, sys.stdout)
        else:
            left = ahead.of_run(foreseen, time.time())
            sys.stdout.write(f"run {telling.info.number}  {telling.info.what}{f'  {left}' if left else ''}\n")
            tables.write_table(rows, sys.stdout, expected=foreseen is not None)
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
