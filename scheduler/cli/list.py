"""`scheduler list [RUN] [--state S]`: list the tasks of a run and their states."""

from __future__ import annotations

import sys
import time

from scheduler.app.observe import run_reader
from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.model import State
from scheduler.errors import UsageError
from scheduler.ui.export import tables
from scheduler.ui.verbs import eta


def main(argv: list[str]) -> int:
    """Print a run's tasks."""
    parser = Parser("list", "List the tasks of a run and their states.", "scheduler list 12 --state failed")
    parser.run()
    parser.add_argument(
        "--state", dest="wanted", metavar="S", help="only tasks in these states, such as waiting or failed,oom"
    )
    parser.json()
    parser.secrets()
    args = parser.parse_args(argv)
    reader = run_reader.RunReader(run_reader.find_run(settings_from(args), args.run))
    try:
        forecast = run_reader.forecast_of(reader.info)
        rows = eta.with_expected(reader.rows(_states(args.wanted), secrets=args.show_secrets), forecast)
        if args.json:
            tables.write_json({**reader.run_facts(), "expected": forecast and forecast.run_to_dict()}, rows, sys.stdout)
        else:
            left = eta.of_run(forecast, time.time())
            sys.stdout.write(f"run {reader.info.number}  {reader.info.what}{f'  {left}' if left else ''}\n")
            tables.write_table(rows, sys.stdout, expected=forecast is not None)
    finally:
        reader.close()
    return 0


def _states(text: str | None) -> frozenset[State] | None:
    if text is None:
        return None
    try:
        return frozenset(State(word.strip()) for word in text.split(","))
    except ValueError as exc:
        raise UsageError(f"--state {text}: the states are {', '.join(State)}") from exc
