"""The port through which decisions become true: launch, stop, adopt, collect, close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.core.events import Exited, Started
from scheduler.core.model import Purpose


@dataclass(frozen=True, slots=True)
class Launch:
    """All that an engine needs to start one attempt."""

    task: int
    attempt: int
    purpose: Purpose
    argv: tuple[str, ...]
    directory: str
    env: Mapping[str, str | None]
    """On top of the run's environment; None takes a name away."""
    timeout: float | None = None
    grace: float = 30.0
    stop_signal: int = 15
    lease: str = ""
    """Path of the lease file; the shim unlinks it when the tree is empty."""
    lease_fd: int = -1
    """Locked descriptor of that file, handed over to the shim; the engine closes its own copy."""


class Engine(Protocol):
    """Makes decisions true; never decides, never prints, never touches the journal."""

    def launch(self, order: Launch) -> None:
        """Start an attempt without waiting for it; what comes of it is told by `collect`."""

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Ask a living attempt to end: its stop signal, its grace, then the whole tree; `kill` skips the grace."""

    def adopt(self, task: int, attempt: int) -> None:
        """Take over an attempt that an earlier scheduler placed, whatever became of it.

        `collect` then tells Started (it lives, or lived and its record is there) and in the end Exited; an attempt
        that never came to run is fenced, so that it never will, and told as Exited LOST.
        """

    def collect(self) -> list[Started | Exited]:
        """What happened since the last call; never blocks."""

    def close(self) -> None:
        """Let go: nothing more is launched from here, living attempts go on under their shims."""
