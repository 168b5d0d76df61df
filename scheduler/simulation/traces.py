"""Traces: CSV files of measured tasks, with the arrival time and the needs of each."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import TextIO

from scheduler.core.model import Spec, Terms
from scheduler.core.tasks.fields import words
from scheduler.errors import InputError
from scheduler.simulation.workload import MeasuredTask, TraceRow, trace_row
from scheduler.units import MIB

REQUIRED = ("duration_s", "peak_mem_mib")
COLUMNS = (
    "job_id", "arrival_s", "duration_s", "peak_mem_mib", "gpus", "priority", "util", "epochs", "config", "cores",
    "host_mem_mib",
)  # fmt: skip
OURS = ("filename", "command")
WHOLE = ("gpus", "priority", "epochs")
SHORTEST, LARGEST = 1e-3, 1e12


def is_trace(header: Sequence[str]) -> bool:
    """Tell whether a header names measurements but no command."""
    names = {name.strip().lower() for name in header}
    return names.issuperset(REQUIRED) and not names.intersection(OURS)


def looks_like_trace(path: str) -> bool:
    """Tell whether a file begins with the header of a trace; return False for a file that cannot be read."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return is_trace(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read_trace(path: str) -> list[TraceRow]:
    """Read all rows of a trace; for an invalid one, raise InputError with the file, the row and the column."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(_rows(path, csv.reader(file, strict=True)))
    except OSError as exc:
        raise InputError(path, f"it cannot be read: {(exc.strerror or str(exc)).lower()}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(path, "it holds bytes that are not UTF-8") from exc
    except csv.Error as exc:
        raise InputError(path, f"it is no CSV: {exc}") from exc


def _rows(path: str, reader: Iterable[Sequence[str]]) -> Iterator[TraceRow]:
    source = iter(reader)
    header = [name.strip().lower() for name in next(source, [])]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise InputError(path, f"it has no column {' and no column '.join(missing)}, which every trace has", 1)
    for number, cells in enumerate(source, 2):
        if not any(map(str.strip, cells)):
            continue
        if len(cells) != len(header):
            raise InputError(path, f"{len(cells)} fields where the header names {len(header)}", number)
        yield _row(path, number, dict(zip(header, map(str.strip, cells), strict=True)))


def _row(path: str, number: int, said: Mapping[str, str]) -> TraceRow:
    def whole(column: str, default: int, least: float = 0.0) -> int:
        found = _number(path, number, column, said.get(column, ""), least)
        return default if found is None else int(found)

    job, config = said.get("job_id") or f"row-{number}", said.get("config", "")
    try:
        words(config)
    except ValueError as exc:
        raise InputError(path, f"{config!r} is not a script with arguments: {exc}", number, "config") from exc
    for column in REQUIRED:
        if not said[column]:
            raise InputError(path, "it is empty", number, column)
    gpus = None if not said.get("gpus") else whole("gpus", 1)
    terms = Terms(priority=whole("priority", 0, least=-LARGEST), epochs=whole("epochs", 0) or None, gpus=gpus)
    spec = Spec(number, "", "-1", config or job, job, (), (), terms)
    return trace_row(spec, measured(path, number, said), job)


def measured(path: str, row: int, said: Mapping[str, str]) -> MeasuredTask:
    """Read the measurements of a row by their column names in lower case; raise InputError if one is invalid."""

    def value(column: str, least: float = 0.0, most: float = LARGEST) -> float | None:
        return _number(path, row, column, said.get(column, "").strip(), least, most)

    peak, beside = value("peak_mem_mib"), value("host_mem_mib")
    return MeasuredTask(
        arrives=value("arrival_s"),
        seconds=value("duration_s", least=SHORTEST),
        peak=None if peak is None else round(peak * MIB),
        busy=value("util", most=1.0),
        cores=value("cores"),
        host_peak=None if beside is None else round(beside * MIB),
    )


def _number(path: str, row: int, column: str, text: str, least: float, most: float = LARGEST) -> float | None:
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = nan
    if not isfinite(found):
        raise InputError(path, f"{text!r} is not a number", row, column)
    if not least <= found <= most:
        wanted = f"at least {least:g}" if found < least else f"at most {most:g}"
        raise InputError(path, f"{text} is out of range: {wanted}", row, column)
    if column in WHOLE and found != int(found):
        raise InputError(path, f"{text} is not a whole number", row, column)
    return found


def write_trace(rows: Iterable[TraceRow], out: TextIO) -> None:
    """Write a trace as CSV."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        terms = row.spec.terms
        who = (row.job, f"{row.arrives:g}", f"{row.seconds:.3f}", f"{row.peak / MIB:.0f}", row.gpus, terms.priority)
        what = (f"{row.busy:g}", terms.epochs or "", row.spec.command, f"{row.cores:g}", f"{row.host_peak / MIB:.0f}")
        writer.writerow((*who, *what))
