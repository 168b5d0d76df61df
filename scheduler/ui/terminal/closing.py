"""The last lines of a run: totals, the rows of a short list, and every failure with the end of its output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scheduler.core.model import UNFINISHED, State
from scheduler.core.reporting.run_history import RunTotals
from scheduler.runtime.paths import open_plain, tilde
from scheduler.ui.text import short, table
from scheduler.units import count, duration, size

MOST_ROWS = 40
MOST_FAILURES = 20
TAIL_LINES = 5
_FASTER = 1.01
"""The least speedup, and the least number of tasks at once, that is shown: with less, tasks ran one after the other."""
_SHOWN = 0.01
"""The least share that is shown."""
_FAILED = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)
_RIGHT_ALIGNED = frozenset({0, 2, 4, 5, 6, 7, 8})


def lines(totals: RunTotals, rows: Callable[[], Iterable[dict[str, Any]]], run: int, untaken: str = "") -> list[str]:
    """Return the last lines of a run; `untaken` is a sentence about rows that were appended but never accepted."""
    result = [""]
    if 0 < totals.tasks <= MOST_ROWS:
        result += [*_row_table(list(rows())), ""]
    result += _failures(rows, sum(totals.states.get(state, 0) for state in _FAILED))
    result += [*total_lines(totals, run), *_unfinished(totals, run)]
    return [*result, f"hint:   {untaken}"] if untaken else result


def _unfinished(totals: RunTotals, run: int) -> list[str]:
    """Return how many tasks an interrupted run leaves unfinished, the held ones apart, and how to continue it."""
    left = sum(totals.states.get(state, 0) for state in UNFINISHED)
    held = totals.states.get(State.HELD, 0)
    apart = f", {held:,} of them held" if held else ""
    return (
        [f"       {count(left, 'task')} unfinished{apart}: scheduler resume r{run} continues the run"] if left else []
    )


def _row_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line for each task."""
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
            size(row["reserved_bytes"]) if row["reserved_bytes"] else "",
            row["source"] or "",
        ]
        for row in rows
    ]
    header = ["id", "name", "prio", "state", "exit", "waited", "ran", "peak", "reserved", "source"]
    return table(header, cells, _RIGHT_ALIGNED)


def _failures(rows: Callable[[], Iterable[dict[str, Any]]], failed: int) -> list[str]:
    """Return the first failures, each with the end of its log."""
    if not failed:
        return []
    result, shown = [], 0
    for row in rows():
        if row["state"] not in _FAILED:
            continue
        shown += 1
        if shown > MOST_FAILURES:
            result.append(f"... and {failed - MOST_FAILURES} more: scheduler list --state failed")
            break
        result += _failure(row)
    return [*result, ""]


def _failure(row: dict[str, Any]) -> list[str]:
    """Return the end of a failed task, the last lines of its log, and the path of the log."""
    code = "" if row["exit_code"] is None else f" (exit {row['exit_code']})"
    reason = f": {row['reason']}" if row["reason"] else ""
    head = f"{row['state']}: task {row['id']}, row {row['row']}, {short(row['name'], 60)}{code}{reason}"
    if not row["log"]:
        return [head]
    last = tail(Path(row["log"]))
    foot = f"    log {tilde(row['log'])}" if last else "    it printed nothing"
    return [head, *(f"    | {short(line, 110)}" for line in last), foot]


def tail(path: Path, most: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, for a progress bar its last state; empty if it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    states = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in states if line.strip()][-most:]


def total_lines(totals: RunTotals, run: int) -> list[str]:
    """Return the totals of a run: states, times, memory."""
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(totals.states.items())) or "none came"
    result = [f"run {run}: {count(totals.tasks, 'task')}: {states}"]
    if totals.makespan > 0:
        result.append("       " + ", ".join(_work(totals)))
        known = ", ".join(f"{number:,} {word}" for word, number in sorted(totals.source.items()))
        attempts = sum(totals.source.values())
        tried = f" of {count(attempts, 'attempt')}" if attempts > totals.tasks else ""
        result += [f"       memory estimates{tried}: {known}"] if known else []
    return result + _slowed_down(totals)


def _work(totals: RunTotals) -> list[str]:
    """Return how long the run took and what it used; what rounds to nothing is left out."""
    words = [f"took {duration(totals.makespan)}"]
    words += _compared(totals)
    if totals.memory_use >= _SHOWN:
        words.append(f"{totals.memory_use:.0%} of the devices' memory used")
    if totals.probing >= _SHOWN:
        words.append(f"{totals.probing:.0%} of the running time in probes")
    return words + ([count(totals.ooms, "out-of-memory error")] if totals.ooms else [])


def _compared(totals: RunTotals) -> list[str]:
    """Return how much faster the run was than one task at a time, where that was measured; else the tasks' times."""
    low, high = (one / totals.makespan for one in totals.alone or (0.0, 0.0))
    if low >= _FASTER:
        times = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
        return [f"{times} times as fast as one task at a time (by epochs without others beside them)"]
    if totals.at_once < _FASTER:
        return []
    return [f"tasks ran for {duration(totals.spent)} in all, {totals.at_once:.2f} at once"]


def _slowed_down(totals: RunTotals) -> list[str]:
    """Return how many tasks a shared device slowed down by half or more, and which flags help."""
    if not totals.stretched:
        return []
    task, most = totals.stretched[0]
    tasks = count(len(totals.stretched), "task")
    return [
        f"       slowed down: epochs of {tasks} took at least 1.5 times as long beside other tasks",
        f"       (task {task} the most, {most:.1f} times; to share less: --max-gpu-load, --max-load, --max-per-device)",
    ]
