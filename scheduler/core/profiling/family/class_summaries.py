"""Summaries of similar observed task classes, so that the cost of one more does not depend on their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Beside:
    """The need of a task class apart from the peaks that are compared."""

    host: int = 0
    """Bytes of the host's RAM."""
    busy: float = 0.0
    """The share of time for which it keeps a GPU busy; 0 if unknown."""


NOTHING = Beside()


@dataclass(slots=True, eq=False)
class Cell:
    """Observed classes that are alike."""

    kinds: list[int] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)
    """Their highest peak on each part."""
    times: dict[str, Counter[int]] = field(default_factory=dict)
    """The number of classes with each peak, by part."""
    host: int = 0
    """The highest need for the host's RAM among them."""
    busy: float = 0.0
    """The sum of the shares for which they keep a GPU busy, where these are known."""
    busy_kinds: int = 0
    """The number of classes for which the share is known."""

    def take(self, kind: int, peaks: Mapping[str, int], beside: Beside) -> None:
        """Add one more class."""
        self.kinds.append(kind)
        for part, peak in peaks.items():
            self.highest[part] = max(self.highest.get(part, 0), peak)
            self.times.setdefault(part, Counter())[peak] += 1
        self.change(NOTHING, beside)

    def replace(self, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        """Replace the peaks of one class on the same parts; the lowest and the highest stay as they are."""
        for part, was in before.items():
            times = self.times[part]
            times[now[part]] += 1
            times[was] -= 1
            if not times[was]:
                del times[was]

    def change(self, before: Beside, now: Beside) -> None:
        """Replace what one class needs besides; if it had the highest RAM and needs less now, call `lower`
        afterwards.
        """
        self.host = max(self.host, now.host)
        self.busy += now.busy - before.busy
        self.busy_kinds += bool(now.busy) - bool(before.busy)

    def lower(self, hosts: Iterable[int]) -> None:
        """Set the highest need for the host's RAM from the needs of all classes."""
        self.host = max(hosts, default=0)
