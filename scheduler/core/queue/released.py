"""Released memory: the memory that one task could have on a device if every lease there ended now.

A device may be kept for a waiting task only for what the schedulers' own leases can free. The use of tasks and the free
memory are measured at different times, and the use of an attempt that has just started is not measured at all. So the
number is smoothed: a single lower measurement is ignored until later ones confirm it.
"""

from __future__ import annotations

from math import inf

from scheduler.core.placement.device_capacity import DeviceCapacity

CALM = 5.0
"""Seconds for which measurements must be lower before the lower value counts. When a task has just grown, its new
memory is no longer free, but does not count as used before the next measurement."""
DOUBT = 60.0
"""Seconds for which the last certain number stays valid while the use of new attempts is unknown. Afterwards these
attempts count with their whole reservations. At worst a device is kept in vain for a moment each minute, because the
number is certain again once an attempt on the device ends or is measured."""


class Released:
    """The last certain number of released bytes for each device, with the time at which it was certain."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}
        self._until: dict[str, float] = {}
        """For each device with a smoothed number, the time at which this number changes by time alone."""
        self._next = inf

    def steady(self, room: DeviceCapacity, now: float) -> None:
        """Replace the released bytes in `room` by their smoothed number."""
        key, most, surely = room.device.key, room.released, room.released_surely
        last, at = self._known.get(key, (surely, now))
        sure, age = most == surely, now - at
        if sure and (surely >= last or not 0 <= age <= CALM):
            self._known[key] = surely, now
        elif sure:
            room.released = last
            self._wait(key, at + CALM)
        elif key in self._known and 0 <= age <= DOUBT:
            self._known[key] = max(last, surely), at
            room.released = min(max(last, surely), most)
            self._wait(key, at + DOUBT)

    def _wait(self, key: str, until: float) -> None:
        self._until[key] = until
        self._next = min(self._next, until)

    def due(self, now: float) -> list[str]:
        """Return the devices whose smoothed number changes now by time alone."""
        if now <= self._next:
            return []
        due = [key for key, until in self._until.items() if until < now]
        for key in due:
            del self._until[key]
        self._next = min(self._until.values(), default=inf)
        return due
