"""One pass over the wait queue: the parts that are common to packing GPUs and to filling slots."""

from __future__ import annotations

from abc import ABC, abstractmethod

from scheduler.core.model import Decision, Machine, Placement, Terms, WaitTicket
from scheduler.core.placement.learning_hold import LearningHold
from scheduler.core.placement.refusal import Refusal, too_many_jobs
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.queue.fair_share import Contenders
from scheduler.core.queue.quota import NO_END, QuotaUse
from scheduler.core.queue.task_group import TOGETHER, Rank
from scheduler.core.run_state import RunState

MOST_REFUSALS = 5
"""The most waiting tasks whose refusals a pass returns; the other tasks wait for similar reasons."""


class QueuePass(ABC):
    """One pass over the wait queue with a working copy of the machine."""

    def __init__(self, brain: RunState, machine: Machine, *, slots: bool = False) -> None:
        """Begin a pass. `slots` is True if the run fills slots, for which memory does not count."""
        self.brain, self.rules, self.turn = brain, brain.rules, machine.turn
        self.walk = brain.wait_queue.walk()
        self.allowed = QuotaUse(machine, brain.placements()) if machine.caps.some else None
        """The unused part of the user's quota; None: unlimited."""
        own = NO_END if self.rules.jobs is None else self.rules.jobs - brain.task_table.living
        self.left = own if self.allowed is None else min(own, self.allowed.tasks_left)
        """The number of tasks that this pass may still start."""
        self.starts = brain.backoff.starts(machine.now, brain.rules)
        """The limits on starts because of failed starts; None: no limit."""
        self.queue = Contenders(machine, brain.placements(), brain.rules, slots=slots) if machine.waiters else None
        """The other waiting schedulers; None if none waits."""
        if self.queue is not None:
            self.queue.urgent = brain.wait_queue.lifted
        self.learning = LearningHold(brain, watches=not slots and self.rules.slots is None)
        self.ranks: list[Rank] = []
        """The ranks of the tasks that this pass has placed."""
        self.patience: dict[int, list[tuple[WaitingTask, Refusal]]] = {}
        """The tasks that later placements of this pass will bypass too often, with their refusals. The key is the
        number of placements after which that is the case."""
        self.placements: list[Placement] = []
        self.refusals: list[Refusal] = []
        self.impossible: list[Refusal] = []
        self.met: dict[int, Refusal] = {}
        """The refusals that this pass returns, and those of tasks that were bypassed too often. They are noted before
        devices are kept for a task; afterwards the task would seem to wait for itself."""

    # ---- what each kind of pass decides ----

    @abstractmethod
    def _is_full(self) -> bool:
        """Tell whether no waiting task could start anywhere, however little it requests."""

    @abstractmethod
    def _count(self, terms: Terms) -> int:
        """Return the number of GPUs that a task with these terms requests."""

    @abstractmethod
    def _give_way(self, queue: Contenders, task: int) -> None:
        """Keep capacity for other schedulers whose turn comes before that of a task."""

    @abstractmethod
    def _fit_now(self, task: WaitingTask) -> Placement | Refusal:
        """Return the placement of a task on the capacity that is left, or its refusal."""

    @abstractmethod
    def _use(self, placement: Placement) -> None:
        """Subtract a placement from the capacity that is left."""

    @abstractmethod
    def _keep_devices(self, task: WaitingTask, refusal: Refusal) -> None:
        """Keep devices for a task that was bypassed too often."""

    # ---- the pass ----

    def decide(self) -> Decision:
        """Go through the queue by rank until the queue ends, the machine is full, or no more tasks of the run may
        start.
        """
        while (number := self._front()) is not None:
            rank, (terms, kind, _) = self.walk.first
            task = self._look_up(number, rank, terms, kind)
            if self.left <= 0:
                self._refuse(self.one_too_many(number), task)
                break
            if self._is_full():
                if self._refuse_full(task):
                    continue
                break
            self._try(task)
        self._finish()
        found = Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible), self._ticket_shown())
        return found if self.queue is None else self.queue.named(found)

    def ask(self, number: int) -> Placement | Refusal:
        """Return the placement or refusal that a task would get if it came after all decisions of this pass."""
        return self._try_last(self._find(number))

    def give_way(self, task: int) -> None:
        """Keep capacity for other schedulers whose turn comes before that of a task."""
        if self.queue is not None:
            self._give_way(self.queue, task)

    def one_too_many(self, task: int) -> Refusal:
        """Return the refusal of a task because the run or the user has reached the limit of living attempts."""
        if self.allowed is not None and self.allowed.tasks_left <= 0:
            return self.allowed.too_many(task)
        return too_many_jobs(task, self.rules.jobs)

    def _front(self) -> int | None:
        """Return the best-ranked task that may fit."""
        return self.walk.front()

    def _find(self, number: int) -> WaitingTask:
        """Return any waiting task with all that a pass needs to know about it."""
        table = self.brain.task_table
        return self._look_up(number, self.brain.wait_queue.rank(number), table.terms(number), table.kind(number))

    def _look_up(self, number: int, rank: Rank, terms: int, kind: int) -> WaitingTask:
        """Return a waiting task with all that a pass needs to know about it."""
        said, tried = self.brain.terms[terms], self.brain.task(number)
        gpus = self._count(said)
        return WaitingTask(number, rank, said, kind, tried, gpus, self.brain.need_of(terms, kind, gpus, tried))

    def _held_back(self, task: WaitingTask) -> Refusal | None:
        """Return why a task is not even tried: its directory cannot be entered, or `LearningHold` holds it back."""
        away = self._away(task.number) if self.starts is not None else None
        return away or self.learning.refuses(task)

    def _away(self, task: int) -> Refusal | None:
        """Return the refusal of a task that must wait after a failed start, or whose directory could not be entered."""
        return self.starts.refuses(task) if self.starts is not None else None

    def _try_last(self, task: WaitingTask) -> Placement | Refusal:
        """Return the placement or refusal of a task outside of the order of the queue."""
        return self._held_back(task) or self._fit_now(task)

    def _start(self, task: WaitingTask) -> Placement | Refusal:
        """Return the placement of the task in front, or its refusal."""
        return self._fit_now(task)

    def _refuse_full(self, task: WaitingTask) -> bool:
        """Note what the best-ranked remaining task lacks when nothing more fits anywhere. Return True if it can never
        start, so that the next task is to be noted as well.
        """
        tried = self._try_full(task)
        if isinstance(tried, Refusal) and tried.reason.is_final:
            self.walk.skip()
            self.impossible.append(tried)
            return True
        if isinstance(tried, Refusal):
            self._refuse(tried, task)
        return False

    def _try_full(self, task: WaitingTask) -> Placement | Refusal:
        """Return the refusal of the task in front when nothing more fits anywhere."""
        return self._try_last(task)

    def _try(self, task: WaitingTask) -> None:
        if self.starts is not None and self.starts.postpones(task.number):
            self.walk.take()
            return
        self.give_way(task.number)
        tried = self._held_back(task) or self._start(task)
        if isinstance(tried, Placement):
            self.ranks.append(task.rank)
            self.walk.take()
            self._take(tried, task)
            return
        if tried.reason.is_of_one_task(together=self.walk.first[1][2] == TOGETHER):
            self.walk.take()
        else:
            self.walk.skip()
        if tried.reason.is_final:
            self.impossible.append(tried)
            return
        self._refuse(tried, task)
        if tried.reason.keeps_devices:
            self._be_patient(task, tried, len(self.placements))

    def _finish(self) -> None:
        """Try the tasks that were postponed after repeated failed starts, after all others."""
        for number in self.starts.in_order(self.starts.postponed) if self.starts is not None else ():
            if self.left <= 0:
                return
            task = self._find(number)
            tried = self._try_last(task)
            if isinstance(tried, Placement):
                self.ranks.append(task.rank)
                self._take(tried, task)
            else:
                self._refuse(tried, task)

    def _take(self, placement: Placement, task: WaitingTask) -> None:
        self._use(placement)
        self.placements.append(placement)
        self.left -= 1
        for counter in (self.starts, self.queue, self.allowed):
            if counter is not None:
                counter.take(placement)
        self.learning.note(placement, task.kind)
        self._lose_patience()

    # ---- tasks that were bypassed too often ----

    def _be_patient(self, task: WaitingTask, refusal: Refusal, started: int) -> None:
        """Note that a task found no capacity after `started` placements of this pass. Its devices are kept once it will
        have been bypassed too often.
        """
        left = self.rules.bypass_limit - self.brain.wait_queue.bypassed(task.number, task.rank)
        if self.turn.closed and task.number == self.turn.task:
            left = 0  # other schedulers keep its devices for it, so this run does, too
        if task.number in self.brain.wait_queue.lifted:
            left = 0  # other tasks make room for it
        if left > 0 and started + left >= len(self.placements):
            self.patience.setdefault(started + left, []).append((task, refusal))
        else:
            self._keep_devices(task, refusal)

    def _lose_patience(self) -> None:
        """Keep devices for the tasks that have been bypassed too often after the newest placement."""
        for task, refusal in self.patience.pop(len(self.placements), ()):
            self._keep_devices(task, refusal)

    # ---- what is named ----

    def _refuse(self, refusal: Refusal, task: WaitingTask) -> None:
        """Add a refusal to the decision, unless the decision has enough refusals already."""
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(refusal)
            self.met[refusal.task] = refusal

    def _ticket_shown(self) -> WaitTicket | None:
        """Return the wait ticket of this run; None if it waits for nothing that other schedulers hold."""
        return None
