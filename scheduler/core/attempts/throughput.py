"""The speed of a living task, and the load it puts on its GPUs, from its samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.values import dataclass

ENOUGH = 1e-6
"""The fraction of an epoch that a complete epoch may lack, because reported fractions are rounded."""
SATURATED = 0.95
"""The load of a GPU from which its tasks are assumed to slow each other down."""


def alone(share: float, beside: float, whole: float | None = None, scale: float = 0.0) -> float:
    """Return the load that a task with this share of a GPU would have alone, given the loads of its neighbours.

    While the GPU is idle at times, each task gets all the time that it requests; otherwise tasks share the GPU in
    proportion to their loads. The loads of the neighbours are often guesses, so a measured load of the `whole` GPU
    takes precedence. The value `scale` also takes precedence: it is the ratio of load to share of those tasks on the
    GPU whose load was measured.
    """
    idle = share + beside <= 1.0 if whole is None else whole < SATURATED
    if idle or share >= 1.0:
        return min(share, 1.0)
    return min(1.0, share * (scale or beside / (1.0 - share)))


class MeanLoad:
    """The mean load of a task on its GPUs, counted from the first sample in which the task was busy."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._number = 0
        self._looked = False

    def see(self, shares: Mapping[str, float]) -> None:
        """Add one sample of the load; samples before the first one with a load do not count, because the task still
        loads its data.
        """
        if not shares:
            return
        self._looked = True
        if self._sum or any(shares.values()):
            self._sum += sum(shares.values()) / len(shares)
            self._number += 1

    @property
    def value(self) -> float | None:
        """The mean load; 0 if the task was never busy, None if it was never sampled."""
        if not self._looked:
            return None
        return self._sum / self._number if self._number else 0.0


@dataclass(slots=True)
class EpochSpan:
    """A number of completed epochs, and the time they took."""

    epochs: float = 0.0
    seconds: float = 0.0

    def add(self, epochs: float, seconds: float) -> None:
        """Add one sample."""
        self.epochs += epochs
        self.seconds += seconds

    @property
    def tells(self) -> bool:
        """True if the span covers at least a whole epoch."""
        return self.epochs >= 1 - ENOUGH


class Throughput:
    """The speed of an attempt: its time per epoch, and its slowdown while other attempts share its GPUs."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._crowded = False
        """True if another attempt has shared a device with this one since the last epoch ended."""
        self._alone, self._opening, self._beside = EpochSpan(), EpochSpan(), EpochSpan()

    def see(self, epochs: float, now: float, *, beside: bool = False) -> None:
        """Note the number of epochs that are complete at this time; `beside` is True if other attempts share the
        attempt's GPUs.
        """
        self._crowded = self._crowded or beside
        if self._last is not None and epochs <= self._last[0]:
            return
        if self._last is not None:
            self._span().add(epochs - self._last[0], now - self._last[1])
        self._last = (epochs, now)
        self._first = self._first or self._last
        self._crowded = beside

    def _span(self) -> EpochSpan:
        if not self._crowded:
            return self._alone
        return self._beside if self._opening.tells else self._opening

    @property
    def seconds(self) -> float | None:
        """Return the seconds per epoch; None while fewer than two epochs are known."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    @property
    def solo_share(self) -> float | None:
        """Return the time that the attempt's epochs would have taken alone on its GPUs, as a share of the time that
        they took; None if unknown.
        """
        if not self.seconds or not self._alone.tells:
            return None
        return min(1.0, self._alone.seconds / self._alone.epochs / self.seconds)

    @property
    def stretch(self) -> float | None:
        """Return how many times longer an epoch took beside other attempts than alone. For an attempt that was never
        alone, compare with its first epoch.

        Return None if the ratio is unknown.
        """
        usual = self._alone if self._alone.tells else self._opening
        later = EpochSpan(self._beside.epochs, self._beside.seconds)
        if usual is self._alone:
            later.add(self._opening.epochs, self._opening.seconds)
        if not usual.tells or not later.tells or usual.seconds <= 0:
            return None
        return later.seconds / later.epochs / (usual.seconds / usual.epochs)


class Colocation:
    """The devices of a run's attempts, to tell which attempts share a device."""

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], Sequence[str]] = {}
        self._residents: Counter[str] = Counter()

    def enter(self, attempt: tuple[int, int], devices: Sequence[str]) -> None:
        """Note that an attempt has started on these devices."""
        self._devices[attempt] = devices
        for key in devices:
            self._residents[key] += 1

    def leave(self, attempt: tuple[int, int]) -> None:
        """Note the end of an attempt."""
        for key in self._devices.pop(attempt, ()):
            self._residents[key] -= 1

    def beside(self, attempt: tuple[int, int]) -> bool:
        """Tell whether another attempt shares a device with this one at present."""
        return any(self._residents[key] > 1 for key in self._devices.get(attempt, ()))
