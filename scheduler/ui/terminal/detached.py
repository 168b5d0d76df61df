"""The messages about a run that was started without a terminal (`-d`, `resume --all`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.runtime.paths import tilde
from scheduler.ui.terminal.sink import hint
from scheduler.ui.text import clean
from scheduler.units import count
from scheduler.values import dataclass

STOP = "scheduler stop r{}: finish what runs, start nothing new; --now: stop it; --leave: leave it running"


@dataclass(frozen=True, slots=True)
class DetachedStart:
    """The result of starting a run in the background, as far as the starting process waits for it."""

    pid: int
    number: int = 0
    """The run's number; 0 if there is none, because of `trouble` or because the list was empty."""
    what: str = ""
    """The name of the run's list."""
    tasks: int = 0
    first: int = 0
    """The id of the run's first task."""
    log: str = ""
    """The path of the run's log."""
    hints: Sequence[str] = ()
    trouble: str = ""
    """The reason why nothing was started; empty if the run started."""
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, for the starting process and for `resume --all --json`."""
        return {
            "pid": self.pid,
            "number": self.number,
            "what": self.what,
            "tasks": self.tasks,
            "first": self.first,
            "log": self.log,
            "hints": [*self.hints],
            "trouble": self.trouble,
            "exit_code": self.exit_code,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DetachedStart:
        """Return the result that `to_dict` wrote."""
        return cls(**data)


def lines(start: DetachedStart) -> list[str]:
    """Return lines about the run, its process, how to watch it and how to stop it."""
    number, tasks = start.number, count(start.tasks, "task")
    return [
        f"run {number}  {clean(start.what)}: {tasks}, started in the background (process {start.pid})",
        f"watch   scheduler top r{number}     tail -f {tilde(start.log)}",
        f"stop    {STOP.format(number)}",
    ]


def one_of_all(start: DetachedStart) -> str:
    """Return the line about one of several runs that were resumed."""
    if start.trouble:
        return f"run {start.number}  {clean(start.what)}: {start.trouble}"
    return f"run {start.number}  {clean(start.what)}: taken over (process {start.pid})"


def hints(sentences: Iterable[str]) -> None:
    """Print hints on standard error."""
    for sentence in sentences:
        hint(sentence)


def logging_out_hint(unit: str, source: str, user: str, *, session: bool) -> str:
    """Return a hint that says that logging out ends the run, why it does, and how to prevent it."""
    if session:
        return (
            f"logging out ends this run: systemd then kills {unit} (KillUserProcesses=yes by {source}); start it "
            "outside of the session: loginctl enable-linger, then systemd-run --user --scope scheduler run -d ..."
        )
    return (
        f"the last logout of {user} ends this run, because {unit} then ends (lingering is off); "
        "loginctl enable-linger prevents it"
    )
