"""One decision: a walk over the waiting line with a working copy of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.core import packing
from scheduler.core.estimate import is_watched
from scheduler.core.model import HOST, Decision, Machine, Placement, Profiling, Purpose, Refusal, Terms

if TYPE_CHECKING:
    from scheduler.core.brain import Brain

MOST_REFUSALS = 16
"""A pass names so many waiting tasks at most; the rest wait for the same numbers."""


class Pass:
    """One walk over the waiting line with a working copy of the machine."""

    def __init__(self, brain: Brain, machine: Machine) -> None:
        self.brain = brain
        self.rules = brain.rules
        self.rooms = packing.rooms(machine, brain.placements(), brain.rules)
        self.host = self.rooms.get(HOST)
        self.gpus = [room for room in self.rooms.values() if room.device.is_gpu]
        self.walk = brain.line.walk()
        self.left = self._jobs_left()
        self.probed = {
            brain.roll.kind(task.id): task.id
            for task in brain.living()
            if task.placement is not None and task.placement.purpose is Purpose.PROBE
        }
        """Kinds that are being learned from a short run, and by whom."""
        self.watched = {
            brain.knowledge.group(brain.roll.kind(task.id)): task.id
            for task in brain.living()
            if task.placement is not None and task.placement.gpus and is_watched(task.placement, task.settled)
        }
        """Groups of kinds that are being learned from a real run on GPUs, and by whom."""
        self.back: list[int] = []
        """Tasks that were held back because one of their group is being learned."""
        self.patience: dict[int, list[tuple[int, Refusal]]] = {}
        """Who will have been overtaken too often once this pass has made so many placements."""
        self.placements: list[Placement] = []
        self.refusals: list[Refusal] = []
        self.impossible: list[Refusal] = []

    def _jobs_left(self) -> int:
        if self.rules.jobs is None:
            return 1 << 62
        return self.rules.jobs - len(self.brain.living())

    def decide(self) -> Decision:
        """Walk by rank until the line or the machine is exhausted."""
        while (task := self.walk.front()) is not None:
            if self.left <= 0:
                self._refuse(Refusal(task, "jobs", total=self.rules.jobs or 0))
                break
            if self._is_full():
                self._refuse_full(task)
                break
            self._try(task)
        self._use_idle_gpus()
        return Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible))

    def _is_full(self) -> bool:
        """Whether nothing that waits could start anywhere, however little it needs."""
        if not self.gpus:
            return self.host is None or not self._open(self.host)
        if any(self._open(room) for room in self.gpus):
            return False
        return not self.brain.some_without_gpus or self.host is None or not self._open(self.host)

    def _open(self, room: packing.Room) -> bool:
        """Whether a device could still take the smallest of tasks."""
        if room.closed or room.taken_alone or room.shut is not None:
            return False
        per_device = self.rules.slots if self.rules.slots is not None else self.rules.max_per_device
        if per_device is not None and room.ours >= per_device:
            return False
        return self.rules.slots is not None or room.residents == 0 or (room.bytes > 0 and room.load > packing.ENOUGH)

    def _use_idle_gpus(self) -> None:
        """Better than leaving a GPU empty: one more of a group that is being learned, which may be done by then."""
        for task in self.back:
            if self.left <= 0 or not any(self._is_idle(room) for room in self.gpus):
                return
            tried = self._fit(task, [room for room in self._candidates(task) if self._is_idle(room)])
            if isinstance(tried, Placement):
                self._take(tried)

    def _is_idle(self, room: packing.Room) -> bool:
        return room.residents == 0 and self._open(room)

    def _terms(self, task: int) -> Terms:
        return self.brain.terms[self.brain.roll.terms(task)]

    def _count(self, task: int) -> int:
        """How many GPUs a task gets."""
        return packing.gpus_of(self._terms(task), bool(self.gpus))

    def _need(self, task: int) -> packing.Need:
        return self.brain.need(task, self._count(task))

    def _fit(self, task: int, gpus: Sequence[packing.Room]) -> Placement | Refusal:
        touched = self.brain.task(task)
        attempt = (touched.attempts if touched else 0) + 1
        need = self._need(task)
        may = self.gpus if need.gpus else [self.host] if self.host is not None else []
        wanted = self._terms(task).device
        named = not wanted or any(packing.is_called(room.device, wanted) for room in may)
        if not named or (not need.gpus and not may):
            return Refusal(task, "device", wanted or HOST)
        gpus = gpus if need.gpus else ()
        return packing.fit(task, attempt, need, gpus, self.host, self.rules)

    def _held_back(self, task: int) -> Refusal | None:
        """Why a task is not even tried: its kind is being learned, or there is nothing left to learn from it."""
        kind = self.brain.roll.kind(task)
        if kind == 0 and self.rules.profile is not Profiling.OFF:
            return Refusal(task, "unlooked")
        if kind in self.probed:
            return Refusal(task, "probing", wanted=self.probed[kind])
        if self.rules.learn_only and self._need(task).purpose is not Purpose.PROBE:
            return Refusal(task, "learned")
        return self._watched_by_another(task, kind) if kind and self._count(task) else None

    def _watched_by_another(self, task: int, kind: int) -> Refusal | None:
        """Learning one thing twice at once teaches nothing more, and locks a second GPU."""
        group = self.brain.knowledge.group(kind)
        if group not in self.watched or self.rules.slots is not None:
            return None
        if not self._need(task).unknown:
            return None
        self.back.append(task)
        return Refusal(task, "watched", wanted=self.watched[group])

    def _refuse_full(self, task: int) -> None:
        """Nothing more fits anywhere: name what the best-ranked of the rest misses."""
        tried = self._fit(task, self._candidates(task))
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _try(self, task: int) -> None:
        tried = self._held_back(task) or self._fit(task, self._candidates(task))
        if isinstance(tried, Placement):
            self._take(tried)
            self.walk.take()
            return
        self.walk.skip()
        self._waits(task, tried)

    def _take(self, placement: Placement) -> None:
        packing.take(self.rooms, placement)
        self.placements.append(placement)
        self.left -= 1
        kind = self.brain.roll.kind(placement.task)
        if placement.purpose is Purpose.PROBE:
            self.probed[kind] = placement.task
        elif placement.gpus and is_watched(placement, settled=False):
            self.watched[self.brain.knowledge.group(kind)] = placement.task
        for task, refusal in self.patience.pop(len(self.placements), ()):
            self._close_behind(task, refusal)

    def _waits(self, task: int, refusal: Refusal) -> None:
        """A task that found no room: it is named, and once it was overtaken too often its devices close behind it."""
        if refusal.reason == "never":
            self.impossible.append(refusal)
            return
        self._refuse(refusal)
        if refusal.reason in ("unlooked", "probing", "learned", "watched", "gpus", "device"):
            return
        left = self.rules.overtakes - self.brain.line.overtaken(task)
        if left > 0:
            self.patience.setdefault(len(self.placements) + left, []).append((task, refusal))
        else:
            self._close_behind(task, refusal)

    def _close_behind(self, task: int, refusal: Refusal) -> None:
        """Keep everything for it that it may run on; the host's RAM only where that is what it lacks."""
        for room in self._candidates(task):
            room.closed = True
        if self.host is not None and (not self._count(task) or refusal.device == self.host.device.label):
            self.host.closed = True

    def _candidates(self, task: int) -> list[packing.Room]:
        """The GPUs a task may run on, the best first: as it prefers, without strangers, least busy, most free."""
        terms = self._terms(task)
        if not self._count(task):
            return []
        gpus = [room for room in self.gpus if not terms.device or packing.is_called(room.device, terms.device)]
        return sorted(gpus, key=lambda room: (*_liked(room, terms.prefer), -room.load, -room.bytes))

    def _refuse(self, refusal: Refusal) -> None:
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(refusal)


def _liked(room: packing.Room, prefer: str) -> tuple[bool, bool]:
    return not (prefer and packing.is_called(room.device, prefer)), room.strangers > 0
