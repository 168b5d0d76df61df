"""Bytes cut into commands: one on each line, or one between blank lines."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping, Sequence

from scheduler.core.command import SHELL
from scheduler.core.fields import BY_COLUMN, BadCell, Form
from scheduler.core.model import Terms
from scheduler.errors import UsageError
from scheduler.values import dataclass

COLUMN = "line"
"""What the results call the command, as it was written."""
LONGEST = 32 * os.sysconf("SC_PAGE_SIZE") + 1
"""Of a longer command no more is kept: this is above what Linux lets a program be told, so it fails by itself."""
MOST_ROWS = 5000
"""So many commands are accepted in one transaction at most."""
_END = re.compile(rb"(\n|\0)")
_BLANKS = b" \t\r\n\v\f"

Row = tuple[int, list[str], Terms, int]
"""A row of a door: its number in the source, its cells, their terms, and which of its equals it is."""


@dataclass(frozen=True, slots=True)
class Line:
    """One command: the line it begins in, from 1, its text, and how many bytes and lines there are up to its end."""

    number: int
    text: str
    end: int
    lines: int


class Cutter:
    """Cuts what is fed to it; blank commands and comments count as lines, and are left out."""

    def __init__(self, *, multiline: bool = False, offset: int = 0, number: int = 0) -> None:
        """`multiline`: a blank line or a NUL ends a command; `offset` and `number`: bytes and lines cut before."""
        self._multiline = multiline
        self._offset = offset
        self._number = number
        self._rest = b""
        self._dropped = 0
        """Bytes of the unended line that are beyond what is kept."""
        self._said: list[bytes] = []
        """The lines so far of a command of several."""
        self._first = 0

    def feed(self, data: bytes) -> list[Line]:
        """The commands that these bytes complete."""
        found: list[Line] = []
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

    def rest(self) -> list[Line]:
        """The command that nothing ends; there is nothing behind it."""
        found: list[Line] = []
        if self._multiline:
            self._take_one_of_several(self._rest, b"", found)
            self._finish(found)
        elif self._rest:
            self._take(self._rest, found, ended=0)
        self._rest = b""
        return found

    def _take(self, line: bytes, found: list[Line], ended: int = 1) -> None:
        self._pass(line, ended)
        text = line[:LONGEST].rstrip(_BLANKS)
        if text and text.lstrip(_BLANKS)[:1] != b"#":
            found.append(self._line(self._number, text))

    def _pass(self, line: bytes, ended: int) -> None:
        self._number += 1
        self._offset += len(line) + self._dropped + ended
        self._dropped = 0

    def _take_one_of_several(self, line: bytes, end: bytes, found: list[Line]) -> None:
        self._pass(line, len(end))
        text = line.rstrip(b"\r")
        if text.strip(_BLANKS):
            self._first = self._first if self._said else self._number
            if sum(map(len, self._said)) <= LONGEST:
                self._said.append(text)
        if end == b"\0" or not text.strip(_BLANKS):
            self._finish(found)

    def _finish(self, found: list[Line]) -> None:
        if any(text.lstrip(_BLANKS)[:1] != b"#" for text in self._said):
            found.append(self._line(self._first, b"\n".join(self._said)))
        self._said = []

    def _line(self, number: int, text: bytes) -> Line:
        return Line(number, text.decode("utf-8", "surrogateescape"), self._offset, self._number)


def form_of_lines(defaults: Mapping[str, str], more: Sequence[str] = ()) -> Form:
    """How commands that a shell reads become rows; `more` are columns that only come back in the results."""
    try:
        return Form((COLUMN, *more), defaults, "none", (*SHELL, f"{{{COLUMN}}}"))
    except BadCell as exc:
        raise UsageError(f"{BY_COLUMN[exc.column.lower()].flag}: {exc}") from exc


class Lines:
    """Commands that were cut and are not accepted yet; those told last are told again until they are."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.pending: deque[Line] = deque()
        self._told: list[Line] = []
        self._terms = form.terms([""] * len(form.columns))

    def tell(self) -> list[Row]:
        """The next commands as rows; which of its equals each is, is said by its line."""
        self._told = [self.pending[place] for place in range(min(len(self.pending), MOST_ROWS))]
        return [(line.number, [line.text], self._terms, line.number) for line in self._told]

    @property
    def last_told(self) -> Line | None:
        """The last of the commands told last."""
        return self._told[-1] if self._told else None

    def accepted(self) -> None:
        """The rows told last are in the journal."""
        for _ in self._told:
            self.pending.popleft()
        self._told = []
