"""The CSV door: a file of rows, validated as it streams by, and the rows appended to it while its run goes on.

What is taken: UTF-8 with or without a BOM; LF, CRLF or CR; quoted cells with commas and line ends in them; a last line
without a line end. Blank lines, rows of empty cells and rows that begin with `#` are skipped. The delimiter is the
comma. A header that has none of our names when split at commas, but has some when split at TABs or at `;`, says that
the file is delimited so: the header proves it, and the count of fields is checked in every row.

What is not: bytes that are not UTF-8. A journal, a result table and a terminal hold text, and a row that cannot be
shown cannot be vouched for; a file name of other bytes needs a link with a name that can be written down.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from scheduler.core.command import THIS_PYTHON
from scheduler.core.fields import BY_COLUMN, FIVE, REQUIRED, RESERVED, BadCell, Field, Form, words
from scheduler.core.model import Terms
from scheduler.errors import InputError, UsageError
from scheduler.units import count

Row = tuple[int, list[str], Terms, int]
"""Line in the file (the header is line 1), cells, terms, and how many earlier rows run the same command."""

_CHUNK = 1 << 20
_MEMO = 50_000
_ODD = " \t#"
_TEXTS = ("Directory", "Executable", "Filename", "Args", "Command", "Env")


@dataclass(frozen=True, slots=True)
class Mark:
    """How much of a file was accepted; a run's journal keeps it, so that appended rows can be told from edits."""

    offset: int
    rows: int
    lines: int
    head: int
    """Lines up to the end of the header."""
    digest: str
    size: int
    mtime_ns: int
    inode: int
    delimiter: str = ","

    def pack(self) -> str:
        """The mark as text for a journal."""
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, text: str) -> Mark:
        """The mark that `pack` wrote."""
        return cls(**json.loads(text))


class CsvFile:
    """One CSV file on its way to become tasks: read once with `rows`, then watched with `appended`.

    `defaults` are the texts of run-wide flags by column name. Paths are meant from `cwd` (empty: the current one).
    Everything that cannot be taken raises InputError with file, row and column; the caller takes all rows or none.
    """

    retry = 2.0
    """Seconds until a bad appended row is looked at again in an unchanged file: its directory may have been made."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        header: int | None = 0,
        defaults: Mapping[str, str] | None = None,
        append: str = "both",
        python: str = sys.executable,
        cwd: str = "",
    ) -> None:
        self._settle(path, python, cwd)
        self._raw = _HashedBytes(self._open())
        try:
            text = _text(self._raw)
            self._head, line = self._first_line(text, header)
            self.delimiter = "," if header is None else _delimiter(line)
            self._reader = csv.reader(chain([line], text), delimiter=self.delimiter, strict=True)
            names = self._header_names(line) if header is None else self._columns(header, defaults or {})
        except (csv.Error, UnicodeDecodeError, _NulByte) as exc:
            raise self._unreadable(exc, self._head + 1) from exc
        except InputError:
            self._raw.close()
            raise
        self._take_form(_form(names, defaults or {}, append))

    @classmethod
    def resumed(
        cls, path: str | os.PathLike[str], form: Form, *, python: str = sys.executable, cwd: str = ""
    ) -> CsvFile:
        """The file of a run taken over: only watched with `appended`; it may have changed, or be gone."""
        self = cls.__new__(cls)
        self._settle(path, python, cwd)
        self._take_form(form)
        return self

    def _settle(self, path: str | os.PathLike[str], python: str, cwd: str) -> None:
        self.path = os.fspath(path)
        self.warnings: list[str] = []
        self._at = os.path.join(cwd, self.path)
        self._ground = _Ground(self._at, python, cwd)
        self._head = 0
        self._repeats: _Repeats | None = None
        self._looked: tuple[object, bool] = (None, False)
        self._said: str | None = None
        self._again = 0.0

    def _take_form(self, form: Form) -> None:
        self.form = form
        mentioned = {*form.known, *(name for name, text in form.defaults.items() if text)}
        plain = mentioned.isdisjoint(("Args", "Command", "Env")) and {*form.known}.issuperset(REQUIRED)
        self._identity = self._identity_of_five if plain and not form.own else self._identity_of_any
        if plain:
            self._three: Callable[[list[str]], Any] = itemgetter(*(form.known[name] for name in _TEXTS[:3]))

    # --- the first reading

    def rows(self) -> Iterator[Row]:
        """Every row, validated before it is handed out; only once. `mark` and all `warnings` are there afterwards."""
        status = os.fstat(self._raw.fileno())
        repeats = _Repeats()
        taken = 0
        with self._raw:
            for taken, row in enumerate(self._validated(self._reader, self._head, self._ground, repeats), 1):
                yield row
        self._raw.forget()
        self.mark = Mark(
            self._raw.offset, taken, self._head + self._reader.line_num, self._head + self._header_lines,
            self._raw.digest.hexdigest(), status.st_size, status.st_mtime_ns, status.st_ino, self.delimiter,
        )  # fmt: skip
        self._warn_of_repeats(repeats)
