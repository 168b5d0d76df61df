"""Small things every view needs: text made safe for a terminal, columns, times of day."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Sequence
from functools import lru_cache

_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"
"""What begins a text for the terminal itself: its title, its clipboard, another program's keys."""
_CONTROL = re.compile(
    rf"{_CSI}|{_STRING}.*?(?:\x1b\\|\x07|\x9c|$)|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f\u200e\u200f\u202a-\u202e\u2066-\u2069]",
    re.DOTALL,
)


def clean(text: str, *, keep_bytes: bool = False) -> str:
    """Text without anything a terminal would act upon, or that turns the order of letters round.

    Bytes that are no UTF-8 become question marks, or stay as they are where the stream can write them.
    """
    if text.isascii() and text.isprintable():
        return text
    said = _CONTROL.sub("", text)
    return said if keep_bytes else said.encode("utf-8", "replace").decode("utf-8")


class Cleaner:
    """The same for bytes that come in pieces; what an escape has begun waits for its end. A carriage return stays."""

    MOST = 4096
    """No escape that is meant so is longer; behind that the rest is shown."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def clean(self, data: bytes, *, last: bool = False) -> str:
        """The next piece."""
        text = self._rest + self._decoder.decode(data, last)
        begun = _BEGUN.search(text)
        whole = len(text) if last or begun is None or len(text) - begun.start() > self.MOST else begun.start()
        self._rest = text[whole:]
        return "\r".join(map(clean, text[:whole].split("\r")))


_BEGUN = re.compile(rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|{_STRING}[^\x07\x9c\x1b]*\x1b?|\x1b[ -/]*)\Z")


def short(text: str, width: int) -> str:
    """Text cut to a width, its cleaned first line."""
    line = clean(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= width else line[: width - 1] + "…"


def clock(at: float) -> str:
    """A time of day."""
    return _clock(int(at))


def moment(at: float | None) -> str:
    """A date and time that sorts, or nothing."""
    return "" if at is None else _moment(int(at))


@lru_cache(maxsize=64)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


@lru_cache(maxsize=64)
def _moment(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))


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
