"""The state of one run, on which decisions depend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from scheduler.core.attempts.backoff import Backoff
from scheduler.core.attempts.early_abort import FailureTally
from scheduler.core.attempts.pruning_table import PruningTable
from scheduler.core.config import BATCHES, SchedulingConfig
from scheduler.core.events import Exited, Halted
from scheduler.core.leases import NO_OFFER, RoomOffer
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, NO_TASK, EstimateSource, Placement, Purpose, State, Terms
from scheduler.core.placement.capacity import CapacityView
from scheduler.core.placement.request import RequestCache, ResourceRequest
from scheduler.core.profiling import estimator, observation, own_peak, without_gpu
from scheduler.core.profiling.class_profile import Observation, PredictedPeak, Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.queue.dependencies import DependencyTracker
from scheduler.core.queue.task_table import TaskTable
from scheduler.core.queue.wait_queue import WaitQueue
from scheduler.core.queue.waiting_times import WaitingTimes
from scheduler.core.tasks.guest import pid_of
from scheduler.values import replace


class TermsSummary:
    """A summary of all terms of a run; the summary is updated when terms are added."""

    def __init__(self) -> None:
        self.without_gpus = self.preempt = self.resumable = False
        self.guests: dict[int, int] = {}
        """The pids of the guests that terms name, by the number of the terms."""
        self._number = 0

    def look(self, terms: Sequence[Terms]) -> TermsSummary:
        """Add those terms to the summary that are new, and return the summary."""
        if len(terms) != self._number:
            first = self._number if len(terms) > self._number else 0
            new = terms[first:]
            self.guests.update((number, pid_of(one.guest)) for number, one in enumerate(new, first) if one.guest)
            self.without_gpus = self.without_gpus or any(one.gpus == 0 for one in new)
            self.preempt = self.preempt or any(one.preempt for one in new)
            self.resumable = self.resumable or any(one.resumable for one in new)
            self._number = len(terms)
        return self


class RunState:
    """The state of one run: it has methods that answer questions, and only the Brain changes it, by events."""

    draining = False
    """True once the run starts no more tasks."""
    changes = 0
    """A counter of all changes on which a decision may depend, except changes of the machine."""

    def __init__(
        self, rules: SchedulingConfig, terms: list[Terms] | None = None, knowledge: ProfileIndex | None = None
    ) -> None:
        self.rules = rules
        self.terms: list[Terms] = terms if terms is not None else []
        """All terms by number, as Submitted events name them. The caller adds terms before it applies the event."""
        self.task_table = TaskTable()
        self.profiles = knowledge if knowledge is not None else ProfileIndex()
        self.wait_queue = WaitQueue(self.task_table, self.terms, rules.order, self.profiles.duration)
        self.dependencies = DependencyTracker(self.task_table.state)
        """The tasks that wait for other tasks or for a time, and the events that follow from the states of tasks."""
        self.tasks: dict[int, TaskState] = {}
        """The details of tasks that had an attempt or a request, and have not ended."""
        self._alive: dict[int, TaskState] = {}
        """The tasks of `tasks` that have a living attempt."""
        self._learning: dict[int, None] = {}
        """The tasks of `tasks` with attempts that may still show the need of their class."""
        self._beginning: Counter[int | str] | None = None
        """The number of attempts at their beginning that may show a need, by class and by script; None: not counted
        since the last change."""
        self._unknown: list[int] = []
        """Tasks that were placed before their task class was determined; `unlooked` returns them and empties the
        list."""
        self.tally = FailureTally()
        """The tally of failures since the run began or was taken over. Launching ends when too many of them look
        alike."""
        self.backoff = Backoff()
        """The pauses after starts that failed."""
        self.capacity = CapacityView(rules)
        self._needs = RequestCache()
        self.times = WaitingTimes()
        self.freed: dict[str, None] = {}
        """Slots that became free again, in the order in which they became free."""
        self._summary = TermsSummary()
        self._tries: dict[int, int] = {}
        """For each ended task that may get another attempt, the number of its attempts, so that later attempts get
        higher numbers."""

    # ---- tasks ----

    def state(self, task: int) -> State:
        """Return the state of a task."""
        return self.task_table.state(task)

    def note_begins(self, first: int, terms: Sequence[int]) -> None:
        """Note the begin times of the tasks of a new batch."""
        for number in set(terms):
            if (at := self.terms[number].begin) is not None:
                self.dependencies.begin([task for task, one in enumerate(terms, first) if one == number], at)

    def held_at_first(self, first: int, terms: Sequence[int]) -> Sequence[int]:
        """Return the tasks of a new batch that are held from the start."""
        held = {number for number in set(terms) if self.terms[number].hold}
        return [task for task, number in enumerate(terms, first) if number in held] if held else ()

    @property
    def state_counts(self) -> Counter[State]:
        """The number of tasks in each state."""
        return self.task_table.counts

    def terms_of(self, task: int) -> Terms:
        """Return the terms of a task."""
        return self.terms[self.task_table.terms(task)]

    def batch_of(self, task: int) -> int:
        """Return the number of the batch to which a task belongs, from 1."""
        return self.task_table.batch(task)

    def kind_of(self, task: int) -> int:
        """Return the number that stands for a task's class; 0 while the class is not determined."""
        return self.task_table.kind(task)

    def task(self, task: int) -> TaskState | None:
        """Return the details of a task; None for a task that has had no attempt and no request, or has ended."""
        return self.tasks.get(task)

    def placements(self) -> list[Placement]:
        """Return the placements of all living attempts of this run."""
        return [t.placement for t in self._alive.values() if t.placement is not None]

    def living(self) -> list[TaskState]:
        """Return the details of all tasks with an attempt that is placed or running."""
        return list(self._alive.values())

    def known_peaks(self, placement: Placement) -> dict[str, int]:
        """Return the known peaks of an attempt by GPU, if the attempt shares its margins there; else an empty mapping.

        The known peak is the attempt's own peak once it has settled, and the peak of its class before that.
        """
        declared = placement.source is EstimateSource.DECLARED
        if declared or not self.rules.share_margins or placement.purpose is not Purpose.RUN or not placement.gpus:
            return {}
        task = self.tasks.get(placement.task)
        if task is not None and task.floors:
            return {}
        if task is not None and task.settled and task.attempts == placement.attempt:
            return {key: task.peak.get(key, 0) for key in placement.gpus}
        if placement.source.is_watched:
            return {}
        asks = self.need(placement.task, len(placement.gpus), untouched=True).gpus
        return {key: ask.bare for key, ask in zip(placement.gpus, asks, strict=False) if ask.shared}

    def load_beside(self, placement: Placement) -> dict[str, float]:
        """Return the load that the other tasks of this run are expected to put on each GPU of a placement."""
        return {
            key: sum(other.busy for other in self.capacity.here(key) if other.task != placement.task)
            for key in placement.gpus
        }

    def measured_on(self, gpu: str) -> list[Placement]:
        """Return the placements of this run on a GPU for which a load was measured: the load of the attempt, or that of
        its class.
        """
        here = self.capacity.here(gpu)
        return [one for one in here if self.tasks[one.task].loaded or self._profile(one.task).busy]

    def _profile(self, task: int) -> Profile:
        return self.profiles.profile(self.task_table.kind(task))

    def learning(self) -> list[TaskState]:
        """Return the living tasks whose attempts may still show the need of their class."""
        return [task for number in self._learning if (task := self._alive.get(number)) is not None]

    def is_unsure(self, task: int) -> bool:
        """Tell whether the need of a task's class is known only from one attempt that has not ended."""
        profile = self.profiles.profile(self.task_table.kind(task))
        return (profile.settlings > 0 or profile.is_without(1)) and not profile.is_sure(self.rules)

    def is_unlike(self, task: TaskState) -> bool:
        """Tell whether an attempt on GPUs uses far less than every known class, so that its peak has probably not come
        yet.
        """
        placement, rules = task.placement, self.rules
        if placement is None or self.profiles.profile(self.task_table.kind(task.id)).knows(len(placement.gpus)):
            return False
        most = max((task.peak.get(key, 0) for key in placement.gpus), default=0)
        return most <= rules.context and self.profiles.is_unlike(most, rules.unlike, rules.unlike_kinds)

    def outgrew(self, task: TaskState) -> bool:
        """Note the use of an attempt whose need is known from an earlier version of its script. Return whether other
        tasks are now expected to need more.
        """
        placement = task.placement
        if placement is None or placement.source is not EstimateSource.EARLIER:
            return False
        return self.profiles.outgrew(self.task_table.kind(task.id), placement.by_part(task.peak))

    def knows(self, task: int, gpus: int) -> bool:
        """Tell whether a task's need follows from the profile of its own class; also True if the class is not
        determined.
        """
        kind = self.task_table.kind(task)
        return kind == 0 or self.profiles.profile(kind).knows(gpus)

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return self.task_table.counts[State.WAITING]

    @property
    def blocked(self) -> int:
        """The number of blocked tasks, which wait for other tasks or for a time."""
        return self.task_table.counts[State.BLOCKED]

    @property
    def held(self) -> int:
        """The number of held tasks."""
        return self.task_table.counts[State.HELD]

    @property
    def some_without_gpus(self) -> bool:
        """True if some tasks request no GPU, or are known to use none."""
        return self._summary.look(self.terms).without_gpus or self.profiles.some_without_gpu

    # ---- early stop ----

    @cached_property
    def pruning(self) -> PruningTable:
        """The values of metrics by which tasks are stopped early; empty in most runs."""
        return PruningTable()

    # ---- leases ----

    def waiting_guests(self) -> frozenset[int]:
        """Return the pids of the processes that wait for a lease: each has a waiting task that stands for it."""
        guests = self._summary.look(self.terms).guests
        if not guests:
            return frozenset()
        groups = self.wait_queue.grouped()
        return frozenset(guests[terms] for (terms, *_), group in groups if terms in guests and len(group))

    # ---- making room ----

    @property
    def some_preempt(self) -> bool:
        """True if some tasks may ask others to make room."""
        return self.rules.preempt or self._summary.look(self.terms).preempt

    @property
    def some_resumable(self) -> bool:
        """True if some tasks may save and make room for others."""
        return self._summary.look(self.terms).resumable

    def may_preempt(self, terms: int) -> bool:
        """Tell whether tasks with these terms may ask others to make room."""
        return self.rules.preempt or self.terms[terms].preempt

    def may_save(self, task: TaskState) -> bool:
        """Tell whether a living task may be asked to save and make room for a more urgent one."""
        free = task.began and not task.asked and task.preemptions < self.rules.max_preemptions
        is_run = task.placement is not None and task.placement.purpose is Purpose.RUN
        return free and is_run and self.terms[task.terms].resumable

    def room_offer(self, task: TaskState) -> RoomOffer:
        """Return what other runs of this user may ask of a living task."""
        if task.making_way_for != NO_TASK:
            return RoomOffer(asked_by=task.making_way_for)
        return RoomOffer(self.terms[task.terms].priority) if self.may_save(task) else NO_OFFER

    def preempt_after(self, terms: int) -> float:
        """Return the seconds for which a task with these terms waits before it asks others to make room."""
        own = self.terms[terms].preempt_after
        return self.rules.preempt_after if own is None else own

    def note_waiting(self, task: int, at: float) -> None:
        """Note when a task began to wait again, if it may ask others to make room."""
        if self.may_preempt(self.task_table.terms(task)):
            self.times.again(task, at)

    def waiting_since(self, task: int) -> float:
        """Return the time at which a waiting task began to wait."""
        return self.times.since(task, self.task_table.batch(task))

    def without(self, gone: Sequence[TaskState]) -> RunState:
        """Return the state as it would be if the attempts of these tasks had ended. The returned state may be queried,
        but not changed.
        """
        other: RunState = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        ids = {task.id for task in gone}
        other._alive = {number: task for number, task in self._alive.items() if number not in ids}
        other.capacity = CapacityView(self.rules)
        for task in other.living():
            if task.placement is not None:
                other.capacity.come(task.placement, self.known_peaks(task.placement))
                other.capacity.note_youth(task.placement, estimator.youth(task, self.rules))
        return other

    @property
    def over(self) -> bool:
        """True if nothing runs and nothing will start by itself. A run with held tasks is not over, unless it is
        draining.
        """
        return not self.placements_exist() and (self.draining or not (self.waiting or self.blocked or self.held))

    def placements_exist(self) -> bool:
        """Tell whether a task of this run is placed or running."""
        return self.task_table.living > 0

    @property
    def looked(self) -> int:
        """The number of waiting tasks whose class is determined."""
        return self.wait_queue.looked

    def halt(self) -> Halted | None:
        """Return the event that ends launching; None if there is no reason to end launching, or no task waits."""
        return None if self.draining or not self.waiting else self.tally.verdict(self.rules)

    def evidence(self, event: Exited) -> Observation:
        """Return the observation from an ended attempt. Call this before the event has been applied."""
        task = self.tasks[event.task]
        assert task.placement is not None
        return observation.evidence(task, task.placement, self.terms[task.terms].epochs, event, self.rules)

    # ---- requests ----

    def need(self, task: int, gpus: int, *, untouched: bool = False) -> ResourceRequest:
        """Return the request of a task; with `untouched`, the request of an equal task without any attempt."""
        tried = None if untouched else self.tasks.get(task)
        return self.need_of(self.task_table.terms(task), self.task_table.kind(task), gpus, tried)

    def need_of(self, terms: int, kind: int, gpus: int, tried: TaskState | None) -> ResourceRequest:
        """Return the request of a task with these terms and this class; `tried` has the details of its attempts, if
        there were any.
        """
        if self.rules.policy == BATCHES:
            return own_peak.need(self.terms[terms], tried, gpus, self.rules)
        if tried is not None and tried.floors:
            return self._need(terms, kind, gpus, tried)
        return self._needs.find(terms, kind, gpus) or self._keep(terms, kind, gpus)

    def _keep(self, terms: int, kind: int, gpus: int) -> ResourceRequest:
        """Compute and cache the request of equal tasks, which is valid for tasks that never ran out of memory."""
        need = self._need(terms, kind, gpus, None)
        profile = self.profiles.profile(kind)
        self._needs.keep(terms, kind, gpus, need, firm=profile.knows(gpus) and profile.part(HOST).known)
        return need

    def _need(self, terms: int, kind: int, gpus: int, tried: TaskState | None) -> ResourceRequest:
        profile, known = self.profiles.profile(kind), self.profiles.kind(kind)
        guess = None if profile.knows(gpus) else self.profiles.guess(kind)
        usual = self.profiles.usual(self.rules.usual_share, self.rules.usual_kinds) if gpus else 0
        if gpus and not profile.busy and (guess is None or not guess.busy):
            guess = replace(guess or PredictedPeak({}, EstimateSource.MEASURED), busy=self.profiles.usual_busy(kind))
        if gpus and not profile.part(HOST).known and (guess is None or HOST not in guess.peaks):
            ram = self.profiles.usual_ram(kind, self.rules.usual_share, self.rules.usual_kinds)
            guess = guess or PredictedPeak({}, EstimateSource.MEASURED)
            guess = replace(guess, peaks={**guess.peaks, HOST: ram} if ram else guess.peaks)
        said = self.terms[terms]
        leaves = self.capacity.has_host and not self.capacity.has_slots  # the GPUs of a slot are its task's in any case
        if leaves and without_gpu.needs_no_gpu(said, tried, self.rules, profile, guess, gpus):
            return replace(estimator.need(said, tried, self.rules, profile, known, 0, guess), visible=gpus)
        need = estimator.need(said, tried, self.rules, profile, known, gpus, guess)
        if not gpus or not need.unknown:
            return need
        hidden = self._hidden(kind) if need.purpose is Purpose.RUN else None
        shares = self.rules.unknown_shares(gpus)
        expected, enough = (0 if hidden is None else self._expected(share, hidden) for share in shares)
        return estimator.with_usual(need, usual, expected, enough, self.rules)

    def _expected(self, share: float, hidden: int = 0) -> int:
        """Return the bytes that a new class will not exceed with the probability `share`; 0 while this number is
        unknown.

        `hidden` is the number of living attempts that have not shown their need yet, although other attempts of their
        script, which need less, have shown theirs.
        """
        least = self.rules.expect_from
        return 0 if least is None else self.profiles.expected_peak(share, least, hidden)

    def _hidden(self, kind: int) -> int:
        """Return how many living attempts that run the script of a class, but belong to other classes, are at their
        beginning.
        """
        if self._beginning is None:
            young = [task.id for task in self.learning() if estimator.is_at_its_beginning(task, self.rules)]
            kinds = [self.task_table.kind(task) for task in young]
            self._beginning = Counter[int | str](kinds) + Counter[int | str](map(self.profiles.script, kinds))
        script = self.profiles.script(kind)
        return self._beginning[script] - self._beginning[kind] if script else 0

    def _note_youth(self, task: TaskState, was_at_its_beginning: bool) -> None:
        """Note whether a new or changed attempt is at its beginning, or has not yet grown to its known need."""
        if estimator.is_at_its_beginning(task, self.rules) != was_at_its_beginning:
            self._note_beginning()
        if task.placement is not None:
            self.capacity.note_youth(task.placement, estimator.youth(task, self.rules))

    def _note_beginning(self) -> None:
        """Drop cached requests that depend on the number of attempts at their beginning, because it has changed."""
        self._beginning = None
        self._needs.grown()

    @property
    def enough_to_start(self) -> int:
        """The free bytes that a GPU must have for a task of unknown memory to start there; 0 while this number is
        unknown.
        """
        return self._expected(self.rules.enough_share)
