"""`scheduler list [RUN]`: list the user's unfinished and recently ended tasks, or those of one run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from scheduler.app.observe import run_facts
from scheduler.app.observe.my_tasks import ListedRun, ListOptions, listed_run, my_runs, sorted_runs
from scheduler.cli import flags
from scheduler.cli.parsing import Parser, joined_sort, settings_from, terminal_width
from scheduler.core.metrics.ranking import known_column
from scheduler.core.model import LIVING, State
from scheduler.errors import UsageError
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.export import tables
from scheduler.ui.text import requests_recorded, scheduler_ended
from scheduler.ui.verbs import eta
from scheduler.units import count

LATELY = "24h"
LIMIT = 50
"""The number of tasks of each run that are listed if the command line names no run."""


def main(argv: list[str]) -> int:
    """Print the tasks of one run, or of all runs that are unfinished or have ended recently."""
    args = _parser().parse_args(joined_sort(argv))
    settings = settings_from(args)
    columns = tables.column_names(flags.listed("-c", args.columns)) if args.columns is not None else ()
    everything = args.run is None
    since = args.since or (LATELY if everything else None)
    limit = flags.optional_count("--limit", args.limit) or (LIMIT if everything and not args.json else None)
    options = ListOptions(
        _states(args.wanted),
        time.time() - flags.duration("--since", since) if since is not None else 0.0,
        limit if args.sort is None else None,
        args.show_secrets,
        brief=not args.json and not {"command", "key"} & {*columns, (args.sort or "").removeprefix("-")},
    )
    if not everything:
        runs = [listed_run(run_facts.find_run(settings, args.run), options)]
    else:
        runs = list(my_runs(settings, options))
        if not runs:
            run_facts.find_run(settings, None)  # refuses where there is no run at all
        _warn_of_lost(run.info for run in runs)
    if args.sort is not None:
        (column,) = tables.column_names([args.sort.removeprefix("-")])
        runs = sorted_runs(runs, column, down=args.sort.startswith("-"), limit=limit)
    columns = tuple(_known(runs, name) for name in columns)
    if args.json:
        _write_json(runs, columns, everything=everything)
    elif not runs:
        sys.stdout.write(
            f"you have no unfinished task, and none ended in the last {since}: scheduler runs lists all runs\n"
        )
    else:
        for number, run in enumerate(runs):
            sys.stdout.write("\n" if number else "")
            _write(run, columns, grouped=args.sort is None)
    return 0


def _warn_of_lost(infos: Iterable[RunInfo]) -> None:
    """Warn on standard error of each run whose journal lost its end."""
    for sentence in [info.lost for info in infos if info.lost]:
        from scheduler.ui.terminal.sink import hint  # rarely needed

        hint(sentence)


def _parser() -> Parser:
    parser = Parser(
        "list",
        "List your unfinished and recently ended tasks on this machine, by run; or the tasks of one run.",
        "scheduler list --state running,waiting\n         scheduler list r12 -c id,state,lr,result.loss --sort lr",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run: r3, its name or last (default: all runs)")
    parser.add_argument("--state", dest="wanted", metavar="S", help="tasks in these states, as waiting or failed,oom")
    parser.add_argument(
        "--since", metavar="TIME", help=f"leave out tasks that ended longer ago (default {LATELY}; with RUN: none)"
    )
    parser.add_argument(
        "--sort", metavar="COLUMN", help="sort the tasks of each run by a column; -COLUMN sorts from high to low"
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        help="at most N tasks of each run: running, waiting, latest ended; with --sort the first ones "
        f"(default {LIMIT}; with RUN: all)",
    )
    parser.add_argument(
        "-c", "--columns", metavar="A,B", help="columns: those of results, your own, parameters, metrics, eta"
    )
    parser.json()
    parser.secrets()
    return parser


def _write(run: ListedRun, columns: Sequence[str], *, grouped: bool) -> None:
    """Print one run: its description, how to continue it if its scheduler died, and its tasks; with `grouped`, grouped
    by nodes.
    """
    left = eta.of_run(run.forecast, time.time())
    if run.pause:  # a pause is also a reason for an unknown end
        left = f"{run.pause}, {left}" if run.forecast is not None and run.forecast.end is not None else run.pause
    number = run.info.number
    sys.stdout.write(f"run {number}  {run.info.what}{f'  {left}' if left else ''}\n")
    if run.dead:
        sys.stdout.write(scheduler_ended(number) + "\n")
    if run.recorded:
        sys.stdout.write(requests_recorded(number, run.recorded) + "\n")
    rows = [_with_time(row) for row in run.rows]
    shown = columns or tables.shown_columns(rows, run.varies, run.metrics, expected=run.forecast is not None)
    width = terminal_width() if not columns and sys.stdout.isatty() else None
    if grouped:
        rows = sorted(rows, key=lambda row: (not row["node"], row["node"] or ""))
    lines = tables.table_lines(rows, columns=shown, varies=run.varies, width=width)
    for line in _with_nodes(lines, rows) if grouped else lines:
        sys.stdout.write(f"{line}\n")
    if run.left_out:
        sys.stdout.write(f"and {count(run.left_out, 'task')} more: scheduler list r{number}\n")


def _with_nodes(lines: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table; if its rows have nodes, put a line with the node's name above the tasks of
    each node.
    """
    if not any(row["node"] for row in rows):
        yield from lines
        return
    yield lines[0]
    for node, group in groupby(zip(rows, lines[1:], strict=True), key=lambda one: one[0]["node"]):
        some = [*group]
        states = Counter(str(row["state"]) for row, _ in some)
        yield f"{node or 'on no node'}: {', '.join(f'{number} {state}' for state, number in states.items())}"
        yield from (line for _, line in some)


def _with_time(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a task; if the task is running, add the time that it has run so far."""
    if row["state"] not in LIVING or row["started"] is None:
        return row
    return {**row, "ran_s": max(0.0, time.time() - row["started"])}


def _write_json(runs: Sequence[ListedRun], columns: Sequence[str], *, everything: bool) -> None:
    """Print one run as `{"run", "tasks"}`; with `everything`, print all runs as `{"runs": [{"run", "tasks"}, …]}`."""
    parts = [
        (
            {**run.facts, "expected": run.forecast and run.forecast.run_to_dict()},
            [{name: row.get(name) for name in columns} for row in run.rows] if columns else run.rows,
        )
        for run in runs
    ]
    if everything:
        tables.write_json_of_runs(parts, sys.stdout)
    else:
        tables.write_json(*parts[0], sys.stdout)


def _known(runs: Iterable[ListedRun], word: str) -> str:
    """Return the column that a word names; raise UsageError if no listed task has such a column."""
    return known_column(word, (row for run in runs for row in run.rows))


def _states(text: str | None) -> frozenset[State] | None:
    if text is None:
        return None
    try:
        return frozenset(State(word.strip()) for word in text.split(","))
    except ValueError as exc:
        raise UsageError(f"--state {text}: the states are {', '.join(State)}") from exc
