"""The answers to requests (`set`, `hold`, `cancel`, `retry` …), as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.core.control.requests import sentence
from scheduler.core.ports import Answer
from scheduler.ui.text import clean
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The answers of one run to a request."""

    run: int
    what: str
    """The name of the list of the run."""
    answers: Sequence[Answer] = ()
    recorded: bool = False
    """True if the run has no scheduler now, so that the request is carried out when the run is resumed."""

    @property
    def done(self) -> bool:
        """True if all parts of the request were carried out, or will be."""
        return bool(self.answers) and all(answer.done for answer in self.answers)

    def lines(self) -> list[str]:
        """Return a line for the run, then one for each answer."""
        head = f"run {self.run}  {clean(self.what)}"
        if self.recorded and any(answer.done for answer in self.answers):
            head += f"  has no scheduler: recorded, applied at its next start (scheduler resume r{self.run})"
        return [head, *(clean(sentence(answer)) for answer in self.answers)]

    def to_dict(self) -> dict[str, Any]:
        """Return the answers as JSON values."""
        records = [{"tasks": [*answer.tasks], "done": answer.done, "says": answer.says} for answer in self.answers]
        applied = "at resume" if self.recorded else "now"
        return {"run": self.run, "file": self.what, "applied": applied, "answers": records}
