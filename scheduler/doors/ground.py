"""What of a row must exist before it is taken: its directory, its program and its script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable

from scheduler.core.command import PLAIN_PYTHON, THIS_PYTHON
from scheduler.core.fields import BadCell, words
from scheduler.environments import CONDA, Programs, without_python

Spot = tuple[str, str, str]
"""A directory, a program, and what of a text decides its first word."""
Place = Callable[[Spot], str]
_MEMO = 50_000
_PLAIN_WORD = re.compile(r"[^\s'\"\\]+\Z")


class Ground(dict[Spot, str]):
    """The spots that were looked at: a directory with a program, where they and the script are there; else BadCell."""

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
            raise BadCell("Directory", "it is empty: write . for the directory the command is given in")
        if os.path.isdir(full):
            return
        if os.path.exists(full):
            raise BadCell("Directory", f"{directory!r} is not a directory ({os.path.abspath(full)})")
        hint = ""
        if os.path.isdir(os.path.join(self._beside, directory)):
            hint = f"; it is there beside the file: cd {shlex.quote(os.path.abspath(self._beside))} first"
        elif directory.startswith(("~", "$")):
            hint = "; no shell reads it: write it out"
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
        """Whether a word means an environment, which then has to be there, with a python in it."""
        environment = self._found.environment(word, directory)
        if environment is None:
            if word.startswith(CONDA):
                raise BadCell("Executable", f"{word!r} is not there: {self._found.absent(word)}")
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
    return f"{spot[0].strip()}\0{spot[1].strip()}"


def _program_hint(directory: str, program: str) -> str:
    if os.path.isfile(os.path.join(directory, program)):
        return f": write ./{program} for the one in the directory"
    if " " in program:
        return ": Executable is one program, its arguments belong into Filename"
    return ""


def split_words(column: str, text: str) -> list[str]:
    try:
        return words(text)
    except ValueError as exc:
        raise BadCell(column, str(exc)) from exc


def lead(text: str) -> str:
    """What of a text decides its first word and whether it can be split: that word, or all where quotes stand in it."""
    if '"' in text or "'" in text or "\\" in text:
        return text
    return text.partition(" ")[0] or text


def place_of_command(place: Place, directory: str, said: list[str]) -> None:
    """Check the program of a Command, and its script where it is a Python; names with a {placeholder} come later."""
    if not said or not said[0]:
        raise BadCell("Command", "it is empty")
    if "{" in said[0]:
        return
    script = said[1] if len(said) > 1 and said[1] else "-"
    try:
        place((directory, said[0], script if _PLAIN_WORD.match(script) else shlex.quote(script)))
    except BadCell as exc:
        column = exc.column if exc.column == "Directory" else "Command"
        hint = " (no shell reads a Command)" if exc.column == "Executable" else ""
        raise BadCell(column, f"{exc}{hint}") from exc


def refuse_beside_command(executable: str, filename: str, args: str) -> None:
    beside = {"Executable": executable not in THIS_PYTHON, "Filename": filename, "Args": args}
    for column, filled in beside.items():
        if filled:
            raise BadCell(column, "the row has a Command as well, which is the whole of it: empty one of the two")
