"""The trace door: a CSV of measured tasks, when each came and what it needed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import TextIO

from scheduler.core.fields import words
from scheduler.core.workload import TraceRow
from scheduler.errors import InputError
from scheduler.units import MIB

REQUIRED = ("duration_s", "peak_mem_mib")
COLUMNS = (
    "job_id", "arrival_s", "duration_s", "peak_mem_mib", "gpus", "priority", "util", "epochs", "config", "cores",
    "host_mem_mib",
)  # fmt: skip
OURS = ("filename", "command")


def is_trace(header: Sequence[str]) -> bool:
    """Whether a header names what was measured, and no command."""
    names = {name.strip().lower() for name in header}
    return names.issuperset(REQUIRED) and not names.intersection(OURS)


def looks_like_trace(path: str) -> bool:
    """Whether a file's first line is the header of a trace; what cannot be read is not."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return is_trace(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read_trace(path: str) -> list[TraceRow]:
    """All rows of a trace; raises InputError with file, row and column."""
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
    def value(column: str, default: float, least: float = 0.0, most: float = 1e15) -> float:
        return _number(path, number, column, said.get(column, ""), default, least, most)

    job = said.get("job_id") or f"row-{number}"
    config = said.get("config", "")
    try:
        words(config)
    except ValueError as exc:
        raise InputError(path, f"{config!r} is no script with arguments: {exc}", number, "config") from exc
    gpus = int(value("gpus", 1))
    return TraceRow(
        job=job,
        seconds=value("duration_s", 0.0, least=1e-6),
        peak=round(value("peak_mem_mib", 0.0) * MIB),
        arrives=value("arrival_s", 0.0),
        gpus=gpus,
        priority=int(value("priority", 0, least=-1e15)),
        busy=value("util", 1.0, most=1.0),
        epochs=int(value("epochs", 0)) or None,
        config=config,
        cores=value("cores", 0.0 if gpus else 1.0),
        host_peak=round(value("host_mem_mib", 0.0) * MIB),
    )


def _number(path: str, row: int, column: str, text: str, default: float, least: float, most: float) -> float:
    if not text:
        if column in REQUIRED:
            raise InputError(path, "it is empty", row, column)
        return default
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise InputError(path, f"{text!r} is not a number", row, column)
    if not least <= found <= most:
        wanted = f"at least {least:g}" if found < least else f"at most {most:g}"
        raise InputError(path, f"{text} is out of range: {wanted}", row, column)
    if column in ("gpus", "priority", "epochs") and found != int(found):
        raise InputError(path, f"{text} is not a whole number", row, column)
    return found


def write_trace(rows: Iterable[TraceRow], out: TextIO) -> None:
    """A trace as CSV."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        who = (row.job, f"{row.arrives:g}", f"{row.seconds:.3f}", f"{row.peak / MIB:.0f}", row.gpus, row.priority)
        what = (f"{row.busy:g}", row.epochs or "", row.config, f"{row.cores:g}", f"{row.host_peak / MIB:.0f}")
        writer.writerow((*who, *what))
