"""What is said of a run that was started without a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduler.paths import tilde
from scheduler.units import count
from scheduler.view.sink import hint
from scheduler.view.words import clean


class Start(Protocol):
    """What became of a start without a terminal."""

    @property
    def pid(self) -> int:
        """Of its scheduler."""

    @property
    def number(self) -> int:
        """Of the run."""

    @property
    def what(self) -> str:
        """The list."""

    @property
    def tasks(self) -> int:
        """How many there are."""

    @property
    def log(self) -> str:
        """Where its lines go."""

    @property
    def trouble(self) -> str:
        """What kept it from starting."""


def lines(told: Start) -> list[str]:
    """Number, process, how to watch, how to stop."""
    number, tasks = told.number, count(told.tasks, "task")
    return [
        f"run {number}  {clean(told.what)}: {tasks}; it goes on without this terminal (process {told.pid})",
        f"watch   scheduler top {number}     tail -f {tilde(told.log)}",
        f"stop    scheduler stop {number} (running tasks end), with --now (they are stopped) or --leave (they run on)",
    ]


def one_of_all(told: Start) -> str:
    """What became of one of many runs that were to be taken over."""
    if told.trouble:
        return f"run {told.number}  {clean(told.what)}: {told.trouble}"
    return f"run {told.number}  {clean(told.what)}: taken over (process {told.pid})"


def hints(sentences: Iterable[str]) -> None:
    """What is worth knowing, on standard error."""
    for sentence in sentences:
        hint(sentence)


def logging_out_hint(unit: str, source: str, user: str, *, session: bool) -> str:
    """Logging out would end it: why, and the cure."""
    if session:
        return (
            f"logging out ends this run: {unit} is killed then (KillUserProcesses=yes by {source}); start it beside "
            "the session: loginctl enable-linger, then systemd-run --user --scope scheduler run -d ..."
        )
    return (
        f"logging out for the last time ends this run, because {unit} ends then: {user} lingers not; "
        "loginctl enable-linger keeps it"
    )
