"""The run store and the lease registry of a simulated run, kept in memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scheduler.core.events import Changed, Event, Observed, Submitted
from scheduler.core.leases import NO_OFFER, HeldLease, Lease, RoomCall, RoomOffer
from scheduler.core.model import HOST, Job, Placement, Spec, State, Terms, Waiter, WaitTicket
from scheduler.core.ports import Arrivals, Key
from scheduler.core.profiling import task_class
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.reporting.published_forecast import PublishedForecast
from scheduler.core.site_policy import SitePolicy
from scheduler.core.tasks import command
from scheduler.core.tasks.after import Earlier, whole_run
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.list_dependencies import ListDependencies
from scheduler.errors import LeaseError, StateError
from scheduler.simulation.machine import SimulatedMachine
from scheduler.values import replace


class MemoryLeaseRegistry:
    """The leases of one run on a simulated machine."""

    def __init__(self, machine: SimulatedMachine, run: str = "1", uid: int = 0) -> None:
        self._machine = machine
        self._run = run
        self._uid = uid

    @contextmanager
    def deciding(self) -> Iterator[MemoryLeaseRegistry]:
        """Hold the machine's mutex; another run that wants it meanwhile is refused at once."""
        holder = self._machine.deciding
        if holder:
            raise LeaseError(f"the simulated leases are held by run {holder}: nothing is started before that ends")
        self._machine.deciding = self._run
        try:
            yield self
        finally:
            self._machine.deciding = ""

    def others(self) -> list[Lease]:
        """Return the leases of all other runs."""
        return self._machine.leases.beside(self._uid, self._run)

    def seen(self) -> list[Lease]:
        """Return the leases of all other runs."""
        return self.others()

    def take(self, placement: Placement, guest: str = "") -> HeldLease:
        """Take the lease of a placement, which lasts until its attempt ends."""
        name = self._name(placement.task, placement.attempt)
        self._machine.leases[name] = self._lease(name, placement, 0)
        return HeldLease(name, -1)

    def take_all(self, wanted: Sequence[tuple[Placement, str]]) -> Iterator[tuple[Placement, HeldLease]]:
        """Take the leases of these placements one by one."""
        for placement, guest in wanted:
            yield placement, self.take(placement, guest)

    @property
    def uid(self) -> int:
        """The user of the run."""
        return self._uid

    @property
    def run(self) -> str:
        """The name of the run."""
        return self._run

    def waiters(self) -> list[Waiter]:
        """Return every other run that waits."""
        return [waiter for run, waiter in self._machine.waiters.items() if run != self._run]

    def wait(self, ticket: WaitTicket | None) -> None:
        """Publish what this run waits for."""
        self.leave()
        if ticket is not None:
            name = f"ticket.{self._uid}.{self._run}"
            self._machine.waiters[self._run] = Waiter(name, self._uid, self._run, ticket)

    def calls(self) -> list[RoomCall]:
        """Return the requests of this user's other runs to make room."""
        every = [waiter for waiter in self.waiters() if waiter.uid == self._uid]
        return [waiter.ticket.call for waiter in every if waiter.ticket.call is not None]

    def leave(self) -> None:
        """Withdraw what this run waits for."""
        self._machine.waiters.pop(self._run, None)

    def publish(self, forecast: PublishedForecast | None) -> None:
        """Do nothing, because a simulated run has no forecast that others read."""

    def house(self) -> SitePolicy:
        """Return no site policy, because a simulated machine has no administrator."""
        return SitePolicy()

    def rewrite(self, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> bool:
        """Update a lease; return False if there is none."""
        name = self._name(placement.task, placement.attempt)
        if name not in self._machine.leases:
            return False
        with self.deciding():
            self._machine.leases[name] = self._lease(name, placement, shim, offer)
        return True

    def drop(self, task: int, attempt: int) -> None:
        """Remove the lease of a lost attempt."""
        self._machine.leases.drop(self._name(task, attempt))

    def troubles(self) -> Sequence[str]:
        """Return nothing, because memory has no troubles."""
        return ()

    def adopt(self, task: int, attempt: int) -> None:
        """Do nothing, because the machine already has the leases of an earlier scheduler."""

    def missing(self) -> Sequence[Key]:
        """Return nothing, because leases are never removed from memory."""
        return ()

    @property
    def has_moved(self) -> bool:
        """True if the store has moved, which it never does."""
        return False

    def restore(self, living: Sequence[tuple[Placement, int, str]]) -> str:
        """Do nothing, because leases never have to be created again."""
        return ""

    def forget(self, task: int, attempt: int) -> None:
        """Do nothing, because the lease of a simulated attempt ends with it."""

    def _name(self, task: int, attempt: int) -> str:
        return f"{self._uid}.{self._run}.{task}.{attempt}"

    def _lease(self, name: str, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> Lease:
        who = (name, self._uid, self._run, placement.task, placement.attempt)
        before = self._machine.leases.get(name)
        return Lease(
            *who,
            shim=shim,
            reserved=dict(placement.reservation),
            load=placement.load,
            alone=placement.alone,
            since=before.since if before is not None else self._machine.now,
            offer=offer,
        )


_ELSEWHERE = whole_run(0)
"""The parent that stands for everything outside of a simulation."""


class _Elsewhere(Earlier):
    """The tasks and runs outside of a simulated list, which have ended when it begins."""

    def find(self, word: str) -> Sequence[int]:
        """Return a parent for an id or a run; an empty sequence for a name."""
        return (_ELSEWHERE,) if word.removeprefix("r").replace(".", "").replace("-", "").isdecimal() else ()


class MemoryRunStore:
    """The journal of a simulated run."""

    def __init__(
        self, first: int = 1, num: int = 20, model: Callable[[Terms], str] = lambda terms: HOST, kept: bool = True
    ) -> None:
        self.num = num
        self._model = model
        """The model of GPU on which a task runs, as far as the task's memory depends on the model."""
        self._kept = kept
        """True if the recorded events are needed later."""
        self.terms: list[Terms] = []
        self.recorded: list[tuple[Event, float]] = []
        self.results: dict[Key, Mapping[str, Any]] = {}
        """The results that attempts leave when they end."""
        self.lessons: list[tuple[TaskClass, Observation]] = []
        self._next = first
        self._batch = 0
        self._jobs: dict[int, Job] = {}
        self._changed: dict[int, Terms] = {}
        """The terms of tasks that were changed after their rows were read."""
        self._numbers: dict[Terms, int] = {}
        self._equals: Counter[str] = Counter()
        self._arrived: list[Spec] = []
        self._later: deque[tuple[float, Sequence[Spec]]] = deque()
        self._machine: SimulatedMachine | None = None

    # ---- accepting ----

    def accept(self, specs: Iterable[Spec]) -> list[Submitted]:
        """Accept a list, in batches sorted by priority."""
        rows = list(specs)
        batches = [rows[start : start + self.num] for start in range(0, len(rows), self.num)]
        ranked = [sorted(batch, key=lambda spec: spec.terms.priority) for batch in batches]
        return self._depending([self._accept(batch) for batch in ranked], [spec for batch in ranked for spec in batch])

    def _depending(self, submitted: list[Submitted], specs: Sequence[Spec]) -> list[Submitted]:
        """Return the batches, with the dependencies of their tasks if a row names any."""
        if not any(spec.after for spec in specs):
            return submitted
        dependencies = ListDependencies(RowForm(("After",)))
        dependencies.note(specs)
        dependencies.resolve(_Elsewhere(), "the list")
        edges = dependencies.events(submitted[0].first)
        submitted[-1] = replace(submitted[-1], dependencies=[Observed((_ELSEWHERE,), State.SUCCEEDED), *edges])
        return submitted

    def _accept(self, batch: Sequence[Spec]) -> Submitted:
        self._batch += 1
        first = self._next
        for spec in batch:
            same = command.key(spec, 0)
            self._jobs[self._next] = Job(spec, command.name(spec), command.key(spec, self._equals[same]))
            self._equals[same] += 1
            self._next += 1
        return Submitted(self._batch, first, [self._terms_number(spec.terms) for spec in batch])

    def _terms_number(self, terms: Terms) -> int:
        if terms not in self._numbers:
            self._numbers[terms] = len(self.terms)
            self.terms.append(terms)
        return self._numbers[terms]

    def number_of(self, terms: Terms) -> int:
        """Return the number that stands for these terms."""
        return self._terms_number(terms)

    def append(self, specs: Iterable[Spec]) -> None:
        """Add rows while the run is in progress."""
        self._arrived += specs

    def expect(self, machine: SimulatedMachine, later: Iterable[tuple[float, Sequence[Spec]]]) -> None:
        """Add rows that arrive at these times of the machine, the earliest first."""
        self._machine = machine
        self._later.extend(later)

    # ---- the port ----

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        """Note events with their time."""
        if self._kept:
            self.recorded += [(event, at) for event in events]
        for event in (event for event in events if isinstance(event, Changed)):
            for task in event.tasks:
                self._changed[task] = self.terms[event.terms]

    def job(self, task: int) -> Job:
        """Return the row of a task, with the terms that were changed later."""
        if task not in self._jobs:
            raise StateError(f"there is no task {task} in this simulated run")
        job = self._jobs[task]
        terms = self._changed.get(task)
        return job if terms is None else replace(job, spec=replace(job.spec, terms=terms))

    def row(self, task: int) -> Spec:
        """Return the row from which a task was made, without later changes."""
        return self._jobs[task].spec

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """Return the result that an attempt left."""
        return self.results.get((task, attempt), {})

    def ignored_result(self, task: int, attempt: int) -> str:
        """Return nothing, since results are given as values."""
        return ""

    def kind(self, task: int) -> TaskClass:
        """Return the task class that its row names."""
        job = self.job(task)
        return task_class.kind(job.spec, job.append, "python", "", self._model(job.spec.terms))

    def learn(self, kind: TaskClass, evidence: Observation, devices: Sequence[str]) -> None:
        """Note the observation of an attempt."""
        if self._kept:
            self.lessons.append((kind, evidence))

    def probe_id(self, task: int) -> int:
        """Return an id that no task has."""
        self._next += 1
        return self._next - 1

    def end_probe(self, task: int, told: int) -> None:
        """Do nothing, because a simulated probe leaves no files behind."""

    def arrivals(self, *, last: bool) -> Arrivals:
        """Return the rows added since the last call; if no task is left, let time pass until the next ones arrive."""
        if self._machine is not None and self._later:
            if last and not self._arrived:
                self._machine.sleep(self._later[0][0])
            while self._later and self._later[0][0] <= self._machine.now:
                self._arrived += self._later.popleft()[1]
        arrived, self._arrived = self._arrived, []
        return Arrivals(self.accept(arrived))
