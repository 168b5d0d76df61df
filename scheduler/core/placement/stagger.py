"""Staggered starts of tasks of unknown memory: one at a time begins on each GPU, and capacity is kept for the next.

Tasks of known memory start beside it only once it has grown (`fit`). Otherwise, if it needed more than expected, it
would take what is reserved for them and not used yet, and they would run out of memory. For the same reason, beside a
task of known memory that has not grown yet, it starts only where its whole expected need is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Placement
from scheduler.core.placement.device_capacity import DeviceCapacity
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.placement.scratch_machine import ScratchCapacity
from scheduler.core.queue.task_group import Rank


class Stagger:
    """The GPUs of one pass on which a task of unknown memory waits only until others have used more than a context."""

    def __init__(self, rooms: ScratchCapacity, rules: SchedulingConfig) -> None:
        self._rooms, self._context = rooms, rules.context
        self._awaited: dict[str, Rank] = {}
        """The rank of the first such waiting task by GPU; tasks of a later batch or a worse priority do not start there
        meanwhile."""

    def count(self, placement: Placement) -> None:
        """Count an attempt of unknown memory that is at its beginning on each of its GPUs."""
        for key in placement.gpus:
            if key in self._rooms:
                room = self._rooms[key]
                room.unsettled, room.beginning = room.unsettled + 1, room.beginning or placement.task

    def arrive(self, placement: Placement) -> None:
        """Count an attempt of known memory that has not used what it needs yet."""
        for key in placement.gpus:
            if key in self._rooms and placement.reservation[key] > 2 * self._context:
                self._rooms[key].arriving = True

    def wait(self, need: ResourceRequest, rooms: Iterable[DeviceCapacity], rank: Rank) -> None:
        """Note the GPUs on which the task of this rank starts as soon as the other tasks there have used more."""
        if not need.gpus[0].enough:
            return
        enough = max(ask.enough for ask in need.gpus)
        for room in rooms:
            if (room.unsettled or room.arriving) and room.bytes >= enough:
                self._awaited.setdefault(room.device.key, rank)

    def open_to(self, rooms: list[DeviceCapacity], rank: Rank) -> list[DeviceCapacity]:
        """Return the GPUs for which no task of an earlier batch or a better priority waits."""
        if not self._awaited:
            return rooms
        return [room for room in rooms if self._awaited.get(room.device.key, rank)[:2] >= rank[:2]]

    def refuses(self, task: int, rooms: Sequence[DeviceCapacity], left: int, wanted: int) -> Refusal | None:
        """Return the refusal of a task if fewer than `wanted` of these GPUs are open to it; None if there are
        enough.
        """
        if left >= wanted:
            return None
        for room in rooms:
            if rank := self._awaited.get(room.device.key):
                return Refusal(task, Reason.KEPT, room.device.label, text=f"task {rank[3]} of this run")
        return None
