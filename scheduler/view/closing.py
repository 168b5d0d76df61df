"""The last words of a run: totals, single rows of a short list, and every failure with what it said last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scheduler.core.model import UNFINISHED, State
from scheduler.core.results import Totals
from scheduler.paths import open_plain, tilde
from scheduler.units import count, duration, size
from scheduler.view.words import short, table

MOST_ROWS = 40
MOST_FAILURES = 20
TAIL_LINES = 5
_FAILED = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)
_RIGHT = frozenset({0, 2, 4, 5, 6, 7})


def lines(totals: Totals, rows: Callable[[], Iterable[dict[str, Any]]], run: int, untaken: str = "") -> list[str]:
    """Everything to say at the end of a run; `untaken`: what was appended to its list and never joined it."""
    said = [""]
    if 0 < totals.tasks <= MOST_ROWS:
        said += [*_rows(list(rows())), ""]
    said += _failures(rows, sum(totals.states.get(state, 0) for state in _FAILED))
    said += [*total_lines(totals, run), *_not_over(totals, run)]
    return [*said, f"hint:   {untaken}"] if untaken else said


def _not_over(totals: Totals, run: int) -> list[str]:
    """What a run that was interrupted leaves, and how it goes on."""
    left = sum(totals.states.get(state, 0) for state in UNFINISHED)
    if not left:
        return []
    what = "1 task is" if left == 1 else f"{left:,} tasks are"
    return [f"       {what} not over: scheduler resume {run} goes on"]


def _rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = [
        [
            str(row["id"]),
            short(row["name"], 34),
            str(row["priority"]),
            row["state"],
            "" if row["exit_code"] is None else str(row["exit_code"]),
            duration(row["waited_s"]) if row["waited_s"] is not None else "",
            duration(row["ran_s"]) if row["ran_s"] is not None else "",
            size(row["peak_bytes"]) if row["peak_bytes"] else "",
            size(row["promised_bytes"]) if row["promised_bytes"] else "",
            row["need_known_by"] or "",
        ]
        for row in rows
    ]
    header = ["id", "name", "prio", "state", "exit", "waited", "ran", "peak", "promised", "known by"]
    return table(header, cells, _RIGHT | {8})


def _failures(rows: Callable[[], Iterable[dict[str, Any]]], failed: int) -> list[str]:
    if not failed:
        return []
    said, shown = [], 0
    for row in rows():
        if row["state"] not in _FAILED:
            continue
        shown += 1
        if shown > MOST_FAILURES:
            said.append(f"... and {failed - MOST_FAILURES} more: scheduler list --state failed")
            break
        code = "" if row["exit_code"] is None else f" (exit {row['exit_code']})"
        why = f": {row['reason']}" if row["reason"] else ""
        said.append(f"{row['state']}: task {row['id']}, row {row['row']}, {short(row['name'], 60)}{code}{why}")
        last = tail(Path(row["log"])) if row["log"] else []
        said += [f"    | {short(line, 110)}" for line in last]
        if row["log"]:
            said.append(f"    log {tilde(row['log'])}" if last else "    it printed nothing")
    return [*said, ""]


def _needs(totals: Totals) -> str:
    """How needs were known, and how right the promises were."""
    known = ", ".join(f"{word} {number:,}" for word, number in sorted(totals.known_by.items()))
    ratio = (
        f"; promised in the end {totals.promised_for_peaks:.2f} times what was needed"
        if totals.promised_for_peaks
        else ""
    )
    return f"needs known by: {known}{ratio}"


def tail(path: Path, most: int = TAIL_LINES) -> list[str]:
    """The last lines of a log; progress bars by their last state."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    states = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in states if line.strip()][-most:]


def total_lines(totals: Totals, run: int) -> list[str]:
    """A run in two lines."""
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(totals.states.items())) or "none came"
    said = [f"run {run}: {count(totals.tasks, 'task')}: {states}"]
    if totals.makespan > 0:
        words = [
            f"took {duration(totals.makespan)}",
            f"one at a time {duration(totals.one_at_a_time)} ({totals.speedup:.2f} times as long)",
            f"memory held {totals.memory_use:.0%} of the budget",
            f"profiling {totals.probing:.0%}",
            count(totals.ooms, "OOM"),
        ]
        said.append("       " + ", ".join(words))
        said.append("       " + _needs(totals))
    return said + _stretched(totals)


def _stretched(totals: Totals) -> list[str]:
    """Whose epochs suffered from sharing a device, and what to do about that."""
    if not totals.stretched:
        return []
    task, most = totals.stretched[0]
    whose = count(len(totals.stretched), "task")
    said = f"stretched: beside others the epochs of {whose} took more than half as long again"
    worst = f"most {most:.1f} times, task {task}; --max-gpu-load, --max-load or --max-per-device keep more apart"
    return [f"       {said}", f"       ({worst})"]
