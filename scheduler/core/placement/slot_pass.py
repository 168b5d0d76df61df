"""One decision of a run with slots: the best-ranked task for each empty slot."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from scheduler.core.model import HOST, Decision, Machine, Placement, Profiling, Purpose
from scheduler.core.placement import fit, slots
from scheduler.core.placement.device_capacity import DeviceCapacity, is_called
from scheduler.core.placement.refusal import Reason, Refusal, too_many_jobs
from scheduler.core.queue.fair_share import Contenders
from scheduler.core.queue.quota import NO_END, QuotaUse
from scheduler.core.queue.wait_queue import TOGETHER

if TYPE_CHECKING:
    from scheduler.core.placement.scheduling_state import SchedulingState

MOST_REFUSALS = 5
"""A pass names at most so many waiting tasks; the rest wait for the same slots."""


class SlotPass:
    """One pass over the wait queue with a working copy of the slots and of the cards under them."""

    def __init__(self, brain: SchedulingState, machine: Machine) -> None:
        self.brain = brain
        self.rules = brain.rules
        brain.capacity.look(machine)
        self.rooms = {key: replace(room) for key, room in brain.capacity.rooms.items()}
        self.slots = slots.in_turn(self.rooms.values(), brain.freed)
        self.walk = brain.wait_queue.walk()
        self.allowed = QuotaUse(machine, brain.placements()) if machine.caps.some else None
        own = NO_END if self.rules.jobs is None else self.rules.jobs - brain.task_table.living
        self.left = own if self.allowed is None else min(own, self.allowed.tasks_left)
        self.starts = brain.backoff.starts(machine.now, brain.rules)
        """The limit on starts after some have failed; None: no limit."""
        self.probed = {
            brain.kind_of(task.id): task.id
            for task in brain.learning()
            if task.placement is not None and task.placement.purpose is Purpose.PROBE
        }
        """Task classes that are being probed, each with its task."""
        self.patience: dict[int, list[int]] = {}
        """The tasks that will have been bypassed too often after a number of placements."""
        self.placements: list[Placement] = []
        self.refusals, self.impossible = list[Refusal](), list[Refusal]()
        self.met: dict[int, Refusal] = {}
        """The refusals of the named tasks: after slots are kept for a task, it would seem to wait for itself."""
        self.queue = Contenders(machine, brain.placements(), brain.rules, slots=True) if machine.waiters else None
        """The other schedulers that wait for the cards; None: none."""

    def decide(self) -> Decision:
        """Go through the queue by rank until it or the slots are exhausted."""
        while (task := self.walk.front()) is not None:
            if self.left <= 0:
                self._refuse(self.one_too_many(task))
                break
            if all(slot.ours or slot.closed or slot.shut is not None for slot in self.slots):
                self._refuse_full(task)
                break
            self._try(task)
        self._try_postponed()
        found = Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible))
        return found if self.queue is None else self.queue.named(found)

    def ask(self, task: int) -> Placement | Refusal:
        """Return the placement or refusal of a task that comes after everything this pass has decided."""
        return self._held_back(task) or self._fit(task)

    def one_too_many(self, task: int) -> Refusal:
        """Return the refusal of a task that waits because as many tasks run as may."""
        if self.allowed is not None and self.allowed.tasks_left <= 0:
            return self.allowed.too_many(task)
        return too_many_jobs(task, self.rules.jobs)

    def _refuse_full(self, task: int) -> None:
        """Name what the best-ranked of the rest misses."""
        tried = self._held_back(task) or self._fit(task)
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _try_postponed(self) -> None:
        """Try the tasks whose starts failed again and again, after all others."""
        for task in self.starts.in_order(self.starts.postponed) if self.starts is not None else ():
            if self.left <= 0:
                return
            tried = self._held_back(task) or self._fit(task)
            if isinstance(tried, Placement):
                self._take(tried)
            else:
                self._refuse(tried)

    def _try(self, task: int) -> None:
        if self.starts is not None and self.starts.postpones(task):
            self.walk.take()
            return
        if self.queue is not None:
            self.queue.give_way(task, self.rooms, self.rooms.get(HOST))
        tried = self._held_back(task) or self._fit(task)
        if isinstance(tried, Placement):
            self.walk.take()
            self._take(tried)
            return
        if tried.reason.is_of_one_task(together=self.walk.asked[2] == TOGETHER):
            self.walk.take()
        else:
            self.walk.skip()
        if tried.reason.is_final:
            self.impossible.append(tried)
            return
        self._refuse(tried)
        if tried.reason.keeps_devices and tried.reason is not Reason.PROBING:
            self._be_patient(task)

    def _held_back(self, task: int) -> Refusal | None:
        """Return why a task is not even tried: its directory is away, its class is being learned, or nothing is left
        to learn.
        """
        if self.starts is not None and (away := self.starts.refuses(task)) is not None:
            return away
        kind = self.brain.kind_of(task)
        if kind == 0 and self.rules.profile is not Profiling.OFF:
            return Refusal(task, Reason.UNLOOKED)
        if kind in self.probed:
            return Refusal(task, Reason.PROBING, wanted=self.probed[kind])
        cards = len(self.slots[0].device.cards or ())
        if self.rules.learn_only and self.brain.need(task, cards).purpose is not Purpose.PROBE:
            return Refusal(task, Reason.LEARNED)
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

    def _may(self, task: int) -> list[DeviceCapacity]:
        """Return the slots a task may have, preferred ones first."""
        terms = self.brain.terms_of(task)
        may = [room for room in self.slots if not terms.device or is_called(room.device, terms.device)]
        return sorted(may, key=lambda room: not (terms.prefer and is_called(room.device, terms.prefer)))

    def _take(self, placement: Placement) -> None:
        fit.take(self.rooms, placement)
        self.placements.append(placement)
        if self.queue is not None:
            self.queue.take(placement)
        if self.allowed is not None:
            self.allowed.take(placement)
        self.left -= 1
        if self.starts is not None:
            self.starts.take(placement.task)
        if placement.purpose is Purpose.PROBE:
            self.probed[self.brain.kind_of(placement.task)] = placement.task
        for task in self.patience.pop(len(self.placements), ()):
            self._close_behind(task)

    def _be_patient(self, task: int) -> None:
        left = self.rules.bypass_limit - self.brain.wait_queue.bypassed(task)
        if left > 0:
            self.patience.setdefault(len(self.placements) + left, []).append(task)
        else:
            self._close_behind(task)

    def _close_behind(self, task: int) -> None:
        """Keep every slot that a task may have, because it was bypassed too often."""
        for room in self._may(task):
            room.closed, room.kept_for = True, f"task {task} of this run"

    def _refuse(self, refusal: Refusal) -> None:
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(refusal)
            self.met[refusal.task] = refusal


def decide(brain: SchedulingState, machine: Machine) -> Decision:
    """Go through the queue by rank until it or the slots are exhausted."""
    return SlotPass(brain, machine).decide()
