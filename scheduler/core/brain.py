"""The Brain, which only events change: given a Machine it decides which tasks start, and changes nothing but caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.attempts.early_abort import FailureTally
from scheduler.core.attempts.out_of_memory import raise_floors
from scheduler.core.causes import Action, ResizeCause
from scheduler.core.config import SchedulingConfig, limited
from scheduler.core.events import (
    Arrived,
    Asked,
    Changed,
    Depended,
    Event,
    Exited,
    Halted,
    Limited,
    Observed,
    Peaked,
    Preempted,
    Pruned,
    Reached,
    Refused,
    Resized,
    Skipped,
    Started,
    Submitted,
)
from scheduler.core.lifecycle import TaskState, after_exit, count_exit
from scheduler.core.model import (
    HOST,
    LIVING,
    NO_TASK,
    UNFINISHED,
    Decision,
    Machine,
    Outcome,
    Placement,
    Purpose,
    State,
    Terms,
)
from scheduler.core.profiling import estimator, observation, sampling, without_gpu
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.queue.dependencies import STATE_AFTER
from scheduler.core.run_state import RunState
from scheduler.core.tasks.after import parent_name
from scheduler.errors import ForbiddenEvent
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.core.placement.policies import Policy
    from scheduler.core.profiling.task_class import TaskClass


class Brain(RunState):
    """The state of a run that events change, and the decisions that follow from it."""

    def __init__(
        self, rules: SchedulingConfig, terms: list[Terms] | None = None, knowledge: ProfileIndex | None = None
    ) -> None:
        super().__init__(rules, terms, knowledge)
        self._last: tuple[tuple[object, ...], Decision] | None = None
        """The last decision, and the state on which it depended."""
        self._policy: Policy | None = None
        self._at = 0.0
        """The time of the event that is being applied."""

    # ---- events ----

    def apply(self, event: Event, at: float = 0.0) -> None:
        """Apply an event that happened at this time; nothing else changes the state. Raise ForbiddenEvent, with the
        task's history, for an event that the task's state does not allow.
        """
        self.changes += 1
        self._at = at
        match event:  # the events of every task come first
            case Placement():
                self._placed(event, at)
            case Started():
                self._started(event, at)
            case Exited():
                self._exited(event, at)
            case Resized():
                self._resized(event, at)
            case Peaked():
                self._peaked(event, at)
            case Submitted():
                self.task_table.add(event.batch, event.first, event.terms)
                self.times.accepted(event.batch, at)
                self.wait_queue.extend(event.first, event.terms)
                self.note_begins(event.first, event.terms)
                for task in self.held_at_first(event.first, event.terms):
                    self._step(self._touch(task), State.HELD, "held from the start")
                for one in event.dependencies:
                    self._decided(one)
            case _:
                self._decided(event)

    def _decided(self, event: Event) -> None:
        """Apply an event that concerns no living attempt. `Learned` needs no action, because its content follows from
        the peaks that the Brain knows already.
        """
        match event:
            case Refused():
                self._leave(self._touch(event.task), State.REFUSED, event.reason)
            case Skipped():
                for number in event.tasks:
                    self._leave(self._touch(number), State.SKIPPED, f"succeeded in run {event.done_by}")
            case Depended():
                self._depended(event)
            case Observed():
                self.dependencies.see(event)
            case Halted():
                self.draining = True
            case Asked():
                self._asked(event)
            case Changed():
                self._changed(event)
            case _:
                self._arranged(event)

    def _arranged(self, event: Event) -> None:
        match event:
            case Preempted():
                self._preempted(event)
            case Reached():
                self.pruning.reached(event)
            case Pruned():
                self._living(event.task, event.attempt, "pruned").asked = Action.PRUNE
                self.pruning.stopped(event)
            case Arrived():
                self.times.accepted(event.batch, self._at)
            case Limited():
                self.rules = limited(self.rules, event)
                self.capacity.follow(self.rules)

    def _preempted(self, event: Preempted) -> None:
        for number in [task for task in event.tasks if task in self.task_table]:  # other runs ask their own tasks
            task = self._living(number, self._touch(number).attempts, f"preempted by {event.by}")
            task.asked, task.making_way_for = Action.SAVE, event.by
        if event.by in self.task_table and self.task_table.state(event.by) is State.WAITING:
            self.wait_queue.lift(event.by)

    def _depended(self, event: Depended) -> None:
        self.dependencies.apply(event)
        to = STATE_AFTER[event.step]
        for number in event.tasks:
            if self.task_table.state(number) in (to, State.HELD):
                continue  # it was skipped for another parent before, or is judged when it is released
            if to is State.SKIPPED:
                self._leave(self._touch(number), to, f"{parent_name(event.parent)} ended without success")
            else:
                self._step(self._touch(number), to, f"dependencies: {event.step}")

    def _touch(self, number: int) -> TaskState:
        """Return the details of a task. For a task without details, create them; they are kept only once the task's
        state changes.
        """
        task = self.tasks.get(number)
        tries = self._tries.get(number, 0)
        return task or TaskState(number, self.task_table.terms(number), self.task_table.state(number), tries)

    def _move(self, task: TaskState, to: State, why: str) -> None:
        """Change the state of a task in its details, in the task table and in the wait queue."""
        before = task.state
        task.move(to, why)
        self.tasks[task.id] = task
        self.task_table.mark(task.id, to)
        self.dependencies.moved(task.id, to)
        if before is State.WAITING:
            self.wait_queue.remove(task.id, started=to in LIVING)
        elif to is State.WAITING:
            if self.profiles.kind(self.task_table.kind(task.id)) is None:
                self.task_table.assign(task.id, 0)  # the class was forgotten meanwhile, and is determined again
            self.wait_queue.put_back(task.id, apart=bool(task.floors))
            self.note_waiting(task.id, self._at)

    def _leave(self, task: TaskState, to: State, why: str) -> None:
        """Move a task to a state that it does not leave by itself, and forget its details."""
        self._move(task, to, why)
        del self.tasks[task.id]
        if to is not State.SUCCEEDED and task.attempts:
            self._tries[task.id] = task.attempts

    def _placed(self, event: Placement, at: float) -> None:
        task = self._touch(event.task)
        if event.attempt != task.attempts + 1:
            raise ForbiddenEvent(f"task {task.id}: attempt {event.attempt} follows attempt {task.attempts}")
        to = State.PROBING if event.purpose == "probe" else State.RUNNING
        self._move(task, to, f"attempt {event.attempt} placed on {', '.join(event.reservation)}")
        task.attempts = event.attempt
        task.placement = event
        self._alive[task.id] = task
        if event.purpose is Purpose.PROBE or event.source.is_watched or self.is_unsure(task.id):
            self._learning[task.id] = None
        self.capacity.come(event, self.known_peaks(event))
        if self.task_table.kind(task.id) == 0:
            self._unknown.append(task.id)
        task.peak = {}
        task.settled = task.began = task.loaded = task.overdue = task.without = False
        self._note_youth(task, was_at_its_beginning=False)
        task.without_at = 0.0
        task.making_way_for = NO_TASK
        self.backoff.placed((task.id, task.attempts), at, self.rules)

    def _started(self, event: Started, at: float) -> None:
        task = self._living(event.task, event.attempt, "started")
        task.history.append(f"started pid {event.pid}")
        task.began, task.started_at = True, at
        task.last_peak_at = max(task.last_peak_at, at)
        task.last_ram_peak_at = max(task.last_ram_peak_at, at)
        self.backoff.started((task.id, task.attempts), at, self.rules)

    def _peaked(self, event: Peaked, at: float) -> None:
        task = self._living(event.task, event.attempt, "peaked")
        assert task.placement is not None
        grown = {
            key for key, now in event.peak.items() if estimator.is_new_peak(task.peak.get(key, 0), now, self.rules)
        }
        was_at_its_beginning = estimator.is_at_its_beginning(task, self.rules)
        task.peak.update(event.peak)
        self._note_youth(task, was_at_its_beginning)
        if HOST in event.peak:
            task.last_ram_peak_at = at
            self._raise_ram(task, task.placement)
        kind = self.task_table.kind(task.id)
        if any((observation.note_growth(self.profiles, kind, task, self.rules), self.outgrew(task))):  # call both
            self._forget_requests(kind)
        if any(key in task.placement.devices for key in grown):
            task.last_peak_at = at  # a slow growth of RAM beside GPUs must not keep them locked

    def _raise_ram(self, task: TaskState, placement: Placement) -> None:
        """Raise the known RAM of a task's class at once if a task on GPUs uses more, so that the next tasks get
        enough.
        """
        held, known = task.peak[HOST], self.profiles.profile(self.task_table.kind(task.id)).part(HOST)
        if placement.gpus and not placement.ram_expected and known.known and held > known.peak:
            self._learn(task.id, Observation({HOST: held}, whole=False))

    def _living(self, number: int, attempt: int, what: str) -> TaskState:
        task = self.tasks.get(number)
        if task is None or task.placement is None or task.attempts != attempt:
            history = "; ".join(task.history) if task else f"now {self.task_table.state(number)}"
            raise ForbiddenEvent(f"task {number}, attempt {attempt}: {what}, but it does not live; history: {history}")
        return task

    def _resized(self, event: Resized, at: float) -> None:
        task = self._living(event.task, event.attempt, "resized")
        assert task.placement is not None
        self.capacity.go(task.placement)
        sees = task.placement.sees
        task.placement = replace(task.placement, reservation=event.reservation, busy=event.busy or task.placement.busy)
        if event.cause.changes_sides:
            self._change_sides(task, sees, event.cause, at)
        was_at_its_beginning = estimator.is_at_its_beginning(task, self.rules)
        task.settled = task.settled or event.cause.settles
        self.capacity.come(task.placement, self.known_peaks(task.placement))
        task.history.append(f"reservation {event.cause}")
        task.loaded = task.loaded or event.busy > 0
        task.overdue = task.overdue or event.cause is ResizeCause.OVERDUE
        self._note_youth(task, was_at_its_beginning)
        if event.cause is ResizeCause.RAM_SEEN:
            loaded = estimator.once_loaded(task.peak.get(HOST, 0), self.rules)
            self.profiles.expect_ram(self.task_table.kind(task.id), loaded)
            self._needs.grown()
        if event.cause is ResizeCause.RAM_SETTLED:
            task.placement = replace(task.placement, ram_expected=False)
            self._learn(task.id, Observation({HOST: task.peak.get(HOST, 0)}, whole=False))
        if event.cause.shows_load:
            probe = task.placement.purpose is Purpose.PROBE
            seen = task.placement.by_part(task.peak) if event.cause is ResizeCause.SETTLED else {}
            self._learn(task.id, Observation(seen, busy=event.busy, whole=False, probe=probe))

    def _change_sides(self, task: TaskState, sees: tuple[str, ...], cause: ResizeCause, at: float) -> None:
        """Count an attempt from now on as a task of the host, or as a task of the GPUs that it sees."""
        task.placement = without_gpu.on_other_side(task, sees, cause, at, self.rules)
        self._learning[task.id] = None
        for kind in without_gpu.learn(self.profiles, self.task_table.kind(task.id), task, cause):
            self._forget_requests(kind)

    def _exited(self, event: Exited, at: float) -> None:
        task = self._living(event.task, event.attempt, f"exited {event.outcome}")
        assert task.placement is not None
        terms = self.terms[task.terms]
        count_exit(task, event, self.rules)
        if event.outcome is Outcome.OOM:
            raise_floors(task, task.placement, event, self.rules)
        to = after_exit(task, event.outcome, terms, self.rules, self.backoff.away_for(event.away, at))
        why = f"attempt {event.attempt} {event.outcome} {event.reason}".rstrip()
        if task.placement.purpose is Purpose.PROBE and event.outcome is Outcome.SUCCEEDED:
            task.probed = observation.peaks(task, task.placement, event)
        if self.task_table.kind(task.id) and event.outcome is not Outcome.UNSTARTED:
            self._learn(task.id, self.evidence(event))
        if task.without_at and event.outcome is not Outcome.SUCCEEDED:
            for kind in self.profiles.withdraw_absence(self.task_table.kind(task.id)):
                self._forget_requests(kind)
        self.backoff.exited(event, at, began=task.began, rules=self.rules)
        if event.away:
            self.locate(task.id, event.away)
        self.tally.take(event, to, self.rules)
        if estimator.is_at_its_beginning(task, self.rules):
            self._note_beginning()
        self.capacity.go(task.placement)
        self.capacity.note_youth(task.placement, None)
        if slot := task.placement.slot:
            self.freed.pop(slot, None)
            self.freed[slot] = None
        task.placement = None
        del self._alive[task.id]
        self._learning.pop(task.id, None)
        task.asked = None
        (self._move if to in UNFINISHED else self._leave)(task, to, why)

    def _learn(self, task: int, evidence: Observation) -> None:
        kind = self.task_table.kind(task)
        if not kind:
            return
        moved = self.profiles.learn(kind, evidence)
        self._forget_requests(kind)
        if moved:
            self.wait_queue.refresh(kind)

    def _forget_requests(self, kind: int) -> None:
        """Drop the cached requests that depend on what is known about a class."""
        self._needs.learned(kind)
        self.wait_queue.forget(kind)
        self.wait_queue.forget_unknown(self.profiles.script(kind))

    def _asked(self, event: Asked) -> None:
        if event.what is Action.DRAIN:
            self.draining = True
        elif event.what is Action.RESUME:
            self.draining = False
            self.tally = FailureTally()
            self.backoff.clear()
            self._return(State.INTERRUPTED, event.tasks, "resumed")
        elif event.what is Action.SKIP:
            for number in tuple(self.task_table.in_state(State.WAITING, State.BLOCKED)):
                self._leave(self._touch(number), State.SKIPPED, "only profiles were learned")
        elif event.what in (Action.STOP, Action.SAVE):
            for number in event.tasks:
                self._living(number, self._touch(number).attempts, event.what).asked = event.what
        else:
            self._asked_of(event)

    def _asked_of(self, event: Asked) -> None:
        """Apply a request that concerns single tasks."""
        for number in event.tasks:
            task = self._touch(number)
            if event.what is Action.CANCEL and task.placement is not None:
                task.asked = event.what
            elif event.what is Action.CANCEL:
                self._leave(task, State.CANCELLED, "cancelled")
            else:
                if task.state is State.PRUNED:
                    self.pruning.spare(number)
                self._step(task, State.HELD if event.what is Action.HOLD else State.WAITING, event.what)

    def _step(self, task: TaskState, to: State, why: str) -> None:
        """Change the state of a task that has no living attempt; keep no details if it never had an attempt."""
        self._move(task, to, why)
        self._tries.pop(task.id, None)
        if not task.attempts:
            del self.tasks[task.id]

    def _changed(self, event: Changed) -> None:
        for number in event.tasks:
            if self.task_table.state(number) is State.WAITING:
                self.wait_queue.change(number, event.terms)
            else:
                self.task_table.change(number, event.terms, keeps_class=number in self._alive)
            if number in self.tasks:
                self.tasks[number].terms = event.terms
            if self.terms[event.terms].begin is not None or self.dependencies.begins(number):
                self.dependencies.begin((number,), self.terms[event.terms].begin)

    # ---- task classes ----

    def unlooked(self, most: int) -> list[int]:
        """Return tasks whose class is not determined yet: the ones with living attempts, then at most `most` waiting
        ones, best-ranked first.
        """
        living = [task for task in self._unknown if task in self._alive]
        self._unknown.clear()
        return living + self.wait_queue.unlooked(most)

    def assign(self, task: int, kind: TaskClass) -> None:
        """Note the class of a task. No event records this, because the class can be determined again from the task's
        row.
        """
        self.changes += 1
        if self.profiles.may_forget:
            for gone in self.profiles.forget({*self.wait_queue.kinds, *map(self.task_table.kind, self.tasks)}):
                self._needs.learned(gone)
            self.wait_queue.forget_all_unknown()
        number = self.profiles.number(kind)
        self._needs.grown()
        self.wait_queue.forget_unknown(kind.family)
        if self.task_table.state(task) is State.WAITING:
            self.wait_queue.assign(task, number)
        else:
            self.task_table.assign(task, number)

    def locate(self, task: int, directory: str) -> None:
        """Note that the directory of a task could not be entered.

        For a task that was never tried, no event records this, because its row names the directory.
        """
        self.changes += 1
        self.wait_queue.set_apart(task, self.backoff.locate(task, directory))

    def _return(self, state: State, numbers: Sequence[int], why: str) -> None:
        for number in numbers or tuple(self.task_table.in_state(state)):
            if self.task_table.state(number) is not state:
                raise ForbiddenEvent(
                    f"task {number} cannot be {why}: it is {self.task_table.state(number)}, not {state}"
                )
            self._move(self._touch(number), State.WAITING, why)

    # ---- samples ----

    def watch(
        self,
        task: int,
        attempt: int,
        used: Mapping[str, int],
        now: float = 0.0,
        *,
        busy: float | None = None,
        evidence: ResizeCause | None = None,
        is_flat: bool = False,
    ) -> list[Event]:
        """Return the events for a sample of a living attempt: a new peak, a larger or a smaller reservation.

        `busy` is the share of time for which the attempt has kept its GPUs busy so far; None if this share cannot be
        measured. `evidence` is the evidence that the attempt computes without its GPUs (see
        `without_gpu.Signs.evidence`). `is_flat` is True if the attempt uses as much as at its last sample.
        """
        living = self.tasks.get(task)
        if living is None or living.placement is None or living.attempts != attempt:
            return []
        self.capacity.stir(living.placement, is_flat=is_flat)
        return sampling.watch(self, living, living.placement, used, now, busy, evidence)

    # ---- deciding ----

    def _which_policy(self) -> Policy:
        """Return the policy that decides; slots are always filled by rank."""
        from scheduler.core.placement import (  # a process that only looks at a run needs no policy
            policies,
            slot_pass,
        )

        return slot_pass.decide if self.capacity.has_slots else policies.named(self.rules.policy)

    def decide(self, machine: Machine) -> Decision:
        """Decide which tasks start now, which wait and why, and which can never start. Change only caches.

        As long as capacity and tasks are unchanged, the decision is unchanged too, except that trial starts become due
        with time.
        """
        if self.draining or self.waiting == 0:
            return Decision()
        self.capacity.look(machine)
        self._policy = self._policy or self._which_policy()
        closed = machine.turn.task if machine.turn.closed else NO_TASK
        starts = self.backoff.look(machine.now, self.rules)
        state = (self.changes, self.capacity.version, closed, machine.caps, starts)
        if self._last is not None and self._last[0] == state and not machine.waiters:
            return self._last[1]
        decision = self._limited(self._policy, machine) if starts else self._policy(self, machine)
        self._last = (
            None if machine.waiters else (state, decision)
        )  # capacity is kept for other schedulers only for a time
        return decision

    def _limited(self, policy: Policy, machine: Machine) -> Decision:
        """Return the policy's decision, limited to the number of starts that may be tried now."""
        left = self.backoff.left(machine.now, self.rules)
        if left == 0:
            first = self.wait_queue.walk().front()
            return Decision(refusals=(self.backoff.suspended(NO_TASK if first is None else first),))
        decision = policy(self, machine)
        placements = self.backoff.apart(decision.placements, self.living)[:left]
        return decision if len(placements) == len(decision.placements) else replace(decision, placements=placements)
