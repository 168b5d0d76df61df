"""Checks that the directory, program and script of a row exist, and the list of invalid rows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

from scheduler.core.tasks.command import PLAIN_PYTHON
from scheduler.core.tasks.fields import THIS_PYTHON, BadCell, words
from scheduler.errors import InputError
from scheduler.patterns import lazy_pattern
from scheduler.runtime.python_envs import CONDA, Programs, without_python

Spot = tuple[str, str, str]
"""A directory, a program, and the part of a text that contains its first word."""
Place = Callable[[Spot], str]
_MEMO = 50_000
SHOWN = 3
"""The most invalid rows that an error quotes."""
_PLAIN_WORD = lazy_pattern(r"[^\s'\"\\]+\Z")


class BadRows:
    """The invalid rows of a list that is read to its end; as a truth value, False while there are none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._first: list[tuple[int, str, str]] = []
        self._rows = 0

    def __bool__(self) -> bool:
        return self._rows > 0

    def add(self, row: int, message: str, column: str) -> None:
        """Add a row with its first fault; the column is empty if the fault concerns the whole row."""
        self._rows += 1
        if len(self._first) < SHOWN:
            self._first.append((row, message, column))

    def refuse(self) -> None:
        """Raise InputError if there are invalid rows."""
        if not self._rows:
            return
        (row, message, column), *more = self._first
        others = "".join(self._other(*one) for one in more)
        all_ = f"; {self._rows:,} rows in all cannot be accepted" if more else ""
        raise InputError(self._path, f"{message}{others}{all_}", row, column or None)

    def _other(self, row: int, message: str, column: str) -> str:
        """Return the sentence about a further invalid row; it is short if the fault equals the first one, as in many
        lists.
        """
        if (message, column) == self._first[0][1:]:
            return f"; row {row}: the same"
        return f"; row {row}, column {column}: {message}" if column else f"; row {row}: {message}"


class RowChecker(dict[Spot, str]):
    """A cache of checked spots. The lookup of a new spot checks it, and raises BadCell if its directory, program or
    script does not exist.
    """

    def __init__(self, csv_path: str, python: str, cwd: str, programs: Programs | None = None) -> None:
        self._found = programs or Programs(os.environ, cwd)
        self._beside = os.path.dirname(csv_path)
        self._python = python
        self._cwd = cwd
        self._programs: dict[tuple[str, str], str] = {}

    def __missing__(self, spot: Spot) -> str:
        directory, program = spot[0].strip(), spot[1].strip()
        full = os.path.join(self._cwd, directory)
        if (directory, program) not in self._programs:
            self._check_directory(directory, full)
            if program in THIS_PYTHON or not self._is_environment(full, program):
                self._check_program(full, self._python if program in THIS_PYTHON else program)
            self._programs[directory, program] = anywhere(spot)
        said = split_words("Filename", spot[2])
        if not said or not said[0]:
            raise BadCell("Filename", "it is empty")
        if self._is_python(full, program):
            self._check_script(full, said[0])
        if len(self) > _MEMO:
            self.clear()
        return self.setdefault(spot, self._programs[directory, program])

    def _check_directory(self, directory: str, full: str) -> None:
        if not directory:
            raise BadCell("Directory", "it is empty: write . for the directory in which you call scheduler")
        if os.path.isdir(full):
            return
        if os.path.exists(full):
            raise BadCell("Directory", f"{directory!r} is not a directory ({os.path.abspath(full)})")
        hint = ""
        if os.path.isdir(os.path.join(self._beside, directory)):
            hint = f"; it exists in the list's directory: cd {shlex.quote(os.path.abspath(self._beside))} first"
        elif directory.startswith(("~", "$")):
            hint = "; ~ and $ are not expanded: write the whole path"
        raise BadCell("Directory", f"{directory!r} does not exist (looked at {os.path.abspath(full)}){hint}")

    def _check_program(self, directory: str, program: str) -> None:
        if "/" not in program:
            if self._found.which(program) is None and program != PLAIN_PYTHON:
                raise BadCell("Executable", f"{program!r} is not a program on PATH{_program_hint(directory, program)}")
            return
        full = os.path.abspath(os.path.join(directory, program))
        if not os.path.exists(full):
            raise BadCell("Executable", f"{program!r} does not exist (looked at {full})")
        if not os.path.isfile(full) or not os.access(full, os.X_OK):
            raise BadCell("Executable", f"{program!r} is not an executable file ({full})")

    def _is_environment(self, directory: str, word: str) -> bool:
        """Tell whether a word names a Python environment; raise BadCell if the environment contains no python."""
        environment = self._found.environment(word, directory)
        if environment is None:
            if word.startswith(CONDA):
                raise BadCell("Executable", f"{word!r} does not exist: {self._found.absent(word)}")
            return False
        if not os.access(environment.python, os.X_OK):
            raise BadCell("Executable", f"{word!r}: {without_python(environment)}")
        return True

    def _is_python(self, directory: str, program: str) -> bool:
        if program in THIS_PYTHON or program == self._python or os.path.basename(program).startswith("python"):
            return True
        return self._found.environment(program, directory) is not None

    def _check_script(self, directory: str, word: str) -> None:
        full = os.path.abspath(os.path.join(directory, word))
        if not word.startswith("-") and "{" not in word and not os.path.exists(full):
            raise BadCell("Filename", f"{word!r} does not exist (looked at {full})")


def anywhere(spot: Spot) -> str:
    """Return the value for a spot without checking that its files exist."""
    return f"{spot[0].strip()}\0{spot[1].strip()}"


def _program_hint(directory: str, program: str) -> str:
    if os.path.isfile(os.path.join(directory, program)):
        return f": for the file in the directory write ./{program}"
    if " " in program:
        return ": Executable is one program; its arguments belong in Filename"
    return ""


def split_words(column: str, text: str) -> list[str]:
    """Return the words of a cell; raise BadCell if the cell cannot be split."""
    try:
        return words(text)
    except ValueError as exc:
        raise BadCell(column, str(exc)) from exc


def lead(text: str) -> str:
    """Return the part of a text that contains its first word: this word alone, or the whole text if it contains
    quotes.
    """
    if '"' in text or "'" in text or "\\" in text:
        return text
    return text.partition(" ")[0] or text


def place_of_command(place: Place, directory: str, said: list[str]) -> None:
    """Check that the program of a Command exists, and its script if the program is Python; names with a {placeholder}
    are checked later.
    """
    if not said or not said[0]:
        raise BadCell("Command", "it is empty")
    if "{" in said[0]:
        return
    script = said[1] if len(said) > 1 and said[1] else "-"
    try:
        place((directory, said[0], script if _PLAIN_WORD.match(script) else shlex.quote(script)))
    except BadCell as exc:
        column = exc.column if exc.column == "Directory" else "Command"
        hint = " (a Command is not read by a shell)" if exc.column == "Executable" else ""
        raise BadCell(column, f"{exc}{hint}") from exc


def refuse_beside_command(executable: str, filename: str, args: str) -> None:
    """Raise BadCell if a row with a Command also has another part of a command line."""
    beside = {"Executable": executable not in THIS_PYTHON, "Filename": filename, "Args": args}
    for column, filled in beside.items():
        if filled:
            raise BadCell(
                column, "the row also has a Command, which is the whole command line: leave one of the two empty"
            )
