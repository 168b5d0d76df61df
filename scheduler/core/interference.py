"""How tasks that share a device slow each other down: the models a simulation may be asked for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

from scheduler.core.simulation import FULLY, fitted, shared
from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Interference:
    """How many times slower everything on a GPU gets, by the sum of what its tasks keep busy when alone."""

    name: str
    slowdown: Callable[[float], float]
    throughput: float
    """The most work a GPU ever gets done in a second, whoever shares it; what one alone gets done is 1."""
    what: str
    knees: tuple[float, ...] = ()
    """At one of these loads whatever can be had of a GPU is had fastest: its memory, its computing, or any mix of both.
    None where computing costs nothing."""


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
