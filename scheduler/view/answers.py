"""What became of what was asked of runs, as lines and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.control import sentence
from scheduler.core.ports import Answer
from scheduler.view.words import clean


def lines(run: int, what: str, answers: Sequence[Answer], *, recorded: bool) -> list[str]:
    """The run, then what became of its tasks."""
    head = f"run {run}  {clean(what)}"
    if recorded and any(answer.done for answer in answers):
        head += f"  has no scheduler: this is recorded, and done when it is resumed (scheduler resume {run})"
    return [head, *(clean(sentence(answer)) for answer in answers)]


def facts(run: int, what: str, answers: Sequence[Answer], *, recorded: bool) -> Mapping[str, Any]:
    """The same for programs."""
    told = [{"tasks": [*answer.tasks], "done": answer.done, "says": answer.says} for answer in answers]
    return {"run": run, "file": what, "applied": "at resume" if recorded else "now", "answers": told}
