"""The result that an attempt writes to the file at SCHEDULER_RESULT: one flat JSON object, or JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler.core.metrics.readings import clean_name
from scheduler.runtime.paths import open_plain
from scheduler.units import size

LARGEST_RESULT = 64 * 1024
EMPTY = 16
"""The most bytes of a file that may contain no value: blanks, or an object without values."""
HUGE = 10 << 20
"""The size in bytes from which a size is not written in KiB any more."""
LARGEST_KEPT = 16 << 20
"""The most bytes of a file of JSON lines that is kept after the end of its attempt."""


def read_result(path: str) -> Mapping[str, Any]:
    """Return the values of the object in a file, or of its last JSON line; empty if there is none."""
    if not os.access(path, os.F_OK):
        return {}
    try:
        with open_plain(path) as file:
            text = file.read(LARGEST_RESULT + 1)
            if len(text) > LARGEST_RESULT:  # JSON lines, of which the last one counts
                file.seek(-LARGEST_RESULT, os.SEEK_END)
                text = b"\n" + file.read(LARGEST_RESULT)
    except OSError:
        return {}
    return flat_object(text) or _last_object(text)


def ignored(path: str) -> str:
    """Return a sentence that says why a result file was ignored; empty if the file does not exist or has no content."""
    try:
        with open_plain(path) as file:
            length, text = os.fstat(file.fileno()).st_size, file.read(EMPTY + 1)
    except FileNotFoundError:
        return ""
    except OSError as exc:
        return f"its result file was ignored: {exc.strerror or exc}"
    if length > LARGEST_RESULT:
        has = f"{length / 1024:,.0f}KiB" if length < HUGE else size(length)
        return f"its result file was ignored: it has {has}, and one JSON object may have {LARGEST_RESULT >> 10}KiB"
    if len(text) <= EMPTY and text.strip() in (b"", b"{}"):
        return ""
    return "its result file was ignored: it is neither a JSON object with numbers or strings nor JSON lines"


def _last_object(text: bytes) -> dict[str, Any]:
    """Return the values of the last complete JSON line, even if an incomplete line follows it; empty if there is no
    complete line.
    """
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    return flat_object(lines[-1]) if lines else {}


def has_lines(path: str) -> bool:
    """Tell whether a result file consists of several JSON lines, and is small enough to be kept."""
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_KEPT:
                return False
            lines = file.read(LARGEST_RESULT).splitlines()
    except OSError:
        return False
    return len(lines) > 1 and bool(flat_object(lines[0]))


def flat_object(text: bytes) -> dict[str, Any]:
    """Return the null, string, number and boolean values of a JSON object, by their names as metrics; empty if the text
    is not a JSON object.
    """
    if len(text) > LARGEST_RESULT:
        return {}
    try:
        data = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()  # a lone surrogate is valid in JSON only
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {name: value for key, value in _values("", data) if (name := clean_name(key))}


def _values(above: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an object; the names of values in nested objects have dots."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _values(f"{above}{key}.", value)
        elif value is None or isinstance(value, (str, int, float, bool)):
            yield f"{above}{key}", value
