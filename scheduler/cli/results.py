"""`scheduler results [RUN…]`: show the result of each task, the best ones by a metric, or groups of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing as closed
from typing import Any

from scheduler.app.observe import run_facts, run_reader
from scheduler.cli import flags
from scheduler.cli.parsing import Parser, joined_sort, settings_from, terminal_width
from scheduler.core.metrics import ranking as best
from scheduler.core.metrics.goal import Goal
from scheduler.core.metrics.ranking import Ranking
from scheduler.errors import UsageError
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.export import tables
from scheduler.ui.terminal import closing
from scheduler.ui.text import scheduler_ended
from scheduler.ui.verbs import ranking as ranking_view
from scheduler.units import count

MOST_BEST = 10
"""The number of tasks that `--best` shows if `--limit` does not set another number."""


def main(argv: list[str]) -> int:
    """Print the results of runs as a table, CSV, JSON or Markdown."""
    args = _parser().parse_args(joined_sort(argv))
    since = time.time() - flags.duration("--since", args.since) if args.since is not None else 0.0
    infos = run_facts.runs_since(settings_from(args), args.run, since)
    ranks = args.best is not None or args.group_by is not None
    if args.goal is not None and not ranks:
        raise UsageError("--goal has an effect only with --best: add --best METRIC")
    if len(infos) != 1 or since:
        if ranks:
            raise UsageError("--best and --group-by compare the tasks of one run: name one, without --since")
        _write_several(infos, since, args)
        return 0
    with closed(run_reader.RunReader(infos[0])) as reader:
        if ranks:
            _write_ranking(reader, args)
        else:
            _write_rows(reader, args)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "results",
        "Show the result of each task of one or several runs, or of all recently ended tasks.",
        "scheduler results r12 --csv > results.csv\n         scheduler results --best val_acc\n"
        "         scheduler results --group-by lr --best val_loss\n         scheduler results --since 24h",
    ).common()
    parser.add_argument("run", nargs="*", metavar="RUN", help="runs: r3, a name or last (default: the latest run)")
    parser.add_argument(
        "--since", metavar="TIME", help="only tasks that ended within this time, such as 24h; without RUN of all runs"
    )
    parser.add_argument("--best", metavar="METRIC", help=f"the {MOST_BEST} tasks with the best value of a metric")
    parser.add_argument(
        "--goal",
        metavar="min|max",
        choices=tuple(map(str, Goal)),
        help="whether the lowest or the highest value is best (default: by the metric's name; min for losses, errors)",
    )
    parser.add_argument("--group-by", metavar="COLUMN", help="one line for each value of a column, the best first")
    parser.add_argument("--sort", metavar="COLUMN", help="sort by a column; -COLUMN sorts from high to low")
    parser.add_argument("--limit", metavar="N", help="at most N tasks")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--csv", action="store_true", help="all columns, separated by commas; of several runs also the run"
    )
    how.add_argument("--json", action="store_true", help="all columns and the run, as JSON")
    how.add_argument("--md", action="store_true", help="all columns, as a Markdown table")
    parser.secrets()
    return parser


def _write_rows(reader: run_reader.RunReader, args: argparse.Namespace) -> None:
    rows, left_out = _first(_rows(reader, args), args)
    if _write_data(reader, rows, args):
        return
    if reader.dead:
        sys.stdout.write(scheduler_ended(reader.info.number) + "\n")
    _write_table(reader, [*rows], left_out)
    for line in closing.total_lines(reader.totals(), reader.info.number):
        sys.stdout.write(line + "\n")


def _rows(reader: run_reader.RunReader, args: argparse.Namespace, since: float = 0.0) -> Iterable[Mapping[str, Any]]:
    """Return the rows of a run, sorted as the flags say; with `since`, only rows whose tasks have ended at that time or
    later.
    """
    rows: Iterable[Mapping[str, Any]] = reader.rows(secrets=args.show_secrets)
    if since:
        rows = [row for row in rows if (row["ended"] or 0.0) >= since]
    if args.sort is not None:
        column = tables.column_names([args.sort.removeprefix("-")])[0]
        rows = best.sorted_by(rows, column, down=args.sort.startswith("-"))
    return rows


def _first(rows: Iterable[Mapping[str, Any]], args: argparse.Namespace) -> tuple[Iterable[Mapping[str, Any]], int]:
    """Return the first rows, as many as the flags allow, and the number of rows that are left out."""
    limit = flags.optional_count("--limit", args.limit)
    if limit is None:
        return rows, 0
    found = [*rows]
    return found[:limit], max(0, len(found) - limit)


def _write_table(reader: run_reader.RunReader, known: Sequence[Mapping[str, Any]], left_out: int) -> None:
    shown = tables.shown_columns(known, reader.varies, best.metrics_of(known, reader.metric_names))
    width = terminal_width() if sys.stdout.isatty() else None
    tables.write_table(known, sys.stdout, columns=shown, varies=reader.varies, width=width)
    if left_out:
        sys.stdout.write(f"and {count(left_out, 'task')} more: scheduler results r{reader.info.number}\n")


def _write_several(infos: Iterable[RunInfo], since: float, args: argparse.Namespace) -> None:
    """Write the tasks of several runs: as one table below the other, or as one file in which each task has the number
    of its run.
    """
    if args.json:
        tables.write_json_of_runs(((r.run_facts(), rows) for r, rows, _ in _read(infos, since, args)), sys.stdout)
    elif args.csv or args.md:
        write = tables.write_csv if args.csv else tables.write_markdown
        write((_numbered(r.info.number, row) for r, rows, _ in _read(infos, since, args) for row in rows), sys.stdout)
    else:
        written = 0
        for reader, rows, left_out in _read(infos, since, args):
            sys.stdout.write("\n" if written else "")
            sys.stdout.write(f"run {reader.info.number}  {reader.info.what}\n")
            sys.stdout.write(scheduler_ended(reader.info.number) + "\n" if reader.dead else "")
            _write_table(reader, rows, left_out)
            written += 1
        if not written:
            sys.stdout.write(f"no task ended in the last {args.since}: scheduler list shows unfinished tasks\n")


def _read(
    infos: Iterable[RunInfo], since: float, args: argparse.Namespace
) -> Iterator[tuple[run_reader.RunReader, Sequence[Mapping[str, Any]], int]]:
    """Yield, for each run, its reader, its first rows, and the number of rows that are left out; with `since`, skip
    runs without rows.
    """
    for info in infos:
        with closed(run_reader.RunReader(info)) as reader:
            some, left_out = _first(_rows(reader, args, since), args)
            rows = [*some]
            if rows or not since:
                yield reader, rows, left_out


def _numbered(run: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the number of its run in the first column; a column `run` of the file becomes `file.run`."""
    return {"run": run, **{"file.run" if name == "run" else name: value for name, value in row.items()}}


def _write_data(reader: run_reader.RunReader, rows: Iterable[Mapping[str, Any]], args: argparse.Namespace) -> bool:
    """Write rows as JSON, CSV or Markdown if a flag requests one of them; return whether it did."""
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
    """Return the tasks ranked by the metric that `--best` names, or by the most important metric."""
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
