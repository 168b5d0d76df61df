"""Results and lists as people and programs take them: a table, CSV, JSON, Markdown."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TextIO

from scheduler.units import duration, size
from scheduler.view.ahead import of_program_task, of_task
from scheduler.view.words import clean, instant, short, table

_SHOWN = ("id", "name", "state", "exit_code", "priority", "batch", "device", "peak_bytes", "promised_bytes", "ran_s")
_TIMES = ("submitted", "started", "ended")
_AHEAD = 1000
"""So many rows are read before the header is written: columns only later rows have are found among them."""


def write_json(run: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """`{"format": 1, "run": {...}, "tasks": [...]}`, one task a line, written as they come."""
    print(f'{{"format": 1, "run": {json.dumps(run)}, "tasks": [', file=out, end="")
    separator = "\n"
    for row in rows:
        print(separator + json.dumps({name: _finite(value) for name, value in _dated(row).items()}), file=out, end="")
        separator = ",\n"
    print("\n]}", file=out)


def _finite(value: Any) -> Any:
    """A number as JSON knows them: it has neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Comma-separated, with a header; texts that a spreadsheet would compute get a quote before them."""
    import csv

    header, every = _header(rows)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in every:
        dated = _dated(row)
        writer.writerow([_harmless(dated.get(name)) for name in header])


def write_markdown(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """A Markdown table of all columns."""
    header, every = _header(rows)
    print("| " + " | ".join(map(_one_line, header)) + " |", file=out)
    print("|" + " --- |" * len(header), file=out)
    for row in every:
        dated = _dated(row)
        cells = (_one_line(dated.get(name)) for name in header)
        print("| " + " | ".join(cells) + " |", file=out)


def _one_line(value: Any) -> str:
    """A cell that stays inside its table."""
    return clean("" if value is None else str(value)).replace("\n", " ").replace("|", "\\|")


def write_table(rows: Iterable[Mapping[str, Any]], out: TextIO | None = None, *, expected: bool = False) -> None:
    """The columns people look at first, and what is expected of each task where that is known of any."""
    shown, now = (*_SHOWN, "expected") if expected else _SHOWN, time.time()
    cells = [[_shown(name, row, now) for name in shown] for row in rows]
    header = [name.removesuffix("_bytes").removesuffix("_s").replace("exit_code", "exit") for name in shown]
    header[4] = "prio"
    for line in table(header, cells, frozenset({0, 3, 4, 5, 7, 8, 9})):
        print(line, file=out or sys.stdout)


def _shown(name: str, row: Mapping[str, Any], now: float) -> str:
    if name == "expected":
        return of_task(row.get("expected"), now)
    return _state(row) if name == "state" else _cell(name, row.get(name))


def _state(row: Mapping[str, Any]) -> str:
    """Where a task stands; of a skipped one, which run did it."""
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
    if name == "expected" and isinstance(value, dict):
        return of_program_task(value)
    return instant(value) if name in _TIMES else value


def _header(rows: Iterable[Mapping[str, Any]]) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    """The union of the first rows' columns, and all rows."""
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
