"""The Python door: what tasks written as objects become."""

from __future__ import annotations

from scheduler.core.command import argv
from scheduler.core.model import Warn
from scheduler.doors.python_tasks import Task, rows


def test_columns_fill_the_command_and_come_back() -> None:
    form, made = rows([Task(command=["train", "--lr", "{lr}", "out {id}"], columns={"lr": "a b"}, name="lr {lr}")], {})
    [(row, cells, _, _)] = made
    spec = form.spec(cells, row)
    assert argv(spec, 7, None, "python", form.append) == ("train", "--lr", "a b", "out 7")
    assert (spec.name, spec.own) == ("lr a b", (("lr", "a b"),))


def test_time_limits_and_further_turns() -> None:
    task = Task(command="x", timeout="1h", stop_signal="USR1@120", retries=1, retry_on="timeout", resumable=True)
    [(_, _, terms, _)] = rows([task], {})[1]
    assert (terms.stop_signal, terms.retry_on, terms.resumable) == (Warn(10, 120.0), "timeout", True)
