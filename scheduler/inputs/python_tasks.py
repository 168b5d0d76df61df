"""Tasks written as Python objects, turned into rows as if they came from a file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import BY_COLUMN, BadCell, RowForm
from scheduler.core.tasks.row_source import InputRow
from scheduler.core.tasks.shell_syntax import refuse_shell_syntax
from scheduler.inputs.row_checks import BadRows, RowChecker, place_of_command, split_words
from scheduler.runtime import clock

COLUMNS = (
    "Command", "Name", "Directory", "Env", "Epochs", "Priority", "GPUs", "Memory", "HostMemory", "CPUs", "Timeout",
    "Grace", "StopSignal", "Retries", "RetryOn", "Resumable", "Preempt", "PreemptAfter", "Hold", "Device", "Node",
    "Features",    "Prefer", "Exclusive", "ThreadPercentage", "Stdout", "Stderr", "After", "Begin",
)  # fmt: skip
"""The columns of the fields of a Task."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task for `run`: a command as a list or one string, and the fields that a CSV column can have.

    Sizes and times are strings with a unit (`"8GiB"`, `"90s"`). `{id}`, `{epochs}` and `{NAME}` of each name in
    `columns` are replaced with their values in the command; `columns` also appear in the results.
    """

    command: str | Sequence[str]
    name: str = ""
    directory: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    epochs: int | None = None
    priority: int = 0
    gpus: int | None = None
    memory: str = ""
    host_memory: str = ""
    cpus: float | None = None
    timeout: str = ""
    grace: str = ""
    stop_signal: str = ""
    retries: int = 0
    retry_on: str = ""
    resumable: bool = False
    preempt: bool = False
    preempt_after: str = ""
    hold: bool = False
    device: str = ""
    node: str = ""
    features: str = ""
    prefer: str = ""
    exclusive: bool = False
    thread_percentage: int | str = ""
    stdout: str = ""
    stderr: str = ""
    after: str | int | Sequence[str | int] = ""
    """Names or ids of tasks that must succeed first; `ended:NAME` means that the task NAME must end, but need not
    succeed.
    """
    begin: str = ""
    """The earliest start: `"22:00"`, `"+2h"` or `"2026-12-01T08:00"`."""
    columns: Mapping[str, Any] = field(default_factory=dict)


def rows(tasks: Sequence[Task], defaults: Mapping[str, str], python: str) -> tuple[RowForm, Iterator[InputRow]]:
    """Return the form and the validated rows of a list of tasks; raise InputError if a task is invalid."""
    _refuse_non_tasks(tasks)
    columns = list(COLUMNS)
    if not any(task.epochs is not None for task in tasks):
        columns.remove("Epochs")
    if not any(task.after or task.after == 0 for task in tasks):  # 0 is the first task of all
        columns.remove("After")
    if not any(task.begin for task in tasks):
        columns.remove("Begin")
    own = list(dict.fromkeys(name for task in tasks for name in task.columns))
    form = RowForm([*columns, *own], defaults, append="none", now=clock.wall())
    return form, _validated(tasks, form, columns, python)


def _refuse_non_tasks(tasks: Sequence[object]) -> None:
    """Raise InputError for objects that are not tasks, and for columns that are task fields."""
    bad = BadRows("tasks")
    for number, task in enumerate(tasks, 1):
        try:
            _refuse_non_task(task)
        except BadCell as exc:
            bad.add(number, str(exc), exc.column)
    bad.refuse()


def _refuse_non_task(task: object) -> None:
    if not isinstance(task, Task):
        raise BadCell("", f"{task!r:.80} is not a Task: write Task(command=...)")
    for name in task.columns:
        if not isinstance(name, str):
            raise BadCell("", f"the name of its column {name!r} is not a string")
        ours = BY_COLUMN.get(name.lower())
        if ours is not None and ours.column in COLUMNS:
            raise BadCell("", f"its column {name!r} is a field of every task: write Task({ours.attribute}=...)")


def _validated(tasks: Sequence[Task], form: RowForm, columns: list[str], python: str) -> Iterator[InputRow]:
    seen: dict[tuple[str, ...], int] = {}
    ground, bad = RowChecker("", python, ""), BadRows("tasks")
    for number, task in enumerate(tasks, 1):
        try:
            cells = [cell(task, column) for column in columns]
            cells += [str(task.columns.get(name, "")) for name, _ in form.own]
            terms = checked(form, cells, number, ground)
        except BadCell as exc:
            bad.add(number, str(exc), exc.column)
        if bad:
            continue
        key = tuple(cells[:4])
        nth = seen.get(key, 0)
        seen[key] = nth + 1
        yield number, cells, terms, nth
    bad.refuse()


def checked(form: RowForm, cells: list[str], number: int, ground: RowChecker) -> Terms:
    """Return the terms of a task after a check of its cells and its program; raise BadCell if one of them is
    invalid.
    """
    refuse_nul(form, cells)
    said = split_words("Command", form.text(cells, "Command"))
    refuse_shell_syntax(form.cell(cells, "Command"))
    place_of_command(ground.__getitem__, form.cell(cells, "Directory") or ".", said)
    form.spec(cells, number)
    return form.terms(cells)


def refuse_nul(form: RowForm, cells: list[str]) -> None:
    """Raise BadCell for a cell with a NUL byte."""
    for name, text in zip(form.columns, cells, strict=True):
        if "\0" in text:
            raise BadCell(name, "it contains a NUL byte, which a command cannot contain: remove it")


def cell(task: Task, column: str) -> str:
    """Return a field of a task as the text of a cell in the given column."""
    if column == "Command":
        return _command(task.command)
    if column == "Env":
        return shlex.join(f"{name}={value}" for name, value in (task.env or {}).items())
    if column == "After" and isinstance(task.after, Iterable) and not isinstance(task.after, str):
        return ",".join(map(str, task.after))
    value = getattr(task, BY_COLUMN[column.lower()].attribute)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _command(said: object) -> str:
    """Return a command as one string; raise BadCell if it is not a string or a sequence of strings."""
    if isinstance(said, str):
        return said
    if not isinstance(said, Sequence) or isinstance(said, bytes):
        raise BadCell("Command", f"{said!r:.80} is neither a string nor a list of words")
    for word in said:
        if word is None or isinstance(word, bytes):
            raise BadCell("Command", f"{word!r:.80} is not a word: write a string, a number or a path")
    return shlex.join(str(word) for word in said)
