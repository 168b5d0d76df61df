"""Summaries of observed task classes that are alike, so that the cost of one more does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.units import MIB
from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Beside:
    """The need of a task class apart from the peaks that are compared."""

    host: int = 0
    """Bytes of the host's RAM."""
    busy: float = 0.0
    """The share of time for which it keeps a GPU busy; 0 if unknown."""


NOTHING = Beside()
APART, SLACK = 1.5, 64 * MIB
"""From run to run, the peaks of one task seldom differ by more than this factor and this number of bytes ..."""
MANY = 8
"""... but this number of classes shows how high another one may come, whatever the cause of the difference is."""


@dataclass(slots=True, eq=False)
class Cell:
    """Observed classes that are alike."""

    kinds: list[int] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)
    """Their highest peak on each part."""
    lowest: dict[str, int] = field(default_factory=dict)
    host: int = 0
    """The highest need for the host's RAM among them."""
    busy: float = 0.0
    """The sum of the shares for which they keep a GPU busy, where these are known."""
    busy_kinds: int = 0
    """The number of classes for which the share is known."""

    @property
    def usual_busy(self) -> float:
        """The mean share for which they keep a GPU busy; 0 if none is known."""
        return self.busy / self.busy_kinds if self.busy_kinds else 0.0

    @property
    def agrees(self) -> bool:
        """False if the classes are few and differ so much that something unknown must matter."""
        near = all(high <= APART * self.lowest[part] + SLACK for part, high in self.highest.items())
        return near or len(self.kinds) >= MANY

    def take(self, kind: int, peaks: Mapping[str, int], beside: Beside) -> None:
        """Add one more class."""
        self.kinds.append(kind)
        self.note(peaks)
        self.change(NOTHING, beside)

    def renew(self, all_: Iterable[Mapping[str, int]]) -> None:
        """Replace the peaks of the classes."""
        self.highest.clear()
        self.lowest.clear()
        for peaks in all_:
            self.note(peaks)

    def note(self, peaks: Mapping[str, int]) -> None:
        """Add the peaks of one of the classes."""
        for part, peak in peaks.items():
            self.highest[part] = max(self.highest.get(part, 0), peak)
            self.lowest[part] = min(self.lowest.get(part, peak), peak)

    def change(self, before: Beside, now: Beside) -> None:
        """Replace the need of one class apart from its peaks.

        Call `lower` afterwards if the class needed the most RAM and needs less now.
        """
        self.host = max(self.host, now.host)
        self.busy += now.busy - before.busy
        self.busy_kinds += bool(now.busy) - bool(before.busy)

    def lower(self, hosts: Iterable[int]) -> None:
        """Set the highest need for the host's RAM from the needs of all classes."""
        self.host = max(hosts, default=0)
