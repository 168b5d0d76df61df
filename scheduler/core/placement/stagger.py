"""Staggered starts of tasks of unknown memory: on each GPU only one of them begins at a time.

Tasks of known memory start on that GPU only once the new task has grown (`fit`). Otherwise, if it needed more than
expected, it would take memory that is reserved for them but not used yet, and they would run out of memory. For the
same reason, while a task of known memory on the GPU has not grown yet, a task of unknown memory starts there only if
all of its expected need is free.
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
    """The GPUs for which a task of unknown memory waits in one pass, until other tasks there have used more than a CUDA
    context.
    """

    def __init__(self, rooms: ScratchCapacity, rules: SchedulingConfig) -> None:
        self._rooms, self._context = rooms, rules.context
        self._awaited: dict[str, Rank] = {}
        """For each GPU for which a task of unknown memory waits, the rank of the first such task. Tasks of a later
        batch or a worse priority do not start there before it."""

    def count(self, placement: Placement) -> None:
        """Note, on each of its GPUs, an attempt of unknown memory that is at its beginning."""
        for key in placement.gpus:
            if key in self._rooms:
                room = self._rooms[key]
                room.unsettled, room.beginning = room.unsettled + 1, room.beginning or placement.task

    def arrive(self, placement: Placement) -> None:
        """Note, on each of its GPUs, an attempt of known memory that has not grown to its need yet."""
        for key in placement.gpus:
            if key in self._rooms and placement.reservation[key] > 2 * self._context:
                self._rooms[key].arriving = True

    def wait(self, need: ResourceRequest, rooms: Iterable[DeviceCapacity], rank: Rank) -> None:
        """Note the GPUs on which a task of this rank can start as soon as the other tasks there have used more."""
        if not need.gpus[0].enough:
            return
        enough = max(ask.enough for ask in need.gpus)
        for room in rooms:
            if (room.unsettled or room.arriving) and room.bytes >= enough:
                self._awaited.setdefault(room.device.key, rank)

    def open_to(self, rooms: list[DeviceCapacity], rank: Rank) -> list[DeviceCapacity]:
        """Return the GPUs for which no task of an earlier batch or a better priority than `rank` waits."""
        if not self._awaited:
            return rooms
        return [room for room in rooms if self._awaited.get(room.device.key, rank)[:2] >= rank[:2]]

    def refuses(self, task: int, rooms: Sequence[DeviceCapacity], left: int, wanted: int) -> Refusal | None:
        """Return the refusal of a task if fewer than `wanted` of these GPUs are `left` for it; None if there are
        enough.
        """
        if left >= wanted:
            return None
        for room in rooms:
            if rank := self._awaited.get(room.device.key):
                return Refusal(task, Reason.KEPT, room.device.label, text=f"task {rank[3]} of this run")
        return None
