"""The closing summary of a run: totals, the rows of a short list, and every failure with the end of its output."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.core.model import UNFINISHED, State
from scheduler.core.reporting.run_history import RunTotals
from scheduler.runtime.paths import open_plain, tilde
from scheduler.ui.export import tables
from scheduler.ui.text import short
from scheduler.units import count, duration
from scheduler.values import dataclass, field

MOST_ROWS = 40
MOST_FAILURES = 20
TAIL_LINES = 5
_FASTER = 1.01
"""The least speed-up, and the least mean number of tasks at once, that are shown. Below this, tasks ran practically one
after the other.
"""
_SHOWN = 0.01
"""The least share of used memory, and the least share of time in probes, that are shown."""
_FAILED = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)
_COLUMNS = (
    "id", "name", "priority", "state", "exit_code", "waited_s", "ran_s", "peak_bytes", "reserved_bytes", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClosingFacts:
    """Facts for the closing summary of a run, in addition to its totals and rows."""

    varies: Sequence[str] = ()
    """The parameters that vary in the list."""
    metrics: Sequence[str] = ()
    """The metrics that tasks have reported, the most important one first."""
    rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """The rows of tasks with their metrics, by task id."""
    best: str = ""
    """The sentence about the task with the best metric."""
    untaken: str = ""
    """A sentence about rows that were appended but never accepted."""
    width: int | None = None
    """The width of the terminal; None if the lines do not go to a terminal."""


def lines(
    totals: RunTotals, rows: Callable[[], Iterable[dict[str, Any]]], run: int, facts: ClosingFacts | None = None
) -> list[str]:
    """Return the closing summary of a run."""
    facts = facts or ClosingFacts()
    result = [""]
    if 0 < totals.tasks <= MOST_ROWS:
        result += [*_row_table(list(rows()), facts), ""]
    result += _failures(rows, sum(totals.states.get(state, 0) for state in _FAILED))
    said = [*total_lines(totals, run), *_unfinished(totals, run), *([f"best   {facts.best}"] if facts.best else [])]
    result += [part for line in said for part in _wrapped(line, facts.width)]
    return [*result, f"hint:   {facts.untaken}"] if facts.untaken else result


def _wrapped(line: str, width: int | None) -> list[str]:
    """Return a line as several lines that fit into the width; all lines but the first are indented."""
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(line, max(width, 40), subsequent_indent=" " * 7, break_on_hyphens=False)


def _unfinished(totals: RunTotals, run: int) -> list[str]:
    """Return the number of tasks that an interrupted run leaves unfinished, how many of these are held, and how to
    continue the run.
    """
    left = sum(totals.states.get(state, 0) for state in UNFINISHED)
    held = totals.states.get(State.HELD, 0)
    apart = f", {held:,} of them held" if held else ""
    return (
        [f"       {count(left, 'task')} unfinished{apart}: scheduler resume r{run} continues the run"] if left else []
    )


def _row_table(rows: Sequence[dict[str, Any]], facts: ClosingFacts) -> list[str]:
    """Return one line for each task, with the columns of `list` and some columns that only an ended run has."""
    full = [facts.rows.get(row["id"], row) for row in rows]
    shown = tables.shown_columns(full, facts.varies, facts.metrics, usual=_COLUMNS, reasons=False)
    return tables.table_lines(full, columns=shown, varies=facts.varies, width=facts.width)


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
    """Return how a task failed, the last lines of its log, and the path of the log."""
    code = "" if row["exit_code"] is None else f" (exit {row['exit_code']})"
    reason = f": {row['reason']}" if row["reason"] else ""
    head = f"{row['state']}: task {row['id']}, row {row['row']}, {short(row['name'], 60)}{code}{reason}"
    if not row["log"]:
        return [head]
    last = tail(Path(row["log"]))
    foot = f"    log {tilde(row['log'])}" if last else "    it printed nothing"
    return [head, *(f"    | {short(line, 110)}" for line in last), foot]


def tail(path: Path, most: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, and of a progress bar only its last state; empty if the log cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    states = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in states if line.strip()][-most:]


def total_lines(totals: RunTotals, run: int) -> list[str]:
    """Return lines with the totals of a run: states, times, memory."""
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
    """Return how long the run took and which resources it used; shares that round to 0 are left out."""
    words = [f"took {duration(totals.makespan)}"]
    words += _compared(totals)
    if totals.memory_use >= _SHOWN:
        words.append(f"{totals.memory_use:.0%} of the devices' memory used")
    if totals.energy_wh:
        words.append(f"{totals.energy_wh:,.3g} Wh of the GPUs")
    if totals.probing >= _SHOWN:
        words.append(f"{totals.probing:.0%} of the running time in probes")
    return words + ([count(totals.ooms, "out-of-memory error")] if totals.ooms else [])


def _compared(totals: RunTotals) -> list[str]:
    """Return how much faster the run was than one task at a time, if that was measured; otherwise the durations of the
    tasks.
    """
    low, high = (one / totals.makespan for one in totals.alone or (0.0, 0.0))
    if low >= _FASTER:
        times = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
        return [f"{times} times as fast as one task at a time (by epochs in which a task ran alone)"]
    if totals.at_once < _FASTER:
        return []
    return [f"tasks ran for {duration(totals.spent)} in all, {totals.at_once:.2f} at once"]


def _slowed_down(totals: RunTotals) -> list[str]:
    """Return how many tasks took at least half as long again because they shared a device, and which flags help."""
    if not totals.stretched:
        return []
    task, most = totals.stretched[0]
    tasks = count(len(totals.stretched), "task")
    return [
        f"       slowed down: epochs of {tasks} took at least 1.5 times as long beside other tasks",
        f"       (task {task} the most, {most:.1f} times; to share less: --max-gpu-load, --max-load, --max-per-device)",
    ]
