"""What most people do without a packer: every task has its GPUs to itself, and so needs no learning."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.brain import Brain
from scheduler.core.deciding import Pass
from scheduler.core.model import Decision, KnownBy, Machine, Purpose, Refusal
from scheduler.core.packing import Need


def decide(brain: Brain, machine: Machine) -> Decision:
    """The packer's walk, by the same order and with the same bound on overtaking, over devices that are empty."""
    return Alone(brain, machine).decide()


class Alone(Pass):
    """One walk in which nobody shares a device."""

    def _need(self, task: int) -> Need:
        need = super()._need(task)
        known_by = KnownBy.LIVE if need.purpose is Purpose.PROBE else need.known_by
        return replace(need, alone=True, purpose=Purpose.RUN, known_by=known_by)

    def _held_back(self, task: int) -> Refusal | None:
        """Nobody waits for what another one teaches."""
        return None
