"""Tasks given as Python objects: the rows that they become, and which are refused."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest

from scheduler.core.model import Warn
from scheduler.core.tasks.command import argv
from scheduler.core.tasks.fields import FIELDS
from scheduler.errors import InputError
from scheduler.inputs import python_tasks
from scheduler.inputs.python_tasks import Task


def rows(tasks: list[Any]) -> Any:
    form, made = python_tasks.rows(tasks, {}, sys.executable)
    return form, list(made)


def refusal(**said: Any) -> str:
    with pytest.raises(InputError) as caught:
        rows([Task(**{"command": "true", **said})])
    return str(caught.value)


def test_columns_fill_the_command_and_return_with_the_results() -> None:
    form, made = rows([Task(command=["echo", "--lr", "{lr}", "out {id}"], columns={"lr": "a b"}, name="lr {lr}")])
    [(row, cells, _, _)] = made
    spec = form.spec(cells, row)
    assert argv(spec, 7, None, "python", form.append) == ("echo", "--lr", "a b", "out 7")
    assert (spec.name, spec.own) == ("lr a b", (("lr", "a b"),))


def test_time_limits_and_resumable_become_terms() -> None:
    task = Task(command="true", timeout="1h", stop_signal="USR1@120", retries=1, retry_on="timeout", resumable=True)
    [(_, _, terms, _)] = rows([task])[1]
    assert (terms.stop_signal, terms.retry_on, terms.resumable) == (Warn(10, 120.0), "timeout", True)


def test_a_missing_program_is_refused_as_in_a_file() -> None:
    said = "tasks, row 1, column Command: 'nosuch' is not a program on PATH (a Command is not read by a shell)"
    assert refusal(command=["nosuch", "a"]) == said
    assert "'gone.py' does not exist (looked at " in refusal(command=["python", "gone.py"])
    assert "column Directory: 'gone' does not exist" in refusal(directory="gone")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([], "it is empty"),
        ("", "it is empty"),
        (["sh", ""][1:], "it is empty"),
        ("sh 'a", '"sh \'a" cannot be split into words: no closing quotation'),
        (None, "None is neither a string nor a list of words"),
        (b"true", "b'true' is neither a string nor a list of words"),
        (["true", None], "None is not a word: write a string, a number or a path"),
        (["true", b"a"], "b'a' is not a word: write a string, a number or a path"),
        (["true", "a\0b"], "it contains a NUL byte, which a command cannot contain: remove it"),
    ],
)
def test_an_object_that_is_no_command_is_refused(command: Any, why: str) -> None:
    assert refusal(command=command) == f"tasks, row 1, column Command: {why}"


def test_an_object_that_is_no_task_is_refused() -> None:
    with pytest.raises(InputError, match=r"tasks, row 2: 'true' is not a Task: write Task\(command=...\)"):
        rows([Task(command="true"), "true"])


def test_own_columns_with_the_name_of_a_field_are_refused() -> None:
    said = "tasks, row 1: its column 'name' is a field of every task: write Task(name=...)"
    assert refusal(name="a", columns={"name": "b"}) == said
    assert refusal(columns={1: "b"}) == "tasks, row 1: the name of its column 1 is not a string"


def test_all_bad_tasks_are_counted() -> None:
    with pytest.raises(InputError, match=r"column Memory: .*; row 3, column Priority: .*; 2 rows in all"):
        rows([Task(command="true", memory="8"), Task(command="true"), Task(command="true", priority="x")])  # type: ignore[arg-type]  # the slip itself


def test_a_task_object_has_every_field_of_a_column() -> None:
    parts_of_a_command = {"executable", "filename", "args"}
    of_leases = {"guest"}  # `lease` alone says it
    assert {field.name for field in fields(Task)} - {"columns"} == {
        f.attribute for f in FIELDS
    } - parts_of_a_command - of_leases


def test_the_tasks_that_a_task_depends_on_may_be_a_text_a_number_or_a_list() -> None:
    form, made = rows([Task(command="true", after=after) for after in ("prep", 17, ["prep", 17], "")])
    assert [form.text(cells, "After") for _, cells, _, _ in made] == ["prep", "17", "prep,17", ""]


def test_a_task_that_depends_on_task_0_alone_keeps_its_parent() -> None:
    form, made = rows([Task(command="true", after=0), Task(command="true", after=None)])  # type: ignore[arg-type]  # as some write
    assert [form.text(cells, "After") for _, cells, _, _ in made] == ["0", ""]
