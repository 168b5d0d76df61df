"""The rules of the house, as a decision meets them: what one user may hold, and where nobody of this run starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from scheduler.values import dataclass

TASKS, GPUS, MEMORY = "tasks", "GPUs", "GPU memory"
"""What a cap is about, beside the host's RAM."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What one user may hold at a time, over all runs; None: as much as there is."""

    gpus: int | None = None
    memory: int | None = None
    """Bytes promised on GPUs, all of them together."""
    host_memory: int | None = None
    tasks: int | None = None
    source: str = ""
    """Who says so, as sentences name it."""

    @property
    def some(self) -> bool:
        """Whether anything is capped at all."""
        return (self.gpus, self.memory, self.host_memory, self.tasks) != (None,) * 4


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class House:
    """What the machine's administrator and its users have said, as far as one run has to heed it now."""

    caps: Caps = NO_CAPS
    closed: Mapping[str, str] = field(default_factory=dict)
    """Devices on which nothing of this run may start, each with why."""
