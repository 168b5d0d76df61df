"""The CSV door: a file of rows, validated as it streams by, and what is appended to it while its run goes on.

What is taken: UTF-8 with or without a BOM; LF, CRLF or CR; quoted cells with commas and line ends in them; a last line
without a line end. Blank lines, rows of empty cells and rows that begin with `#` are skipped. The delimiter is the
comma. A header that has none of our names when split at commas, but has some when split at TABs or at `;`, says that
the file is delimited so: the header proves it, and the count of fields is checked in every row. A table of parameters,
whose command stands behind `--`, is delimited where its header has the command's placeholders. A file called .jsonl
holds one JSON object in a line: the same rows, written otherwise.

What is not: bytes that are not UTF-8. A journal, a result table and a terminal hold text, and a row that cannot be
shown cannot be vouched for; a file name of other bytes needs a link with a name that can be written down.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from scheduler.core.command import THIS_PYTHON
from scheduler.core.fields import BY_COLUMN, FIVE, REQUIRED, BadCell, Form, words
from scheduler.core.model import Terms
from scheduler.core.placeholders import names, takes
from scheduler.doors import table
from scheduler.doors.bad_rows import BadRows
from scheduler.doors.csv_bytes import HashedBytes, NotText, behind, clean, digest_of, ended, iconv, quote_fault, text_of
from scheduler.doors.csv_header import checked_columns, delimiter_of, known_names
from scheduler.doors.ground import Ground, Place, anywhere, lead, place_of_command, refuse_beside_command, split_words
from scheduler.environments import Programs
from scheduler.errors import InputError, UsageError
from scheduler.units import count
from scheduler.values import dataclass

Row = tuple[int, list[str], Terms, int]
"""Line in the file (the header is line 1), cells, terms, and how many earlier rows run the same command."""
_NO_FILE = (0, 0, 0)
"""How a pipe looks: nothing is ever appended to it."""
_OF_SHELL = re.compile(r"[<>|&;]")
_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>>", "&>", "2>&1"}
"""Words by which a row seems to be meant for a shell."""
_WAITS = "; this appended row and what stands behind it wait until it is mended"
_COMMAND = ("Directory", "Executable", "Filename", "Args", "Command", "Env")


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


def batches(rows: Iterable[Row], num: int) -> Iterator[list[Row]]:
    """The next `num` rows at a time, smaller priorities first inside each batch, equal ones in file order."""
    if num < 1:
        raise UsageError(f"--num {num}: a batch needs at least 1 row")
    source = iter(rows)
    return iter(lambda: sorted(islice(source, num), key=lambda row: row[2].priority), [])


class CsvFile:
    """One CSV file on its way to become tasks: read once with `rows`, then watched with `appended`.

    `header` is the row that names the columns, counted from 0 without blank lines; None: no header, the five columns.
    `defaults` are the texts of run-wide flags by column name; `template` is the command that every row fills, where the
    rows say none of their own. Relative paths are meant from `cwd` (empty: from here).
    What cannot be taken raises InputError with file, row and column; the caller takes all rows of a file or none.
    """

    retry = 2.0
    """Seconds until a bad appended row is tried again though the file stayed as it was: its script may exist by now."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        header: int | None = 0,
        defaults: Mapping[str, str] | None = None,
        append: str = "both",
        python: str = sys.executable,
        cwd: str = "",
        template: Sequence[str] = (),
    ) -> None:
        self._settle(path, python, cwd, None)
        self._reader: Any
        self._bytes = HashedBytes(self._open())
        self._status = os.fstat(self._bytes.fileno())
        given = {name: text for name, text in (defaults or {}).items() if text}
        if self._json and header != 0:
            raise UsageError(f"--header {header}: JSON lines have none, each object names its values itself")
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
        form: Form,
        *,
        python: str = sys.executable,
        cwd: str = "",
        programs: Programs | None = None,
    ) -> CsvFile:
        """The file of a run that was taken over, for `appended` alone; it may have changed since, or be gone."""
        self = cls.__new__(cls)
        self._settle(path, python, cwd, programs)
        self._take_form(form)
        return self

    def _settle(self, path: str | os.PathLike[str], python: str, cwd: str, programs: Programs | None) -> None:
        self.path = os.fspath(path)
        self.warnings: list[str] = []
        self._at = os.path.join(cwd, self.path)
        self._json = table.is_json_lines(self.path)
        self._ground = Ground(self._at, python, cwd, programs)
        self._repeats: _Repeats | None = None
        self._looked: tuple[object, bool] = ("never", False)
        self._said: str | None = None
        self._again = float("inf")

    def _take_form(self, form: Form) -> None:
        self.form = form
        more = {"Args", "Command", "Env"} & {*form.known, *form.defaults}
        five = {*form.known}.issuperset(REQUIRED) and not more
        self._identity = self._identity_of_five if five else self._identity_of_any
        if form.template:
            self._identity = self._identity_of_template
        self._three = itemgetter(*(form.known.get(name, 0) for name in _COMMAND[:3]))

    def _open(self) -> io.FileIO:
        try:
            return io.FileIO(self._at)
        except OSError as exc:
            raise InputError(self.path, f"it cannot be read: {(exc.strerror or str(exc)).lower()}") from exc

    # The header.

    def _checked(self, columns: list[str], given: set[str], template: Sequence[str]) -> list[str]:
        """The columns under the names they go by, all that is asked of them granted."""
        own = table.own_columns(columns, template) if template else None
        columns, doubts = checked_columns(self.path, self._above + 1, columns, given, own)
        if template:
            fillable = [*columns, "Epochs"] if "Epochs" in given else columns
            table.check_placeholders(self.path, self._above + 1, fillable, template)
        self.warnings += doubts
        if any(name.lower() == "id" for name in columns) and any("{id}" in word for word in template):
            self.warnings.append(f"{self.path}: {{id}} is filled from its column 'id', not with the task's id")
        return columns

    def _read_header(self, header: int | None, template: Sequence[str]) -> list[str]:
        """The cells of the header; sets up the reader of the rows behind it."""
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
            raise self._unreadable(exc, self._head + 1) from exc

    def _read_objects(self, text: Iterable[str], template: Sequence[str]) -> list[str]:
        """The names that the objects of a JSON lines file have: it needs no header."""
        self.delimiter, self._above = ",", 0
        lines = list(text)
        self._text = text  # whose end would close the bytes that `rows` asks for their digest
        columns = table.columns_of(self.path, lines)
        self._reader = table.JsonLines(lines, columns, names(template))
        return columns

    def _reader_of(self, lines: Iterable[str], mark: Mark) -> Any:
        """The rows behind the header, of a part of a file whose form is known."""
        self.delimiter = mark.delimiter
        if self._json:
            return table.JsonLines(lines, self.form.columns, names(self.form.template))
        return csv.reader(lines, delimiter=mark.delimiter, strict=True)

    def _first_line(self, text: Iterable[str], header: int) -> tuple[int, str]:
        """How many lines stand above the header, and its first line."""
        rows = 0
        for above, line in enumerate(text):
            rows += bool(line.strip())
            if rows > header and line.strip() and not line.lstrip().startswith("#"):
                return above, line
        if header:
            raise InputError(self.path, f"it has {count(rows, 'row')}, so none is its header at --header {header}")
        raise InputError(self.path, f"it is empty: its first line names the columns ({','.join(FIVE)})")

    def _five(self, line: str) -> list[str]:
        if len(known_names(line, ",")) > 1:
            raise InputError(self.path, "this row is a header: leave out --header None", self._head + 1)
        return list(FIVE)

    # The rows.

    def rows(self) -> Iterator[Row]:
        """Each row, validated before it is handed out; one pass. Then `mark` and all `warnings` are there."""
        repeats = _Repeats()
        with self._bytes as source:
            yield from self._validated(self._reader, self._above, self._head, self._ground.__getitem__, repeats)
        self.mark = Mark(
            offset=source.offset,
            rows=repeats.rows,
            lines=self._above + self._reader.line_num,
            head=self._head,
            digest=source.digest.hexdigest(),
            size=self._status.st_size,
            mtime_ns=self._status.st_mtime_ns,
            inode=self._status.st_ino,
            delimiter=self.delimiter,
        )
        if repeats.again:
            said = "1 row runs" if repeats.again == 1 else f"{repeats.again:,} rows run"
            first = f"the first is row {repeats.first}"
            self.warnings.append(f"{self.path}: {said} the same as an earlier row ({first}); all of them are taken")

    def _validated(self, reader: Any, above: int, line: int, place: Place, repeats: _Repeats) -> Iterator[Row]:
        """The rows of a csv reader whose first line is line `above` + 1, behind line `line`.

        None is handed out behind the first bad one; the rest is only looked at, to tell how many are bad.
        """
        width, terms_of, identity, once = len(self.form.columns), self.form.terms, self._identity, repeats.once
        bad = BadRows(self.path)
        for row, until, cells in self._read(reader, above, line, bad):
            try:
                if (len(cells) != width or cells[0][:1] in " \t#") and self._skipped(cells, row, until):
                    continue
                terms = terms_of(cells)
                code = hash(identity(cells, terms, place))
            except BadCell as exc:
                bad.add(row, str(exc), exc.column)
            if bad:
                continue
            nth = repeats.another(code, row) if code in once else 0
            once.add(code)
            yield row, cells, terms, nth
        bad.refuse()

    def _read(self, reader: Any, above: int, line: int, bad: BadRows) -> Iterator[tuple[int, int, list[str]]]:
        """The rows of a csv reader, each with its first line and its last; `bad` ones stand before what ends them."""
        try:
            for cells in reader:
                row = line + 1
                line = above + reader.line_num
                yield row, line, cells
        except (table.NotAnObject, csv.Error, UnicodeDecodeError, NotText, InputError) as exc:
            bad.refuse()
            raise self._unreadable(exc, line + 1, above + reader.line_num) from exc

    def _skipped(self, cells: list[str], row: int, line: int) -> bool:
        """Whether an odd-looking row is a comment or blank; raises where it is a row of too few or too many fields."""
        if self._json:
            return not cells
        if cells and cells[0].lstrip().startswith("#"):
            if line > row:
                raise BadCell("", f"this comment opens a quote that closes only in line {line}")
            return True
        if not any(map(str.strip, cells)):
            return True
        if len(cells) != len(self.form.columns):
            raise BadCell("", self._miscount(cells))
        return False

    def _miscount(self, cells: list[str]) -> str:
        wanted = count(len(self.form.columns), "column")
        message = f"{count(len(cells), 'field')} where there are {wanted} ({', '.join(self.form.columns)})"
        if len(cells) > len(self.form.columns) and not any(map(str.strip, cells[len(self.form.columns) :])):
            return f"{message}: take the {self.delimiter!r} at its end away"
        if len(cells) > len(self.form.columns):
            return f'{message}: a cell with {self.delimiter!r} in it must stand in "quotes"'
        for other in (";", "\t"):
            if len(cells) == 1 and cells[0].count(other) == len(self.form.columns) - 1:
                return f"{message}: the row is delimited by {other!r}, write it with commas"
        return message

    def _identity_of_five(self, cells: list[str], terms: Terms, place: Place) -> object:
        """What two rows that run the same have in common, as `core.command.key` sees it; raises BadCell."""
        directory, executable, text = self._three(cells)
        if self.form.own and "{" in text:
            return self._identity_of_any(cells, terms, place)
        quoted = '"' in text or "'" in text or "\\" in text  # `lead`, without the cost of a call a row
        spot = place((directory, executable, text if quoted else text.partition(" ")[0] or text))
        if _OF_SHELL.search(text):
            self._doubt_shell(text)
        return spot, text.strip(), terms.epochs

    def _identity_of_any(self, cells: list[str], terms: Terms, place: Place) -> object:
        """The same for a row that may have Args, Env, own columns, or a Command in place of the script."""
        directory, executable, filename, args, command, env = (self.form.text(cells, name) for name in _COMMAND)
        if command:
            if executable not in THIS_PYTHON or filename or args:
                refuse_beside_command(executable, filename, args)
            place_of_command(place, directory or ".", split_words("Command", command))
            _refuse_no_epochs("Command", command, terms)
        else:
            self._refuse_half(filename, terms)
            split_words("Args", args)
            place((directory, executable, lead(filename)))
        if "{" in filename + args + command and self.form.own:
            self._doubt(f"{filename} {args} {command}")
        text = " ".join(part for part in (filename, args) if part)
        if _OF_SHELL.search(command or text):
            self._doubt_shell(command or text)
        return directory, executable, text, command, env and _pairs(env), terms.epochs

    def _doubt(self, text: str) -> None:
        """Note what looks like a slip in a placeholder; it is passed on as it stands."""
        slip = table.slip_of(text, [name for name, _ in self.form.own])
        if slip and not any(slip in warning for warning in self.warnings):
            self.warnings.append(f"{self.path}: {slip}")

    def _doubt_shell(self, text: str) -> None:
        """Note, once, a word by which a row seems to be meant for a shell."""
        found = next((word for word in words(text) if word in _SHELL), "")
        if found and not any("no shell reads" in warning for warning in self.warnings):
            said = f"{found!r} is handed to the program as a word, for no shell reads a row"
            self.warnings.append(f"{self.path}: {said}: a Command sh -c '...' has one")

    def _identity_of_template(self, cells: list[str], terms: Terms, place: Place) -> object:
        """The same for a row of parameters."""
        directory, env = self.form.cell(cells, "Directory"), self.form.cell(cells, "Env")
        said = self.form.words_of(cells)
        place_of_command(place, directory or ".", said)
        for word in said:
            _refuse_no_epochs("command", word, terms)
        return directory, *said, env and _pairs(env), terms.epochs

    def _refuse_half(self, filename: str, terms: Terms) -> None:
        if not filename:
            both = "Command" in self.form.known and "Filename" in self.form.known
            column = "Filename" if "Filename" in self.form.known else "Command"
            raise BadCell(column, "it is empty, and so is Command" if both else "it is empty")
        if terms.epochs is None:
            raise BadCell("Epochs", "it is empty")

    def _unreadable(self, exc: Exception, row: int, until: int = 0) -> InputError:
        if isinstance(exc, InputError):
            return exc
        if isinstance(exc, table.NotAnObject):
            return InputError(self.path, str(exc), until)
        if isinstance(exc, csv.Error):
            return InputError(self.path, quote_fault(str(exc), row, until), row)
        if isinstance(exc, NotText) and str(exc):
            return InputError(self.path, f"it is {exc}, not UTF-8: {iconv(str(exc), self.path)}")
        try:
            with text_of(HashedBytes(self._open(), any_bytes=True), "surrogateescape") as text:
                for _ in clean(self.path, text, 0):
                    pass
        except InputError as found:
            return found
        return InputError(self.path, "it holds bytes that are not text")

    # What is appended while the run goes on.

    def appended(self, mark: Mark, *, last: bool) -> tuple[list[Row], Mark, str | None]:
        """The rows that have come behind the accepted part, its new mark, and a sentence about what was not taken.

        Cheap while the file stays as it was. A row counts once its line is ended; `last` (nothing else is left to
        run) counts the unended one too. Any other edit, and a bad row, changes nothing and is told once.
        """
        look = self._look()
        if not self._worth_reading(look, mark, last):
            return [], mark, None
        self._looked = (look, last or (self._looked == (look, True)))
        self._again = float("inf")
        rows, after, said = self._read_behind(mark, last)
        news, self._said = (said if said != self._said else None), said
        return rows, after, news

    def untaken(self, mark: Mark) -> tuple[list[Row], str]:
        """The good rows behind the accepted part, and what is wrong with the one behind them."""
        if self._look() == _NO_FILE:
            return [], ""
        rows, _, said = self._read_behind(mark, True)
        return rows, said.removesuffix(_WAITS) if said is not None and said.endswith(_WAITS) else ""

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._at)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return _NO_FILE
        return (status.st_size, status.st_mtime_ns, status.st_ino)

    def _worth_reading(self, look: tuple[int, int, int] | None, mark: Mark, last: bool) -> bool:
        if look == _NO_FILE or (look == (mark.size, mark.mtime_ns, mark.inode) and mark.offset == mark.size):
            return False
        seen, with_last = self._looked
        return look != seen or (last and not with_last) or time.monotonic() >= self._again

    def _read_behind(self, mark: Mark, last: bool) -> tuple[list[Row], Mark, str | None]:
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

    def _take(self, tail: bytes, mark: Mark) -> tuple[list[Row], int, int, str | None]:
        """The good rows at the beginning of `tail`, how many lines and bytes they are, and what stopped them."""
        lines = list(io.StringIO(tail.decode("utf-8", "surrogateescape"), newline=""))
        if not any(map(str.strip, lines)):
            return [], 0, 0, None
        reader = self._reader_of(clean(self.path, lines, mark.lines), mark)
        rows: list[Row] = []
        good, said = 0, None
        try:
            self._repeats = self._repeats or self._recount(mark)
            for row in self._validated(reader, mark.lines, mark.lines, self._ground.__getitem__, self._repeats):
                rows.append(row)
                good = reader.line_num
            good = len(lines)
        except InputError as exc:
            said = f"{exc}{_WAITS}"
            self._again = time.monotonic() + self.retry
        return rows, good, sum(len(line.encode("utf-8", "surrogateescape")) for line in lines[:good]), said

    def _recount(self, mark: Mark) -> _Repeats:
        """What was accepted before, as far as repeats go; kept only once something is appended, for it is large."""
        repeats = _Repeats()
        with HashedBytes(self._open(), left=mark.offset) as source:
            text = text_of(source)
            for _ in islice(text, mark.head):
                pass
            reader = self._reader_of(text, mark)
            for _ in self._validated(reader, mark.head, mark.head, anywhere, repeats):
                pass
        return repeats

    def _edited(self, mark: Mark, size: int) -> str:
        what = f"cut to {size} bytes" if size < mark.offset else "changed"
        return (
            f"{self.path}: its first {count(mark.lines, 'line')} ({mark.offset} bytes) were taken as they stood and"
            f" have been {what} since: that changes nothing, and rows behind them join once they are back"
        )

    def _glued(self, mark: Mark) -> str:
        return (
            f"{self.path}, row {mark.lines}: this row was taken, without a line end, and text was put right behind it:"
            " that changes nothing; end the row as it was and write new ones on lines of their own"
        )

    def _gone(self, exc: OSError) -> str:
        why = (exc.strerror or str(exc)).lower()
        return f"{self.path}: it cannot be read any more ({why}): the rows taken from it run on, none can join"


class _Repeats:
    """How often each command was seen: 64-bit hashes, so that a million rows take tens of MiB and not hundreds."""

    def __init__(self) -> None:
        self.once: set[int] = set()
        self._more: dict[int, int] = {}
        self.again = 0
        self.first = 0

    def another(self, code: int, row: int) -> int:
        """How many rows before this one run the same, where one did."""
        self.first = self.first or row
        self.again += 1
        nth = self._more[code] = self._more.get(code, 0) + 1
        return nth

    @property
    def rows(self) -> int:
        """How many rows were counted."""
        return len(self.once) + self.again


def _refuse_no_epochs(where: str, text: str, terms: Terms) -> None:
    if terms.epochs is None and takes(text, "epochs"):
        raise BadCell("Epochs", f"it is empty or missing, and {{epochs}} stands in the {where}")


def _pairs(text: str) -> object:
    try:
        return BY_COLUMN["env"].read(text)
    except ValueError as exc:
        raise BadCell("Env", str(exc)) from exc


def _form(columns: Sequence[str], defaults: Mapping[str, str], append: str, template: Sequence[str]) -> Form:
    try:
        return Form(columns, defaults, append, template)
    except BadCell as exc:
        raise UsageError(f"{BY_COLUMN[exc.column.lower()].flag}: {exc}") from exc
