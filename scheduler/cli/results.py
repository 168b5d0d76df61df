"""`scheduler results [RUN]`: show the result of each task, the best ones by a metric, or groups of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.app.observe import run_facts, run_reader
from scheduler.cli import flags
from scheduler.cli.parsing import Parser, joined_sort, settings_from, terminal_width
from scheduler.core.metrics import ranking as best
from scheduler.core.metrics.goal import Goal
from scheduler.core.metrics.ranking import Ranking
from scheduler.errors import UsageError
from scheduler.ui.export import tables
from scheduler.ui.terminal import closing
from scheduler.ui.verbs import ranking as ranking_view

MOST_BEST = 10
"""The number of tasks that `--best` shows unless `--limit` says otherwise."""


def main(argv: list[str]) -> int:
    """Print the results of a run as a table, CSV, JSON or Markdown."""
    args = _parser().parse_args(joined_sort(argv))
    reader = run_reader.RunReader(run_facts.find_run(settings_from(args), args.run))
    try:
        if args.best is not None or args.group_by is not None:
            _write_ranking(reader, args)
        else:
            _write_rows(reader, args)
    finally:
        reader.close()
    return 0


def _parser() -> Parser:
    parser = Parser(
        "results",
        "Show the result of each task of a run.",
        "scheduler results r12 --csv > results.csv\n         scheduler results --best val_acc\n"
        "         scheduler results --group-by lr --best val_loss",
    ).common()
    parser.run()
    parser.add_argument("--best", metavar="METRIC", help=f"the {MOST_BEST} tasks with the best value of a metric")
    parser.add_argument(
        "--goal",
        metavar="min|max",
        choices=tuple(Goal),
        help="whether the lowest or the highest value is the best (default: by its name; min for losses and errors)",
    )
    parser.add_argument("--group-by", metavar="COLUMN", help="one line for each value of a column, the best first")
    parser.add_argument("--sort", metavar="COLUMN", help="sort by a column; -COLUMN sorts from high to low")
    parser.add_argument("--limit", metavar="N", help="at most N tasks")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="all columns, comma-separated")
    how.add_argument("--json", action="store_true", help="all columns and the run, as JSON")
    how.add_argument("--md", action="store_true", help="all columns, as a Markdown table")
    parser.secrets()
    return parser


def _write_rows(reader: run_reader.RunReader, args: argparse.Namespace) -> None:
    if args.goal is not None:
        raise UsageError("--goal has an effect only with --best: add --best METRIC")
    rows: Iterable[Mapping[str, Any]] = reader.rows(secrets=args.show_secrets)
    if args.sort is not None:
        column = tables.column_names([args.sort.removeprefix("-")])[0]
        rows = best.sorted_by(rows, column, down=args.sort.startswith("-"))
    limit = flags.optional_count("--limit", args.limit)
    if limit is not None:
        rows = [*rows][:limit]
    if _write_data(reader, rows, args):
        return
    known = [*rows]
    shown = tables.shown_columns(known, reader.varies, best.metrics_of(known, reader.metric_names))
    width = terminal_width() if sys.stdout.isatty() else None
    tables.write_table(known, sys.stdout, columns=shown, varies=reader.varies, width=width)
    for line in closing.total_lines(reader.totals(), reader.info.number):
        sys.stdout.write(line + "\n")


def _write_data(reader: run_reader.RunReader, rows: Iterable[Mapping[str, Any]], args: argparse.Namespace) -> bool:
    """Write rows as JSON, CSV or Markdown, if that is asked for; return whether it was."""
    if args.json:
        tables.write_json(reader.run_facts(), rows, sys.stdout)
    elif args.csv:
        tables.write_csv(rows, sys.stdout)
    elif args.md:
        tables.write_markdown(rows, sys.stdout)
    return bool(args.json or args.csv or args.md)


def _write_ranking(reader: run_reader.RunReader, args: argparse.Namespace) -> None:
    if args.sort is not None:
        raise UsageError("--best and --group-by sort by the metric: leave --sort out")
    ranking = _ranking(reader, args)
    if args.group_by is not None:
        _write_groups(reader, ranking, args)
        return
    limit = flags.optional_count("--limit", args.limit)
    if args.json or args.csv or args.md:
        _write_data(reader, ranking.rows[:limit], args)
        return
    lines = ranking_view.lines(ranking, reader.varies, reader.info.number, limit or MOST_BEST)
    sys.stdout.writelines(line + "\n" for line in lines)


def _ranking(reader: run_reader.RunReader, args: argparse.Namespace) -> Ranking:
    """Return the tasks by the metric that is named, or by the most important one."""
    found = [*reader.rows_and_metrics(secrets=args.show_secrets)]
    metric = args.best
    if metric is None:
        known = best.metrics_of((row for row, _ in found), reader.metric_names)
        if not known:
            raise UsageError("--group-by: the tasks of this run have reported no metric so far")
        metric = known[0]
    return best.rank(found, metric, Goal(args.goal) if args.goal is not None else None)


def _write_groups(reader: run_reader.RunReader, ranking: Ranking, args: argparse.Namespace) -> None:
    column = best.known_column(args.group_by, ranking.rows)
    groups = best.groups(ranking, column)
    made = [group.to_dict(column) for group in groups]
    if args.json:
        facts = {"format": 1, "run": reader.run_facts(), "metric": ranking.metric, "goal": ranking.goal, "groups": made}
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    elif not _write_data(reader, made, args):
        sys.stdout.writelines(line + "\n" for line in ranking_view.group_lines(ranking, groups, column))
