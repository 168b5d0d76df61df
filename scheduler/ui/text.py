"""The text helpers that all views use: they remove escape sequences, align columns, and format times."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Sequence
from functools import lru_cache

from scheduler.patterns import lazy_pattern

MOST_RECORDED = 5
"""The most recorded requests that one sentence names."""
SHORTEST_WORD, LONG_WORD = 8, 12
"""The least width of a word that is truncated in its middle, and the width above which words are truncated before the
names of parameters.
"""
SHORTEST_KEY = 2
"""The width down to which the name of a parameter is truncated."""
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"
"""The beginning of a control string, which a terminal interprets itself: for example its title or its clipboard."""
_CONTROL = lazy_pattern(
    rf"{_CSI}|{_STRING}.*?(?:\x1b\\|\x07|\x9c|$)|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f\u200e\u200f\u202a-\u202e\u2066-\u2069]",
    re.DOTALL,
)


def clean(text: str, *, keep_bytes: bool = False) -> str:
    """Remove escape sequences, control characters and characters that reverse the direction of text.

    Bytes that are not UTF-8 become question marks, unless `keep_bytes` is true.
    """
    if text.isascii() and text.isprintable():
        return text
    plain = _CONTROL.sub("", text)
    return plain if keep_bytes else plain.encode("utf-8", "replace").decode("utf-8")


class TextCleaner:
    """A cleaner of bytes that arrive in pieces; it holds back an unfinished escape sequence, and keeps carriage
    returns.
    """

    MOST = 4096
    """The most characters of an escape sequence that are held back; a longer sequence is shown as text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def clean(self, data: bytes, *, last: bool = False) -> str:
        """Return the clean text of the next piece of bytes; with `last`, also the text that was held back."""
        text = self._rest + self._decoder.decode(data, last)
        begun = _BEGUN.search(text)
        whole = len(text) if last or begun is None or len(text) - begun.start() > self.MOST else begun.start()
        self._rest = text[whole:]
        return "\r".join(map(clean, text[:whole].split("\r")))


_BEGUN = lazy_pattern(rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|{_STRING}[^\x07\x9c\x1b]*\x1b?|\x1b[ -/]*)\Z")


def short(text: str, width: int) -> str:
    """Return a text as one clean line, truncated to a width."""
    line = _one_line(text)
    return line if len(line) <= width else line[: width - 1] + "…"


def columns(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@lru_cache(maxsize=1 << 12)  # bars and curves have few letters, many times in each frame
def _cells(letter: str) -> int:
    from unicodedata import combining, east_asian_width  # only a text that is not ASCII needs it

    if combining(letter) or letter in "\u200b\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1


def fit(text: str, width: int, *, pad: bool = False) -> str:
    """Return a text as one clean line of at most `width` columns, truncated with an ellipsis; with `pad`, add blanks up
    to this width.
    """
    line = _one_line(text)
    wide = columns(line)
    if wide > width:
        kept, wide = "", 0
        for letter in line:
            if wide + _cells(letter) > width - 1:
                break
            kept, wide = kept + letter, wide + _cells(letter)
        line, wide = (kept + "…", wide + 1) if width > 0 else ("", 0)
    return line + " " * (width - wide) if pad else line


def fit_middle(text: str, width: int, *, pad: bool = True) -> str:
    """Return a text as one clean line of this width; without `pad`, a shorter line stays shorter.

    A text that is too long loses the middle of its longest words. If it contains parameters, their names and the other
    words lose their ends first, because the values are most informative.
    """
    line = _one_line(text)
    if not pad and columns(line) <= width:
        return line
    words = line.split(" ")
    while columns(" ".join(words)) > width:
        longest = max(words, key=columns)
        little = max(words, key=_little)
        if columns(longest) <= LONG_WORD and "=" in " ".join(words) and _little(little) > SHORTEST_KEY:
            words[words.index(little)] = _cut_key(little)
        elif columns(longest) >= SHORTEST_WORD:
            words[words.index(longest)] = _cut_middle(longest)
        else:
            break
    return fit(" ".join(words), width, pad=pad)


def _little(word: str) -> int:
    """Return the number of characters before the value of a parameter; for a word that is not a parameter, return its
    length.
    """
    return len(word.partition("=")[0])


def _cut_key(word: str) -> str:
    """Return a word in which the part before the value is one character shorter and ends with an ellipsis."""
    key, equals, value = word.partition("=")
    return f"{key[:-2]}…{equals}{value}"


def _cut_middle(word: str) -> str:
    """Return a word that is one character shorter, with an ellipsis in its middle."""
    bare = word.replace("…", "")
    kept = len(bare) - (1 if bare != word else 2)
    end = kept // 2
    return f"{bare[: kept - end]}…{bare[len(bare) - end :]}"


def _one_line(text: str) -> str:
    line = clean(text)
    return line.replace("\n", " ").replace("\t", " ") if "\n" in line or "\t" in line else line


def clock(at: float) -> str:
    """Return a time of day as text."""
    return _clock(int(at))


def moment(at: float | None) -> str:
    """Return a date and time as text whose alphabetical order is the order in time; empty for None."""
    return "" if at is None else _moment(int(at))


@lru_cache(maxsize=64)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


@lru_cache(maxsize=64)
def _moment(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))


def instant(at: float | None) -> str | None:
    """Return an ISO 8601 time with milliseconds and offset, for programs; None for None."""
    if at is None:
        return None
    local = time.localtime(at)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(at * 1000) % 1000:03d}{time.strftime('%z', local)}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return a table as lines of aligned columns; `right` has the indexes of the columns that are aligned to
    the right.
    """
    every = [_aligned(cells, at_right=place in right) for place, cells in enumerate(zip(header, *rows, strict=True))]
    return ["  ".join(row).rstrip() for row in zip(*every, strict=True)]


def _aligned(cells: Sequence[str], *, at_right: bool) -> list[str]:
    """Return the cells of one column, padded with blanks to an equal width on the terminal."""
    wides = [*map(columns, cells)]
    widest = max(wides)
    if at_right:
        return [" " * (widest - wide) + cell for cell, wide in zip(cells, wides, strict=True)]
    return [cell + " " * (widest - wide) for cell, wide in zip(cells, wides, strict=True)]


def scheduler_ended(run: int, state: str = "") -> str:
    """Return the sentence about an unfinished run whose scheduler has died; `state` is the state directory if the
    commands in the sentence must name it.
    """
    where = f" --state {state}" if state else ""
    return (
        f"its scheduler has ended: scheduler resume r{run}{where} continues it, "
        f"scheduler stop r{run}{where} --abandon gives it up"
    )


def requests_recorded(run: int, recorded: Sequence[str]) -> str:
    """Return the sentence about requests to a run that has no scheduler at the moment."""
    more = f" and {len(recorded) - MOST_RECORDED} more" if len(recorded) > MOST_RECORDED else ""
    them = "it" if len(recorded) == 1 else "them"
    return f"recorded: {', '.join(recorded[:MOST_RECORDED])}{more}; scheduler resume r{run} carries {them} out"
