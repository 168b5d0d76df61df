"""The verdict of an experiment: the result of its summaries in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.experiment.readings import Summary, priorities_of
from scheduler.units import duration
from scheduler.values import dataclass, field

FEWEST_REPEATS = 2
"""The least number of repeats that show how much results vary."""
NOTHING = "nothing can be compared yet"


@dataclass(frozen=True, slots=True)
class ExperimentContext:
    """The circumstances that apply to all numbers of an experiment."""

    simulated: bool = False
    mps_speed: float | None = None
    """The assumed speed-up under MPS of tasks that slow each other down; None: no arm uses MPS."""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def words(self) -> str:
        """The circumstances in words, for each row of a table."""
        if not self.simulated:
            return "real"
        if self.mps_speed is None:
            return "simulated"
        if self.mps_speed == 1:
            return "simulated, no gain of MPS assumed"
        return f"simulated, --mps-speed {self.mps_speed:g} assumed"

    def to_dict(self) -> dict[str, Any]:
        """Return the circumstances as JSON values."""
        return {"simulated": self.simulated, "mps_speed": self.mps_speed, "notes": list(self.notes)}


def verdict(found: Sequence[Summary], context: ExperimentContext, *, of_priority: bool) -> str:
    """Return the result of the measured arms, in one sentence without a full stop."""
    said = _orders(found) if of_priority else _mps(found, context)
    said = f"in the simulation, {said}" if context.simulated else said
    return said[0].upper() + said[1:]


def _mps(found: Sequence[Summary], context: ExperimentContext) -> str:
    """Return the gain of packing and of MPS, in words."""
    base = next((one for one in found if one.arm.base), None)
    plain, shared = _best(found, mps=False), _best(found, mps=True)
    if base is None or plain is None or not base.rate.mean:
        return NOTHING
    if plain is base or not plain.rate.exceeds(base.rate):
        plain, said = base, f"{base.arm.name} completes {_rate(base)}, and packing more tasks does not increase that"
    else:
        ratio = plain.rate.mean / base.rate.mean
        said = f"{plain.arm.name} completes {_rate(plain)}, {ratio:.2f} times as many as {base.arm.name}"
    if shared is None:
        return said
    if context.simulated and context.mps_speed == 1:
        return f"{said}; the gain of MPS can only be measured on real GPUs"
    return f"{said}; {_with_mps(plain, shared, context)}"


def _with_mps(plain: Summary, shared: Summary, context: ExperimentContext) -> str:
    gain = shared.rate.mean / plain.rate.mean - 1
    best = f"{shared.arm.name} completes {_rate(shared)}"
    if context.simulated:
        return f"if MPS gives {context.mps_speed:g}x (assumed), {best}, {gain:+.1%}: measure it on real GPUs"
    if min(len(plain.readings), len(shared.readings)) < FEWEST_REPEATS:
        return f"{best}, {gain:+.1%} in a single repeat, which shows no spread: measure it again"
    if shared.rate.exceeds(plain.rate):
        return f"{best}, {gain:.1%} more: use MPS"
    if plain.rate.exceeds(shared.rate):
        return f"{best}, {-gain:.1%} less: leave MPS off"
    return f"{best}, no difference beyond the spread of the repeats: leave MPS off"


def _best(found: Sequence[Summary], *, mps: bool) -> Summary | None:
    return max((one for one in found if one.arm.mps == mps), key=lambda one: one.rate.mean, default=None)


def _rate(one: Summary) -> str:
    return f"{one.rate.mean:,.1f} tasks/h"


def _orders(found: Sequence[Summary]) -> str:
    """Return the effect of batch sizes on the makespan and on the waiting time of the best priority, in words."""
    if not found:
        return NOTHING
    shortest = min(found, key=lambda one: one.makespan.mean)
    longest = max(found, key=lambda one: one.makespan.mean)
    best = priorities_of(found)[0]
    quick = min(found, key=lambda one: one.waited(best).mean)
    slow = max(found, key=lambda one: one.waited(best).mean)
    least, most = duration(quick.waited(best).mean), duration(slow.waited(best).mean)
    each = f"{least} with {quick.arm.name} and {most} with {slow.arm.name}" if least != most else f"{least} in each arm"
    waits = f"tasks of priority {best} wait {each}"
    if not longest.makespan.exceeds(shortest.makespan):
        return f"the order does not change the makespan, about {duration(shortest.makespan.mean)}; {waits}"
    return (
        f"the makespan is shortest with {shortest.arm.name} ({duration(shortest.makespan.mean)}) and longest with "
        f"{longest.arm.name} ({duration(longest.makespan.mean)}); {waits}"
    )
