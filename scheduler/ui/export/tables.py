"""The rows of results and lists as a table, CSV, JSON or Markdown."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TextIO

from scheduler.core.reporting.forecast import ExpectedTask
from scheduler.ui.text import clean, instant, short, table
from scheduler.ui.verbs.eta import of_task
from scheduler.units import duration, size

_SHOWN = ("id", "name", "state", "exit_code", "priority", "batch", "device", "peak_bytes", "reserved_bytes", "ran_s")
_TITLES = {
    "exit_code": "exit", "priority": "prio", "peak_bytes": "peak", "reserved_bytes": "reserved", "ran_s": "ran",
    "waited_s": "waited", "host_peak_bytes": "host_peak", "host_reserved_bytes": "host_reserved",
}  # fmt: skip
"""The titles of columns in tables, where they are not their names."""
_NUMBERS = ("id", "exit_code", "priority", "batch", "peak_bytes", "reserved_bytes", "ran_s", "waited_s", "row")
"""Columns that are aligned to the right."""
_TIMES = ("submitted", "started", "ended")
_AHEAD = 1000
"""The number of rows that are read before the header is written, to find columns that only later rows have."""


def write_json(run: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write `{"format": 1, "run": {...}, "tasks": [...]}`, one task per line, as the rows come."""
    print(f'{{"format": 1, "run": {json.dumps(run)}, "tasks": [', file=out, end="")
    separator = "\n"
    for row in rows:
        print(separator + json.dumps({name: _finite(value) for name, value in _dated(row).items()}), file=out, end="")
        separator = ",\n"
    print("\n]}", file=out)


def write_json_of_runs(runs: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], out: TextIO) -> None:
    """Write `{"format": 1, "runs": [{"run": {...}, "tasks": [...]}, ...]}`."""
    made = [
        {"run": run, "tasks": [{name: _finite(value) for name, value in _dated(row).items()} for row in rows]}
        for run, rows in runs
    ]
    print(json.dumps({"format": 1, "runs": made}, indent=1), file=out)


def _finite(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON cannot represent; any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write CSV with a header; put a quote before a text that a spreadsheet would compute."""
    import csv

    header, every = _header(rows)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
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
    """Return a value as a cell that cannot break its table."""
    return clean("" if value is None else str(value)).replace("\n", " ").replace("|", "\\|")


def write_table(
    rows: Iterable[Mapping[str, Any]],
    out: TextIO | None = None,
    *,
    expected: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """Write the given columns as a table, or the most important ones, with the forecast of each task if `expected`."""
    shown, now = columns or ((*_SHOWN, "expected") if expected else _SHOWN), time.time()
    cells = [[_shown(name, row, now) for name in shown] for row in rows]
    header = [_TITLES.get(name, name) for name in shown]
    right = frozenset(place for place, name in enumerate(shown) if name in _NUMBERS)
    for line in table(header, cells, right):
        print(line, file=out or sys.stdout)


def column_names(words: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that words mean: their names, or the titles that tables give them."""
    names = {title: name for name, title in _TITLES.items()} | {"eta": "expected"}
    return tuple(names.get(word, word) for word in words)


def _shown(name: str, row: Mapping[str, Any], now: float) -> str:
    if name == "expected":
        return of_task(row.get("expected"), now)
    if name in _TIMES and row.get(name) is not None:
        return str(instant(row[name]))
    return _state(row) if name == "state" else _cell(name, row.get(name))


def _state(row: Mapping[str, Any]) -> str:
    """Return the state of a task; for a skipped one with the run that completed it."""
    return f"{row['state']} (run {row['done_by']})" if row.get("done_by") else str(row["state"])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_s"):
        return duration(value)
    return short(str(value), 40)


def _dated(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _instant(name, value) for name, value in row.items()}


def _instant(name: str, value: Any) -> Any:
    if isinstance(value, ExpectedTask):
        return value.to_dict()
    return instant(value) if name in _TIMES else value


def _header(rows: Iterable[Mapping[str, Any]]) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    """Return the union of the columns of the first rows, and an iterator over all rows."""
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
