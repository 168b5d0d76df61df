"""Preemption: which resumable tasks are asked to save and make room, so that a more urgent task can start.

Only tasks of the same user are asked: they hold capacity that the urgent task would get, are less urgent, and can
continue later. The task that started last is asked first, since it loses least. Tasks of the user's other runs are
asked through the wait ticket of the urgent task; their own schedulers read it and stop them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import inf

from scheduler.core.brain import Brain
from scheduler.core.config import BATCHES
from scheduler.core.events import Preempted
from scheduler.core.leases import Lease, RoomCall
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import DeviceBudget, Machine, WaitTicket, on_node
from scheduler.core.placement.queue_pass import QueuePass
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.slot_pass import SlotPass
from scheduler.core.queue.quota import QuotaUse
from scheduler.values import dataclass, replace

EVERY = 1.0
"""Seconds between two searches for tasks that could make room, and between two looks at the calls of other runs."""
PATIENCE = 10.0
"""Seconds after which a call to another run counts as unanswered; its attempts are then not asked again."""
MOST_CALLED = 16
"""The most attempts of other runs that one call names. More attempts are asked once these have saved."""
MOST_GROUPS = 5000
"""The most groups of waiting tasks that are searched for urgent tasks."""
MOST_URGENT = 8
"""The most urgent tasks for which one search tries to make room."""


@dataclass(frozen=True, slots=True)
class RoomHolder:
    """A living attempt that may be asked to save. It belongs to this run, or is known only by its lease."""

    task: int
    priority: int
    since: float
    """The time at which the attempt began."""
    own: TaskState | None = None
    lease: Lease | None = None


class Preemption:
    """The search for tasks that could make room, repeated every `EVERY` seconds while urgent tasks wait."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._again = self._listened_at = -inf
        self._call: RoomCall | None = None
        """The published call to other runs; it stays until they have answered it."""
        self._called_at = 0.0
        self._deaf: set[tuple[str, int, int]] = set()
        """The attempts of other runs that did not answer a call."""
        self.due = inf
        """The time at which the next task will have waited long enough to ask; inf if no task waits."""

    def wanted(self, machine: Machine) -> Preempted | None:
        """Return which tasks should save now, and for which urgent task; None if no task is to be asked."""
        brain = self._brain
        self.due = inf
        if not brain.some_preempt or brain.rules.policy == BATCHES:
            return None
        holders = self._holders(machine)
        if not holders and self._call is None:
            return None
        if machine.now < self._again:
            self.due = self._again
            return None
        urgent = list(self._urgent(machine.now, holders))
        if urgent or self._call is not None:
            self._again = machine.now + EVERY
        if self._is_on_its_way(machine):
            return None  # one urgent task after the other: the room for the last one is not free yet
        holders = [holder for holder in holders if holder.lease is None or _key(holder.lease) not in self._deaf]
        for number in urgent[:MOST_URGENT]:
            if asked := self._enough(number, holders, machine):
                self._call_others(number, asked, machine.now)
                return Preempted(number, tuple(sorted(holder.task for holder in asked)))
        return None

    def ticket(self, ticket: WaitTicket | None) -> WaitTicket | None:
        """Return the run's wait ticket; if it is the ticket of an urgent task, the call to the user's other runs is
        added.
        """
        if ticket is None or ticket.task not in self._brain.wait_queue.lifted:
            return ticket
        return replace(ticket, urgent=True, call=self._call)

    def is_to_listen(self, now: float) -> bool:
        """Tell whether it is time to read the calls of other runs."""
        brain = self._brain
        if brain.draining or not brain.some_resumable or 0.0 <= now - self._listened_at < EVERY:
            return False
        self._listened_at = now
        return any(map(brain.may_save, brain.living()))

    def answered(self, calls: Sequence[RoomCall], run: str) -> list[Preempted]:
        """Return an event for each call of another run that names tasks of this run which should save and make room;
        `run` is the name of this run.
        """
        brain, found, taken = self._brain, [], set[int]()
        for call in calls:
            if call.by in brain.task_table:
                continue  # that task belongs to another directory of runs
            mine = [(task, attempt) for name, task, attempt in call.attempts if name == run]
            tasks = [task for task, attempt in mine if task not in taken and self._obeys(task, attempt, call)]
            if tasks:
                taken.update(tasks)
                found.append(Preempted(call.by, tuple(sorted(tasks))))
        return found

    def _obeys(self, number: int, attempt: int, call: RoomCall) -> bool:
        task = self._brain.task(number)
        if task is None or task.attempts != attempt or task.placement is None:
            return False
        return self._brain.may_save(task) and self._priority(task) > call.priority

    # ---- which may be asked ----

    def _holders(self, machine: Machine) -> list[RoomHolder]:
        """Return the attempts that may be asked to save, the one that started last first."""
        brain = self._brain
        found = [
            RoomHolder(task.id, self._priority(task), task.started_at, own=task)
            for task in brain.living()
            if brain.may_save(task)
        ]
        found += [
            RoomHolder(lease.task, lease.offer.priority, lease.since, lease=lease)
            for lease in machine.leases
            if lease.offer.priority is not None and lease.uid == machine.uid and self._is_known(lease)
        ]
        return sorted(found, key=lambda holder: (-holder.since, -holder.task))

    def _is_known(self, lease: Lease) -> bool:
        """Tell whether a call may name the attempt of a lease: no task of this run has the number of the lease's task,
        and the attempt has left no call unanswered.
        """
        return lease.task not in self._brain.task_table and _key(lease) not in self._deaf

    def _call_others(self, number: int, asked: Sequence[RoomHolder], now: float) -> None:
        leases = [holder.lease for holder in asked if holder.lease is not None][:MOST_CALLED]
        if leases:
            priority = self._brain.terms_of(number).priority
            self._call, self._called_at = RoomCall(number, priority, tuple(map(_key, leases))), now

    def _is_on_its_way(self, machine: Machine) -> bool:
        """Tell whether room for an urgent task is still to come: tasks are making room, or have yet to answer the call
        of the urgent task.
        """
        lifted = self._brain.wait_queue.lifted
        if any(task.making_way_for in lifted for task in self._brain.living()):
            return True
        mine = [lease for lease in machine.leases if lease.uid == machine.uid]
        if self._call is not None and self._call.by in lifted:
            silent = {_key(lease) for lease in mine if lease.offer.asked_by is None} & {*self._call.attempts}
            if silent and 0.0 <= machine.now - self._called_at < PATIENCE:
                return True
            self._deaf |= silent
        self._call = None
        return any(lease.offer.asked_by in lifted for lease in mine)

    def _urgent(self, now: float, holders: Sequence[RoomHolder]) -> Iterator[int]:
        """Yield the tasks that have waited too long and are more urgent than a running task, best-ranked first."""
        brain, worst = self._brain, max((holder.priority for holder in holders), default=-inf)
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

    # ---- which are enough ----

    def _enough(self, number: int, holders: Sequence[RoomHolder], machine: Machine) -> list[RoomHolder]:
        """Return as few attempts as possible whose end would let a task start. Return an empty list if even the end of
        all of them would not help, or if the task starts anyway.
        """
        priority = self._brain.terms_of(number).priority
        less_urgent = [holder for holder in holders if holder.priority > priority]
        if not less_urgent or self._starts(number, [], machine) or not self._starts(number, less_urgent, machine):
            return []
        low, high = 1, len(less_urgent)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._starts(number, less_urgent[:middle], machine) else (middle + 1, high)
        asked = less_urgent[:high]
        for holder in reversed(asked[:]):  # where several would do, the latest started one is asked
            rest = [one for one in asked if one is not holder]
            if rest and self._starts(number, rest, machine):
                asked = rest
        return asked

    def _starts(self, number: int, gone: Sequence[RoomHolder], machine: Machine) -> bool:
        """Tell whether a task would start if these attempts had ended and no other task of this user waited."""
        own = [holder.own for holder in gone if holder.own is not None]
        leases = [holder.lease for holder in gone if holder.lease is not None]
        there, after = self._brain.without(own), _without(machine, own, leases)
        capacity = there.capacity.look(after)
        tried: QueuePass = SlotPass(there, after) if capacity.has_slots else SchedulingPass(there, after)
        if after.caps.some:
            tried.allowed = QuotaUse(after, there.placements())
        if tried.left + len(own) <= 0:
            return False
        if tried.queue is not None:
            tried.queue.urgent = {number}
        tried.give_way(number)
        return not isinstance(tried.ask(number), Refusal)


def _key(lease: Lease) -> tuple[str, int, int]:
    return lease.run, lease.task, lease.attempt


def _without(machine: Machine, own: Sequence[TaskState], leases: Sequence[Lease]) -> Machine:
    """Return the machine as it would be after these attempts have ended and given back what they use."""
    keys, names = {(task.id, task.attempts) for task in own}, {lease.name for lease in leases}
    used = {key: by_device for key, by_device in machine.used.items() if key not in keys}
    back: Counter[str] = Counter()
    for task in own:
        _give_back(back, machine.used.get((task.id, task.attempts), {}), task.placement.node if task.placement else "")
    for lease in leases:
        _give_back(back, lease.used, lease.node)
    left = tuple(lease for lease in machine.leases if lease.name not in names)
    budgets = tuple(_with_more(budget, back) for budget in machine.budgets)
    return replace(machine, used=used, budgets=budgets, leases=left)


def _give_back(back: Counter[str], used: Mapping[str, int], node: str) -> None:
    """Add to `back` what an attempt on a node uses, by the keys of the run's devices."""
    for key, bytes_ in used.items():
        back[on_node(key, node)] += bytes_


def _with_more(budget: DeviceBudget, back: Mapping[str, int]) -> DeviceBudget:
    more = back.get(budget.device.key, 0)
    return replace(budget, free=budget.free + more) if more else budget
