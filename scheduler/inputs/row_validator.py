"""The validation of rows: all fields, the existence of directory, program and script, counts of equal commands."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import BY_COLUMN, REQUIRED, THIS_PYTHON, BadCell, RowForm, words
from scheduler.core.tasks.placeholders import takes
from scheduler.core.tasks.row_source import InputRow
from scheduler.core.tasks.shell_syntax import refuse_shell_syntax
from scheduler.errors import InputError
from scheduler.inputs import table
from scheduler.inputs.csv_decoding import HashedBytes, NotText, clean, iconv, quote_fault, text_of
from scheduler.inputs.row_checks import (
    BadRows,
    Place,
    lead,
    place_of_command,
    refuse_beside_command,
    split_words,
)
from scheduler.patterns import lazy_pattern
from scheduler.units import count

_OF_SHELL = lazy_pattern(r"[<>|&;]")
_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>>", "&>", "2>&1"}
"""Words that show that the user wrote a row for a shell."""
_COMMAND = ("Directory", "Executable", "Filename", "Args", "Command", "Env")
_WITH_PLACEHOLDERS = ("Filename", "Args", "Command")
"""The columns whose text is searched for misspelt placeholders before it is filled in; in filled text, `{{x}}` would
look like a placeholder.
"""


class CommandCounts:
    """The number of rows by command; commands are stored as 64-bit hashes, so that a million rows take only tens of
    MiB.
    """

    def __init__(self) -> None:
        self.once: set[int] = set()
        self._more: dict[int, int] = {}
        self.repeated = 0
        self.first_repeat = 0

    def count_again(self, code: int, row: int) -> int:
        """Count one more row of a command; return how many earlier rows have this command."""
        self.first_repeat = self.first_repeat or row
        self.repeated += 1
        nth = self._more[code] = self._more.get(code, 0) + 1
        return nth

    @property
    def rows(self) -> int:
        """The number of counted rows."""
        return len(self.once) + self.repeated


class RowValidator:
    """The checks of one file's rows; `place` is the path that is opened, `path` is the path that the user gave."""

    def __init__(self, path: str, place: str, form: RowForm, warnings: list[str], *, is_json: bool) -> None:
        self.path = path
        self._place = place
        self.form = form
        self.warnings = warnings
        self.delimiter = ","
        self._json = is_json
        more = {"Args", "Command", "Env"} & {*form.known, *form.defaults}
        five = {*form.known}.issuperset(REQUIRED) and not more
        self._identity = self._identity_of_five if five else self._identity_of_any
        if form.template:
            self._identity = self._identity_of_template
        self._three = itemgetter(*(form.known.get(name, 0) for name in _COMMAND[:3]))

    def validated(self, reader: Any, above: int, line: int, place: Place, counts: CommandCounts) -> Iterator[InputRow]:
        """Yield the rows after line `line`; the reader's first line is line `above` + 1 of the file.

        After the first invalid row, no row is yielded; the remaining rows are only checked to count the invalid ones.
        Then raise InputError.
        """
        width, terms_of, identity, once = len(self.form.columns), self.form.terms, self._identity, counts.once
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
            nth = counts.count_again(code, row) if code in once else 0
            once.add(code)
            yield row, cells, terms, nth
        bad.refuse()

    def _read(self, reader: Any, above: int, line: int, bad: BadRows) -> Iterator[tuple[int, int, list[str]]]:
        """Yield the rows of a reader, each with its first and its last line. If the reader fails, raise the error for
        the rows in `bad` first.
        """
        try:
            for cells in reader:
                row = line + 1
                line = above + reader.line_num
                yield row, line, cells
        except (table.NotAnObject, csv.Error, UnicodeDecodeError, NotText, InputError) as exc:
            bad.refuse()
            raise unreadable(self.path, self._place, exc, line + 1, above + reader.line_num) from exc

    def _skipped(self, cells: list[str], row: int, line: int) -> bool:
        """Tell whether a row is blank or a comment; raise BadCell if it has too few or too many fields."""
        if self._json:
            return not cells
        if cells and cells[0].lstrip().startswith("#"):
            if line > row:
                raise BadCell("", f"this comment opens a quote that is closed only in line {line}")
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
            return f"{message}: remove the {self.delimiter!r} at its end"
        if len(cells) > len(self.form.columns):
            return f'{message}: a cell with {self.delimiter!r} in it must stand in "quotes"'
        for other in (";", "\t"):
            if len(cells) == 1 and cells[0].count(other) == len(self.form.columns) - 1:
                return f"{message}: the row is delimited by {other!r}: delimit it with commas"
        return message

    def _identity_of_five(self, cells: list[str], terms: Terms, place: Place) -> object:
        """Return a value that is equal for rows with equal commands, as in `core.tasks.command.key`; raise BadCell if
        the row is invalid.
        """
        directory, executable, text = self._three(cells)
        if self.form.own and "{" in text:
            return self._identity_of_any(cells, terms, place)
        quoted = '"' in text or "'" in text or "\\" in text  # as `lead` does, without one call per row
        spot = place((directory, executable, text if quoted else text.partition(" ")[0] or text))
        if _OF_SHELL.search(text):
            self._warn_of_shell_word(text)
        return spot, text.strip(), terms.epochs

    def _identity_of_any(self, cells: list[str], terms: Terms, place: Place) -> object:
        """Return the value of `_identity_of_five` for a row that may have Args, Env, columns of the user, or a
        Command.
        """
        directory, executable, filename, args, command, env = (self.form.text(cells, name) for name in _COMMAND)
        if command:
            if executable not in THIS_PYTHON or filename or args:
                refuse_beside_command(executable, filename, args)
            said = split_words("Command", command)
            refuse_shell_syntax(self.form.cell(cells, "Command"))
            place_of_command(place, directory or ".", said)
            _refuse_no_epochs("Command", command, terms)
        else:
            self._refuse_incomplete(filename, terms)
            split_words("Args", args)
            place((directory, executable, lead(filename)))
        if "{" in filename + args + command and self.form.own:
            self._warn_of_placeholder(" ".join(self.form.cell(cells, name) for name in _WITH_PLACEHOLDERS))
        text = " ".join(part for part in (filename, args) if part)
        if not command and _OF_SHELL.search(text):
            self._warn_of_shell_word(text)
        return directory, executable, text, command, env and _env_pairs(env), terms.epochs

    def _warn_of_placeholder(self, text: str) -> None:
        """Warn of a placeholder that looks misspelt."""
        slip = table.slip_of(text, [name for name, _ in self.form.own])
        if slip and not any(slip in warning for warning in self.warnings):
            self.warnings.append(f"{self.path}: {slip}")

    def _warn_of_shell_word(self, text: str) -> None:
        """Warn, once per file, of a word that is meant for a shell."""
        found = next((word for word in words(text) if word in _SHELL), "")
        if found and not any("by a shell" in warning for warning in self.warnings):
            passed = f"{found!r} is passed to the program as a word, because rows are not read by a shell"
            self.warnings.append(f"{self.path}: {passed}; for a shell write the Command sh -c '...'")

    def _identity_of_template(self, cells: list[str], terms: Terms, place: Place) -> object:
        """Return the value of `_identity_of_five` for a row of parameters."""
        directory, env = self.form.cell(cells, "Directory"), self.form.cell(cells, "Env")
        command = self.form.words_of(cells)
        place_of_command(place, directory or ".", command)
        for word in command:
            _refuse_no_epochs("command", word, terms)
        return directory, *command, env and _env_pairs(env), terms.epochs

    def _refuse_incomplete(self, filename: str, terms: Terms) -> None:
        if not filename:
            both = "Command" in self.form.known and "Filename" in self.form.known
            column = "Filename" if "Filename" in self.form.known else "Command"
            raise BadCell(column, "it is empty, and so is Command" if both else "it is empty")
        if terms.epochs is None:
            raise BadCell("Epochs", "it is empty")


def _refuse_no_epochs(where: str, text: str, terms: Terms) -> None:
    if terms.epochs is None and takes(text, "epochs"):
        raise BadCell("Epochs", f"it is empty or missing, but the {where} contains {{epochs}}")


def _env_pairs(text: str) -> object:
    try:
        return BY_COLUMN["env"].read(text)
    except ValueError as exc:
        raise BadCell("Env", str(exc)) from exc


def unreadable(path: str, place: str, exc: Exception, row: int, until: int = 0) -> InputError:
    """Return the error for an exception that a reader raised in the lines from `row` to `until`; `place` is the path
    that was opened.
    """
    if isinstance(exc, InputError):
        return exc
    if isinstance(exc, table.NotAnObject):
        return InputError(path, str(exc), until)
    if isinstance(exc, csv.Error):
        return InputError(path, quote_fault(str(exc), row, until), row)
    if isinstance(exc, NotText) and str(exc):
        return InputError(path, f"it is {exc}, not UTF-8: {iconv(str(exc), path)}")
    try:
        with text_of(HashedBytes(io.FileIO(place), any_bytes=True), "surrogateescape") as text:
            for _ in clean(path, text, 0):
                pass
    except InputError as found:
        return found
    except OSError:
        pass
    return InputError(path, "it contains bytes that are not text")
