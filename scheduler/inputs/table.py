"""Tables of parameters, whose columns fill in the command after `--`; and JSON lines, read like a CSV file."""

from __future__ import annotations

import csv
import difflib
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scheduler.core.tasks.fields import BY_COLUMN, WHOLE_COMMAND
from scheduler.core.tasks.placeholders import LATER, names, unknown
from scheduler.errors import InputError, UsageError
from scheduler.patterns import lazy_pattern

JSON_LINES = (".jsonl", ".ndjson")
_PLACEHOLDER = lazy_pattern(r"(?<![{$])\{(\w+)\}(?!\})")
_DELIMITERS = (",", "\t", ";")


_SCRIPTS = {".py": ("Python file", "python"), ".sh": ("shell script", "sh"), ".bash": ("shell script", "bash")}


class NotAnObject(ValueError):
    """A line of a JSON lines file that is not an object."""


def is_json_lines(path: str) -> bool:
    """Tell, by the name of a file, whether it contains one JSON object per line."""
    return path.lower().endswith(JSON_LINES)


def refuse_script(path: str) -> None:
    """Raise InputError for a file that is a program and not a list."""
    if len(path.split()) > 1 and not os.path.exists(path) and shutil.which(path.split()[0]):
        raise InputError(
            path, f"it is a command, not a list of tasks: scheduler exec {shlex.quote(path)} runs it as one task"
        )
    kind, program = _SCRIPTS.get(os.path.splitext(path)[1].lower(), ("", ""))
    if kind:
        raise InputError(
            path,
            f"it is a {kind}, not a list of tasks: scheduler exec -- {program} {shlex.quote(path)} runs it as one task",
        )


def check_template(template: Sequence[str]) -> None:
    """Raise UsageError for a command that a table cannot fill in."""
    if not template or not template[0]:
        raise UsageError("there is no command after --: write it like  -- python train.py --lr {lr}")
    try:
        names(template)
    except ValueError as exc:
        raise UsageError(f"the command after --: {exc}") from exc


def check_placeholders(path: str, row: int, columns: Sequence[str], template: Sequence[str]) -> None:
    """Raise InputError, which names the columns, for a placeholder that no column fills in."""
    placeholder = unknown(template, {name.lower() for name in columns})
    if not placeholder:
        return
    near = difflib.get_close_matches(placeholder, [name.lower() for name in columns], 1)
    hint = f"did you mean {{{near[0]}}}?" if near else "write literal braces twice: {{ and }}"
    columns_there = f"its columns are {', '.join(columns)}"
    raise InputError(path, f"it has no column for {{{placeholder}}} of the command; {columns_there}; {hint}", row)


def delimiter_of_table(path: str, line: str, template: Sequence[str]) -> str:
    """Return the delimiter that splits a header into most of the command's placeholders; if several do, most task
    fields decide, then most cells.
    """
    asked = {*names(template)}

    def worth(delimiter: str) -> tuple[int, int, int]:
        cells = next(csv.reader([line], delimiter=delimiter), [])
        said = {cell.strip().lower() for cell in cells}
        return len(said & asked), len(said & BY_COLUMN.keys()), len(cells)

    first = ("\t", ",", ";") if path.lower().endswith((".tsv", ".tab")) else _DELIMITERS
    return max(first, key=worth)


def own_columns(columns: Sequence[str], template: Sequence[str]) -> set[str]:
    """Return the columns of a table that the command uses; these never count as misspelt task fields."""
    asked = {*names(template)}
    return {name for name in columns if name.lower() in asked or name in WHOLE_COMMAND}


def slip_of(text: str, columns: Sequence[str]) -> str:
    """Return a sentence about the first placeholder that looks like a misspelt column name, `epochs` or `id`; empty if
    there is none.
    """
    known = [*(name.lower() for name in columns), *LATER]
    for match in _PLACEHOLDER.finditer(text):
        near = difflib.get_close_matches(match[1].lower(), known, 1, 0.75)
        if near and near[0] != match[1].lower():
            return f"{match[0]} is not a column and is passed on unchanged: did you mean {{{near[0]}}}?"
    return ""


class JsonLines:
    """The objects of a JSON lines file as cells, with the interface of csv.reader.

    A blank line or a comment is a row without cells. Numbers and strings stay as they are written. true, false and
    nested values become JSON text, and null becomes an empty cell. `asked` are the columns that every object must have.
    """

    def __init__(self, lines: Iterable[str], columns: Sequence[str], asked: Iterable[str] = ()) -> None:
        self.line_num = 0
        self._lines = iter(lines)
        self._columns = {name: index for index, name in enumerate(columns)}
        wanted = {*asked}
        self._asked = [name for name in columns if name.lower() in wanted]

    def __iter__(self) -> Iterator[list[str]]:
        for line in self._lines:
            self.line_num += 1
            text = line.strip()
            yield self._cells(object_of(text)) if text and not text.startswith("#") else []

    def _cells(self, said: dict[str, Any]) -> list[str]:
        for name in self._asked:
            if name not in said:
                raise NotAnObject(f"the object has no {name!r}, but the command contains {{{name}}}: add it")
        cells = [""] * len(self._columns)
        for name, value in said.items():
            if name not in self._columns:
                there = ", ".join(self._columns)
                raise NotAnObject(f"the object has {name!r}, a name that no object had when the run began ({there})")
            cells[self._columns[name]] = _text_of(name, value)
        return cells


def columns_of(path: str, lines: Iterable[str]) -> list[str]:
    """Return the names that occur in the objects of all lines, in the order of their first occurrence."""
    found: dict[str, None] = {}
    for row, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                found.update(dict.fromkeys(object_of(text)))
            except NotAnObject as exc:
                raise InputError(path, str(exc), row) from exc
    if not found:
        raise InputError(path, 'it contains no objects: write one on each line, like {"lr": 0.1, "bs": 32}')
    return list(found)


def object_of(text: str) -> dict[str, Any]:
    """Return the object on one line, with numbers as they were written; raise NotAnObject for any other value."""
    try:
        said = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError) as exc:
        why = exc.msg.lower() if isinstance(exc, json.JSONDecodeError) else "it is nested too deeply"
        raise NotAnObject(f"this line is not a JSON object ({why})") from exc
    if not isinstance(said, dict):
        raise NotAnObject('this line is not a JSON object: write it like {"lr": 0.1, "bs": 32}')
    return said


class _Number(str):
    """A number in the form in which it was written: 1e-4 must not become 0.0001 on a command line."""


def _text_of(name: str, value: object) -> str:
    if value is None:
        return ""
    text = str(value) if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)
    if "\0" in text or not _is_text(text):
        raise NotAnObject(f"{name!r} contains a character that a command cannot contain: remove it")
    return text


def _plain(value: object) -> object:
    """Return a nested value with ordinary numbers in place of each `_Number`."""
    if isinstance(value, _Number):
        return float(value) if set(value.lower()) & set(".ein") else int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
