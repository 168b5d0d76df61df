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
    """The loads of which one is the best for any mix of memory and computing: a GPU provides the mix fastest at that
    load. Empty if computing costs nothing."""


MODELS = {
    model.name: model
    for model in (
        Interference("none", lambda load: 1.0, inf, "tasks that share a GPU do not slow each other down (optimistic)"),
        Interference(
            "prop", shared, 1.0, "tasks that share a GPU divide its time, and nothing is gained (pessimistic)", (1.0,)
        ),
        Interference(
            "fit", fitted, sqrt(2 * FULLY), "as measured with 1,388 pairs of training jobs on one GPU", (FULLY, 2.0)
        ),
    )
}
