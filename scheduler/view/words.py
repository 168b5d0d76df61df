"""Small things every view needs: text made safe for a terminal, columns, times of day."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)|[\x00-\x08\x0b-\x1f\x7f-\x9f]", re.DOTALL
)


def clean(text: str) -> str:
    """Text without anything a terminal would act upon."""
    return _CONTROL.sub("", text).encode("utf-8", "replace").decode("utf-8")


def short(text: str, width: int) -> str:
    """Text cut to a width, its cleaned first line."""
    line = clean(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= width else line[: width - 1] + "…"


def clock(at: float) -> str:
    """A time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def moment(at: float | None) -> str:
    """A date and time that sorts, or nothing."""
    return "" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def instant(at: float | None) -> str | None:
    """An ISO 8601 time with milliseconds and offset, for programs."""
    if at is None:
        return None
    local = time.localtime(at)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(at * 1000) % 1000:03d}{time.strftime('%z', local)}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of aligned columns; the numbers of right-aligned columns are given."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = (
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines
