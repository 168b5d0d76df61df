"""Summaries of observed task classes that are alike, so that adding a class always takes equally long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.units import MIB
from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class Beside:
    """The needs of a task class apart from its peaks. Only the peaks are compared with those of other classes."""

    host: int = 0
    """Bytes of the host's RAM that a class on GPUs needs."""
    busy: float = 0.0
    """The share of time for which a task of the class keeps a GPU busy; 0 if unknown."""


NOTHING = Beside()
APART, SLACK = 1.5, 64 * MIB
"""The factor and the bytes within which the peaks of one task usually stay from run to run."""
MANY = 8
"""This many classes show well enough how high the peak of one more class may be, whatever causes the differences
between them."""


@dataclass(slots=True, eq=False)
class Cell:
    """The summary of observed classes that are alike."""

    kinds: list[int] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)
    """The highest peak of the classes on each part."""
    lowest: dict[str, int] = field(default_factory=dict)
    host: int = 0
    """The highest need of RAM among the classes."""
    busy: float = 0.0
    """The sum of the shares of time for which the classes keep a GPU busy, where known."""
    busy_kinds: int = 0
    """The number of classes whose share of time is in this sum."""

    @property
    def usual_busy(self) -> float:
        """The mean share of time for which the classes keep a GPU busy; 0 if none is known."""
        return self.busy / self.busy_kinds if self.busy_kinds else 0.0

    @property
    def agrees(self) -> bool:
        """False if the classes are few and their peaks differ too much, so that something unknown must matter."""
        near = all(high <= APART * self.lowest[part] + SLACK for part, high in self.highest.items())
        return near or len(self.kinds) >= MANY

    def take(self, kind: int, peaks: Mapping[str, int], beside: Beside) -> None:
        """Add one more class."""
        self.kinds.append(kind)
        self.note(peaks)
        self.change(NOTHING, beside)

    def renew(self, all_: Iterable[Mapping[str, int]]) -> None:
        """Recompute the highest and the lowest peaks from the peaks of all classes."""
        self.highest.clear()
        self.lowest.clear()
        for peaks in all_:
            self.note(peaks)

    def note(self, peaks: Mapping[str, int]) -> None:
        """Update the highest and the lowest peaks by the peaks of one of the classes."""
        for part, peak in peaks.items():
            self.highest[part] = max(self.highest.get(part, 0), peak)
            self.lowest[part] = min(self.lowest.get(part, peak), peak)

    def change(self, before: Beside, now: Beside) -> None:
        """Replace the needs of one class apart from its peaks.

        Call `lower` afterwards if the class needed the most RAM and now needs less.
        """
        self.host = max(self.host, now.host)
        self.busy += now.busy - before.busy
        self.busy_kinds += bool(now.busy) - bool(before.busy)

    def lower(self, hosts: Iterable[int]) -> None:
        """Recompute the highest need of RAM from the needs of all classes."""
        self.host = max(hosts, default=0)
