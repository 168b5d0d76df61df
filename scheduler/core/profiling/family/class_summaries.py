"""Observed kinds that are alike, summed up, so that one more of them costs the same however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from scheduler.values import dataclass


@dataclass(frozen=True, slots=True)
class Beside:
    """The need of a task class beside the peaks by which it is compared."""

    host: int = 0
    """Bytes of the host's RAM."""
    busy: float = 0.0
    """The share of a GPU that it keeps busy; 0 where that is not known."""


NOTHING = Beside()


@dataclass(slots=True, eq=False)
class Cell:
    """Observed kinds that are alike."""

    kinds: list[int] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)
    """Their highest peak on each part."""
    times: dict[str, Counter[int]] = field(default_factory=dict)
    """How many of them have each peak, by part."""
    host: int = 0
    """The most that any of them needs of the host's RAM."""
    busy: float = 0.0
    """The sum of the shares of a GPU that they keep busy, as far as these are known."""
    busy_kinds: int = 0
    """The number of classes of which it is known."""

    def take(self, kind: int, peaks: Mapping[str, int], beside: Beside) -> None:
        """Take one more kind in."""
        self.kinds.append(kind)
        for part, peak in peaks.items():
            self.highest[part] = max(self.highest.get(part, 0), peak)
            self.times.setdefault(part, Counter())[peak] += 1
        self.change(NOTHING, beside)

    def replace(self, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        """Count other peaks of one of them, on the same parts, where the lowest and the highest stay."""
        for part, was in before.items():
            times = self.times[part]
            times[now[part]] += 1
            times[was] -= 1
            if not times[was]:
                del times[was]

    def change(self, before: Beside, now: Beside) -> None:
        """Count anew what one of them needs besides; where its RAM was the most and fell, `lower` has to follow."""
        self.host = max(self.host, now.host)
        self.busy += now.busy - before.busy
        self.busy_kinds += bool(now.busy) - bool(before.busy)

    def lower(self, hosts: Iterable[int]) -> None:
        """Take the most of what all of them need of the host's RAM."""
        self.host = max(hosts, default=0)
