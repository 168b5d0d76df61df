"""The default: continuous packing by rank, with backfill and a bound on overtaking."""

from __future__ import annotations

from scheduler.core.brain import Brain
from scheduler.core.deciding import Pass
from scheduler.core.model import Decision, Machine


def decide(brain: Brain, machine: Machine) -> Decision:
    """Walk by rank until the line or the machine is exhausted."""
    return Pass(brain, machine).decide()
