"""The Brain: events change it, and only they; asked with a Machine it decides, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core import estimate, lessons, packing, watching
from scheduler.core.events import (
    Asked,
    Changed,
    Event,
    Exited,
    Halted,
    Limited,
    Peaked,
    Placed,
    Refused,
    Resized,
    Skipped,
    Started,
    Submitted,
)
from scheduler.core.firstrows import Tally
from scheduler.core.house import Caps
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Guess, Knowledge
from scheduler.core.lifecycle import Task, after_exit
from scheduler.core.model import (
    LIVING,
    NO_TASK,
    RETRIABLE,
    UNFINISHED,
    Decision,
    KnownBy,
    Machine,
    Outcome,
    Placement,
    Purpose,
    State,
    Terms,
)
from scheduler.core.needs import Needs
from scheduler.core.ordering import Line
from scheduler.core.roll import Roll
from scheduler.core.rules import Rules
from scheduler.core.yard import Yard
from scheduler.errors import Forbidden

if TYPE_CHECKING:
    from scheduler.core.policies import Policy


class Brain:
    """All that the scheduler knows of one run."""

    def __init__(self, rules: Rules, terms: list[Terms] | None = None, knowledge: Knowledge | None = None) -> None:
        self.rules = rules
        self.terms: list[Terms] = terms if terms is not None else []
        """The terms that Submitted events point at, by number; whoever submits appends first."""
        self.roll = Roll()
        self.knowledge = knowledge if knowledge is not None else Knowledge()
        self.line = Line(self.roll, self.terms, rules.order, self.knowledge.duration)
        self.tasks: dict[int, Task] = {}
        """Tasks that were touched and are not over."""
        self._alive: dict[int, Task] = {}
        """Those of them that have an attempt."""
        self._learning: dict[int, None] = {}
        """Those of them that run to be learned from."""
        self._unknown: list[int] = []
        """Those that were placed before anybody had looked at their kind, until they are asked for."""
        self.draining = False
        self.tally = Tally()
        """What ended since the run was begun or taken over, as far as it says that going on makes no sense."""
        self.yard = Yard(rules)
        self._needs = Needs()
        self.changes = 0
        """Grows with everything that a decision may follow from, but for the machine."""
        self._last: tuple[tuple[int, int, int, Caps], Decision] | None = None
        self._policy: Policy | None = None
        self.freed: dict[str, None] = {}
        """Slots in the order in which they came free again."""
        self._without_gpus = False
        self._looked_terms = 0
        self._tries: dict[int, int] = {}
        """How often ended tasks were tried that may be tried again: attempts are numbered through."""

    # ---- reading ----

    def state(self, task: int) -> State:
        """Where a task stands."""
        return self.roll.state(task)

    def task(self, task: int) -> Task | None:
        """The details of a task that was placed and is not over."""
        return self.tasks.get(task)

    def placements(self) -> list[Placement]:
        """Every promise of this run that lives."""
        return [t.placement for t in self._alive.values() if t.placement is not None]

    def living(self) -> list[Task]:
        """Every task with an attempt that is placed or running."""
        return list(self._alive.values())

    def load_beside(self, placement: Placement) -> dict[str, float]:
        """How busy the other tasks of this run are taken to keep each GPU that a living one has."""
        return {
            key: sum(other.busy for other in self.yard.here(key) if other.task != placement.task)
            for key in placement.gpus
        }

    def learning(self) -> list[Task]:
        """Those of them from which something is learned that nobody knows yet."""
        return [task for number in self._learning if (task := self._alive.get(number)) is not None]

    def is_unsure(self, task: int) -> bool:
        """Whether what is known of a task's kind was seen once only, of an attempt that still runs."""
        profile = self.knowledge.profile(self.roll.kind(task))
        return profile.settlings > 0 and not profile.is_sure(self.rules)

    def knows(self, task: int, gpus: int) -> bool:
        """Whether what a task needs follows from its own kind, or there is nothing to learn from."""
        kind = self.roll.kind(task)
        return kind == 0 or self.knowledge.profile(kind).knows(gpus)

    @property
    def waiting(self) -> int:
        """How many tasks wait for their turn."""
        return self.roll.counts[State.WAITING]

    @property
    def held(self) -> int:
        """How many tasks are kept from waiting for their turn."""
        return self.roll.counts[State.HELD]

    @property
    def some_without_gpus(self) -> bool:
        """Whether there are tasks that run on the host alone on a machine with GPUs."""
        if len(self.terms) != self._looked_terms:
            self._without_gpus = any(terms.gpus == 0 for terms in self.terms)
            self._looked_terms = len(self.terms)
        return self._without_gpus

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will be started; what is held may be released at any time."""
        return not self.placements_exist() and (self.draining or not (self.waiting or self.held))

    def placements_exist(self) -> bool:
        """Whether anything of this run is placed or running."""
        return self.roll.living > 0

    # ---- events ----

    def apply(self, event: Event, at: float = 0.0) -> None:
        """The only state change there is, at its time; raises Forbidden with the task's story."""
        self.changes += 1
        match event:  # what comes with every task first
            case Placed():
                self._placed(event)
            case Started():
                self._started(event, at)
            case Exited():
                self._exited(event)
            case Resized():
                self._resized(event)
            case Peaked():
                self._peaked(event, at)
            case Submitted():
                self.roll.add(event.batch, event.first, event.terms)
                self.line.extend(event.first, event.terms)
            case _:
                self._decided(event)

    def _decided(self, event: Event) -> None:
        """What no attempt is needed for; Learned follows from the peaks, and is told so that people can read when."""
        match event:
            case Refused():
                self._leave(self._touch(event.task), State.REFUSED, event.reason)
            case Skipped():
                for number in event.tasks:
                    self._leave(self._touch(number), State.SKIPPED, f"succeeded in run {event.done_by}")
            case Halted():
                self.draining = True
            case Asked():
                self._asked(event)
            case Changed():
                self._changed(event)
            case Limited():
                self.rules = replace(
                    self.rules, jobs=event.jobs, max_per_device=event.max_per_device, closed=frozenset(event.closed)
                )
                self.yard.follow(self.rules)

    def _touch(self, number: int) -> Task:
        """A task's details, new ones where there are none; they are kept once it has moved."""
        task = self.tasks.get(number)
        tries = self._tries.get(number, 0)
        return task or Task(number, self.roll.terms(number), self.roll.state(number), tries)

    def _move(self, task: Task, to: State, why: str) -> None:
        """Change a task's state here, in the roll and in the line."""
        before = task.state
        task.move(to, why)
        self.tasks[task.id] = task
        self.roll.mark(task.id, to)
        if before is State.WAITING:
            self.line.remove(task.id, started=to in LIVING)
        elif to is State.WAITING:
            self.line.put_back(task.id, apart=bool(task.floors))

    def _leave(self, task: Task, to: State, why: str) -> None:
        """Move a task to a state from which nothing comes by itself, and forget its details."""
        self._move(task, to, why)
        del self.tasks[task.id]
        if to in RETRIABLE and task.attempts:
            self._tries[task.id] = task.attempts

    def _placed(self, event: Placed) -> None:
        task = self._touch(event.task)
        if event.attempt != task.attempts + 1:
            raise Forbidden(f"task {task.id}: attempt {event.attempt} follows attempt {task.attempts}")
        to = State.PROBING if event.purpose == "probe" else State.RUNNING
        self._move(task, to, f"attempt {event.attempt} placed on {', '.join(event.promise)}")
        task.attempts = event.attempt
        task.placement = Placement(
            event.task,
            event.attempt,
            event.purpose,
            event.promise,
            event.cores,
            event.known_by,
            event.alone,
            event.told,
            event.busy,
            event.percentage,
            event.fence,
        )
        self._alive[task.id] = task
        if event.purpose is Purpose.PROBE or event.known_by is KnownBy.LIVE or self.is_unsure(task.id):
            self._learning[task.id] = None
        self.yard.come(task.placement)
        if self.roll.kind(task.id) == 0:
            self._unknown.append(task.id)
        task.peak = {}
        task.settled = task.began = False

    def _started(self, event: Started, at: float) -> None:
        task = self._living(event.task, event.attempt, "started")
        task.story.append(f"started pid {event.pid}")
        task.began, task.started_at = True, at
        task.last_peak_at = max(task.last_peak_at, at)

    def _peaked(self, event: Peaked, at: float) -> None:
        task = self._living(event.task, event.attempt, "peaked")
        assert task.placement is not None
        task.peak.update(event.peak)
        if any(key in task.placement.devices for key in event.peak):
            task.last_peak_at = at  # what creeps up in RAM beside GPUs must not keep them locked

    def _living(self, number: int, attempt: int, what: str) -> Task:
        task = self.tasks.get(number)
        if task is None or task.placement is None or task.attempts != attempt:
            story = "; ".join(task.story) if task else f"now {self.roll.state(number)}"
            raise Forbidden(f"task {number}, attempt {attempt}: {what}, but it does not live; its story: {story}")
        return task

    def _resized(self, event: Resized) -> None:
        task = self._living(event.task, event.attempt, "resized")
        assert task.placement is not None
        self.yard.go(task.placement)
        task.placement = replace(task.placement, promise=event.promise, busy=event.busy or task.placement.busy)
        self.yard.come(task.placement)
        task.story.append(f"promise {event.cause}")
        if event.cause in ("settled", "known"):
            task.settled = True
        if event.cause == "settled":
            probe = task.placement.purpose is Purpose.PROBE
            seen = task.placement.by_part(task.peak)
            self._learn(task.id, Evidence(seen, busy=event.busy, whole=False, probe=probe))

    def _exited(self, event: Exited) -> None:
        task = self._living(event.task, event.attempt, f"exited {event.outcome}")
        assert task.placement is not None
        terms = self.terms[task.terms]
        self._count(task, event)
        to = after_exit(task, event.outcome, terms, self.rules)
        why = f"attempt {event.attempt} {event.outcome} {event.reason}".rstrip()
        if task.placement.purpose is Purpose.PROBE and event.outcome is Outcome.SUCCEEDED:
            task.probed = lessons.peaks(task, task.placement, event)
        if self.roll.kind(task.id):
            self._learn(task.id, self.evidence(event))
        self.tally.take(event, to, self.rules)
        self.yard.go(task.placement)
        self._free(task.placement.slot)
        task.placement = None
        del self._alive[task.id]
        self._learning.pop(task.id, None)
        task.asked = ""
        if to in UNFINISHED:
            self._move(task, to, why)
        else:
            self._leave(task, to, why)

    def _free(self, slot: str) -> None:
        if slot:
            self.freed.pop(slot, None)
            self.freed[slot] = None

    def _count(self, task: Task, event: Exited) -> None:
        assert task.placement is not None
        if event.outcome is not Outcome.LOST:
            task.faults = 0
        elif task.began or event.watched >= 1.0:
            task.faults += 1  # what an earlier scheduler placed and never came to start is nobody's fault
        short = event.outcome is Outcome.AGAIN and event.seconds < self.rules.short_turn
        task.short_turns = task.short_turns + 1 if short else 0
        if event.mps:
            from scheduler.core.mps import FAULT  # who only looks at runs does not need the words it is found by

            task.apart = task.apart or event.mps == FAULT
        if event.outcome in (Outcome.FAILED, Outcome.TIMEOUT):
            task.failures += 1
        if event.outcome is Outcome.OOM:
            task.ooms += 1
            self._grow(task, task.placement, event)

    def _grow(self, task: Task, placement: Placement, event: Exited) -> None:
        """What an out-of-memory teaches: only of that memory which ran out."""
        promised, peaks = placement.by_part(placement.promise), lessons.peaks(task, placement, event)
        short = estimate.short_of(placement, event)
        least = min(peaks.get(part, 0) for part in short)
        for part in short:
            held, said = peaks.get(part, 0) if not event.asked else least, promised.get(part, 0)
            task.seen[part] = max(task.seen.get(part, 0), peaks.get(part, 0))
            if event.asked:
                task.wanted[part] = (said, held + event.asked)
            floor = estimate.after_oom(said, held, self.rules, event.asked)
            task.floors[part] = max(task.floors.get(part, 0), floor)

    def evidence(self, event: Exited) -> Evidence:
        """What an ended attempt teaches; call it before the event is applied, or from within."""
        task = self.tasks[event.task]
        assert task.placement is not None
        return lessons.evidence(task, task.placement, self.terms[task.terms].epochs, event, self.rules)

    def _learn(self, task: int, evidence: Evidence) -> None:
        kind = self.roll.kind(task)
        if not kind:
            return
        moved = self.knowledge.learn(kind, evidence)
        self._needs.learned(kind)
        self.line.forget(kind)
        if moved:
            self.line.refresh(kind)

    def _asked(self, event: Asked) -> None:
        if event.what == "drain":
            self.draining = True
        elif event.what == "resume":
            self.draining = False
            self.tally = Tally()
            self._return(State.INTERRUPTED, event.tasks, "resumed")
        elif event.what == "skip":
            for number in tuple(self.roll.in_state(State.WAITING)):
                self._leave(self._touch(number), State.SKIPPED, "only profiles were learned")
        elif event.what == "stop":
            for number in event.tasks:
                self._living(number, self._touch(number).attempts, event.what).asked = event.what
        else:
            self._asked_of(event)

    def _asked_of(self, event: Asked) -> None:
        """What people ask of single tasks."""
        if event.what not in ("cancel", "hold", "release", "retry"):
            raise Forbidden(f"nobody knows how to be asked to {event.what}")
        for number in event.tasks:
            task = self._touch(number)
            if event.what == "cancel" and task.placement is not None:
                task.asked = "cancel"
            elif event.what == "cancel":
                self._leave(task, State.CANCELLED, "cancelled")
            else:
                self._step(task, State.HELD if event.what == "hold" else State.WAITING, event.what)

    def _step(self, task: Task, to: State, why: str) -> None:
        """Move a task that does not live; a list of a million that is held is no million stories."""
        self._move(task, to, why)
        self._tries.pop(task.id, None)
        if not task.attempts:
            del self.tasks[task.id]

    def _changed(self, event: Changed) -> None:
        for number in event.tasks:
            if self.roll.state(number) is State.WAITING:
                self.line.change(number, event.terms)
            else:
                self.roll.change(number, event.terms)
            if number in self.tasks:
                self.tasks[number].terms = event.terms

    # ---- kinds ----

    @property
    def looked(self) -> int:
        """How many waiting tasks have been looked at."""
        return self.line.looked

    def unlooked(self, most: int) -> list[int]:
        """Tasks whose kind nobody has looked at: living ones, and the best-ranked of the waiting."""
        living = [task for task in self._unknown if task in self._alive]
        self._unknown.clear()
        return living + self.line.unlooked(most)

    def assign(self, task: int, kind: Kind) -> None:
        """The kind of a task is known now; no event, because it can be found again from its row at any time."""
        self.changes += 1
        number = self.knowledge.number(kind)
        self._needs.grown()
        if self.roll.state(task) is State.WAITING:
            self.line.assign(task, number)
        else:
            self.roll.assign(task, number)

    def _return(self, state: State, numbers: Sequence[int], why: str) -> None:
        for number in numbers or tuple(self.roll.in_state(state)):
            if self.roll.state(number) is not state:
                raise Forbidden(f"task {number} cannot be {why}: it is {self.roll.state(number)}, not {state}")
            self._move(self._touch(number), State.WAITING, why)

    # ---- samples ----

    def watch(
        self, task: int, attempt: int, used: Mapping[str, int], now: float = 0.0, *, busy: float | None = None
    ) -> list[Event]:
        """What a sample of a living attempt comes to: a new peak, a promise that must grow or may shrink.

        `busy` is the share of its GPUs that it kept busy so far; None where that cannot be seen.
        """
        living = self.tasks.get(task)
        if living is None or living.placement is None or living.attempts != attempt:
            return []
        self.yard.stir(living.placement)
        return watching.watch(self, living, living.placement, used, now, busy)

    # ---- needs ----

    def need(self, task: int, gpus: int, *, untouched: bool = False) -> packing.Need:
        """What a task asks for now; `untouched`: as its equals do that were never tried."""
        tried = None if untouched else self.tasks.get(task)
        if tried is not None and tried.floors:
            return self._need(self.roll.terms(task), self.roll.kind(task), gpus, tried)
        return self.need_of(self.roll.terms(task), self.roll.kind(task), gpus)

    def need_of(self, terms: int, kind: int, gpus: int) -> packing.Need:
        """What all ask for that have these terms and are of this kind, and were never out of memory."""
        return self._needs.find(terms, kind, gpus) or self._keep(terms, kind, gpus)

    def _keep(self, terms: int, kind: int, gpus: int) -> packing.Need:
        """What all ask for that are equal and were never out of memory."""
        need = self._need(terms, kind, gpus, None)
        self._needs.keep(terms, kind, gpus, need, firm=self.knowledge.profile(kind).knows(gpus))
        return need

    def _need(self, terms: int, kind: int, gpus: int, tried: Task | None) -> packing.Need:
        profile, known = self.knowledge.profile(kind), self.knowledge.kind(kind)
        guess = None if profile.knows(gpus) else self.knowledge.guess(kind)
        usual = self.knowledge.usual(self.rules.usual_share, self.rules.usual_kinds) if gpus else 0
        if gpus and not profile.busy and (guess is None or not guess.busy):
            guess = replace(guess or Guess({}, KnownBy.LIVE), busy=self.knowledge.usual_busy(kind))
        need = estimate.need(self.terms[terms], tried, self.rules, profile, known, gpus, guess)
        return estimate.with_usual(need, usual)

    # ---- deciding ----

    def halt(self) -> Halted | None:
        """Why nothing more should be started, where that has become clear and something waits."""
        return None if self.draining or not self.waiting else self.tally.verdict(self.rules)

    def _which_policy(self) -> Policy:
        """What decides: slots are filled by rank, whatever the policy for memory is."""
        from scheduler.core import filling, policies  # they need a Brain, and nobody who only looks at a run needs them

        return filling.decide if self.yard.has_slots else policies.named(self.rules.policy)

    def decide(self, machine: Machine) -> Decision:
        """Who starts now, who waits for which number, and who can never start.

        Nothing of it follows from the time alone: as long as there is the same room for the same tasks, it stays.
        """
        if self.draining or self.waiting == 0:
            return Decision()
        self.yard.look(machine)
        if self._policy is None:
            self._policy = self._which_policy()
        state = (self.changes, self.yard.version, machine.turn.task if machine.turn.closed else NO_TASK, machine.caps)
        if self._last is not None and self._last[0] == state and not machine.waiters:
            return self._last[1]
        decision = self._policy(self, machine)
        self._last = None if machine.waiters else (state, decision)  # what is kept for others is not kept for ever
        return decision
