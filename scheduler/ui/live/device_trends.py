"""The load, temperature and power of devices over the last minutes, as far as a view has observed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from scheduler.core.reporting.live_status import LiveTask, MemoryBar
from scheduler.values import dataclass, field

STEP = 2.0
"""Seconds between two recorded values."""
KEPT = 150
"""The number of recorded values that are kept, which cover five minutes."""
IDLE = 600.0
"""Seconds for which all GPUs of a task must be without load before the view warns about the task."""
BUSY = 0.02
"""The load above which a GPU does not count as idle."""


@dataclass(slots=True)
class DeviceTrend:
    """The values of one device over the last minutes, the newest value last."""

    load: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    celsius: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    watts: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    idle_since: float | None = None
    """The time since which the device has had no load; None: it has load now, or its load is unknown."""


class DeviceTrends:
    """The trends of all devices that a view has observed."""

    def __init__(self) -> None:
        self._trends: dict[str, DeviceTrend] = {}
        self._due = 0.0

    def note(self, bars: Iterable[MemoryBar], now: float) -> None:
        """Add the present values, at most once in STEP seconds; whether a device is idle is noted at every call."""
        due = now >= self._due
        if due:
            self._due = now + STEP
        for bar in bars:
            trend = self._trends.setdefault(bar.label, DeviceTrend())
            idle = bar.load is not None and bar.load <= BUSY
            trend.idle_since = (trend.idle_since if trend.idle_since is not None else now) if idle else None
            if due:
                trend.load.append(None if bar.load is None else bar.load / (bar.capacity or 1.0))
                trend.celsius.append(bar.celsius)
                trend.watts.append(bar.watts)

    def trend(self, label: str) -> DeviceTrend:
        """Return the trend of the device with this label."""
        return self._trends.get(label) or DeviceTrend()

    def idle(self, task: LiveTask, now: float) -> float | None:
        """Return for how many seconds all GPUs of a task have had no load while it ran; None if that is too short for a
        warning.
        """
        gpus = [label for label in task.devices if label != "host"]
        since = [trend.idle_since for label in gpus if (trend := self._trends.get(label)) is not None]
        known = [one for one in since if one is not None]
        if not gpus or len(known) < len(gpus):
            return None
        idle = min(task.seconds, now - max(known))
        return idle if idle >= IDLE else None


def blocks(values: Sequence[float | None], width: int, low: float, high: float) -> str:
    """Return the last values as blocks; a value of `low` or less gets the lowest block, a value of `high` or more the
    highest one, and an unknown value a blank.
    """
    letters = "▁▂▃▄▅▆▇█"
    last = list(values)[-width:]
    top, span = len(letters) - 1, (high - low) or 1.0
    shown = "".join(
        " " if value is None else letters[max(0, min(top, round((value - low) / span * top)))] for value in last
    )
    return shown.rjust(width)
