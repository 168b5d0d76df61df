"""The Brain: events change it, and only they; asked with a Machine it decides, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.core import estimate, packing
from scheduler.core.events import (
    Asked,
    Event,
    Exited,
    Peaked,
    Placed,
    Refused,
    Resized,
    Started,
    Submitted,
)
from scheduler.core.lifecycle import Task, after_exit
from scheduler.core.model import LIVING, Decision, Machine, Outcome, Placement, Refusal, State, Terms
from scheduler.core.ordering import Line
from scheduler.core.roll import Roll
from scheduler.core.rules import Rules
from scheduler.errors import Forbidden

MOST_REFUSALS = 16
"""A pass names so many waiting tasks at most; the rest wait for the same numbers."""


class Brain:
    """All that the scheduler knows of one run."""

    def __init__(self, rules: Rules, terms: list[Terms] | None = None) -> None:
        self.rules = rules
        self.terms: list[Terms] = terms if terms is not None else []
        """The terms that Submitted events point at, by number; whoever submits appends first."""
        self.roll = Roll()
        self.line = Line(self.roll, self.terms, rules.order)
        self.tasks: dict[int, Task] = {}
        """Tasks that were touched and are not over."""
        self.draining = False

    # ---- reading ----

    def state(self, task: int) -> State:
        """Where a task stands."""
        return self.roll.state(task)

    def task(self, task: int) -> Task | None:
        """The details of a task that was placed and is not over."""
        return self.tasks.get(task)

    def placements(self) -> list[Placement]:
        """Every promise of this run that lives."""
        return [t.placement for t in self.tasks.values() if t.placement is not None]

    def living(self) -> list[Task]:
        """Every task with an attempt that is placed or running."""
        return [t for t in self.tasks.values() if t.placement is not None]

    @property
    def waiting(self) -> int:
        """How many tasks wait for their turn."""
        return self.roll.counts[State.WAITING]

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will be started."""
        return not self.placements_exist() and (self.draining or self.waiting == 0)

    def placements_exist(self) -> bool:
        """Whether anything of this run is placed or running."""
        return any(self.roll.counts[state] for state in LIVING)

    # ---- events ----

    def apply(self, event: Event) -> None:
        """The only state change there is; raises Forbidden with the task's story."""
        match event:
            case Submitted():
                self.roll.add(event.batch, event.first, event.terms)
                self.line.extend(event.first, event.terms)
            case Placed():
                self._placed(event)
            case Started():
                self._living(event.task, event.attempt, "started").story.append(f"started pid {event.pid}")
            case Resized():
                self._resized(event)
            case Peaked():
                self._living(event.task, event.attempt, "peaked").peak.update(event.peak)
            case Exited():
                self._exited(event)
            case Refused():
                self._touch(event.task)
                self._leave(self.tasks[event.task], State.REFUSED, event.reason)
            case Asked():
                self._asked(event)

    def _touch(self, number: int) -> Task:
        task = self.tasks.get(number)
        if task is None:
            task = Task(number, self.roll.terms(number), self.roll.state(number))
            self.tasks[number] = task
        return task

    def _move(self, task: Task, to: State, why: str) -> None:
        """Change a task's state here, in the roll and in the line."""
        before = task.state
        task.move(to, why)
        self.roll.mark(task.id, to)
        if before is State.WAITING:
            self.line.remove(task.id, started=to in LIVING)
        elif to is State.WAITING:
            self.line.put_back(task.id, apart=task.floor > 0)

    def _leave(self, task: Task, to: State, why: str) -> None:
        """Move a task to a state from which nothing comes by itself, and forget its details."""
        self._move(task, to, why)
        del self.tasks[task.id]

    def _placed(self, event: Placed) -> None:
        task = self._touch(event.task)
        if event.attempt != task.attempts + 1:
            raise Forbidden(f"task {task.id}: attempt {event.attempt} follows attempt {task.attempts}")
        to = State.PROBING if event.purpose == "probe" else State.RUNNING
        self._move(task, to, f"attempt {event.attempt} placed on {', '.join(event.promise)}")
        task.attempts = event.attempt
        task.placement = Placement(
            event.task, event.attempt, event.purpose, event.promise, event.cores, event.known_by, event.alone
        )
        task.peak = {}

    def _living(self, number: int, attempt: int, what: str) -> Task:
        task = self.tasks.get(number)
        if task is None or task.placement is None or task.attempts != attempt:
            story = "; ".join(task.story) if task else f"now {self.roll.state(number)}"
            raise Forbidden(f"task {number}, attempt {attempt}: {what}, but it does not live; its story: {story}")
        return task

    def _resized(self, event: Resized) -> None:
        task = self._living(event.task, event.attempt, "resized")
        assert task.placement is not None
        p = task.placement
        task.placement = Placement(p.task, p.attempt, p.purpose, event.promise, p.cores, p.known_by, p.alone)
        task.story.append(f"promise {event.cause}")

    def _exited(self, event: Exited) -> None:
        task = self._living(event.task, event.attempt, f"exited {event.outcome}")
        assert task.placement is not None
        terms = self.terms[task.terms]
        self._count(task, event)
        to = after_exit(task, event.outcome, terms.retries, self.rules.max_ooms, self.rules.max_faults)
        why = f"attempt {event.attempt} {event.outcome} {event.reason}".rstrip()
        task.placement = None
        task.asked = ""
        if to is State.WAITING:
            self._move(task, to, why)
        else:
            self._leave(task, to, why)

    def _count(self, task: Task, event: Exited) -> None:
        assert task.placement is not None
        lost = event.outcome is Outcome.LOST
        task.faults = task.faults + 1 if lost else 0
        if event.outcome in (Outcome.FAILED, Outcome.TIMEOUT):
            task.failures += 1
        if event.outcome is Outcome.OOM:
            task.ooms += 1
            promised = max(task.placement.promise.values(), default=0)
            peak = max([*event.peak.values(), *task.peak.values()], default=0)
            task.floor = max(task.floor, estimate.after_oom(promised, peak, self.rules))

    def _asked(self, event: Asked) -> None:
        if event.what == "drain":
            self.draining = True
        elif event.what == "resume":
            self.draining = False
            self._return(State.INTERRUPTED, event.tasks, "resumed")
        elif event.what in ("stop", "cancel"):
            for number in event.tasks:
                self._living(number, self.tasks[number].attempts, event.what).asked = event.what
        else:
            raise Forbidden(f"nobody knows how to be asked to {event.what}")

    def _return(self, state: State, numbers: Sequence[int], why: str) -> None:
        for number in numbers or tuple(self.roll.in_state(state)):
            self._move(self._touch(number), State.WAITING, why)

    # ---- samples ----

    def watch(self, task: int, attempt: int, used: Mapping[str, int]) -> list[Event]:
        """What a sample of a living attempt comes to: a new peak, a promise that must grow."""
        living = self.tasks.get(task)
        if living is None or living.placement is None or living.attempts != attempt:
            return []
        events: list[Event] = []
        news = {k: b for k, b in used.items() if estimate.is_new_peak(living.peak.get(k, 0), b, self.rules)}
        if news:
            events.append(Peaked(task, attempt, news))
        growth = estimate.grown(living.placement.promise, used, self.rules)
        if growth is not None:
            events.append(Resized(task, attempt, growth, "grew"))
        return events

    # ---- deciding ----

    def decide(self, machine: Machine) -> Decision:
        """Who starts now, who waits for which number, and who can never start."""
        if self.draining or self.waiting == 0:
            return Decision()
        return Pass(self, machine).decide()


class Pass:
    """One walk over the waiting line with a working copy of the machine."""

    def __init__(self, brain: Brain, machine: Machine) -> None:
        self.brain = brain
        self.rules = brain.rules
        self.caps = {b.device.key: b.cap for b in machine.budgets}
        self.rooms = packing.rooms(machine, brain.placements(), brain.rules)
        self.walk = brain.line.walk()
        self.left = self._jobs_left()
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
            if not any(self._open(room) for room in self.rooms.values()):
                self._refuse_full(task)
                break
            self._try(task)
        return Decision(tuple(self.placements), tuple(self.refusals), tuple(self.impossible))

    def _open(self, room: packing.Room) -> bool:
        """Whether a device could still take the smallest of tasks."""
        if room.closed or room.taken_alone:
            return False
        per_device = self.rules.slots if self.rules.slots is not None else self.rules.max_per_device
        if per_device is not None and room.ours >= per_device:
            return False
        return self.rules.slots is not None or room.residents == 0 or (room.bytes > 0 and room.load > 1e-9)

    def _terms(self, task: int) -> Terms:
        return self.brain.terms[self.brain.roll.terms(task)]

    def _fit(self, task: int, room: packing.Room) -> Placement | Refusal:
        touched = self.brain.task(task)
        need = estimate.need(self._terms(task), touched, self.rules)
        attempt = (touched.attempts if touched else 0) + 1
        return packing.fit(task, attempt, need, room, self.caps[room.device.key], self.rules)

    def _refuse_full(self, task: int) -> None:
        """Nothing more fits anywhere: name what the best-ranked of the rest misses."""
        for room in self.rooms.values():
            tried = self._fit(task, room)
            if isinstance(tried, Refusal):
                self._refuse(tried)
                return

    def _try(self, task: int) -> None:
        refusal: Refusal | None = None
        for room in self._candidates(task):
            if room.closed:
                continue
            tried = self._fit(task, room)
            if isinstance(tried, Placement):
                packing.take(room, tried)
                self.placements.append(tried)
                self.left -= 1
                self.walk.take()
                return
            refusal = tried
        self.walk.skip()
        if refusal is not None:
            self._waits(task, refusal)

    def _waits(self, task: int, refusal: Refusal) -> None:
        """A task that found no room: it is named, and once it was overtaken too often its devices close behind it."""
        if refusal.reason == "never":
            self.impossible.append(refusal)
            return
        self._refuse(refusal)
        if self.brain.line.overtaken(task) >= self.rules.overtakes:
            for room in self._candidates(task):
                room.closed = True

    def _candidates(self, task: int) -> list[packing.Room]:
        wanted = self._terms(task).device
        if wanted:
            return [room for key, room in self.rooms.items() if wanted in (key, room.device.label)]
        return sorted(self.rooms.values(), key=lambda room: -room.bytes)

    def _refuse(self, refusal: Refusal) -> None:
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(refusal)
