"""The loop: wait, record, apply, act; the same for the real and for a simulated world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scheduler.core import confidential, control, packing, reasons
from scheduler.core.brain import Brain
from scheduler.core.events import Asked, Event, Exited, Learned, Placed, Refused, Resized, Started
from scheduler.core.explain import why
from scheduler.core.firstrows import sentences
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence
from scheduler.core.model import (
    Budget,
    Decision,
    Machine,
    Outcome,
    Placement,
    Profiling,
    Purpose,
    Refusal,
)
from scheduler.core.observed import Observed
from scheduler.core.orders import Orders, Surroundings
from scheduler.core.ports import (
    Answer,
    Book,
    Desk,
    Devices,
    Engine,
    Happening,
    Key,
    Ledger,
    Request,
    Sample,
    Sharing,
    View,
    Watcher,
    World,
)
from scheduler.core.promises import Lease, Taken
from scheduler.core.tending import Tending
from scheduler.core.turns import Standing, richer
from scheduler.errors import LeaseError, SchedulerError, StateError
from scheduler.units import count
from scheduler.values import dataclass

TICK = 0.5
"""Seconds between looks at what no event tells: free memory, other schedulers' leases, rows appended to the file, a GPU
that hangs and keeps the others from being seen."""
LOOK_AHEAD = 5000
"""So many waiting tasks have their kind looked at; more would cost memory on lists of a million and bring nothing."""
ENDINGS = ("drain", "stop", "kill", "leave")
"""What ends a scheduler, be it soon."""
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
    answer: Callable[[Request, Sequence[Answer]], None] = lambda request, answers: None
    """Tells whoever asked what became of a request, once that is durable."""
    sharing: Sharing | None = None
    """MPS, where the run has it."""
    full: Callable[[], str] = str
    """What keeps everything from being launched at the moment: a disk that is nearly full; nothing where none is."""


class Loop:
    """Runs one Brain to its end."""

    def __init__(self, brain: Brain, ports: Ports, around: Surroundings) -> None:
        self.brain = brain
        self.ports = ports
        self.around = around
        self._orders = Orders(around, ports.devices, brain.rules.profile_epochs, ports.sharing)
        self.left_early = False
        self._seen = Observed(brain, ports.world, ports.book, ports.devices, ports.sharing, around.python)
        self._tending = Tending(brain, self._orders, ports.watcher, ports.ledger)
        self._probes: dict[Key, int] = {}
        self._late: list[Happening] = []
        """What happened while the journal could not be written, or cannot be judged yet."""
        self._behind = False
        """Whether there is more of the former, so that the devices were looked at since samples were last taken in."""
        self._trouble = self._full = ""
        self._held = 0
        self._over: list[Key] = []
        """Attempts whose end is known and whose files can go, once whoever waited for their room is started."""
        self._lessons: list[tuple[Kind, Evidence]] = []
        """What they taught, for later runs."""
        self._more = False
        """Whether rows may still arrive though nothing is left."""
        self._standing = Standing(brain.rules)

    def adopt(self, just_ended: Sequence[Key] = ()) -> None:
        """Take over what an earlier scheduler of this run left; call once, before `run`.

        Those that have just ended need no more than that their files go, if they are still there.
        """
        for key in just_ended:
            self.ports.engine.forget(*key)
        for task in self.brain.living():
            self._seen.adopted.add((task.id, task.attempts))
            self._seen.crowd.enter((task.id, task.attempts), task.placement.devices if task.placement else ())
            self.ports.engine.adopt(task.id, task.attempts)
            if task.asked == "cancel":
                self._stop(task.id)  # the scheduler that was to do it may have died before it could
        look_ahead(self.brain, self.ports.book.kind)

    def run(self) -> None:
        """Return when nothing runs and nothing will be started, or when asked to leave."""
        while not self.left_early and not self._finished():
            self.place()
            if self._finished():
                continue
            self.digest(self.ports.world.wait(self._timeout()))
        self._forget()

    def _forget(self) -> None:
        """Write down what nothing else has taken along; records of ends may go once the journal is on the disk."""
        over, lessons = self._over, self._lessons
        self._write_down((), self.ports.world.now(), later=not over)
        self._over, self._lessons = [], []
        for kind, evidence in lessons:
            self.ports.book.learn(kind, evidence)
        for key in over:
            self.ports.engine.forget(*key)

    def _finished(self) -> bool:
        """Nothing left: but rows may have been appended to the source meanwhile."""
        if not self.brain.over:
            return False
        return self.brain.draining or not self._arrive(last=True)

    def _timeout(self) -> float:
        if self._behind:
            return 0.0
        if self.brain.waiting and not self.brain.draining and not self.brain.placements_exist():
            return BUSY_TICK
        return TICK

    # ---- what happened ----

    def digest(self, happenings: Sequence[Happening]) -> None:
        """Record and apply what happened, then act on it.

        Samples come first: they were taken before an end that is told beside them. Requests come last, each by
        itself: they mean whoever lives once the rest is known. What claims and exit records tell as well is written
        down together with what is started because of it, unless somebody asks for something.
        """
        happenings, self._late, self._behind = [*self._late, *happenings], [], False
        samples, moves, requests = _sorted_out(happenings)
        events: list[Event] = []
        for sample in samples:
            events += self._seen.sampled(sample)
        for happening in moves:
            if isinstance(happening, Started):
                events.append(happening)
            elif self._seen.is_too_fresh(happening):
                self._late.append(happening)
            else:
                events.append(self._ending(happening))
        self._settle(events, later=not requests and all(map(_is_on_disk, events)))
        self._halt()
        for request in requests:
            self._answer(request)
        self._record([Learned(*news) for news in self.brain.knowledge.news()])
        self._rewrite_leases()
        self._arrive(last=False)

    def _settle(self, events: Sequence[Event], *, later: bool = False) -> None:
        self._record(events, later=later)
        for event in events:
            self._act(event)

    def _halt(self) -> None:
        """Start nothing more where what has just ended says that it would be in vain."""
        halted = self.brain.halt()
        if halted is None:
            return
        self._record([halted])
        shown = confidential.shown(self._seen.argv(halted.task))
        log = str(self.around.places.task_log(halted.task, halted.attempt))
        for sentence in sentences(halted, shown, log, self.around.run, self.brain.waiting):
            self.ports.view.say(sentence)

    def _ending(self, exited: Exited) -> Exited:
        """The same with all that was seen of the attempt; what it teaches is kept for later runs."""
        event = self._seen.completed(exited)
        kind = self.brain.knowledge.kind(self.brain.roll.kind(event.task))
        if kind is not None:
            self._lessons.append((kind, self.brain.evidence(event)))
        return event

    def _answer(self, request: Request) -> None:
        """Do what was asked, and say so once it is durable."""
        if request.what == control.WHY:
            self.ports.answer(request, self._explain(request.tasks))
            return
        if request.what not in control.CONTROLS:
            self._settle(self._requested(request))
            self.ports.answer(request, [])
            return
        granted = control.grant(self.brain, request, self.ports.devices.snapshot(), self.ports.book.number_of)
        self._settle(granted.events)
        self.ports.answer(request, granted.answers)
        for sentence in control.sentences(request, granted.answers):
            self.ports.view.say(sentence)

    def _explain(self, tasks: Sequence[int]) -> Sequence[Answer]:
        """Why tasks wait, by what a decision would look at now."""
        look_ahead(self.brain, self.ports.book.kind)
        try:
            with self.ports.ledger.deciding() as desk:
                machine = self._machine(desk, desk.others())
        except LeaseError as exc:
            return [Answer(tuple(tasks), False, str(exc))]
        lasts = {(t.id, t.attempts): left for t in self.brain.living() if (left := self._seen.lasts(t)) is not None}
        return reasons.answers(self.brain, machine, tasks, lasts, self._full)

    def _requested(self, request: Request) -> list[Event]:
        brain = self.brain
        self.ports.view.say(control.onward(request.what, self.around.run, len(brain.living()), brain.waiting))
        if request.what == "hangup":
            self.ports.view.hang_up()
            return []
        if request.what == "leave":
            self.left_early = True
            return []
        events: list[Event] = [] if self.brain.draining else [Asked("drain")]
        if request.what in ("stop", "kill"):
            fresh = tuple(t.id for t in self.brain.living() if not t.asked)
            events += [Asked("stop", fresh)] if fresh else []
            if request.what == "kill":
                self._kill_all()
        return events

    def _kill_all(self) -> None:
        for task in self.brain.living():
            self.ports.engine.stop(task.id, task.attempts, kill=True)

    # ---- acting ----

    def _act(self, event: Event) -> None:
        """What an applied event asks of the world."""
        match event:
            case Started():
                self._tending.started(event)
            case Exited():
                self._ended(event)
            case Resized():
                self._tending.resized(event)
            case Asked(what="stop" | "cancel"):
                for number in event.tasks:
                    self._stop(number)

    def _stop(self, number: int) -> None:
        """Have a task ended that lives."""
        task = self.brain.task(number)
        if task is not None and task.placement is not None:
            self.ports.engine.stop(number, task.attempts)

    def _rewrite_leases(self) -> None:
        """Bring leases up to date; where somebody keeps the directory locked, with the next look."""
        try:
            self._tending.rewrite(self.ports.world.now())
        except LeaseError as exc:
            self._complain(exc)

    def _ended(self, event: Exited) -> None:
        key = (event.task, event.attempt)
        if event.outcome is Outcome.LOST:
            self.ports.ledger.drop(*key)
        self._over.append(key)
        self._seen.forget(key)
        self._tending.ended(key)
        told = self._probes.pop(key, 0)
        if told:
            self.ports.book.end_probe(event.task, told)

    def _record(self, events: Sequence[Event], *, later: bool = False) -> None:
        """In the journal first, then applied, then shown; `later`: in the journal with the next ones, since the disk
        has them elsewhere."""
        if not events:
            return
        now = self.ports.world.now()
        self._write_down(events, now, later=later)
        for event in events:
            self.brain.apply(event, now)
            self.ports.view.show(event, now)

    def _write_down(self, events: Sequence[Event], now: float, *, later: bool = False) -> None:
        """Durable when it returns, however long the disk stays full: what runs goes on under its shims meanwhile.

        Raises StateError as soon as somebody asks for anything: the next scheduler finds all of it in the records.
        """
        while True:
            try:
                self.ports.book.record(events, now, later=later)
            except StateError as exc:
                self._complain(StateError(f"{exc}: nothing starts before it can, what runs goes on"))
                news = self.ports.world.wait(TICK)
                self._late += news
                self._behind = self._behind or bool(news)
                if any(isinstance(happening, Request) and happening.what in ENDINGS for happening in news):
                    raise
            else:
                return

    # ---- what arrives ----

    def _arrive(self, *, last: bool) -> bool:
        """Take rows in that were appended to the source; True if there were any, or may be some."""
        try:
            arrivals = self.ports.book.arrivals(last=last)
        except StateError as exc:
            self._complain(exc)
            return self._more
        self._more = arrivals.more
        if arrivals.sentence:
            self.ports.view.say(arrivals.sentence)
        for batch in arrivals.batches:
            self.brain.apply(batch)
            self.ports.view.show(batch, self.ports.world.now())
        return bool(arrivals.batches) or self._more

    # ---- deciding ----

    def place(self) -> None:
        """Decide and make it true: leases inside the mutex, the journal outside, then the launches."""
        for sentence in self.ports.watcher.troubles():
            self.ports.view.say(sentence)
        self._tending.look()  # who has ended holds nothing any more of what is free
        if not self.brain.waiting or self.brain.draining:
            self.ports.ledger.leave()
        elif not self._behind and self._has_room():
            self._place()
        self._say_held()
        self._tending.look()  # at the shims that were met
        self._forget()

    def _place(self) -> None:
        look_ahead(self.brain, self.ports.book.kind)
        try:
            decision, taken = self._decide()
        except LeaseError as exc:
            self._complain(exc)
            return
        if len(taken) == len(decision.placements):
            self._trouble = ""
        self._refuse(decision.impossible)
        self._launch(decision.placements[: len(taken)], taken)
        self.ports.view.waits(decision.refusals)
        if self.brain.rules.learn_only and not decision.placements and not self.brain.placements_exist():
            self._record([Asked("skip")])

    def _say_held(self) -> None:
        """Told once: what is held alone keeps a run from its end."""
        brain = self.brain
        held = brain.held if not (brain.waiting or brain.draining or brain.placements_exist()) else 0
        if held and held != self._held:
            run = self.around.run
            self.ports.view.say(
                f"nothing runs and {count(held, 'task')} of this run {'is' if held == 1 else 'are'} held: "
                f"scheduler release --run {run} lets go, scheduler stop {run} ends the run"
            )
        self._held = held

    def _has_room(self) -> bool:
        """Whether there is room on the disks; told once when there is none any more, and once when there is again."""
        full = self.ports.full()
        if full != self._full:
            self._full = full
            self.ports.view.say(full or "there is room on the disk again: tasks are started again")
        return not full

    def _decide(self) -> tuple[Decision, list[Taken]]:
        ports = self.ports
        with ports.ledger.deciding() as desk:
            others = desk.others()
            machine = self._machine(desk, others)
            decision = self.brain.decide(machine)
            taken = self._take(desk, decision.placements)
            after = richer(machine, self.brain.placements(), decision) if machine.waiters else frozenset()
            desk.wait(self._standing.after(machine.now, decision, machine.waiters, others, after))
            return decision, taken

    def _take(self, desk: Desk, placements: Sequence[Placement]) -> list[Taken]:
        """The leases of as many placements as can be had; the others wait for the next decision."""
        taken: list[Taken] = []
        try:
            for placement in placements:
                taken.append(desk.take(placement))  # noqa: PERF401 - what was taken is kept when the next one fails
        except LeaseError as exc:
            self._complain(exc)
        return taken

    def _machine(self, desk: Desk, others: Sequence[Lease]) -> Machine:
        self._tending.meet([lease.shim for lease in others if lease.shim])
        holds = tuple(
            packing.others_hold(lease, self.ports.watcher.used_by(lease.shim, lease.name)) for lease in others
        )
        now, standing, house = self.ports.world.now(), self._standing, desk.house()
        return Machine(
            now,
            self._budgets(house.closed),
            holds,
            self._seen.used,
            self._seen.ended_on,
            self.ports.ledger.uid,
            house.caps,
            standing.waiters(now, desk.waiters()),
            standing.turn(now, others),
        )

    def _budgets(self, closed: Mapping[str, str]) -> tuple[Budget, ...]:
        """What the devices have free; nothing starts where the house or MPS does not let it."""
        budgets = self.ports.devices.snapshot()
        if self.ports.sharing is not None:
            closed = {**self.ports.sharing.closed(), **closed}
        if not closed:
            return budgets
        return tuple(replace(b, closed=b.closed or closed.get(b.device.key, "")) for b in budgets)

    def _complain(self, exc: SchedulerError) -> None:
        if str(exc) != self._trouble:
            self._trouble = str(exc)
            self.ports.view.say(self._trouble)

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        self._record([Refused(refusal.task, why(refusal)) for refusal in refusals])

    def _launch(self, placements: Sequence[Placement], taken: Sequence[Taken]) -> None:
        named = [self._named(placement) for placement in placements]
        self._record([_placed(placement) for placement in named])
        for placement, lease in zip(named, taken, strict=True):
            self._seen.crowd.enter((placement.task, placement.attempt), placement.devices)
            if placement.told:
                self._probes[placement.task, placement.attempt] = placement.told
            job = self.ports.book.job(placement.task)
            self.ports.engine.launch(self._orders.launch(placement, job, lease))

    def _named(self, placement: Placement) -> Placement:
        """A probe goes by an id of its own, so that it never touches what its task leaves."""
        if placement.purpose is not Purpose.PROBE:
            return placement
        own = placement.task if self.around.same_id else self.ports.book.probe_id(placement.task)
        return replace(placement, told=own)


def _sorted_out(happenings: Sequence[Happening]) -> tuple[list[Sample], list[Started | Exited], list[Request]]:
    samples: list[Sample] = []
    moves: list[Started | Exited] = []
    requests: list[Request] = []
    for happening in happenings:
        if isinstance(happening, Sample):
            samples.append(happening)
        elif isinstance(happening, Request):
            requests.append(happening)
        else:
            moves.append(happening)
    return samples, moves, requests


def _is_on_disk(event: Event) -> bool:
    """Whether claim or exit record tell the same, which stay until the journal is on the disk too."""
    return isinstance(event, Started) or (isinstance(event, Exited) and event.outcome is not Outcome.LOST)


def _placed(p: Placement) -> Placed:
    return Placed(
        p.task, p.attempt, p.purpose, p.promise, p.cores, p.known_by, p.alone, p.told, p.busy, p.percentage, p.fence
    )


def look_ahead(brain: Brain, kind: Callable[[int], Kind]) -> None:
    """Look at the kinds of the next waiting tasks; not of a whole long list, for its end that is too early."""
    if brain.rules.profile is Profiling.OFF:
        return
    for task in brain.unlooked(max(0, LOOK_AHEAD - brain.looked)):
        brain.assign(task, kind(task))
