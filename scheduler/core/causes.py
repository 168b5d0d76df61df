"""The causes that events name: why a reservation changed, why launching ended, what a user asked for."""

from __future__ import annotations

from enum import StrEnum


class ResizeCause(StrEnum):
    """The reason why the reservation of an attempt has changed."""

    GREW = "grew"
    """The attempt uses more than was reserved for it."""
    SEEN = "seen"
    """The attempt uses memory on a device on which nothing was reserved for it."""
    SETTLED = "settled"
    """The peak of the attempt has stopped growing."""
    KNOWN = "known"
    """Another attempt of the task's class has shown how much the class needs."""
    EXPECTED = "expected"
    """Other task classes show that the attempt should need less."""
    OVERDUE = "overdue"
    """Other tasks no longer wait for the attempt to settle, because it has used little for very long."""
    LOAD = "load"
    """The load of the attempt was measured, and differs from the expected load."""
    RAM_SEEN = "ram_seen"
    """The expected RAM of the attempt was corrected to match what the attempt has used so far."""
    RAM_SETTLED = "ram_settled"
    """The RAM that the attempt needs is now known."""
    RESTING = "resting"
    """The attempt is idle, uses nothing on its GPUs, and counts as a task of the host."""
    WITHOUT = "without"
    """The attempt computes, uses nothing on its GPUs, and counts as a task of the host."""
    TOUCHED = "touched"
    """The attempt counted as a task of the host, but uses one of its GPUs after all."""

    @property
    def settles(self) -> bool:
        """True if the need of the attempt is known from now on."""
        return self in (ResizeCause.SETTLED, ResizeCause.KNOWN)

    @property
    def shows_load(self) -> bool:
        """True if the task's class learns the load of the attempt."""
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
    """The reason why no more tasks are started."""

    FIRST_ROWS = "first rows"
    """All tasks that have ended so far have failed, with equal errors."""
    ALIKE = "alike"
    """All of the latest tasks failed with equal errors."""
    FAILURES = "failures"
    """As many tasks have failed as `--max-failures` allows."""


class Action(StrEnum):
    """A request of a user in the form in which the events of a run record it."""

    DRAIN = "drain"
    STOP = "stop"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    RESUME = "resume"
    SKIP = "skip"
    SAVE = "save"
    """Resumable tasks save their state, end, and wait for their next turn."""
    PRUNE = "prune"
    """The metrics of a task stop it early; users cannot make this request."""


class DependencyStep(StrEnum):
    """A change of a task's state that follows from the states of its parents."""

    BLOCK = "block"
    """The task waits until its parents have ended."""
    READY = "ready"
    """The task may start."""
    SKIP = "skip"
    """The task is skipped, because a parent ended without success."""
