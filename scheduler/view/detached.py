"""What is said of a run that was started without a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.paths import tilde
from scheduler.units import count
from scheduler.view.sink import hint
from scheduler.view.words import clean


def lines(number: int, what: str, tasks: int, pid: int, log: str) -> list[str]:
    """Number, process, how to watch, how to stop."""
    return [
        f"run {number}  {clean(what)}: {count(tasks, 'task')}; it goes on without this terminal (process {pid})",
        f"watch   scheduler list {number}     tail -f {tilde(log)}",
        f"stop    scheduler stop {number} (running tasks end), with --now (they are stopped) or --leave (they run on)",
    ]


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
