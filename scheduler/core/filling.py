"""One decision where a run has slots: the best-ranked task for each that is empty."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from scheduler.core import packing, slots
from scheduler.core.allowance import NO_END, Allowance
from scheduler.core.model import HOST, Decision, Machine, Placement, Profiling, Purpose, Refusal
from scheduler.core.turns import Queue

if TYPE_CHECKING:
    from scheduler.core.brain import Brain

MOST_REFUSALS = 5
"""A pass names so many waiting tasks at most; the rest wait for the same slots."""


class Filling:
    """One walk over the waiting line with a working copy of the slots and of the cards under them."""

    def __init__(self, brain: Brain, machine: Machine) -> None:
        self.brain = brain
        self.rules = brain.rules
        brain.yard.look(machine)
        self.rooms = {key: replace(room) for key, room in brain.yard.rooms.items()}
        self.slots = slots.in_turn(self.rooms.values(), brain.freed)
        self.walk = brain.line.walk()
        self.allowed = Allowance(machine, brain.placements()) if machine.caps.some else None
        own = NO_END if self.rules.jobs is None else self.rules.jobs - brain.roll.living
        self.left = own if self.allowed is None else min(own, self.allowed.tasks_left)
        self.probed = {
            brain.roll.kind(task.id): task.id
            for task in brain.learning()
            if task.placement is not None and task.placement.purpose is Purpose.PROBE
        }
        """Kinds that are being learned from a short run, and by whom."""
        self.patience: dict[int, list[int]] = {}
        """Who will have been overtaken too often once this pass has made so many placements."""
        self.placements: list[Placement] = []
        self.refusals, self.impossible = list[Refusal](), list[Refusal]()
        self.queue = Queue(machine, brain.placements(), brain.rules, slots=True) if machine.waiters else None
        """Others who wait for the cards; None: nobody does."""

    def decide(self) -> Decision:
        """Walk by rank until the line or the slots are exhausted."""
        while (task := self.walk.front()) is not None:
            if self.left <= 0:
                self._refuse(self.one_too_many(task))
                break
            if all(slot.ours or slot.closed or slot.shut is not None for slot in self.slots):
                self._refuse_full(task)
                break
            self._try(task)
        fitting = tuple(self.queue.fitting) if self.queue is not None else ()
        return Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible), fitting=fitting)

    def ask(self, task: int) -> Placement | Refusal:
        """What becomes of a task that comes behind everything this pass has decided."""
        return self._held_back(task) or self._fit(task)

    def one_too_many(self, task: int) -> Refusal:
        """What a task waits for where as many run as may."""
        if self.allowed is not None and self.allowed.tasks_left <= 0:
            return self.allowed.too_many(task)
        return Refusal(task, "jobs", total=self.rules.jobs or 0)

    def _refuse_full(self, task: int) -> None:
        """Name what the best-ranked of the rest misses."""
        tried = self._held_back(task) or self._fit(task)
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _try(self, task: int) -> None:
        if self.queue is not None:
            self.queue.give_way(task, self.rooms, self.rooms.get(HOST))
        tried = self._held_back(task) or self._fit(task)
        if isinstance(tried, Placement):
            self.walk.take()
            self._take(tried)
            return
        self.walk.skip()
        if tried.reason == "never":
            self.impossible.append(tried)
            return
        self._refuse(tried)
        if tried.reason not in ("unlooked", "probing", "learned", "device", "disabled"):
            self._be_patient(task)

    def _held_back(self, task: int) -> Refusal | None:
        """Why a task is not even tried: its kind is being learned, or there is nothing left to learn from it."""
        kind = self.brain.roll.kind(task)
        if kind == 0 and self.rules.profile is not Profiling.OFF:
            return Refusal(task, "unlooked")
        if kind in self.probed:
            return Refusal(task, "probing", wanted=self.probed[kind])
        cards = len(self.slots[0].device.cards or ())
        if self.rules.learn_only and self.brain.need(task, cards).purpose is not Purpose.PROBE:
            return Refusal(task, "learned")
        return None

    def _fit(self, task: int) -> Placement | Refusal:
        touched = self.brain.task(task)
        attempt = (touched.attempts if touched else 0) + 1
        need = partial(self.brain.need, task)
        tried = slots.fit(task, attempt, need, self._may(task), self.rooms, self.rules)
        if self.allowed is None or isinstance(tried, Refusal):
            return tried
        asked = need(len(tried.gpus))
        return self.allowed.refuses(task, asked) or self.allowed.cut(tried, asked)

    def _may(self, task: int) -> list[packing.Room]:
        """The slots a task may have, those it prefers first."""
        terms = self.brain.terms[self.brain.roll.terms(task)]
        may = [room for room in self.slots if not terms.device or packing.is_called(room.device, terms.device)]
        return sorted(may, key=lambda room: not (terms.prefer and packing.is_called(room.device, terms.prefer)))

    def _take(self, placement: Placement) -> None:
        packing.take(self.rooms, placement)
        self.placements.append(placement)
        if self.queue is not None:
            self.queue.take(placement)
        if self.allowed is not None:
            self.allowed.take(placement)
        self.left -= 1
        if placement.purpose is Purpose.PROBE:
            self.probed[self.brain.roll.kind(placement.task)] = placement.task
        for task in self.patience.pop(len(self.placements), ()):
            self._close_behind(task)

    def _be_patient(self, task: int) -> None:
        left = self.rules.overtakes - self.brain.line.overtaken(task)
        if left > 0:
            self.patience.setdefault(len(self.placements) + left, []).append(task)
        else:
            self._close_behind(task)

    def _close_behind(self, task: int) -> None:
        """A task that was overtaken too often keeps every slot that it may have."""
        for room in self._may(task):
            room.closed = True

    def _refuse(self, refusal: Refusal) -> None:
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(refusal)


def decide(brain: Brain, machine: Machine) -> Decision:
    """Walk by rank until the line or the slots are exhausted."""
    return Filling(brain, machine).decide()
