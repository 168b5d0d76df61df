"""The ports to memory: what devices there are, what is free on them, and who of ours holds how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.core.model import Budget, Device, Placement


@dataclass(frozen=True, slots=True)
class Sample:
    """What a living attempt was last seen to hold, by device; `peak` is the most it held at any moment so far."""

    task: int
    attempt: int
    used: Mapping[str, int]
    peak: Mapping[str, int]


class Devices(Protocol):
    """What memory exists; reserves nothing and launches nothing."""

    def discover(self) -> tuple[Device, ...]:
        """The devices this process may use; raises DeviceError where there are none. The same for a run's life."""

    def snapshot(self) -> tuple[Budget, ...]:
        """What each of them has free at this moment; never blocks for long, called with the lease mutex held."""

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """What a task placed so must find in its environment; None takes a name away."""


class Watcher(Protocol):
    """Looks at the memory of living attempts, in a process of its own; may miss, never blocks."""

    def watch(self, attempts: Mapping[tuple[int, int], int], strangers: frozenset[int]) -> None:
        """Look at these attempts' trees from now on (task, attempt: pid of the shim), and at other leases' shims."""

    def collect(self) -> list[Sample]:
        """New samples since the last call."""

    def used_by(self, shim: int) -> Mapping[str, int]:
        """What the tree of another scheduler's shim was last seen to hold; nothing where it cannot be seen."""

    def close(self) -> None:
        """Stop looking."""
