"""The rows of results and lists as a table, CSV, JSON or Markdown."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TextIO

from scheduler.core.metrics.goal import is_reached
from scheduler.core.model import EstimateSource, State
from scheduler.core.reporting.forecast import ExpectedTask
from scheduler.ui.text import clean, fit_middle, instant, short, table
from scheduler.ui.text import columns as text_columns
from scheduler.ui.verbs.eta import of_task
from scheduler.units import duration, size

_SHOWN = ("id", "name", "state", "exit_code", "priority", "batch", "device", "peak_bytes", "reserved_bytes", "ran_s")
_TITLES = {
    "exit_code": "exit", "priority": "prio", "peak_bytes": "peak", "reserved_bytes": "reserved", "ran_s": "ran",
    "waited_s": "waited", "host_peak_bytes": "host_peak", "host_reserved_bytes": "host_reserved",
}  # fmt: skip
"""The titles of columns that have a title other than their name in a table."""
_NUMBERS = ("id", "exit_code", "priority", "batch", "peak_bytes", "reserved_bytes", "ran_s", "waited_s", "row")
"""The columns that are aligned to the right."""
_LEAST = (
    "batch", "waited_s", "source", "exit_code", "priority", "reserved_bytes", "peak_bytes", "device", "ran_s",
)  # fmt: skip
"""The columns that are left out of a table that is too wide, in this order."""
LEAST_NAME, LONGEST_NAME = 24, 80
"""The width to which names are truncated before columns are left out, and the greatest width of a name."""
METRIC, MOST_METRICS = "result.", 3
"""The prefix of the columns of metrics, and the number of metrics in a table if the user requests no columns."""
LEAST_REASON, LONGEST_REASON = 24, 100
"""The width to which reasons are truncated before columns are left out, and the greatest width of a reason."""
_FAILED = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)
_TIMES = ("submitted", "started", "ended")
_AHEAD = 1000
"""The number of rows that are read before the header is written, because the first rows may lack some columns."""


def write_json(run: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write `{"format": 1, "run": {...}, "tasks": [...]}`, with one task per line, as soon as each row is available."""
    print(f'{{"format": 1, "run": {json.dumps(run)}, "tasks": [', file=out, end="")
    separator = "\n"
    for row in rows:
        print(separator + json.dumps({name: _finite(value) for name, value in _dated(row).items()}), file=out, end="")
        separator = ",\n"
    print("\n]}", file=out)


def write_json_of_runs(runs: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], out: TextIO) -> None:
    """Write `{"format": 1, "runs": [{"run": {...}, "tasks": [...]}, ...]}`, once all rows have been read."""
    made = [
        {"run": run, "tasks": [{name: _finite(value) for name, value in _dated(row).items()} for row in rows]}
        for run, rows in runs
    ]
    print(json.dumps({"format": 1, "runs": made}, indent=1), file=out)


def _finite(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON cannot represent; return any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write CSV with a header; put a quote before a text that a spreadsheet would evaluate as a formula."""
    import csv

    header, every = _header(rows)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_harmless(name) for name in header])
    for row in every:
        dated = _dated(row)
        writer.writerow([_harmless(dated.get(name)) for name in header])


def write_markdown(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write a Markdown table of all columns."""
    header, every = _header(rows)
    print("| " + " | ".join(map(_one_line, header)) + " |", file=out)
    print("|" + " --- |" * len(header), file=out)
    for row in every:
        dated = _dated(row)
        cells = (_one_line(dated.get(name)) for name in header)
        print("| " + " | ".join(cells) + " |", file=out)


def _one_line(value: Any) -> str:
    """Return a value as one line, without characters that would break a Markdown table."""
    return clean("" if value is None else str(value)).replace("\n", " ").replace("|", "\\|")


def write_table(rows: Iterable[Mapping[str, Any]], out: TextIO | None = None, **how: Any) -> None:
    """Write rows as a table, with the options of `table_lines`."""
    for line in table_lines(rows, **how):
        print(line, file=out or sys.stdout)


def table_lines(
    rows: Iterable[Mapping[str, Any]],
    *,
    expected: bool = False,
    columns: Sequence[str] = (),
    varies: Sequence[str] = (),
    width: int | None = None,
) -> list[str]:
    """Return a table with the given columns, or else with the most important ones; if `expected`, with the forecast of
    each task.

    Names are shown without the parameters in `varies`, which have columns of their own. With `width`, long names lose
    their middle, and columns that do not fit are left out, the least important ones first.
    """
    shown, now = [*(columns or ((*_SHOWN, "expected") if expected else _SHOWN))], time.time()
    apart = [name for name in varies if name in shown]
    cells = [[_shown(name, _bare(row, apart), now) for name in shown] for row in rows]
    header = [clean(_title(name, shown)) for name in shown]
    if width is not None:
        _cut(shown, header, cells, width, "reason", LEAST_REASON)
        _cut(shown, header, cells, width, "name", LEAST_NAME)
        kept = _fitting(shown, header, cells, width)
        shown, header = [shown[place] for place in kept], [header[place] for place in kept]
        cells = [[row[place] for place in kept] for row in cells]
    right = frozenset(
        place
        for place, name in enumerate(shown)
        if name in _NUMBERS or name.startswith(METRIC) or (name in varies and all_numbers(row[place] for row in cells))
    )
    return table(header, cells, right)


def all_numbers(cells: Iterable[str]) -> bool:
    """Tell whether all cells of a column are numbers or empty; such a column is aligned to the right."""
    return all(not cell or _is_number(cell) for cell in cells)


def _cut(
    shown: Sequence[str], header: Sequence[str], cells: list[list[str]], width: int, column: str, least: int
) -> None:
    """Truncate the texts of a column as far as the width requires, but not below `least`; this comes before columns are
    left out. Names lose their middle, other texts their end.
    """
    if column not in shown:
        return
    place = shown.index(column)
    needed = _widths(header, cells)
    room = max(least, width - sum(needed) - 2 * (len(needed) - 1) + needed[place])
    if room < needed[place]:
        for row in cells:
            row[place] = fit_middle(row[place], room, pad=False) if column == "name" else short(row[place], room)


def _widths(header: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(text_columns, column)) for column in zip(header, *cells, strict=True)]


def shown_columns(
    rows: Sequence[Mapping[str, Any]],
    varies: Sequence[str],
    metrics: Sequence[str],
    *,
    expected: bool = False,
    usual: Sequence[str] = _SHOWN,
    reasons: bool = True,
) -> tuple[str, ...]:
    """Return the most important columns of some rows: parameters that vary, last values of metrics, and the columns in
    `usual`.

    If there are parameters or metrics, the columns for exit code, priority and batch are left out unless a row has an
    unusual value there. A metric that only counts, such as the epochs, has no column if it is equal in all rows. The
    source of the need is shown if it is an earlier version of the script. With `reasons`, the reason for failures is
    shown if any task failed.
    """
    more = [name for name in varies if 2 * sum(row.get(name) not in (None, "") for row in rows) > len(rows)]
    shown = [name for name in metrics if is_reached(name) or len({row.get(METRIC + name) for row in rows}) > 1]
    found = [f"{METRIC}{name}" for name in shown[:MOST_METRICS]]
    source = "source" not in usual and any(row.get("source") == EstimateSource.EARLIER for row in rows)
    usual = [*usual, *(("source",) if source else ()), *(("expected",) if expected else ())]
    if more or found:
        plain = {"exit_code": (0, None), "priority": (0,), "batch": (1,)}
        usual = [name for name in usual if not all(row.get(name) in plain.get(name, ()) for row in rows)]
    place = usual.index("name") + 1
    why = ("reason",) if reasons and any(_failed_for(row) for row in rows) else ()
    return (*usual[:place], *more, usual[place], *found, *usual[place + 1 :], *why)


def _failed_for(row: Mapping[str, Any]) -> str:
    """Return why the task of a row failed; empty for any other task."""
    return str(row.get("reason") or "") if row.get("state") in _FAILED else ""


def script_name(name: str, varies: Sequence[str]) -> str:
    """Return the name of a task without the parameters that are a part of it."""
    ends = [at for word in varies if (at := name.find(f" {word}=")) > 0]
    return name[: min(ends)] if ends else name


def number(value: Any) -> str:
    """Return the value of a metric as text; empty for None."""
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _bare(row: Mapping[str, Any], varies: Sequence[str]) -> Mapping[str, Any]:
    return {**row, "name": script_name(str(row.get("name") or ""), varies)} if varies else row


def _title(name: str, shown: Sequence[str]) -> str:
    """Return the title of a column. A metric's title has no prefix, unless another column has that title."""
    bare = name.removeprefix(METRIC)
    return bare if bare != name and bare not in shown and bare not in _TITLES.values() else _TITLES.get(name, name)


def _fitting(shown: Sequence[str], header: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the indexes of the columns that fit into a width; the least important columns are left out."""
    wide = [one + 2 for one in _widths(header, cells)]
    kept = list(range(len(shown)))
    own = [
        place
        for place, name in enumerate(shown)
        if name not in (*_SHOWN, *_LEAST, "reason") and not name.startswith(METRIC)
    ]
    found = [place for place, name in enumerate(shown) if name.startswith(METRIC)]
    dropped = [name for name in _LEAST if name in shown]
    order = [*map(shown.index, dropped), *found[:0:-1], *own[:1:-1]]
    while order and sum(wide[place] for place in kept) - 2 > width:
        kept.remove(order.pop(0))
    return kept


def column_names(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the columns that words mean; a word is the name of a column, or its title in a table."""
    names = {title: name for name, title in _TITLES.items()} | {"eta": "expected"}
    return tuple(names.get(word, word) for word in words)


def _shown(name: str, row: Mapping[str, Any], now: float) -> str:
    if name == "expected":
        return of_task(row.get("expected"), now)
    if name in _TIMES and row.get(name) is not None:
        return str(instant(row[name]))
    return _state(row) if name == "state" else _cell(name, row.get(name))


def _state(row: Mapping[str, Any]) -> str:
    """Return the state of a task. For a skipped task, add the run that completed it, or the parent that did not
    succeed.
    """
    if parent := row.get("skipped_for"):
        return f"{row['state']} (for {parent})"
    return f"{row['state']} (run {row['done_by']})" if row.get("done_by") else str(row["state"])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.startswith(METRIC) and isinstance(value, float):
        return number(value)
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_s"):
        return duration(value)
    return (
        fit_middle(value, LONGEST_NAME, pad=False)
        if name == "name"
        else short(str(value), LONGEST_REASON if name == "reason" else 40)
    )


def _dated(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _instant(name, value) for name, value in row.items()}


def _instant(name: str, value: Any) -> Any:
    if isinstance(value, ExpectedTask):
        return value.to_dict()
    return instant(value) if name in _TIMES else value


def _header(rows: Iterable[Mapping[str, Any]]) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    """Return the columns that any of the first rows has, and an iterator over all rows."""
    source = iter(rows)
    first = list(islice(source, _AHEAD))
    header = list(dict.fromkeys(name for row in first for name in row))
    return header, chain(first, source)


def _harmless(value: Any) -> Any:
    value = clean(value) if isinstance(value, str) else value
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and not _is_number(value):
        return "'" + value
    return "" if value is None else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
