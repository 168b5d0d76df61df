"""Interference between tasks that share a device, as models for simulations."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

from scheduler.simulation.machine import FULLY, fitted, shared
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Interference:
    """A model of the slowdown of all tasks on a GPU, by the sum of their loads when alone."""

    name: str
    slowdown: Callable[[float], float]
    throughput: float
    """The most work that a GPU does in a second, however it is shared; a task alone does 1."""
    what: str
    knees: tuple[float, ...] = ()
    """Loads at one of which a GPU provides any mix of memory and computing fastest. None if computing costs nothing."""


MODELS = {
    model.name: model
    for model in (
        Interference("none", lambda load: 1.0, inf, "sharing a GPU costs nothing (optimistic)"),
        Interference(
            "prop", shared, 1.0, "a GPU's time is shared, nothing is gained by sharing it (pessimistic)", (1.0,)
        ),
        Interference(
            "fit", fitted, sqrt(2 * FULLY), "as 1,388 pairs of training jobs were measured to share one", (FULLY, 2.0)
        ),
    )
}
