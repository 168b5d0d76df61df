"""The messages of the older one-shot tool: at its start, at each Ctrl-C, at its end, and about GPUs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.events import Event, Started
from scheduler.core.model import HOST, Placement
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import View
from scheduler.ui.terminal.exec_view import ExecView
from scheduler.ui.terminal.sink import let_go
from scheduler.ui.text import clean
from scheduler.values import dataclass

STAMP = "%Y-%m-%d %H:%M:%S"
_ASKED: dict[str, str] = {
    RunRequest.DRAIN: "Next Ctrl-C terminate the task (PGID: {}).",
    RunRequest.STOP: "The task (PGID: {}) was terminated.",
    RunRequest.KILL: "The task (PGID: {}) was killed.",
}


class ClassicView(ExecView):
    """The view of one task with the messages of the older tool; `asked` is the latest request that a signal made."""

    forced = ""
    """The GPU that the user forced, for which the task waits even if others are free; empty if none was forced."""
    asked: Callable[[], str] = staticmethod(lambda: "")
    indices: Mapping[str, int]
    _group = 0
    _gpus = ""
    _told = ""
    _waiting = False

    def show(self, event: Event, at: float) -> None:
        """Print the GPUs and processes of the task before any output of the task."""
        if isinstance(event, Placement):
            self._gpus = ",".join(f"cuda{self.indices.get(key, key)}" for key in event.reservation if key != HOST)
        elif isinstance(event, Started):
            self._group = event.pid
            self._announce(event.pid)
        super().show(event, at)

    def _announce(self, pid: int) -> None:
        gpu = [f"GPU: {self._gpus}"] if self._gpus else []
        out([*gpu, f"SCH PID: {os.getpid()}", f"TASK PID: {pid}", f"SCH PGID: {os.getpgrp()}", f"TASK PGID: {pid}"])

    def say(self, sentence: str) -> None:
        """Show a message; for a Ctrl-C, show the older tool's message instead."""
        asked = self.asked()
        if self._group and asked in _ASKED and asked != self._told:
            self._told = asked
            View.say(self, sentence)  # to the log alone
            out([_ASKED[asked].format(self._group)])
            return
        super().say(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """If the user forced a GPU, show once that the task waits for this GPU, and whose tasks use it."""
        if refusals and self.forced and not self._waiting:
            self._waiting = True
            out([f"Scheduler (PID: {os.getpid()}) is waiting for GPU {self.forced}."])
        super().waits(refusals)


def out(lines: Sequence[str]) -> None:
    """Write lines to standard output, if it is open."""
    try:
        print(*lines, sep="\n", flush=True)
    except (OSError, ValueError):
        let_go(sys.stdout)


def verbose_end(task: Sequence[str], files: tuple[str, str], began: float | None, ended: float | None) -> list[str]:
    """Return the lines that `--verbose` prints about a task that has ended; the hours of its duration may exceed 24."""
    start = began if began is not None else ended
    seconds = int((ended or 0.0) - (start or 0.0))
    total = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return [
        "",
        f"task: {list(task)}",
        f"stdout: {files[0] or 'sys.stdout'}",
        f"stderr: {files[1] or 'sys.stderr'}",
        f"start: {stamp(start)}",
        f"end: {stamp(ended)}",
        f"total time: {total}",
    ]


def stamp(at: float | None) -> str:
    """Return a time in the format of the older tool."""
    return "" if not at else time.strftime(STAMP, time.localtime(at))


@dataclass(frozen=True, slots=True)
class ScheduleGpu:
    """One GPU in the older tool's list."""

    index: int
    available: bool
    user: str = ""
    task: tuple[str, ...] = ()
    pid: int = 0
    started: float = 0.0

    @property
    def used(self) -> bool:
        """True if a task uses the GPU. A GPU that is neither used nor available is out of service."""
        return bool(self.user)


def status_lines(cards: Sequence[ScheduleGpu]) -> list[str]:
    """Return the lines about used and free GPUs."""
    said = []
    used = [card for card in cards if card.used]
    if used:
        said.append("Currently used GPU:")
    for card in used:
        said += [
            "-----",
            f"GPU: {card.index}",
            f"User: {clean(card.user)}",
            f"Task: {clean(' '.join(card.task))}",
            f"Task PID: {card.pid or ''}".rstrip(),
            f"Started: {stamp(card.started)}".rstrip(),
        ]
    free = [f"GPU {card.index}" for card in cards if card.available]
    return said + ([*([""] if used else []), "Free GPU:", *free] if free else ["No GPU available."])


def info(cards: Sequence[ScheduleGpu]) -> dict[str, list[Any]]:
    """Return the six lists of the older tool's file, with null for a free GPU."""
    return {
        "avail": [card.available for card in cards],
        "gpu_name": [f"cuda{card.index}" for card in cards],
        "task": [list(card.task) if card.used else None for card in cards],
        "task_pid": [card.pid if card.used else None for card in cards],
        "task_start": [stamp(card.started) if card.used else None for card in cards],
        "user": [card.user if card.used else None for card in cards],
    }
