"""CSV files: rows that are validated while they are read, and rows that are appended while the run goes on.

Accepted are UTF-8 with or without a BOM; LF, CRLF or CR; quoted cells with commas and line ends; a last line without a
line end. Blank lines, rows of empty cells and rows that begin with `#` are skipped. The delimiter is the comma. If a
header has no task field when it is split at commas, but has some when split at TABs or at `;`, that is the delimiter;
the number of fields is checked in every row. The delimiter of a table of parameters, whose command comes after `--`, is
the one that splits the header into the command's placeholders. A file called .jsonl contains one JSON object per line,
which is another form of a row.

Bytes that are not UTF-8 are refused: a journal, a result table and a terminal hold text. A file whose name is not UTF-8
needs a link with a name that is.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from scheduler.core.tasks.fields import BY_COLUMN, FIVE, BadCell, RowForm
from scheduler.core.tasks.placeholders import names
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.errors import InputError, UsageError
from scheduler.inputs import table
from scheduler.inputs.csv_decoding import (
    HashedBytes,
    NotText,
    behind,
    clean,
    digest_of,
    ended,
    text_of,
)
from scheduler.inputs.csv_header import checked_columns, delimiter_of, known_names, refuse_slips
from scheduler.inputs.row_checks import (
    RowChecker,
    anywhere,
)
from scheduler.inputs.row_validator import CommandCounts, RowValidator, unreadable
from scheduler.runtime import clock
from scheduler.runtime.python_envs import Programs
from scheduler.units import count
from scheduler.values import dataclass, replace

_NO_FILE = (0, 0, 0)
"""The status that stands for a pipe, which cannot grow after it was read."""
_WAITS = "; this appended row and the rows after it wait until it is corrected"


@dataclass(frozen=True, slots=True)
class CsvMark:
    """The accepted part of a file. The mark distinguishes appended rows from edits, and is kept in the run's
    journal.
    """

    offset: int
    rows: int
    lines: int
    head: int
    """The number of lines from the beginning of the file to the end of the header."""
    digest: str
    size: int
    mtime_ns: int
    inode: int
    delimiter: str = ","

    def pack(self) -> str:
        """Return the mark as a string for a journal."""
        return json.dumps(
            {
                "offset": self.offset,
                "rows": self.rows,
                "lines": self.lines,
                "head": self.head,
                "digest": self.digest,
                "size": self.size,
                "mtime_ns": self.mtime_ns,
                "inode": self.inode,
                "delimiter": self.delimiter,
            }
        )

    @classmethod
    def unpack(cls, text: str) -> CsvMark:
        """Return the mark that `pack` wrote."""
        return cls(**json.loads(text))


def batches(rows: Iterable[InputRow], num: int) -> Iterator[list[InputRow]]:
    """Yield batches of `num` rows, each sorted by priority; rows of equal priority stay in file order."""
    if num < 1:
        raise UsageError(f"--num {num}: a batch needs at least 1 row")
    source = iter(rows)
    return iter(lambda: sorted(islice(source, num), key=lambda row: row[2].priority), [])


class CsvFile(RowSource):
    """One CSV file. `rows` reads it once; after its last row `mark` and `warnings` are complete, and the file may grow.

    `header` is the row that names the columns, counted from 0 without blank lines; None: no header, the five columns.
    `defaults` are the values of run-wide flags by column name. `template` is the command with placeholders for every
    row that has no command of its own. Paths are relative to `cwd` (empty: to the current directory). `mine` are
    columns that the user has declared as correct although their names look like misspelt task fields. Rows that cannot
    be accepted raise InputError with file, row and column; the caller accepts all rows or none.
    """

    retry = 2.0
    """Seconds until an invalid appended row in an unchanged file is checked again, because its script may exist by
    then.
    """

    def __init__(  # noqa: PLR0913  # all but the path are given by name
        self,
        path: str | os.PathLike[str],
        *,
        header: int | None = 0,
        defaults: Mapping[str, str] | None = None,
        append: str = "both",
        python: str = sys.executable,
        cwd: str = "",
        template: Sequence[str] = (),
        mine: Collection[str] = (),
    ) -> None:
        self._settle(path, python, cwd, None)
        table.refuse_script(self.path)
        self._mine = {name.lower() for name in mine}
        self._slips: dict[str, str] = {}
        self._reader: Any
        self._bytes = HashedBytes(self._open())
        self._status = os.fstat(self._bytes.fileno())
        given = {name: text for name, text in (defaults or {}).items() if text}
        if self._json and header != 0:
            raise UsageError(f"--header {header}: a JSON lines file has no header, since each object names its values")
        try:
            columns = self._read_header(header, template)
            if header is not None:
                columns = self._checked(columns, {*given}, template)
            self._take_form(_form(columns, given, append, template))
        except BaseException:
            self._bytes.close()
            raise

    @classmethod
    def resumed(
        cls,
        path: str | os.PathLike[str],
        form: RowForm,
        accepted: CsvMark,
        *,
        python: str = sys.executable,
        cwd: str = "",
        programs: Programs | None = None,
    ) -> CsvFile:
        """Return a CsvFile for a resumed run, on which only `appended` is called; the file may have been changed or
        removed since.
        """
        self = cls.__new__(cls)
        self._settle(path, python, cwd, programs)
        self._take_form(form)
        self.position = self._next = accepted
        return self

    def _settle(self, path: str | os.PathLike[str], python: str, cwd: str, programs: Programs | None) -> None:
        self.path = os.fspath(path)
        self.warnings: list[str] = []
        self._at = os.path.join(cwd, self.path)
        self._json = table.is_json_lines(self.path)
        self._checker = RowChecker(self._at, python, cwd, programs)
        self._counts: CommandCounts | None = None
        self._looked: tuple[object, bool] = ("never", False)
        self._said = ""
        self._again = float("inf")

    def _take_form(self, form: RowForm) -> None:
        self.form = form
        self._validator = RowValidator(self.path, self._at, form, self.warnings, is_json=self._json)

    def _open(self) -> io.FileIO:
        try:
            return io.FileIO(self._at)
        except OSError as exc:
            raise InputError(self.path, f"it cannot be read: {(exc.strerror or str(exc)).lower()}") from exc

    # The header.

    def _checked(self, columns: list[str], given: set[str], template: Sequence[str]) -> list[str]:
        """Return the names of the columns after a check; raise InputError if they are invalid."""
        own = table.own_columns(columns, template) if template else None
        columns, slips = checked_columns(self.path, self._above + 1, columns, given, own, self._mine)
        if template:
            fillable = [*columns, "Epochs"] if "Epochs" in given else columns
            table.check_placeholders(self.path, self._above + 1, fillable, template)
            refuse_slips(self.path, self._above + 1, slips)
        self._slips = slips
        if any(name.lower() == "id" for name in columns) and any("{id}" in word for word in template):
            self.warnings.append(f"{self.path}: {{id}} is filled from the column 'id', not with the task's id")
        return columns

    def _read_header(self, header: int | None, template: Sequence[str]) -> list[str]:
        """Return the cells of the header, and prepare the reader of the rows."""
        self._head = 0
        try:
            text = text_of(self._bytes)
            if self._json:
                return self._read_objects(text, template)
            above, line = self._first_line(text, header or 0)
            self.delimiter = "," if header is None else delimiter_of(line)
            if template:
                self.delimiter = table.delimiter_of_table(self.path, line, template)
            self._reader = csv.reader(chain([line], text), delimiter=self.delimiter, strict=True)
            self._above = self._head = above
            if header is None:
                return self._five(line)
            columns: list[str] = next(self._reader)
            self._head += self._reader.line_num
            return columns
        except (csv.Error, UnicodeDecodeError, NotText) as exc:
            raise unreadable(self.path, self._at, exc, self._head + 1) from exc

    def _read_objects(self, text: Iterable[str], template: Sequence[str]) -> list[str]:
        """Return the names in the objects of a JSON lines file as its columns, because such a file has no header."""
        self.delimiter, self._above = ",", 0
        lines = list(text)
        self._text = text  # keeps the bytes open, because `rows` needs their digest
        columns = table.columns_of(self.path, lines)
        self._reader = table.JsonLines(lines, columns, names(template))
        return columns

    def _reader_of(self, lines: Iterable[str], mark: CsvMark) -> Any:
        """Return a reader of the rows in `lines`, for a file whose delimiter and columns are known from its mark."""
        self.delimiter = self._validator.delimiter = mark.delimiter
        if self._json:
            return table.JsonLines(lines, self.form.columns, names(self.form.template))
        return csv.reader(lines, delimiter=mark.delimiter, strict=True)

    def _first_line(self, text: Iterable[str], header: int) -> tuple[int, str]:
        """Return the number of lines above the header, and the header's first line."""
        rows = 0
        for above, line in enumerate(text):
            rows += bool(line.strip())
            if rows > header and line.strip() and not line.lstrip().startswith("#"):
                return above, line
        if header:
            raise InputError(self.path, f"it has {count(rows, 'row')}, so --header {header} is beyond its end")
        raise InputError(self.path, f"it is empty: its first line names the columns ({','.join(FIVE)})")

    def _five(self, line: str) -> list[str]:
        if len(known_names(line, ",")) > 1:
            raise InputError(self.path, "this row is a header: remove --header None", self._head + 1)
        return list(FIVE)

    # The rows.

    def rows(self) -> Iterator[InputRow]:
        """Yield each validated row once; at the end, `mark` and `warnings` are complete. Raise InputError if a row is
        invalid.
        """
        counts = CommandCounts()
        self._validator.delimiter = self.delimiter
        with self._bytes as source:
            good = self._validator.validated(self._reader, self._above, self._head, self._checker.__getitem__, counts)
            yield from self._without_used_slips(good) if self._slips else good
            refuse_slips(self.path, self._above + 1, self._slips)
        self.position = self._next = CsvMark(
            offset=source.offset,
            rows=counts.rows,
            lines=self._above + self._reader.line_num,
            head=self._head,
            digest=source.digest.hexdigest(),
            size=self._status.st_size,
            mtime_ns=self._status.st_mtime_ns,
            inode=self._status.st_ino,
            delimiter=self.delimiter,
        )
        if counts.repeated:
            rows = "1 row runs" if counts.repeated == 1 else f"{counts.repeated:,} rows run"
            first = f"the first is row {counts.first_repeat}"
            self.warnings.append(f"{self.path}: {rows} the same command as an earlier row ({first}); all are accepted")

    def _without_used_slips(self, rows: Iterable[InputRow]) -> Iterator[InputRow]:
        """Yield the rows; a column with a doubtful name stops counting as misspelt once a placeholder uses the
        column.
        """
        for row in rows:
            for name in [name for name in self._slips if any(f"{{{name.lower()}}}" in c.lower() for c in row[1])]:
                del self._slips[name]
            yield row

    # What is appended while the run goes on.

    @property
    def mark(self) -> str:
        """The position in the file up to which rows are accepted, as a string for the journal."""
        return self.position.pack()

    def accepted(self) -> None:
        """Note that the rows that `appended` returned last are in the journal."""
        self.position = self._next

    def appended(self, *, last: bool) -> tuple[list[InputRow], str, str]:
        """Return the rows after the accepted part, the mark after them, and a sentence about rows or changes that were
        not accepted.

        This is cheap while the file is unchanged. A row counts once its line has an end; with `last` (no task is left
        to run), a last row without a line end counts too. Any other edit and invalid rows are ignored, and described
        once.
        """
        look = self._look()
        if not self._worth_reading(look, self.position, last):
            return [], "", ""
        self._looked = (look, last or (self._looked == (look, True)))
        self._again = float("inf")
        rows, self._next, said = self._read_behind(self.position, last)
        news, self._said = (said if said != self._said else ""), said
        return rows, self._next.pack() if rows else "", news

    def untaken(self) -> tuple[list[InputRow], str]:
        """Return the valid rows after the accepted part, and a sentence about the first invalid row after them; empty
        if there is none.
        """
        if self._look() == _NO_FILE:
            return [], ""
        rows, _, said = self._read_behind(self.position, True)
        return rows, said.removesuffix(_WAITS) if said.endswith(_WAITS) else ""

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._at)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return _NO_FILE
        return (status.st_size, status.st_mtime_ns, status.st_ino)

    def _worth_reading(self, look: tuple[int, int, int] | None, mark: CsvMark, last: bool) -> bool:
        if look == _NO_FILE or (look == (mark.size, mark.mtime_ns, mark.inode) and mark.offset == mark.size):
            return False
        seen, with_last = self._looked
        return look != seen or (last and not with_last) or time.monotonic() >= self._again

    def _read_behind(self, mark: CsvMark, last: bool) -> tuple[list[InputRow], CsvMark, str]:
        try:
            with open(self._at, "rb") as file:
                status = os.fstat(file.fileno())
                digest, ending = digest_of(file, mark.offset)
                if digest.hexdigest() != mark.digest:
                    return [], mark, self._edited(mark, status.st_size)
                tail = file.read()
        except OSError as exc:
            return [], mark, self._gone(exc)
        rest = behind(ending, tail)
        if rest is None:
            return [], mark, self._glued(mark)
        skipped = len(tail) - len(rest)
        rows, lines, taken, said = self._take(rest if last else ended(rest), mark)
        if not rows:
            return [], mark, said
        digest.update(tail[: skipped + taken])
        after = replace(
            mark,
            offset=mark.offset + skipped + taken,
            rows=mark.rows + len(rows),
            lines=mark.lines + lines,
            digest=digest.hexdigest(),
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            inode=status.st_ino,
        )
        return rows, after, said

    def _take(self, tail: bytes, mark: CsvMark) -> tuple[list[InputRow], int, int, str]:
        """Return the valid rows at the beginning of `tail`, the numbers of their lines and bytes, and a sentence about
        the rows after them.
        """
        lines = list(io.StringIO(tail.decode("utf-8", "surrogateescape"), newline=""))
        if not any(map(str.strip, lines)):
            return [], 0, 0, ""
        self._take_form(self.form.read_at(clock.wall()))
        reader = self._reader_of(clean(self.path, lines, mark.lines), mark)
        rows: list[InputRow] = []
        good, said = 0, ""
        try:
            self._counts = self._counts or self._recount(mark)
            for row in self._validator.validated(
                reader, mark.lines, mark.lines, self._checker.__getitem__, self._counts
            ):
                rows.append(row)
                good = reader.line_num
            good = len(lines)
        except InputError as exc:
            said = f"{exc}{_WAITS}"
            self._again = time.monotonic() + self.retry
        return rows, good, sum(len(line.encode("utf-8", "surrogateescape")) for line in lines[:good]), said

    def _recount(self, mark: CsvMark) -> CommandCounts:
        """Count the commands of the accepted part again. The result is large, so it is only created once rows were
        appended.
        """
        counts = CommandCounts()
        with HashedBytes(self._open(), left=mark.offset) as source:
            text = text_of(source)
            for _ in islice(text, mark.head):
                pass
            reader = self._reader_of(text, mark)
            for _ in self._validator.validated(reader, mark.head, mark.head, anywhere, counts):
                pass
        return counts

    def _edited(self, mark: CsvMark, size: int) -> str:
        what = f"cut to {size} bytes" if size < mark.offset else "changed"
        return (
            f"{self.path}: its first {count(mark.lines, 'line')} ({mark.offset} bytes) were accepted and"
            f" have been {what} since: the change is ignored; new rows are accepted once these lines are restored"
        )

    def _glued(self, mark: CsvMark) -> str:
        return (
            f"{self.path}, row {mark.lines}: this row was accepted without a line end, and text was added directly"
            " after it: the text is ignored; restore the row and write new rows on lines of their own"
        )

    def _gone(self, exc: OSError) -> str:
        why = (exc.strerror or str(exc)).lower()
        return f"{self.path}: it cannot be read any more ({why}): the accepted rows continue, and new rows are ignored"


def _form(columns: Sequence[str], defaults: Mapping[str, str], append: str, template: Sequence[str]) -> RowForm:
    try:
        return RowForm(columns, defaults, append, template, now=clock.wall())
    except BadCell as exc:
        raise UsageError(f"{BY_COLUMN[exc.column.lower()].flag}: {exc}") from exc
