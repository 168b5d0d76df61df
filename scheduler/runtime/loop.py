"""The loop: wait, record, apply, act. It drives the real and the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.core.attempts.attempt_publisher import AttemptPublisher
from scheduler.core.attempts.attempt_tracker import AttemptTracker
from scheduler.core.attempts.early_abort import sentences
from scheduler.core.attempts.happenings import WITHOUT_RECORD, is_on_disk, sort
from scheduler.core.attempts.launch_spec import LaunchBuilder, TaskEnvironment, with_ports
from scheduler.core.attempts.probe_ids import ProbeIds
from scheduler.core.attempts.pruning import PruningJudge
from scheduler.core.brain import Brain
from scheduler.core.causes import Action
from scheduler.core.control import requests as control_requests
from scheduler.core.control import why as control_why
from scheduler.core.control.messages import why
from scheduler.core.control.request_kinds import CONTROLS, ENDINGS, NOW, RunRequest
from scheduler.core.control.start_clock import StartClock
from scheduler.core.events import (
    Asked,
    Event,
    Exited,
    Learned,
    Preempted,
    Pruned,
    Refused,
    Resized,
    Started,
    Submitted,
)
from scheduler.core.leases import HeldLease, Lease
from scheduler.core.model import Decision, DeviceBudget, Machine, Placement
from scheduler.core.placement.preemption import Preemption
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import (
    Answer,
    Devices,
    Engine,
    GpuSharing,
    Happening,
    Key,
    LeaseRegistry,
    LeaseTransaction,
    Request,
    RunStore,
    SubmissionResult,
    View,
    Watcher,
    World,
)
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.queue import quota
from scheduler.core.queue.fair_share import TurnTracker, users_with_more
from scheduler.core.tasks import redaction
from scheduler.errors import LeaseError, StateError
from scheduler.runtime.look_ahead import DirectoryLookup, look_ahead
from scheduler.runtime.notices import LoopNotices
from scheduler.values import dataclass, replace

TICK = 0.5
"""Seconds between checks of what no event reports: free memory, other schedulers' leases, rows appended to the file,
a GPU that hangs."""
BUSY_TICK = 0.25
"""Seconds between checks while tasks wait and no living attempt of this run could wake the loop by its end."""

Taken = list[tuple[Placement, HeldLease]]
"""Placements with their leases."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that the loop acts on."""

    world: World
    run_store: RunStore
    devices: Devices
    engine: Engine
    watcher: Watcher
    leases: LeaseRegistry
    view: View
    answer: Callable[[Request, Sequence[Answer]], None] = lambda request, answers: None
    """A function that reports the result of a request to its sender, once the result is durable."""
    submit: Callable[[Request], SubmissionResult] = control_requests.refuse_submission
    """A function that accepts the tasks of a submission durably; it refuses them if the run is not a queue."""
    sharing: GpuSharing | None = None
    """MPS, if the run uses it."""
    full: Callable[[], str] = str
    """A function that returns why nothing can be launched at present, such as a nearly full disk; empty if nothing
    prevents it."""


class Loop:
    """The loop that runs one Brain to its end."""

    def __init__(self, brain: Brain, ports: Ports, around: TaskEnvironment) -> None:
        self.brain = brain
        self.ports = ports
        self.around = around
        self._launch_builder = LaunchBuilder(around, ports.devices, brain.rules.profile_epochs, ports.sharing)
        self.left_early = False
        self._tracker = AttemptTracker(brain, ports.world, ports.run_store, ports.devices, ports.sharing, around.python)
        self._pruning = PruningJudge(brain)
        self._publisher = AttemptPublisher(brain, self._launch_builder, ports.watcher, ports.leases, ports.engine)
        self._probes = ProbeIds(ports.run_store, same_id=around.same_id)
        self._late: list[Happening] = []
        """Events that came while the journal could not be written, or that cannot be judged yet."""
        self._behind = False
        """True if there are late events, so that the devices were measured after samples were last processed."""
        self._notices = LoopNotices(brain, ports.view, around.run)
        self._ended_attempts: list[Key] = []
        """Attempts whose end is known and whose files can be removed after the tasks that waited for their memory
        have started."""
        self._observations: list[tuple[TaskClass, Observation, Sequence[str]]] = []
        """Observations from ended attempts, for later runs, each with the devices that the attempt used."""
        self._may_get_rows = False
        """True if rows may still arrive although no task is left."""
        self._turns = TurnTracker(brain.rules)
        self._preemption = Preemption(brain)
        self._clock = StartClock(brain, ports.world, ports.view, self._preemption)
        self._directories = DirectoryLookup(
            brain, lambda task: self._launch_builder.directory(ports.run_store.job(task))
        )

    def adopt(self, just_ended: Sequence[Key] = ()) -> None:
        """Take over what an earlier scheduler of this run left; call this once, before `run`.

        For the attempts in `just_ended`, only remove remaining files.
        """
        for key in just_ended:
            self.ports.engine.forget(*key)
        for task in self.brain.living():
            self._tracker.adopted.add((task.id, task.attempts))
            if task.placement is not None:
                self._publisher.adopt((task.id, task.attempts), task.placement)
            self._tracker.crowd.enter((task.id, task.attempts), task.placement.devices if task.placement else ())
            self.ports.leases.adopt(task.id, task.attempts)
            self.ports.engine.adopt(task.id, task.attempts)
            if task.asked in (Action.CANCEL, Action.SAVE, Action.PRUNE):
                self._stop(task.id)  # the earlier scheduler may have died before it stopped the task
        self._follow_dependencies()
        look_ahead(self.brain, self.ports.run_store.kind)

    def run(self) -> None:
        """Run until no task runs and none will start, or until a request asks this scheduler to leave."""
        while not self.left_early and not self._finished():
            self.place()
            if self._finished():
                continue
            self.digest(self.ports.world.wait(self._timeout(), self._clock.next_time))
        self._forget()

    def _forget(self) -> None:
        """Write to the journal the events that were held back to be written with later ones. Once the journal is on
        disk, remove the files of ended attempts.
        """
        ended, observations = self._ended_attempts, self._observations
        self._write_down((), self.ports.world.now(), later=not ended)
        self._ended_attempts, self._observations = [], []
        for task_class, observation, devices in observations:
            self.ports.run_store.learn(task_class, observation, devices)
        for key in ended:
            self.ports.engine.forget(*key)

    def _finished(self) -> bool:
        """Tell whether no task is left, after a last check of the source for appended rows."""
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

        Samples come first: they were taken before an end that is reported with them. Requests come last, one by one:
        they concern the tasks that are alive after the rest was applied. Events that claims and exit records contain as
        well are written together with the placements that follow from them, unless there is a request.
        """
        happenings, self._late, self._behind = [*self._late, *happenings], [], False
        samples, moves, requests = sort(happenings)
        events: list[Event] = []
        for sample in samples:
            events += self._tracker.sampled(sample)
            self._settle(self._pruning.sampled(sample))  # at once: the next sample is compared with it
        for happening in moves:
            if not isinstance(happening, Exited):
                events.append(happening)
            elif self._tracker.is_too_fresh(happening):
                self._late.append(happening)
            else:
                events.append(self._ending(happening))
        self._settle(events, later=not requests and all(map(is_on_disk, events)))
        self._halt()
        for request in requests:
            self._answer(request)
        self._record([Learned(*news) for news in self.brain.profiles.news()])
        self._rewrite_leases()
        self._arrive(last=False)

    def _settle(self, events: Sequence[Event], *, later: bool = False) -> None:
        self._record(events, later=later)
        for event in events:
            self._act(event)

    def _halt(self) -> None:
        """Stop launching if the latest ended attempts show that further attempts would fail too."""
        halted = self.brain.halt()
        if halted is None:
            return
        self._record([halted])
        shown = redaction.shown(self._tracker.argv(halted.task))
        log = str(self.around.places.task_log(halted.task, halted.attempt))
        for sentence in sentences(halted, shown, log, self.around.run, self.brain.waiting):
            self.ports.view.say(sentence)

    def _ending(self, exited: Exited) -> Exited:
        """Return the end with all measurements of the attempt, and keep the observation for later runs."""
        event = self._tracker.completed(exited)
        task_class = self.brain.profiles.kind(self.brain.kind_of(event.task))
        if task_class is not None:
            self._observations.append((task_class, self.brain.evidence(event), self._tracker.devices_of(event.task)))
        return event

    def _answer(self, request: Request) -> None:
        """Carry out a request, and answer it once it is durable."""
        if request.what == RunRequest.WHY:
            self.ports.answer(request, self._explain(request.tasks))
            return
        if request.what == RunRequest.SUBMIT:
            self._submit(request)
            return
        if request.what not in CONTROLS:
            self._settle(self._requested(request))
            self.ports.answer(request, [])
            return
        budgets, wall = self.ports.devices.snapshot(), self.ports.world.wall()
        granted = control_requests.grant(self.brain, request, budgets, self.ports.run_store.number_of, wall)
        self._settle(granted.events)
        self._kill(request.tasks if NOW in request.said else ())
        self.ports.answer(request, granted.answers)
        for sentence in control_requests.sentences(request, granted.answers):
            self.ports.view.say(sentence)

    def _submit(self, request: Request) -> None:
        """Accept new tasks durably, then answer with their ids."""
        submit = control_requests.refuse_while_stopping if self.brain.draining else self.ports.submit
        result = submit(request)
        self._take_in(result.batches)
        self.ports.answer(request, [result.answer])

    def _explain(self, tasks: Sequence[int]) -> Sequence[Answer]:
        """Return why tasks wait, from the state that a decision would use now."""
        look_ahead(self.brain, self.ports.run_store.kind)
        try:
            with self.ports.leases.deciding() as transaction:
                machine = self._machine(transaction, transaction.others())
        except LeaseError as exc:
            return [Answer(tuple(tasks), False, str(exc))]
        lasts = {(t.id, t.attempts): left for t in self.brain.living() if (left := self._tracker.lasts(t)) is not None}
        return control_why.answers(self.brain, machine, tasks, lasts, self._notices.refusal or self._clock.shut())

    def _requested(self, request: Request) -> list[Event]:
        brain = self.brain
        self.ports.view.say(control_requests.onward(request.what, self.around.run, len(brain.living()), brain.waiting))
        if request.what == RunRequest.HANGUP:
            self.ports.view.hang_up()
            return []
        if request.what == RunRequest.LEAVE:
            self.left_early = True
            return []
        events: list[Event] = [] if self.brain.draining else [Asked(Action.DRAIN)]
        if request.what in (RunRequest.STOP, RunRequest.KILL):
            fresh = tuple(t.id for t in self.brain.living() if not t.asked)
            events += [Asked(Action.STOP, fresh)] if fresh else []
            if request.what == RunRequest.KILL:
                self._kill(task.id for task in self.brain.living())
        return events

    def _kill(self, tasks: Iterable[int]) -> None:
        for number in tasks:
            self._stop(number, kill=True)

    # ---- acting ----

    def _act(self, event: Event) -> None:
        """Carry out what an applied event requires."""
        match event:
            case Started():
                self._publisher.started(event)
            case Exited():
                self._ended(event)
            case Resized():
                self._publisher.resized(event)
            case Pruned():
                self._stop(event.task)
            case Preempted() | Asked(what=Action.STOP | Action.CANCEL | Action.SAVE):
                for number in event.tasks:
                    self._stop(number)

    def _stop(self, number: int, *, kill: bool = False) -> None:
        """End a living task."""
        task = self.brain.task(number)
        if task is not None and task.placement is not None:
            self.ports.engine.stop(number, task.attempts, kill=kill)

    def _rewrite_leases(self) -> None:
        """Update the leases, and recreate missing ones.

        If another process keeps the directory locked, this is done at the next check.
        """
        try:
            self._publisher.rewrite(self.ports.world.now())
            if restored := self._publisher.restore(self.ports.world.now()):
                self.ports.view.say(restored)
        except LeaseError as exc:
            self._notices.say_trouble(exc)

    def _ended(self, event: Exited) -> None:
        key = (event.task, event.attempt)
        leases = self.ports.leases
        (leases.drop if event.outcome in WITHOUT_RECORD else leases.forget)(*key)
        self._ended_attempts.append(key)
        self._tracker.forget(key)
        self._publisher.ended(key)
        self._probes.ended(key)

    def _record(self, events: Sequence[Event], *, later: bool = False) -> None:
        """Write events to the journal, then apply and show them.

        With `later`, the journal may write them together with the next events, since claims and exit records on disk
        contain them too.
        """
        if not events:
            return
        now = self.ports.world.now()
        self._write_down(events, now, later=later)
        for event in events:
            self.brain.apply(event, now)
            self.ports.view.show(event, now)
        self._follow_dependencies()

    def _follow_dependencies(self) -> None:
        """Block, free or skip the tasks whose parents have changed, or whose time has come.

        The journal may write these events later: they follow from what is known, so a restarted scheduler finds them
        again.
        """
        due = self._clock.due()
        self._record(due, later=True)
        self._clock.say(due)

    def _write_down(self, events: Sequence[Event], now: float, *, later: bool = False) -> None:
        """Write the events, and return when they are durable, however long the disk stays full; running tasks continue
        under their shims.

        Raise StateError as soon as this scheduler is asked to end: the next scheduler finds all that happened in the
        exit records.
        """
        while True:
            try:
                self.ports.run_store.record(events, now, later=later)
            except StateError as exc:
                self._notices.say_unwritten(exc)
                news = self.ports.world.wait(TICK)
                self._late += news
                self._behind = self._behind or bool(news)
                if any(isinstance(happening, Request) and happening.what in ENDINGS for happening in news):
                    raise
            else:
                self._notices.say_written()
                return

    # ---- what arrives ----

    def _arrive(self, *, last: bool) -> bool:
        """Accept the rows that were appended to the source; return whether there were any, or whether more may still
        arrive.
        """
        try:
            arrivals = self.ports.run_store.arrivals(last=last)
        except StateError as exc:
            self._notices.say_trouble(exc)
            return self._may_get_rows
        self._may_get_rows = arrivals.more
        if arrivals.sentence:
            self.ports.view.say(arrivals.sentence)
        self._take_in(arrivals.batches)
        return bool(arrivals.batches) or self._may_get_rows

    def _take_in(self, batches: Sequence[Submitted]) -> None:
        """Apply and show batches that were accepted durably."""
        now = self.ports.world.now()
        for batch in batches:
            self.brain.apply(batch, now)
            self.ports.view.show(batch, now)
        self._follow_dependencies()

    # ---- deciding ----

    def place(self) -> None:
        """Decide, and carry it out: take leases with the mutex held, release it, write the journal, then launch."""
        for sentence in (*self.ports.watcher.troubles(), *self.ports.engine.troubles()):
            self.ports.view.say(sentence)
        self._notices.say_uncounted(self.ports.leases.troubles())
        self._publisher.look()  # an attempt that has ended uses nothing any more
        self._settle(self._clock.called(self.ports.leases))
        self._follow_dependencies()
        shut = self._clock.shut() if self.brain.waiting and not self.brain.draining else None
        self._clock.show(shut)
        if not self.brain.waiting or self.brain.draining or shut is not None:
            self.ports.leases.leave()
        elif not self._behind and self._has_disk_space():
            self._place()
        self._notices.say_held()
        self._notices.say_pauses(self.ports.world.now())
        self._forget()

    def _place(self) -> None:
        look_ahead(self.brain, self.ports.run_store.kind)
        self._directories.look()
        try:
            decision, taken, preempted = self._decide()
        except LeaseError as exc:
            self._notices.say_trouble(exc)
            return
        if len(taken) == len(decision.placements):
            self._notices.end_trouble()
        self._refuse(decision.impossible)
        self._launch(taken)
        if preempted is not None:
            self._settle([preempted])
            self._clock.say_room(preempted)
        self.ports.view.waits(decision.refusals)
        if not decision.placements and not self.brain.placements_exist():
            self._record(self._clock.nothing_more(more=self._may_get_rows))

    def _has_disk_space(self) -> bool:
        """Tell whether the disks have space; report once when they run out of it, and once when they have it again."""
        self._notices.say_full(self.ports.full())
        return not self._notices.full

    def _decide(self) -> tuple[Decision, Taken, Preempted | None]:
        with self.ports.leases.deciding() as transaction:
            others = transaction.others()
            machine = self._machine(transaction, others)
            decision = self.brain.decide(machine)
            taken = self._take(transaction, decision.placements)
            after = users_with_more(machine, self.brain.placements(), decision) if machine.waiters else frozenset()
            preempted = None if taken else self._preemption.wanted(machine)
            waits = self._turns.after(machine.now, decision, machine.waiters, others, after)
            transaction.wait(self._preemption.ticket(waits))
            return decision, taken, preempted

    def _take(self, transaction: LeaseTransaction, placements: Sequence[Placement]) -> Taken:
        """Take the leases of as many placements as possible; the others wait for the next decision."""
        taken: Taken = []
        try:
            wanted = [(one, self.brain.terms_of(one.task).guest) for one in placements]
            taken.extend(transaction.take_all(wanted))  # leases that were taken are kept when the next one fails
        except LeaseError as exc:
            self._notices.say_trouble(exc)
        return taken

    def _machine(self, transaction: LeaseTransaction, others: Sequence[Lease]) -> Machine:
        self._publisher.meet(others)
        used_by = self.ports.watcher.used_by
        leases = [replace(lease, used=used_by(lease.shim, lease.name)) for lease in others]
        now, turns, policy = self.ports.world.now(), self._turns, transaction.house()
        budgets = self._budgets(policy.closed)  # the use of leases must not be measured later than the free memory
        return Machine(
            now,
            budgets,
            quota.bounded(leases, self.ports.leases.uid, policy.quotas, [budget.device for budget in budgets]),
            self._tracker.used,
            self._tracker.ended_on,
            self.ports.leases.uid,
            policy.caps,
            turns.waiters(now, transaction.waiters()),
            turns.turn(now, others),
        )

    def _budgets(self, closed: Mapping[str, str]) -> tuple[DeviceBudget, ...]:
        """Return what the devices have free; nothing starts on a device that the administrator or MPS has closed."""
        budgets = self.ports.devices.snapshot()
        if self.ports.sharing is not None:
            closed = {**self.ports.sharing.closed(), **closed}
        if not closed:
            return budgets
        return tuple(replace(b, closed=b.closed or closed.get(b.device.key, "")) for b in budgets)

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        self._record([Refused(refusal.task, why(refusal)) for refusal in refusals])

    def _launch(self, taken: Taken) -> None:
        try:
            named = self._probes.named(with_ports(taken))
        except StateError as exc:  # its probes got no numbers: the next decision repeats all of it
            self._notices.say_trouble(exc)
            for placement, _ in taken:
                self.ports.leases.drop(placement.task, placement.attempt)
            return
        self._record(named)
        for placement, (_, lease) in zip(named, taken, strict=True):
            self._tracker.crowd.enter((placement.task, placement.attempt), placement.devices)
            self._probes.placed(placement)
            job = self.ports.run_store.job(placement.task)
            self.ports.engine.launch(self._launch_builder.launch(placement, job, lease))
