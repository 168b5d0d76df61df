"""How fast a living task gets on, and how busy it keeps its GPUs, from what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.values import dataclass

ENOUGH = 1e-6
"""So little is missing of a whole epoch where progress is told in parts of one."""
FULL = 0.95
"""The load from which on tasks on a GPU are assumed to slow each other down."""


def alone(share: float, beside: float, whole: float | None = None) -> float:
    """Return how busy a task with this share of a GPU would keep it alone, beside others with these loads.

    While the GPU idles at times, each task gets all that it requests; else they share in proportion. The loads of
    others are often guesses: where the load of the `whole` GPU is measured, it counts.
    """
    idle = share + beside <= 1.0 if whole is None else whole < FULL
    if idle or share >= 1.0:
        return min(share, 1.0)
    return min(1.0, share * beside / (1.0 - share))


class MeanLoad:
    """How busy a task keeps its GPUs, from when it first did."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._number = 0
        self._looked = False

    def see(self, shares: Mapping[str, float]) -> None:
        """Take one sample of its load; samples of the time in which it still loads its data do not count."""
        if not shares:
            return
        self._looked = True
        if self._sum or any(shares.values()):
            self._sum += sum(shares.values()) / len(shares)
            self._number += 1

    @property
    def value(self) -> float | None:
        """Return the mean; 0 where it was sampled and did nothing, None where it was never sampled."""
        if not self._looked:
            return None
        return self._sum / self._number if self._number else 0.0


@dataclass(slots=True)
class EpochSpan:
    """Epochs that were seen to be done, and what they took."""

    epochs: float = 0.0
    seconds: float = 0.0

    def add(self, epochs: float, seconds: float) -> None:
        """Add one sample."""
        self.epochs += epochs
        self.seconds += seconds

    @property
    def tells(self) -> bool:
        """True if it covers a whole epoch."""
        return self.epochs >= 1 - ENOUGH


class Throughput:
    """How long an epoch takes, from when which epoch was seen; and how much longer beside others."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._crowded = False
        """True if another attempt was beside it since the last epoch."""
        self._alone, self._opening, self._beside = EpochSpan(), EpochSpan(), EpochSpan()

    def see(self, epochs: float, now: float, *, beside: bool = False) -> None:
        """Take the number of epochs done by now, beside others or alone."""
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
        """Seconds an epoch takes; None while fewer than two are known to be done."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    @property
    def stretch(self) -> float | None:
        """How many times longer its epochs took beside others than alone, or than the first one where it never was.

        None where that cannot be told.
        """
        usual = self._alone if self._alone.tells else self._opening
        later = EpochSpan(self._beside.epochs, self._beside.seconds)
        if usual is self._alone:
            later.add(self._opening.epochs, self._opening.seconds)
        if not usual.tells or not later.tells or usual.seconds <= 0:
            return None
        return later.seconds / later.epochs / (usual.seconds / usual.epochs)


class Colocation:
    """Which attempts of a run share a device with another."""

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], Sequence[str]] = {}
        self._residents: Counter[str] = Counter()

    def enter(self, attempt: tuple[int, int], devices: Sequence[str]) -> None:
        """Note that an attempt has begun on a device."""
        self._devices[attempt] = devices
        for key in devices:
            self._residents[key] += 1

    def leave(self, attempt: tuple[int, int]) -> None:
        """Note the end of an attempt."""
        for key in self._devices.pop(attempt, ()):
            self._residents[key] -= 1

    def beside(self, attempt: tuple[int, int]) -> bool:
        """Tell whether another attempt is beside it now."""
        return any(self._residents[key] > 1 for key in self._devices.get(attempt, ()))
