"""Making room for what is urgent: which resumable tasks are asked to save, so that a more urgent one can start.

Only tasks of the same run are asked, so never those of another user: they hold room that the urgent task would get, are
less urgent, and can continue later. The latest started goes first, since it loses least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import inf

from scheduler.core.brain import Brain
from scheduler.core.config import BATCHES
from scheduler.core.events import Preempted
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import DeviceBudget, Machine, Purpose
from scheduler.core.placement.queue_pass import QueuePass
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.slot_pass import SlotPass
from scheduler.core.queue.quota import QuotaUse
from scheduler.values import replace

EVERY = 1.0
"""Seconds between two looks while urgent tasks wait for room."""
MOST_GROUPS = 5000
"""The largest number of groups of waiting tasks that are searched for urgent ones."""
MOST_URGENT = 8
"""The largest number of urgent tasks for which room is sought in one look."""


class Preemption:
    """The search for tasks that make room, with the time of the next look."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._again = -inf
        self.due = inf
        """The time at which the next task will have waited for long enough; inf if none waits."""

    def wanted(self, machine: Machine) -> Preempted | None:
        """Return which tasks should save for which other one now; None if there are none."""
        brain = self._brain
        self.due = inf
        if not brain.some_preempt or brain.rules.policy == BATCHES:
            return None
        pool = sorted(filter(self._may_save, brain.living()), key=lambda task: (-task.started_at, -task.id))
        if not pool:
            return None
        if machine.now < self._again:
            self.due = self._again
            return None
        urgent = list(self._urgent(machine.now, pool))
        if urgent:
            self._again = machine.now + EVERY
        if any(task.making_way_for in brain.wait_queue.lifted for task in brain.living()):
            return None  # one after the other: the last one's room is not free yet
        for number in urgent[:MOST_URGENT]:
            if asked := self._enough(number, pool, machine):
                return Preempted(number, tuple(sorted(task.id for task in asked)))
        return None

    def _may_save(self, task: TaskState) -> bool:
        rules, placement = self._brain.rules, task.placement
        free = task.began and not task.asked and task.preemptions < rules.max_preemptions
        is_run = placement is not None and placement.purpose is Purpose.RUN
        return free and is_run and self._brain.terms[task.terms].resumable

    def _urgent(self, now: float, pool: Sequence[TaskState]) -> Iterator[int]:
        """Yield the tasks that have waited for too long and are more urgent than a running one, best-ranked first."""
        brain, worst = self._brain, max(self._priority(task) for task in pool)
        found = []
        for (terms, _, _), group in islice(brain.wait_queue.grouped(), MOST_GROUPS):
            head = group.peek()
            if head is None or not brain.may_preempt(terms) or brain.terms[terms].priority >= worst:
                continue
            due = brain.waiting_since(head) + brain.preempt_after(terms)
            if due > now:
                self.due = min(self.due, due)
            else:
                found.append((brain.terms[terms].priority, brain.wait_queue.rank(head), head))
        yield from (head for _, _, head in sorted(found))

    def _priority(self, task: TaskState) -> int:
        return self._brain.terms[task.terms].priority

    def _enough(self, number: int, pool: Sequence[TaskState], machine: Machine) -> list[TaskState]:
        """Return as few tasks as possible without which a task would start; none if that is no help, or not needed."""
        priority = self._brain.terms_of(number).priority
        less_urgent = [task for task in pool if self._priority(task) > priority]
        if not less_urgent or self._starts(number, [], machine) or not self._starts(number, less_urgent, machine):
            return []
        low, high = 1, len(less_urgent)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._starts(number, less_urgent[:middle], machine) else (middle + 1, high)
        asked = less_urgent[:high]
        for task in reversed(asked[:]):  # the latest started stay asked where several would do
            rest = [one for one in asked if one is not task]
            if rest and self._starts(number, rest, machine):
                asked = rest
        return asked

    def _starts(self, number: int, gone: Sequence[TaskState], machine: Machine) -> bool:
        """Tell whether a task would start if these others were gone, and no other task waited."""
        there, after = self._brain.without(gone), _without(machine, gone)
        capacity = there.capacity.look(after)
        tried: QueuePass = SlotPass(there, after) if capacity.has_slots else SchedulingPass(there, after)
        if after.caps.some:
            tried.allowed = QuotaUse(after, there.placements())
        if tried.left + len(gone) <= 0:
            return False
        tried.give_way(number)
        return not isinstance(tried.ask(number), Refusal)


def _without(machine: Machine, gone: Sequence[TaskState]) -> Machine:
    """Return the machine after some tasks have given back what they use."""
    keys = {(task.id, task.attempts) for task in gone}
    used = {key: by_device for key, by_device in machine.used.items() if key not in keys}
    back: dict[str, int] = {}
    for key in keys:
        for device, bytes_ in machine.used.get(key, {}).items():
            back[device] = back.get(device, 0) + bytes_
    return replace(machine, used=used, budgets=tuple(_with_more(budget, back) for budget in machine.budgets))


def _with_more(budget: DeviceBudget, back: Mapping[str, int]) -> DeviceBudget:
    more = back.get(budget.device.key, 0)
    return replace(budget, free=budget.free + more) if more else budget
