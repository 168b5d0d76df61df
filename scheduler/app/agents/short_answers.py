"""Short answers for agents: few columns, few rows with a cursor to the next ones, shortened strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.errors import UsageError
from scheduler.ui.text import TextCleaner, clean

MOST_ROWS = 100
"""The most tasks in one answer."""
MOST_LINES, MOST_BYTES = 500, 16 * 1024
"""The most lines and bytes of a log in one answer."""
LONGEST_CELL, LONGEST_SENTENCE = 200, 1000
COLUMNS = (
    "id", "name", "state", "reason", "exit_code", "attempts", "ooms", "device", "ran_s", "peak_bytes", "reserved_bytes",
    "source", "eta", "started_by",
)  # fmt: skip
"""The columns of a task that an answer contains; empty cells are left out."""


def row(task: Mapping[str, Any], more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the important columns of a task and the columns `more`, without empty cells."""
    keep = {"id", *more}
    cells = {name: cell(task.get(name)) for name in dict.fromkeys((*COLUMNS, *more))}
    return {name: value for name, value in cells.items() if value not in (None, "") and (value != 0 or name in keep)}


def cell(value: Any) -> Any:
    """Return a value of a task, shortened if it is too long for an answer."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str):
        return cut(value, LONGEST_CELL)
    return value if isinstance(value, int) or value is None else cut(str(value), LONGEST_CELL)


def cut(text: str, most: int) -> str:
    """Return a text without control characters, shortened to `most` characters."""
    text = clean(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def sentences(lines: Sequence[str], most: int) -> list[str]:
    """Return the first sentences, each shortened if it is too long; the last one says how many were left out."""
    shown = [cut(line, LONGEST_SENTENCE) for line in lines[:most]]
    return shown + ([f"and {len(lines) - most:,} more"] if len(lines) > most else [])


def log_text(tail: bytes) -> tuple[str, bool]:
    """Return the end of a log as text without control sequences, and whether its beginning was left out."""
    kept = tail[-MOST_BYTES:]
    cleaner = TextCleaner()
    return cleaner.clean(kept) + cleaner.clean(b"", last=True), len(kept) < len(tail)


def limit(number: int, most: int = MOST_ROWS) -> int:
    """Return a number of rows; raise UsageError unless it is from 1 to `most`."""
    if not 1 <= number <= most:
        raise UsageError(f"limit {number}: give a whole number from 1 to {most}")
    return number


def page(ids: Sequence[int], cursor: str | None, most: int) -> tuple[Sequence[int], str | None]:
    """Return the ids after a cursor, and the cursor of the next page; None if this is the last one.

    `ids` are in ascending or descending order.
    """
    rest = ids
    if cursor is not None:
        if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 19:
            raise UsageError("cursor: give next_cursor of the previous answer, or leave it out")
        last, down = int(cursor), len(ids) > 1 and ids[0] > ids[-1]
        rest = [one for one in ids if (one < last if down else one > last)]
    shown = rest[:most]
    return shown, str(shown[-1]) if len(rest) > len(shown) else None
