"""The causes that events name: why a reservation changed, why launching ended, what a user asked for."""

from __future__ import annotations

from enum import StrEnum


class ResizeCause(StrEnum):
    """The cause of a changed reservation."""

    GREW = "grew"
    """It uses more than was reserved."""
    SEEN = "seen"
    """It uses memory where nothing was reserved."""
    SETTLED = "settled"
    """Its peak has stopped growing."""
    KNOWN = "known"
    """Another attempt of its class showed the need."""
    EXPECTED = "expected"
    """Other classes show that it should need less."""
    OVERDUE = "overdue"
    """It has shown nothing for longer than an attempt should."""
    LOAD = "load"
    """Its load was measured, and differs from the expected one."""
    RAM_SEEN = "ram_seen"
    """Its expected RAM was corrected."""
    RAM_SETTLED = "ram_settled"
    """Its RAM is known now."""
    RESTING = "resting"
    """It rests with nothing on its GPUs, and counts as a task of the host."""
    WITHOUT = "without"
    """It computes with nothing on its GPUs, and counts as a task of the host."""
    TOUCHED = "touched"
    """It uses one of its GPUs after all."""

    @property
    def settles(self) -> bool:
        """True if the need of the attempt is known from now on."""
        return self in (ResizeCause.SETTLED, ResizeCause.KNOWN)

    @property
    def shows_load(self) -> bool:
        """True if its class learns the load of the attempt."""
        return self in (ResizeCause.SETTLED, ResizeCause.LOAD)

    @property
    def leaves_gpus(self) -> bool:
        """True if the attempt counts as a task of the host from now on."""
        return self in (ResizeCause.RESTING, ResizeCause.WITHOUT)

    @property
    def changes_sides(self) -> bool:
        """True if the attempt left its GPUs, or came back to them."""
        return self.leaves_gpus or self is ResizeCause.TOUCHED


class HaltCause(StrEnum):
    """The cause for which no more tasks are started."""

    FIRST_ROWS = "first rows"
    """The first tasks that ended failed alike."""
    ALIKE = "alike"
    """The last tasks that ended failed alike."""
    FAILURES = "failures"
    """As many tasks failed as are allowed to fail."""


class Action(StrEnum):
    """A request of a user, as far as the events of a run know it."""

    DRAIN = "drain"
    STOP = "stop"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    RESUME = "resume"
    SKIP = "skip"
    SAVE = "save"
    """Resumable tasks end, and wait for their next turn."""
    PRUNE = "prune"
    """The metrics of a task stop it early; no user can ask for it."""


class DependencyStep(StrEnum):
    """A change of a task that follows from the states of its parents."""

    BLOCK = "block"
    """It waits until they have ended."""
    READY = "ready"
    """It may start."""
    SKIP = "skip"
    """It is skipped, because one of them ended without success."""
