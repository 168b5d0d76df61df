"""The Python door: tasks written as objects, turned into the same rows a file would give."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.core.fields import BY_COLUMN, BadCell, Form
from scheduler.core.model import Terms
from scheduler.errors import InputError

_COLUMNS = (
    "Command", "Name", "Directory", "Env", "Epochs", "Priority", "GPUs", "Memory", "HostMemory", "CPUs", "Timeout",
    "Grace", "StopSignal", "Retries", "RetryOn", "Resumable", "Device", "Exclusive",
    "ThreadPercentage",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Task:
    """One job for `run`: a command as a list or one string, and whatever a CSV column could say.

    Sizes and times are texts with a unit (`"8GiB"`, `"90s"`). `{id}` and `{epochs}` in the command are filled in,
    and so are the values in `columns`, which come back in the results.
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
    device: str = ""
    exclusive: bool = False
    thread_percentage: int | str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


def rows(
    tasks: Sequence[Task], defaults: Mapping[str, str]
) -> tuple[Form, Iterator[tuple[int, list[str], Terms, int]]]:
    """The form and the validated rows of a list of tasks; raises InputError naming the task."""
    columns = list(_COLUMNS)
    if not any(task.epochs is not None for task in tasks):
        columns.remove("Epochs")
    own = list(dict.fromkeys(name for task in tasks for name in task.columns))
    form = Form([*columns, *own], defaults, append="none")
    return form, _validated(tasks, form, columns, own)


def _validated(
    tasks: Sequence[Task], form: Form, columns: list[str], own: list[str]
) -> Iterator[tuple[int, list[str], Terms, int]]:
    seen: dict[tuple[str, ...], int] = {}
    for number, task in enumerate(tasks, 1):
        cells = [_cell(task, column) for column in columns]
        cells += [str(task.columns.get(name, "")) for name in own]
        try:
            form.spec(cells, number)
            terms = form.terms(cells)
        except BadCell as exc:
            raise InputError("tasks", str(exc), number, exc.column) from exc
        key = tuple(cells[:4])
        nth = seen.get(key, 0)
        seen[key] = nth + 1
        yield number, cells, terms, nth


def _cell(task: Task, column: str) -> str:
    if column == "Command":
        return task.command if isinstance(task.command, str) else shlex.join(str(word) for word in task.command)
    if column == "Env":
        return shlex.join(f"{name}={value}" for name, value in task.env.items())
    value = getattr(task, BY_COLUMN[column.lower()].attribute)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
