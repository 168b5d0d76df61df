"""The Brain: events change it, and only they; asked with a Machine it decides, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Knowledge
from scheduler.core.lifecycle import Task, after_exit
from scheduler.core.model import (
    LIVING,
    UNFINISHED,
    Decision,
    KnownBy,
    Machine,
    Outcome,
    Placement,
    Profiling,
    Purpose,
    Refusal,
    State,
    Terms,
)
from scheduler.core.ordering import Line
from scheduler.core.roll import Roll
from scheduler.core.rules import Rules
from scheduler.errors import Forbidden

MOST_REFUSALS = 16
"""A pass names so many waiting tasks at most; the rest wait for the same numbers."""


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

    def apply(self, event: Event, at: float = 0.0) -> None:
        """The only state change there is, at its time; raises Forbidden with the task's story."""
        match event:
            case Submitted():
                self.roll.add(event.batch, event.first, event.terms)
                self.line.extend(event.first, event.terms)
            case Placed():
                self._placed(event)
            case Started():
                self._started(event, at)
            case Resized():
                self._resized(event)
            case Peaked():
                self._peaked(event, at)
            case Exited():
                self._exited(event)
            case Refused():
                self._leave(self._touch(event.task), State.REFUSED, event.reason)
            case Asked():
                self._asked(event)

    def _touch(self, number: int) -> Task:
        """A task's details, new ones where there are none; they are kept once it has moved."""
        task = self.tasks.get(number)
        return task or Task(number, self.roll.terms(number), self.roll.state(number))

    def _move(self, task: Task, to: State, why: str) -> None:
        """Change a task's state here, in the roll and in the line."""
        before = task.state
        task.move(to, why)
        self.tasks[task.id] = task
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
            event.task,
            event.attempt,
            event.purpose,
            event.promise,
            event.cores,
            event.known_by,
            event.alone,
            event.told,
        )
        task.peak = {}
        task.settled = task.began = False

    def _started(self, event: Started, at: float) -> None:
        task = self._living(event.task, event.attempt, "started")
        task.story.append(f"started pid {event.pid}")
        task.began = True
        task.last_peak_at = max(task.last_peak_at, at)

    def _peaked(self, event: Peaked, at: float) -> None:
        task = self._living(event.task, event.attempt, "peaked")
        task.peak.update(event.peak)
        task.last_peak_at = at

    def _living(self, number: int, attempt: int, what: str) -> Task:
        task = self.tasks.get(number)
        if task is None or task.placement is None or task.attempts != attempt:
            story = "; ".join(task.story) if task else f"now {self.roll.state(number)}"
            raise Forbidden(f"task {number}, attempt {attempt}: {what}, but it does not live; its story: {story}")
        return task

    def _resized(self, event: Resized) -> None:
        task = self._living(event.task, event.attempt, "resized")
        assert task.placement is not None
        task.placement = replace(task.placement, promise=event.promise)
        task.story.append(f"promise {event.cause}")
        if event.cause == "settled":
            task.settled = True
            probe = task.placement.purpose is Purpose.PROBE
            self._learn(task.id, Evidence(peak=max(task.peak.values(), default=0), whole=False, probe=probe))

    def _exited(self, event: Exited) -> None:
        task = self._living(event.task, event.attempt, f"exited {event.outcome}")
        assert task.placement is not None
        terms = self.terms[task.terms]
        self._count(task, event)
        to = after_exit(task, event.outcome, terms.retries, self.rules.max_ooms, self.rules.max_faults)
        why = f"attempt {event.attempt} {event.outcome} {event.reason}".rstrip()
        self._learn(task.id, self.evidence(event))
        task.placement = None
        task.asked = ""
        if to in UNFINISHED:
            self._move(task, to, why)
        else:
            self._leave(task, to, why)

    def _count(self, task: Task, event: Exited) -> None:
        assert task.placement is not None
        if event.outcome is not Outcome.LOST:
            task.faults = 0
        elif task.began or event.watched >= 1.0:
            task.faults += 1  # what an earlier scheduler placed and never came to start is nobody's fault
        if event.outcome in (Outcome.FAILED, Outcome.TIMEOUT):
            task.failures += 1
        if event.outcome is Outcome.OOM:
            task.ooms += 1
            promised = max(task.placement.promise.values(), default=0)
            peak = max([*event.peak.values(), *task.peak.values()], default=0)
            task.seen = max(task.seen, peak)
            task.floor = max(task.floor, estimate.after_oom(promised, peak, self.rules))

    def evidence(self, event: Exited) -> Evidence:
        """What an ended attempt teaches; call it before the event is applied, or from within."""
        task = self.tasks[event.task]
        assert task.placement is not None
        probe = task.placement.purpose is Purpose.PROBE
        epochs = self.terms[task.terms].epochs
        good = event.outcome is Outcome.SUCCEEDED
        return Evidence(
            peak=max([*event.peak.values(), *task.peak.values()], default=0),
            seconds=event.seconds,
            epochs=min(self.rules.profile_epochs, epochs or 0) if probe else epochs,
            epoch_seconds=event.epoch_seconds,
            cpu_seconds=event.cpu_seconds,
            whole=good and not probe and event.watched >= 1.0,
            probe=probe and good,
        )

    def _learn(self, task: int, evidence: Evidence) -> None:
        kind = self.roll.kind(task)
        if kind and self.knowledge.learn(kind, evidence):
            self.line.refresh(kind)

    def _asked(self, event: Asked) -> None:
        if event.what == "drain":
            self.draining = True
        elif event.what == "resume":
            self.draining = False
            self._return(State.INTERRUPTED, event.tasks, "resumed")
        elif event.what == "skip":
            for number in tuple(self.roll.in_state(State.WAITING)):
                self._leave(self._touch(number), State.SKIPPED, "only profiles were learned")
        elif event.what in ("stop", "cancel"):
            for number in event.tasks:
                self._living(number, self._touch(number).attempts, event.what).asked = event.what
        else:
            raise Forbidden(f"nobody knows how to be asked to {event.what}")

    # ---- kinds ----

    @property
    def looked(self) -> int:
        """How many waiting tasks have been looked at."""
        return self.line.looked()

    def unlooked(self, most: int) -> list[int]:
        """Tasks whose kind nobody has looked at: living ones, and the best-ranked of the waiting."""
        living = [task.id for task in self.living() if self.roll.kind(task.id) == 0]
        return living + self.line.unlooked(most)

    def assign(self, task: int, kind: Kind) -> None:
        """The kind of a task is known now; no event, because it can be found again from its row at any time."""
        number = self.knowledge.number(kind)
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

    def watch(self, task: int, attempt: int, used: Mapping[str, int], now: float = 0.0) -> list[Event]:
        """What a sample of a living attempt comes to: a new peak, a promise that must grow or may shrink."""
        living = self.tasks.get(task)
        if living is None or living.placement is None or living.attempts != attempt:
            return []
        events: list[Event] = []
        news = {k: b for k, b in used.items() if estimate.is_new_peak(living.peak.get(k, 0), b, self.rules)}
        if news:
            events.append(Peaked(task, attempt, news))
        growth = estimate.grown(living.placement.promise, used, self.rules)
        if growth is not None:
            promised_before = any(living.placement.promise.values())
            events.append(Resized(task, attempt, growth, "grew" if promised_before else "seen"))
        elif not news and self._may_settle(living, now):
            seen = {key: max(bytes_, living.peak.get(key, 0)) for key, bytes_ in used.items()}
            less = estimate.cut(living.placement.promise, seen, self.rules)
            if less is not None:
                events.append(Peaked(task, attempt, seen))
                events.append(Resized(task, attempt, less, "settled"))
        return events

    def _may_settle(self, task: Task, now: float) -> bool:
        """Only an unknown one is promised more than it needs; it has settled when it held still for long enough."""
        assert task.placement is not None
        unknown = task.placement.known_by is KnownBy.LIVE or task.placement.purpose is Purpose.PROBE
        if not unknown or task.settled or self.rules.slots is not None or task.last_peak_at == 0.0:
            return False
        return now - task.last_peak_at >= self.rules.settle

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
        self.probed = {
            brain.roll.kind(task.id): task.id
            for task in brain.living()
            if task.placement is not None and task.placement.purpose is Purpose.PROBE
        }
        """Kinds that are being learned from a short run, and by whom."""
        self.patience: dict[int, list[int]] = {}
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

    def _need(self, task: int) -> packing.Need:
        kind = self.brain.roll.kind(task)
        knowledge = self.brain.knowledge
        profile, known = knowledge.profile(kind), knowledge.kind(kind)
        return estimate.need(self._terms(task), self.brain.task(task), self.rules, profile, known)

    def _fit(self, task: int, room: packing.Room) -> Placement | Refusal:
        if room.closed:
            return Refusal(task, "closed", room.device.key)
        touched = self.brain.task(task)
        attempt = (touched.attempts if touched else 0) + 1
        return packing.fit(task, attempt, self._need(task), room, self.caps[room.device.key], self.rules)

    def _held_back(self, task: int) -> Refusal | None:
        """Why a task is not even tried: its kind is being probed, or there is nothing left to learn from it."""
        kind = self.brain.roll.kind(task)
        if kind == 0 and self.rules.profile is not Profiling.OFF:
            return Refusal(task, "unlooked")
        if kind in self.probed:
            return Refusal(task, "probing", wanted=self.probed[kind])
        if self.rules.learn_only and self._need(task).purpose is not Purpose.PROBE:
            return Refusal(task, "learned")
        return None

    def _refuse_full(self, task: int) -> None:
        """Nothing more fits anywhere: name what the best-ranked of the rest misses."""
        for room in self.rooms.values():
            tried = self._fit(task, room)
            if isinstance(tried, Refusal):
                self._refuse(tried)
                return

    def _try(self, task: int) -> None:
        refusal = self._held_back(task)
        for room in () if refusal else self._candidates(task):
            tried = self._fit(task, room)
            if isinstance(tried, Placement):
                self._place(tried, room)
                return
            refusal = _better(refusal, tried)
        self.walk.skip()
        if refusal is not None:
            self._waits(task, refusal)

    def _place(self, placement: Placement, room: packing.Room) -> None:
        packing.take(room, placement)
        self.placements.append(placement)
        self.left -= 1
        if placement.purpose is Purpose.PROBE:
            self.probed[self.brain.roll.kind(placement.task)] = placement.task
        self.walk.take()
        for task in self.patience.pop(len(self.placements), ()):
            self._close_behind(task)

    def _waits(self, task: int, refusal: Refusal) -> None:
        """A task that found no room: it is named, and once it was overtaken too often its devices close behind it."""
        if refusal.reason == "never":
            self.impossible.append(refusal)
            return
        self._refuse(refusal)
        if refusal.reason in ("unlooked", "probing", "learned"):
            return
        left = self.rules.overtakes - self.brain.line.overtaken(task)
        if left > 0:
            self.patience.setdefault(len(self.placements) + left, []).append(task)
        else:
            self._close_behind(task)

    def _close_behind(self, task: int) -> None:
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


def _better(known: Refusal | None, new: Refusal) -> Refusal:
    """Of two devices' refusals the one that tells more: a device it will fit on some day, else the largest."""
    if known is None or (known.reason == "never" and (new.reason != "never" or new.total > known.total)):
        return new
    return known
