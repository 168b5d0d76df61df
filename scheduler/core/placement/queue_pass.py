"""One pass over the wait queue: what packing GPUs and filling slots have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from scheduler.core.model import Decision, Machine, Placement, Terms, WaitTicket
from scheduler.core.placement.learning_hold import LearningHold
from scheduler.core.placement.refusal import Refusal, too_many_jobs
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.placement.scheduling_state import SchedulingState
from scheduler.core.queue.fair_share import Contenders
from scheduler.core.queue.quota import NO_END, QuotaUse
from scheduler.core.queue.wait_queue import TOGETHER, Rank

MOST_REFUSALS = 5
"""A pass names so many waiting tasks at most; the rest wait for the same numbers."""


class QueuePass(ABC):
    """One pass over the wait queue with a working copy of the machine."""

    def __init__(self, brain: SchedulingState, machine: Machine, *, slots: bool = False) -> None:
        """Begin a pass; `slots`: it fills slots, which do not look at memory."""
        self.brain, self.rules, self.turn = brain, brain.rules, machine.turn
        self.walk = brain.wait_queue.walk()
        self.allowed = QuotaUse(machine, brain.placements()) if machine.caps.some else None
        """The rest of the user's quota; None: unlimited."""
        own = NO_END if self.rules.jobs is None else self.rules.jobs - brain.task_table.living
        self.left = own if self.allowed is None else min(own, self.allowed.tasks_left)
        """How many more tasks may start."""
        self.starts = brain.backoff.starts(machine.now, brain.rules)
        """The limit on starts after some have failed; None: no limit."""
        self.queue = Contenders(machine, brain.placements(), brain.rules, slots=slots) if machine.waiters else None
        """The other schedulers that wait; None: none."""
        self.learning = LearningHold(brain, self._need)
        self.ranks: list[Rank] = []
        """The ranks of the tasks that this pass has placed."""
        self.patience: dict[int, list[tuple[int, Refusal]]] = {}
        """The tasks that will have been bypassed too often after a number of placements, with their refusals."""
        self.placements: list[Placement] = []
        self.refusals: list[Refusal] = []
        self.impossible: list[Refusal] = []
        self.met: dict[int, Refusal] = {}
        """The refusals of the named tasks and of those that were bypassed too often: after devices are kept for a
        task, it would seem to wait for itself."""
        self._known: dict[int, tuple[Terms, int]] = {}
        """The terms and the class of the tasks that were looked at."""

    # ---- what a kind of pass decides by itself ----

    @abstractmethod
    def _is_full(self) -> bool:
        """Tell whether no waiting task could start anywhere, however little it needs."""

    @abstractmethod
    def _need(self, task: int) -> ResourceRequest:
        """Return the request of a task."""

    @abstractmethod
    def _count(self, task: int) -> int:
        """Return the number of GPUs of a task."""

    @abstractmethod
    def _give_way(self, queue: Contenders, task: int) -> None:
        """Keep capacity for the other schedulers whose turn is before this task's."""

    @abstractmethod
    def _fit_now(self, task: int) -> Placement | Refusal:
        """Return the placement or refusal of a task on what is left now."""

    @abstractmethod
    def _use(self, placement: Placement) -> None:
        """Subtract a placement from what is left."""

    @abstractmethod
    def _keep_devices(self, task: int, refusal: Refusal) -> None:
        """Keep devices for a task that was bypassed too often."""

    # ---- the pass ----

    def decide(self) -> Decision:
        """Go through the queue by rank until it or the machine is exhausted."""
        while (task := self._front()) is not None:
            terms, kind, _ = self.walk.asked
            self._known[task] = self.brain.terms[terms], kind
            if self.left <= 0:
                self._refuse(self.one_too_many(task))
                break
            if self._is_full():
                self._refuse_full(task)
                break
            self._try(task)
        self._finish()
        found = Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible), self._ticket_shown())
        return found if self.queue is None else self.queue.named(found)

    def ask(self, task: int) -> Placement | Refusal:
        """Return the placement or refusal of a task that comes after everything this pass has decided."""
        return self._held_back(task) or self._fit_now(task)

    def one_too_many(self, task: int) -> Refusal:
        """Return the refusal of a task that waits because as many tasks run as may."""
        if self.allowed is not None and self.allowed.tasks_left <= 0:
            return self.allowed.too_many(task)
        return too_many_jobs(task, self.rules.jobs)

    def _front(self) -> int | None:
        """Return the best-ranked task that may fit."""
        return self.walk.front()

    def _about(self, task: int) -> tuple[Terms, int]:
        """Return the terms and the class of a task."""
        known = self._known.get(task)
        if known is None:
            known = self._known[task] = (self.brain.terms_of(task), self.brain.kind_of(task))
        return known

    def _terms(self, task: int) -> Terms:
        return self._about(task)[0]

    def _held_back(self, task: int) -> Refusal | None:
        """Return why a task is not even tried: its directory is away, its class is being learned, or nothing is left
        to learn.
        """
        return self._away(task) or self.learning.refuses(task, self._about(task)[1], self._count(task))

    def _away(self, task: int) -> Refusal | None:
        """Return the refusal of a task that rests after a failed start, or whose directory could not be entered."""
        return self.starts.refuses(task) if self.starts is not None else None

    def _start(self, task: int) -> Placement | Refusal:
        """Place the task in front; else return the refusal."""
        return self._fit_now(task)

    def _refuse_full(self, task: int) -> None:
        """Name what the best-ranked remaining task misses; nothing more fits anywhere."""
        tried = self.ask(task)
        if isinstance(tried, Refusal):
            self._refuse(tried)

    def _try(self, task: int) -> None:
        if self.starts is not None and self.starts.postpones(task):
            self.walk.take()
            return
        if self.queue is not None:
            self._give_way(self.queue, task)
        tried, rank = self._held_back(task) or self._start(task), self.walk.rank
        if isinstance(tried, Placement):
            self.ranks.append(rank)
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
        if tried.reason.keeps_devices:
            self._be_patient(task, tried, rank, len(self.placements))

    def _finish(self) -> None:
        """Try the tasks whose starts failed again and again, after all others."""
        for task in self.starts.in_order(self.starts.postponed) if self.starts is not None else ():
            if self.left <= 0:
                return
            tried = self.ask(task)
            if isinstance(tried, Placement):
                self.ranks.append(self.brain.wait_queue.rank(task))
                self._take(tried)
            else:
                self._refuse(tried)

    def _take(self, placement: Placement) -> None:
        self._use(placement)
        self.placements.append(placement)
        self.left -= 1
        for counter in (self.starts, self.queue, self.allowed):
            if counter is not None:
                counter.take(placement)
        self.learning.note(placement)
        self._lose_patience()

    # ---- tasks that were bypassed too often ----

    def _be_patient(self, task: int, refusal: Refusal, rank: Rank, started: int) -> None:
        """Note a task that found no capacity after this pass had started so many; keep its devices when it will have
        been bypassed too often.
        """
        left = self.rules.bypass_limit - self.brain.wait_queue.bypassed(task, rank)
        if self.turn.closed and task == self.turn.task:
            left = 0  # other schedulers keep its devices for it, so this run does, too
        if left > 0 and started + left >= len(self.placements):
            self.patience.setdefault(started + left, []).append((task, refusal))
        else:
            self._keep_devices(task, refusal)

    def _lose_patience(self) -> None:
        """Keep the devices of tasks that are bypassed too often by now."""
        for task, refusal in self.patience.pop(len(self.placements), ()):
            self._keep_devices(task, refusal)

    # ---- what is named ----

    def _refuse(self, refusal: Refusal) -> None:
        """Name a task that waits, if not enough are named."""
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(refusal)
            self.met[refusal.task] = refusal

    def _ticket_shown(self) -> WaitTicket | None:
        """Return the ticket by which other schedulers see this run; None: it waits for nothing that they hold."""
        return None
