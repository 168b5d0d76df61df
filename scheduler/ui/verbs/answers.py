"""The answers to requests (`set`, `hold`, `cancel`, `retry` …), as lines and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.control.requests import sentence
from scheduler.core.ports import Answer
from scheduler.ui.text import clean


def lines(run: int, what: str, answers: Sequence[Answer], *, recorded: bool) -> list[str]:
    """Return a line for the run, then one for each answer."""
    head = f"run {run}  {clean(what)}"
    if recorded and any(answer.done for answer in answers):
        head += f"  has no scheduler: recorded, applied at its next start (scheduler resume {run})"
    return [head, *(clean(sentence(answer)) for answer in answers)]


def facts(run: int, what: str, answers: Sequence[Answer], *, recorded: bool) -> Mapping[str, Any]:
    """Return the answers as data for JSON."""
    records = [{"tasks": [*answer.tasks], "done": answer.done, "says": answer.says} for answer in answers]
    return {"run": run, "file": what, "applied": "at resume" if recorded else "now", "answers": records}
