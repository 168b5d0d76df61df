"""Commands cut out of bytes: one command on each line, or one between blank lines."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence

from scheduler.core.tasks.command import SHELL
from scheduler.core.tasks.fields import BY_COLUMN, BadCell, RowForm
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import UsageError
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass

COLUMN = "line"
"""The column of the results that contains the command as it was written."""
LONGEST = 32 * os.sysconf("SC_PAGE_SIZE") + 1
"""The most bytes of a command that are kept; Linux refuses to start a command of this length."""
MOST_ROWS = 5000
"""The most commands that are accepted in one transaction."""
_END = lazy_pattern(rb"(\n|\0)")
_BLANKS = b" \t\r\n\v\f"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """One command: the number of its first line (from 1), its text, and the numbers of bytes and lines from the
    beginning of the input to its end.
    """

    number: int
    text: str
    end: int
    lines: int


class LineCutter:
    """The cutter of bytes into commands, with its position; blank lines and comments count as lines, but are
    left out.
    """

    def __init__(self, *, multiline: bool = False, offset: int = 0, number: int = 0) -> None:
        """Begin at the position after `offset` bytes and `number` lines; with `multiline`, a blank line or a NUL ends a
        command.
        """
        self._multiline = multiline
        self._offset = offset
        self._number = number
        self._rest = b""
        self._dropped = 0
        """The number of bytes of the unfinished line that were dropped because the line is too long."""
        self._parts: list[bytes] = []
        """The lines of an unfinished command that has several lines."""
        self._first = 0

    def feed(self, data: bytes) -> list[CommandLine]:
        """Return the commands that are complete after these bytes."""
        found: list[CommandLine] = []
        if self._multiline:
            pieces = _END.split(self._rest + data)
            for piece, end in zip(pieces[:-1:2], pieces[1::2], strict=True):
                self._take_one_of_several(piece, end, found)
            self._rest = pieces[-1]
        else:
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line, found)
        if len(self._rest) > LONGEST:
            self._dropped += len(self._rest) - LONGEST
            self._rest = self._rest[:LONGEST]
        return found

    def rest(self) -> list[CommandLine]:
        """Return the last command if the input ends without a line end, in a list that may be empty."""
        found: list[CommandLine] = []
        if self._multiline:
            self._take_one_of_several(self._rest, b"", found)
            self._finish(found)
        elif self._rest:
            self._take(self._rest, found, ended=0)
        self._rest = b""
        return found

    def _take(self, line: bytes, found: list[CommandLine], ended: int = 1) -> None:
        self._pass(line, ended)
        text = line[:LONGEST].rstrip(_BLANKS)
        if text and text.lstrip(_BLANKS)[:1] != b"#":
            found.append(self._line(self._number, text))

    def _pass(self, line: bytes, ended: int) -> None:
        self._number += 1
        self._offset += len(line) + self._dropped + ended
        self._dropped = 0

    def _take_one_of_several(self, line: bytes, end: bytes, found: list[CommandLine]) -> None:
        self._pass(line, len(end))
        text = line.rstrip(b"\r")
        if text.strip(_BLANKS):
            self._first = self._first if self._parts else self._number
            if sum(map(len, self._parts)) <= LONGEST:
                self._parts.append(text)
        if end == b"\0" or not text.strip(_BLANKS):
            self._finish(found)

    def _finish(self, found: list[CommandLine]) -> None:
        if any(text.lstrip(_BLANKS)[:1] != b"#" for text in self._parts):
            found.append(self._line(self._first, b"\n".join(self._parts)))
        self._parts = []

    def _line(self, number: int, text: bytes) -> CommandLine:
        return CommandLine(number, text.decode("utf-8", "surrogateescape"), self._offset, self._number)


def form_of_lines(defaults: Mapping[str, str], more: Sequence[str] = ()) -> RowForm:
    """Return the form of rows that are shell commands; the columns in `more` only appear in the results."""
    try:
        return RowForm((COLUMN, *more), defaults, "none", (*SHELL, f"{{{COLUMN}}}"))
    except BadCell as exc:
        raise UsageError(f"{BY_COLUMN[exc.column.lower()].flag}: {exc}") from exc


class PendingLines:
    """Commands that have not been accepted yet; `next_rows` returns the same commands until `accepted` is called."""

    def __init__(self, form: RowForm) -> None:
        self.form = form
        self.pending: deque[CommandLine] = deque()
        self._returned: list[CommandLine] = []
        self._terms = form.terms([""] * len(form.columns))

    def next_rows(self) -> list[InputRow]:
        """Return the next commands as rows; equal commands are distinguished by their line numbers."""
        self._returned = [self.pending[place] for place in range(min(len(self.pending), MOST_ROWS))]
        return [(line.number, [line.text], self._terms, line.number) for line in self._returned]

    @property
    def last_returned(self) -> CommandLine | None:
        """The last command among the rows that were returned last."""
        return self._returned[-1] if self._returned else None

    def accepted(self) -> None:
        """Drop the rows that were returned last, because they are in the journal."""
        for _ in self._returned:
            self.pending.popleft()
        self._returned = []
