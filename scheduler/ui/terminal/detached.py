"""The lines about a run that was started without a terminal (`-d`, `resume --all`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduler.runtime.paths import tilde
from scheduler.ui.terminal.sink import hint
from scheduler.ui.text import clean
from scheduler.units import count

STOP = "scheduler stop {}: finish what runs, start nothing new; --now: stop it; --leave: leave it running"


class DetachedLine(Protocol):
    """The result of a start without a terminal."""

    @property
    def pid(self) -> int:
        """The process id of the scheduler."""

    @property
    def number(self) -> int:
        """The number of the run."""

    @property
    def what(self) -> str:
        """The name of the list."""

    @property
    def tasks(self) -> int:
        """The number of tasks."""

    @property
    def log(self) -> str:
        """The path of the run's log."""

    @property
    def trouble(self) -> str:
        """The reason why the run did not start; empty: it did."""


def lines(start: DetachedLine) -> list[str]:
    """Return the run, its process, how to watch it and how to stop it."""
    number, tasks = start.number, count(start.tasks, "task")
    return [
        f"run {number}  {clean(start.what)}: {tasks}, started in the background (process {start.pid})",
        f"watch   scheduler top {number}     tail -f {tilde(start.log)}",
        f"stop    {STOP.format(number)}",
    ]


def one_of_all(start: DetachedLine) -> str:
    """Return what became of one of several runs that were taken over."""
    if start.trouble:
        return f"run {start.number}  {clean(start.what)}: {start.trouble}"
    return f"run {start.number}  {clean(start.what)}: taken over (process {start.pid})"


def hints(sentences: Iterable[str]) -> None:
    """Print hints on standard error."""
    for sentence in sentences:
        hint(sentence)


def logging_out_hint(unit: str, source: str, user: str, *, session: bool) -> str:
    """Return a hint that logging out ends the run, why, and how to prevent it."""
    if session:
        return (
            f"logging out ends this run: systemd then kills {unit} (KillUserProcesses=yes by {source}); start it "
            "outside of the session: loginctl enable-linger, then systemd-run --user --scope scheduler run -d ..."
        )
    return (
        f"the last logout of {user} ends this run, because {unit} then ends (lingering is off); "
        "loginctl enable-linger prevents it"
    )
