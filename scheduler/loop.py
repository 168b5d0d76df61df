"""The loop: wait, record, apply, act; the same for the real and for a simulated world."""

from __future__ import annotations

import posixpath
import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from scheduler.core import command, packing
from scheduler.core.brain import Brain
from scheduler.core.events import Asked, Event, Exited, Placed, Refused, Resized, Started
from scheduler.core.explain import why
from scheduler.core.model import Decision, Machine, Outcome, Placement, Refusal
from scheduler.core.ports import (
    Book,
    Desk,
    Devices,
    Engine,
    Happening,
    Job,
    Key,
    Launch,
    Ledger,
    Request,
    Sample,
    Taken,
    View,
    Watcher,
    World,
)
from scheduler.errors import LeaseError, SchedulerError

TICK = 1.0
"""Seconds between looks at what no event tells: free memory, other schedulers' leases, rows appended to the file."""
BUSY_TICK = 0.25
"""The same while tasks wait for room and nothing of ours runs whose end would tell."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything the loop acts on."""

    world: World
    book: Book
    devices: Devices
    engine: Engine
    watcher: Watcher
    ledger: Ledger
    view: View


class TaskPlaces(Protocol):
    """Where a task's files lie."""

    def task(self, task: int) -> Path:
        """The folder it may leave files in."""

    def result(self, task: int, attempt: int) -> Path:
        """Where it may leave its result."""

    def progress(self, task: int, attempt: int) -> Path:
        """Where it may say how far it is."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every task of the run is told besides its own row."""

    run: str
    python: str
    directory: str
    places: TaskPlaces


class Loop:
    """Runs one Brain to its end."""

    def __init__(self, brain: Brain, ports: Ports, around: Surroundings) -> None:
        self.brain = brain
        self.ports = ports
        self.around = around
        self.left_early = False
        self._used: dict[Key, Mapping[str, int]] = {}
        self._peak: dict[Key, Mapping[str, int]] = {}
        self._shims: dict[Key, int] = {}
        self._strangers: frozenset[int] = frozenset()
        self._trouble = ""
        self._unlooked = True

    def adopt(self) -> None:
        """Take over what an earlier scheduler of this run left; call once, before `run`."""
        for task in self.brain.living():
            self.ports.engine.adopt(task.id, task.attempts)

    def run(self) -> None:
        """Return when nothing runs and nothing will be started, or when asked to leave."""
        while not self.left_early and not self._finished():
            self.place()
            if self._finished():
                continue
            self.digest(self.ports.world.wait(self._timeout()))

    def _finished(self) -> bool:
        """Nothing left: but rows may have been appended to the source meanwhile."""
        if not self.brain.over:
            return False
        return self.brain.draining or not self._arrive(last=True)

    def _timeout(self) -> float:
        if self.brain.waiting and not self.brain.draining and not self.brain.living():
            return BUSY_TICK
        return TICK

    # ---- what happened ----

    def digest(self, happenings: Sequence[Happening]) -> None:
        """Record and apply what happened, then act on it."""
        events: list[Event] = []
        for happening in happenings:
            match happening:
                case Sample():
                    events += self._sampled(happening)
                case Request():
                    events += self._requested(happening)
                case Started():
                    events.append(happening)
                case Exited():
                    events.append(self._completed(happening))
        self._record(events)
        for event in events:
            self._act(event)
        self._arrive(last=False)

    def _sampled(self, sample: Sample) -> list[Event]:
        key = (sample.task, sample.attempt)
        self._used[key] = sample.used
        self._peak[key] = sample.peak
        seen = {name: max(bytes_, sample.used.get(name, 0)) for name, bytes_ in sample.peak.items()}
        return self.brain.watch(sample.task, sample.attempt, seen)

    def _completed(self, exited: Exited) -> Exited:
        """Join what the shim measured with what was sampled: the higher one is the peak."""
        key = (exited.task, exited.attempt)
        sampled = self._peak.get(key, {})
        names = {*sampled, *exited.peak}
        peak = {name: max(sampled.get(name, 0), exited.peak.get(name, 0)) for name in names}
        return replace(exited, peak=peak, result=self.ports.book.result(*key))

    def _requested(self, request: Request) -> list[Event]:
        if request.what == "hangup":
            return []
        if request.what == "leave":
            self.left_early = True
            self.ports.view.say(self._leaving())
            return []
        events: list[Event] = [] if self.brain.draining else [Asked("drain")]
        if request.what in ("stop", "kill"):
            fresh = tuple(t.id for t in self.brain.living() if not t.asked)
            events += [Asked("stop", fresh)] if fresh else []
            if request.what == "kill":
                self._kill_all()
        self.ports.view.say(self._what_next(request.what))
        return events

    def _leaving(self) -> str:
        living = len(self.brain.living())
        return f"left: {living} running go on without the scheduler, {self.brain.waiting} wait; resume takes them over"

    def _what_next(self, what: str) -> str:
        living = len(self.brain.living())
        if what == "drain":
            return (
                f"nothing more is started; {living} running tasks end by themselves "
                "(Ctrl-C again stops them, Ctrl-\\ leaves them running)"
            )
        if what == "stop":
            return f"stopping {living} running tasks: stop signal, grace, then KILL (Ctrl-C again kills now)"
        return f"killing {living} running tasks"

    def _kill_all(self) -> None:
        for task in self.brain.living():
            self.ports.engine.stop(task.id, task.attempts, kill=True)

    # ---- acting ----

    def _act(self, event: Event) -> None:
        """What an applied event asks of the world."""
        match event:
            case Asked(what="stop" | "cancel"):
                for number in event.tasks:
                    self.ports.engine.stop(number, self.brain.tasks[number].attempts)
            case Started():
                self._shims[event.task, event.attempt] = event.shim
                self._rewrite(event.task)
                self._unlooked = True
            case Resized():
                self._rewrite(event.task)
            case Exited():
                self._ended(event)

    def _rewrite(self, number: int) -> None:
        task = self.brain.task(number)
        if task is not None and task.placement is not None:
            self.ports.ledger.rewrite(task.placement, self._shims.get((number, task.attempts), 0))

    def _ended(self, event: Exited) -> None:
        key = (event.task, event.attempt)
        if event.outcome is Outcome.LOST:
            self.ports.ledger.drop(*key)
        self.ports.engine.forget(*key)
        for memory in (self._used, self._peak, self._shims):
            memory.pop(key, None)
        self._unlooked = True

    def _record(self, events: Sequence[Event]) -> None:
        """Durable first, then applied, then shown."""
        if not events:
            return
        now = self.ports.world.now()
        self.ports.book.record(events, now)
        for event in events:
            self.brain.apply(event)
            self.ports.view.show(event, now)

    # ---- what arrives ----

    def _arrive(self, *, last: bool) -> bool:
        """Take rows in that were appended to the source; True if there were any."""
        arrivals = self.ports.book.arrivals(last=last)
        if arrivals.sentence:
            self.ports.view.say(arrivals.sentence)
        for batch in arrivals.batches:
            self.brain.apply(batch)
            self.ports.view.show(batch, self.ports.world.now())
        return bool(arrivals.batches)

    # ---- deciding ----

    def place(self) -> None:
        """Decide and make it true: leases inside the mutex, the journal outside, then the launches."""
        if self.brain.waiting and not self.brain.draining:
            try:
                decision, taken = self._decide()
            except LeaseError as exc:
                self._complain(exc)
                return
            self._trouble = ""
            self._refuse(decision.impossible)
            self._launch(decision.placements, taken)
            self.ports.view.waits(decision.refusals)
        if self._unlooked:
            self._unlooked = False
            self._look()

    def _decide(self) -> tuple[Decision, list[Taken]]:
        ports = self.ports
        with ports.ledger.deciding() as desk:
            machine = self._machine(desk)
            decision = self.brain.decide(machine)
            return decision, [desk.take(placement) for placement in decision.placements]

    def _machine(self, desk: Desk) -> Machine:
        others = desk.others()
        strangers = frozenset(lease.shim for lease in others if lease.shim)
        if strangers != self._strangers:
            self._strangers = strangers
            self._unlooked = True
        holds = tuple(packing.others_hold(lease, self.ports.watcher.used_by(lease.shim)) for lease in others)
        return Machine(self.ports.world.now(), self.ports.devices.snapshot(), holds, self._used)

    def _complain(self, exc: SchedulerError) -> None:
        if str(exc) != self._trouble:
            self._trouble = str(exc)
            self.ports.view.say(self._trouble)

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        self._record([Refused(refusal.task, why(refusal)) for refusal in refusals])

    def _launch(self, placements: Sequence[Placement], taken: Sequence[Taken]) -> None:
        self._record(
            [Placed(p.task, p.attempt, p.purpose, p.promise, p.cores, p.known_by, p.alone) for p in placements]
        )
        for placement, lease in zip(placements, taken, strict=True):
            self.ports.engine.launch(self._order(placement, lease))

    def _order(self, placement: Placement, lease: Taken) -> Launch:
        job = self.ports.book.job(placement.task)
        terms = job.spec.terms
        argv = command.argv(job.spec, placement.task, terms.epochs, self.around.python, job.append)
        return Launch(
            placement.task,
            placement.attempt,
            placement.purpose,
            argv,
            posixpath.join(self.around.directory, job.spec.directory),
            self._environment(placement, job),
            terms.timeout,
            terms.grace,
            terms.stop_signal,
            lease.path,
            lease.fd,
        )

    def _environment(self, placement: Placement, job: Job) -> dict[str, str | None]:
        """What interface promises a task to find, then the devices' own, then what the row says."""
        places, key = self.around.places, (placement.task, placement.attempt)
        told: dict[str, str | None] = {
            "SCHEDULER_TASK_ID": str(placement.task),
            "SCHEDULER_ATTEMPT": str(placement.attempt),
            "SCHEDULER_KEY": job.key,
            "SCHEDULER_NAME": job.name,
            "SCHEDULER_RUN": self.around.run,
            "SCHEDULER_PURPOSE": str(placement.purpose),
            "SCHEDULER_EPOCHS": str(job.spec.terms.epochs or ""),
            "SCHEDULER_MEMORY_BYTES": str(max(placement.promise.values(), default=0)),
            "SCHEDULER_HOST_MEMORY_BYTES": str(placement.promise.get("host", 0)),
            "SCHEDULER_GPU_INDICES": "",
            "SCHEDULER_TASK_DIR": str(places.task(placement.task)),
            "SCHEDULER_RESULT": str(places.result(*key)),
            "SCHEDULER_PROGRESS": str(places.progress(*key)),
            "PYTHONUNBUFFERED": "1",
        }
        told.update(self.ports.devices.environment_for(placement))
        told.update(job.spec.env)
        return told

    def _look(self) -> None:
        """Tell the sampler whom to look at."""
        attempts = {key: shim for key, shim in self._shims.items() if shim}
        self.ports.watcher.watch(attempts, self._strangers)


class Source(Protocol):
    """Something real to wait on."""

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something; -1 for none at the moment."""

    def collect(self) -> Sequence[Happening]:
        """What happened; never blocks."""


class Waker(Protocol):
    """Something real whose news are words: what people ask for by signals."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is a word."""

    def collect(self) -> Sequence[str]:
        """The words."""


class Asking:
    """A waker's words as requests."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker

    def fileno(self) -> int:
        """Readable when somebody asks."""
        return self._waker.fileno()

    def collect(self) -> list[Request]:
        """What was asked."""
        return [Request(word) for word in self._waker.collect()]


class RealWorld:
    """Waits on the descriptors of all its sources at once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def now(self) -> float:
        """The wall clock."""
        return time.time()

    def wait(self, timeout: float) -> list[Happening]:
        """Return when any source has something, or when the time is over."""
        with selectors.DefaultSelector() as selector:
            for fd in {source.fileno() for source in self._sources} - {-1}:
                selector.register(fd, selectors.EVENT_READ)
            selector.select(timeout)
        return [happening for source in self._sources for happening in source.collect()]
