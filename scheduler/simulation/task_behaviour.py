"""The behaviour of a simulated task: its duration, memory and end, which the scheduler does not know in advance."""

from __future__ import annotations

import hashlib

from scheduler.units import MIB
from scheduler.values import dataclass

Curve = tuple[tuple[float, int], ...]
"""Pairs of (seconds of work, bytes from then on)."""

METRIC = "val_loss"
"""The metric that simulated tasks report."""
START = 500 * MIB
"""The memory that a process uses on a GPU before the program allocates any: the CUDA context."""
RISE = 45.0
RISE_SHARE = 0.1
"""A peak is reached after 45 s or this share of the run, whichever comes first."""
LATE = 0.05
"""The share of tasks that reach their peak only in the last epoch, for example in a validation or a longer batch."""
DIFFERS = 0.5
FACTORS = ((0.05, 0.85), (0.10, 0.99), (0.25, 1.0), (0.50, 1.0), (0.75, 1.01), (0.90, 1.08), (0.95, 1.17), (0.99, 1.28))
"""The measured quantiles of the factor by which half of the tasks differ from the usual peak of their class."""


@dataclass(frozen=True, slots=True)
class TaskBehaviour:
    """The behaviour of one task: how long it works alone, what memory it uses, how it ends."""

    seconds: float
    memory: tuple[Curve, ...] = ()
    """The curve of memory for each device of the task, by position; the last curve applies to all further devices."""
    host_memory: Curve = ()
    """The curve for the host's RAM, if the task also uses GPUs."""
    cores: float = 1.0
    utilisation: float = 1.0
    """The share of time for which the task keeps each of its GPUs busy."""
    loading: float = 0.0
    """The seconds of work at the start in which the task imports libraries and loads its data, and keeps no GPU
    busy."""
    epochs: int | None = None
    """The number of epochs. If it is given, the task does as many epochs as its command says, so a probe is shorter."""
    code: int = 0
    signal: int | None = None
    lost: bool = False
    """True if the task's shim dies together with the task, so that the end of the task is unknown."""
    says: str = ""
    """The last line of the task's output."""
    resumes: bool = False
    """True if the task saves its state when it is asked to end, and the next attempt continues from there."""
    metrics: tuple[float, ...] = ()
    """The value of the task's metric (`METRIC`) after each epoch."""
    stops_in: float = 0.0
    """Seconds from the stop signal to the end of the task; after its grace period the task is killed."""

    def memory_on(self, position: int) -> Curve:
        """Return the curve on one of the task's devices."""
        return self.memory[min(position, len(self.memory) - 1)] if self.memory else ()

    def work(self, told: str | None) -> float:
        """Return the seconds of work for this number of epochs."""
        if not self.epochs or not told:
            return self.seconds
        return self.seconds / self.epochs * int(told)


def curve(peak: int, seconds: float, *, late: bool = False, epochs: int | None = None) -> Curve:
    """Return the memory of a training task: little at first, then its peak. A task that is `late` reaches its peak in
    its last epoch.
    """
    rise = min(RISE, seconds * RISE_SHARE)
    if late:
        rise = max(rise, seconds * (1 - 1 / (epochs or 10)))
    return ((0.0, min(START, peak)), (rise, peak))


def draw(seed: int, task: int, peak: int, seconds: float, epochs: int | None = None) -> TaskBehaviour:
    """Return a random task of a class with this usual peak: it may need more or less, and may need it late."""
    mine = round(peak * deviation(seed, task))
    late = chance(seed, "late", task) < LATE
    return TaskBehaviour(seconds, (curve(mine, seconds, late=late, epochs=epochs),), epochs=epochs)


def deviation(seed: int, task: int) -> float:
    """Return the factor by which a task's peak differs from that of its class."""
    if chance(seed, "differs", task) >= DIFFERS:
        return 1.0
    return _quantile(chance(seed, "factor", task))


def _quantile(share: float) -> float:
    before_share, before = FACTORS[0]
    if share <= before_share:
        return before
    for next_share, factor in FACTORS[1:]:
        if share <= next_share:
            return before + (factor - before) * (share - before_share) / (next_share - before_share)
        before_share, before = next_share, factor
    return before


def chance(seed: int, *what: object) -> float:
    """Return a number from 0 to 1 that is determined by the seed and by `what`."""
    digest = hashlib.blake2b(repr((seed, *what)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / (1 << 56)
