"""The ETA of a run: list scheduling of what is left of it over the devices' memory and load.

Each living attempt ends after its remaining duration. At each end the waiting tasks are placed by rank where they fit,
by the same rules that decide a start (`placement.fit`), with the reservations as they are. No task is started and no
state changes. The number of tries to place a task is bounded, so that an estimate takes a few milliseconds whatever the
length of the queue; how long the rest takes follows from the work that was done until then.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from heapq import heapify, heappop, heappush
from itertools import count, islice
from math import sqrt

from scheduler.core.brain import Brain
from scheduler.core.leases import Lease
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, LIVING, DeviceBudget, EstimateSource, Machine, Placement, Purpose, State
from scheduler.core.placement import fit, slots
from scheduler.core.placement.device_capacity import ENOUGH, DeviceCapacity, capacities, is_called
from scheduler.core.placement.refusal import Reason
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, gpus_of
from scheduler.core.ports import Key
from scheduler.core.profiling import estimator
from scheduler.core.reporting.durations import MOST_PROFILES, Duration, DurationIndex, remaining
from scheduler.core.reporting.forecast import Course, ExpectedTask, Forecast, TimeSpan
from scheduler.values import dataclass

MOST_TASKS = 200
"""Waiting tasks that are placed one by one; how long the others take follows from the work done until then."""
MOST_TRIES = 800
"""Tries to place a task in one estimate; each takes 5 to 10 µs."""
MOST_GROUPS = 1000
"""Groups of waiting tasks whose durations are added up; the others are taken to be like them."""
QUANTILE = 1.28
"""Standard deviations on either side between which 8 of 10 normally distributed values lie."""
LEAST_SPREAD, WAITING_SPREAD = 0.15, 0.3
"""The least relative distance between the likely and the late end of a run or a living task (tasks slow each other
down, and some are retried), and of a waiting task, which another one may precede."""
SHARED_ERROR = 0.5
"""Share of the variance that all durations known from one source have in common."""
UNKNOWN = "unknown yet: nothing like these tasks has run to its end"


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """The state of the machine and of living attempts, as far as the Brain does not know it."""

    budgets: Sequence[DeviceBudget]
    leases: Sequence[Lease] = ()
    """The leases of other schedulers."""
    used: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """Bytes that each living attempt uses, by device."""
    progress: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    """Epochs that each living attempt has done, and its seconds per epoch."""
    overhead: float = 0.0
    """Seconds for which a device is reserved before a task starts and after it has ended."""


@dataclass(slots=True)
class _WaitingGroup:
    """A group of equal waiting tasks: what they ask for, and how long each takes."""

    need: ResourceRequest
    seconds: float
    deviation: float
    """Standard deviation of the duration, in seconds."""
    device: str
    prefer: str
    least_bytes: int
    """The fewest bytes that it asks for on a GPU; 0 on the host."""
    least_load: float
    shape: int
    """A number that all groups have in common that ask for the same."""

    def may_fit(self, most_bytes: float, most_load: float) -> bool:
        """Tell whether any GPU may have enough memory and load left."""
        return not self.need.gpus or (self.least_bytes <= most_bytes and self.least_load <= most_load + ENOUGH)


@dataclass(frozen=True, slots=True)
class _QueuedTask:
    """A waiting task at its place in the queue."""

    task: int
    rank: int
    group: _WaitingGroup
    bypassed: int
    """How often later tasks were started before it until now."""


@dataclass(slots=True)
class _Work:
    """The errors that durations from one source add up to, in seconds of one GPU (of one task on the host)."""

    total: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float, spread: float, number: int = 1) -> None:
        self.total += seconds * spread * number
        self.squares += (seconds * spread) ** 2 * number


class EtaEstimate:
    """One estimate of the course of a run. It reads the Brain and changes nothing."""

    def __init__(
        self,
        brain: Brain,
        snapshot: MachineSnapshot,
        now: float,
        most_tasks: int = MOST_TASKS,
        most_tries: int = MOST_TRIES,
    ) -> None:
        self._brain, self._snapshot, self._now, self._at = brain, snapshot, now, now
        self._most_tasks, self._tries_left = most_tasks, most_tries
        self.durations = DurationIndex(brain.profiles, _epoch_times(brain, snapshot), _elapsed_times(brain, now))
        self._work: defaultdict[str, _Work] = defaultdict(_Work)
        self._work_left = 0.0
        self._starts: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._deviations: dict[int, float] = {}
        """Standard deviation of the duration of each task that was placed, in seconds."""
        self._devices: dict[int, Sequence[str]] = {}
        self._running: list[tuple[float, int, Placement, Mapping[str, int]]] = []
        """A heap of the ends of placements, each with a number of its own and the bytes that it uses now."""
        self._numbers = count()
        self._groups: dict[tuple[int, int, int], _WaitingGroup] = {}
        self._shapes: dict[tuple[ResourceRequest, str], int] = {}
        self._typical: dict[str, int] = {}
        self._placed_ranks: list[int] = []
        """The places in the queue of the tasks that were placed, sorted."""
        self._living = len(brain.living())
        self._place_living()

    # ---- the machine ----

    def _place_living(self) -> None:
        placements = []
        for task in self._brain.living():
            assert task.placement is not None
            placement = replace(task.placement, reservation=self._expected_reservation(task.placement))
            placements.append(placement)
            seconds, duration = self._remaining(task)
            used = self._snapshot.used.get((task.id, task.attempts), {})
            self._running.append((self._now + seconds, next(self._numbers), placement, used))
            self._ends[task.id] = self._now + seconds
            self._devices[task.id] = tuple(placement.reservation)
            spread = duration.spread * duration.seconds if duration is not None else seconds
            self._deviations[task.id] = min(spread, seconds) if seconds else 0.0
            self._add_work(duration, seconds, self._weight(task.terms))
        snapshot = self._snapshot
        machine = Machine(self._now, tuple(snapshot.budgets), tuple(snapshot.leases), snapshot.used)
        self._rooms = capacities(machine, placements, self._brain.rules)
        self._gpus = [key for key, room in self._rooms.items() if room.device.is_gpu]
        self._has_slots = any(room.device.is_slot for room in self._rooms.values())
        for room in self._rooms.values():
            room.coming = False
            if room.shut is not None and room.shut.reason is Reason.YOUNG:  # it opens again within minutes
                room.shut = None
        for lease in snapshot.leases:
            if lease.ends:
                end = max(self._now, lease.ends)
                self._running.append((end, next(self._numbers), _as_placement(lease), lease.used))
        heapify(self._running)

    def _expected_reservation(self, placement: Placement) -> Mapping[str, int]:
        """Return the bytes that stay reserved for a living attempt once it is known what it needs."""
        if placement.source is not EstimateSource.MEASURED and not placement.ram_expected:
            return placement.reservation
        brain, number = self._brain, self._brain.task_table.kind(placement.task)
        guess = brain.profiles.guess(number)
        peaks = {**(guess.peaks if guess is not None else {}), **brain.profiles.profile(number).peaks}
        expected = {}
        for device, reserved in placement.reservation.items():
            part = next(iter(placement.by_part({device: 0})), HOST)
            known = estimator.with_margin(peaks[part], brain.rules) if peaks.get(part) else 0
            beside = device == HOST and bool(placement.gpus)
            unknown = brain.rules.unknown_beside if beside else reserved // 2
            changes = placement.ram_expected if beside else placement.source is EstimateSource.MEASURED
            expected[device] = min(reserved, known or unknown) if changes else reserved
        return expected

    def _release(self, placement: Placement, used: Mapping[str, int]) -> None:
        """Give back what an ended attempt had."""
        for key, reserved in placement.reservation.items():
            room = self._rooms.get(key)
            if room is None:
                continue
            room.bytes += max(reserved, used.get(key, 0))
            room.load += placement.load_on(room.device)
            room.residents -= 1
            room.ours -= 1
            room.taken_alone = room.taken_alone and room.residents > 0

    # ---- durations ----

    def _remaining(self, task: TaskState) -> tuple[float, Duration | None]:
        """Return the seconds until a living attempt ends, by its own progress or by what is known of its class."""
        terms = self._brain.terms[task.terms]
        elapsed = max(0.0, self._now - (task.started_at or self._now))
        done, pace = self._snapshot.progress.get((task.id, task.attempts), (0.0, 0.0))
        duration = self.durations.expect(self._brain.task_table.kind(task.id), terms.epochs)
        if pace and terms.epochs and done <= terms.epochs:
            seconds = (terms.epochs - done) * pace
            duration = Duration(seconds, 0.08, f"task {task.id}")
        else:
            seconds = remaining(duration.seconds, elapsed) if duration is not None else elapsed
        if task.placement is not None and task.placement.purpose is Purpose.PROBE and terms.epochs and duration:
            seconds = seconds * min(1.0, self._brain.rules.profile_epochs / terms.epochs) + duration.seconds
        if terms.timeout is not None:
            seconds = min(seconds, terms.timeout - elapsed)
        return max(0.01, seconds), duration

    def _weight(self, terms: int) -> int:
        """Return the number of GPUs that a task keeps from others, at least 1."""
        return max(1, self._brain.terms[terms].gpus or 1)

    def _add_work(self, duration: Duration | None, seconds: float, weight: int, number: int = 1) -> None:
        self._work_left += seconds * weight * number
        if duration is not None:
            self._work[duration.source].add(min(seconds, duration.seconds) * weight, duration.spread, number)

    def _add_waiting_work(self) -> None:
        """Add up what all waiting tasks will take, as if each were alone on its devices."""
        counted, total = 0, self._brain.task_table.counts[State.WAITING]
        before = self._work_left
        for (terms, number, _), group in islice(self._brain.wait_queue.grouped(), MOST_GROUPS):
            duration = self.durations.expect(number, self._brain.terms[terms].epochs)
            if duration is not None:
                counted += len(group)
                self._add_work(duration, duration.seconds + self._snapshot.overhead, self._weight(terms), len(group))
        if counted:
            self._work_left = before + (self._work_left - before) * total / counted

    def relative_spread(self) -> float:
        """Return the relative standard deviation of all the work that is left."""
        variance = sum(SHARED_ERROR * work.total**2 + (1 - SHARED_ERROR) * work.squares for work in self._work.values())
        return sqrt(variance) / self._work_left if self._work_left else 0.0

    # ---- the waiting tasks ----

    def _waiting(self) -> Iterator[_QueuedTask]:
        """Yield the best-ranked waiting tasks with their groups."""
        line = self._brain.wait_queue
        cursor = line.walk()
        for rank in range(self._most_tasks):
            task = cursor.front()
            if task is None:
                return
            asked = cursor.asked
            if asked not in self._groups:
                self._groups[asked] = self._describe(task, asked[0], asked[1])
            yield _QueuedTask(task, rank, self._groups[asked], line.bypassed(task, cursor.rank))
            cursor.take()

    def _describe(self, task: int, terms_number: int, class_number: int) -> _WaitingGroup:
        brain, terms = self._brain, self._brain.terms[terms_number]
        need = self._settled(brain.need(task, gpus_of(terms, bool(self._gpus))))
        duration = self.durations.expect(class_number, terms.epochs)
        seconds, spread = (duration.seconds, duration.spread) if duration is not None else (1.0, 0.0)
        deviation = seconds * spread
        if need.purpose is Purpose.PROBE and terms.epochs:
            seconds += seconds * min(1.0, brain.rules.profile_epochs / terms.epochs)
        if terms.timeout is not None:
            seconds = min(seconds, terms.timeout)
        least = min((ask.bytes or 0 for ask in need.gpus), default=0)
        load = fit.load_asked(need.busy, brain.rules) if need.gpus else need.cores
        seconds += self._snapshot.overhead
        shape = self._shapes.setdefault((need, terms.device), len(self._shapes))
        return _WaitingGroup(need, seconds, deviation, terms.device, terms.prefer, least, load, shape)

    def _settled(self, need: ResourceRequest) -> ResourceRequest:
        """Return what a task asks for once its memory is known; until then, the mean of the others is assumed."""
        if not need.unknown and need.host.bytes is not None:
            return need
        gpus = tuple(_assumed(ask, self._typical_bytes(str(position))) for position, ask in enumerate(need.gpus))
        beside = self._brain.rules.unknown_beside if need.gpus else self._typical_bytes(HOST)
        return replace(need, host=_assumed(need.host, beside), gpus=gpus)

    def _typical_bytes(self, part: str) -> int:
        """Return the mean reservation of all task classes of this run whose peak is known, else half of a device."""
        if part not in self._typical:
            profiles = (profile for _, profile, ours in self._brain.profiles.learned() if ours)
            peaks = [bytes_ for profile in islice(profiles, MOST_PROFILES) if (bytes_ := profile.peaks.get(part, 0))]
            rules = self._brain.rules
            least = min((self._rooms[key].most for key in self._gpus), default=0) if part != HOST else 0
            unknown = int(least * rules.unknown_gpu_least) or rules.unknown_beside
            self._typical[part] = estimator.with_margin(sum(peaks) // len(peaks), rules) if peaks else unknown
        return self._typical[part]

    # ---- the schedule ----

    def course(self) -> Course:
        """Return the likely course, until nothing is left, nothing more fits, or enough was placed."""
        brain = self._brain
        queue = [] if brain.draining else list(self._waiting())
        if not brain.draining:
            self._add_waiting_work()
        all_queued = brain.draining or len(queue) == brain.task_table.counts[State.WAITING]
        work_before = self._work_left
        self._start(queue)
        while self._running and self._tries_left > 0 and (all_queued or queue):
            self._at = self._running[0][0]
            while self._running and self._running[0][0] <= self._at:
                _, _, placement, used = heappop(self._running)
                self._living -= placement.attempt > 0
                self._release(placement, used)
            self._start(queue)
        beyond = bool(self._running) or not all_queued
        stuck = len(queue) if not beyond else 0
        over = None if stuck else self._over(work_before, beyond=beyond)
        return Course(self._starts, self._ends, over, self._devices, stuck)

    def _start(self, queue: list[_QueuedTask]) -> None:
        """Place every waiting task that fits now, by rank."""
        failed: set[int] = set()
        placed: set[int] = set()
        for room in self._rooms.values():
            room.closed = False
        most_bytes, most_load = self._most_free()
        for queued in queue:
            group = queued.group
            if self._jobs_are_full() or self._tries_left <= 0 or len(failed) == len(self._shapes):
                break
            if group.shape in failed:
                continue
            placement = self._fit(queued.task, group) if group.may_fit(most_bytes, most_load) else None
            if placement is None:
                failed.add(group.shape)
                self._close_if_bypassed(queued)
            else:
                self._take(queued, placement)
                placed.add(queued.task)
            most_bytes, most_load = self._most_free()
        if placed:
            queue[:] = [queued for queued in queue if queued.task not in placed]

    def _close_if_bypassed(self, queued: _QueuedTask) -> None:
        """Close the devices of a task that was bypassed too often, where it fits once their leases have ended."""
        limit, since_now = self._brain.rules.bypass_limit, len(self._placed_ranks)
        since_now -= bisect_right(self._placed_ranks, queued.rank)
        if since_now + queued.bypassed < limit:
            return
        need, host = queued.group.need, self._rooms.get(HOST)
        gpus = [self._rooms[key] for key in self._gpus if _is_called(self._rooms[key], queued.group.device)]
        devices, never = fit.never_now(queued.task, need, gpus, host, self._brain.rules)
        if never is None:
            for room in devices:
                room.closed = True
            if host is not None and not need.gpus:
                host.closed = True

    def _jobs_are_full(self) -> bool:
        jobs = self._brain.rules.jobs
        return jobs is not None and self._living >= jobs

    def _most_free(self) -> tuple[float, float]:
        """Return the most bytes and the most load that are left on any GPU; an empty GPU takes whatever fits it."""
        if self._has_slots:
            return float("inf"), float("inf")
        rooms = [room for key in self._gpus if not (room := self._rooms[key]).closed]
        if any(room.residents <= 0 for room in rooms):
            return float("inf"), float("inf")
        return max((room.bytes for room in rooms), default=0), max((room.load for room in rooms), default=0.0)

    def _fit(self, task: int, group: _WaitingGroup) -> Placement | None:
        self._tries_left -= 1
        rooms, rules = self._rooms, self._brain.rules
        if self._has_slots:
            free = [room for room in slots.in_turn(rooms.values(), ()) if _is_called(room, group.device)]
            tried = slots.fit(task, 1, lambda gpus: self._brain.need(task, gpus), free, rooms, rules)
        else:
            gpus = [rooms[key] for key in self._gpus if _is_called(rooms[key], group.device)]
            if len(gpus) > 1:
                gpus.sort(key=lambda room: _preference(room, group.prefer))
            tried = fit.fit(task, 1, group.need, gpus if group.need.gpus else (), rooms.get(HOST), rules)
        return tried if isinstance(tried, Placement) else None

    def _take(self, queued: _QueuedTask, placement: Placement) -> None:
        fit.take(self._rooms, placement)
        insort(self._placed_ranks, queued.rank)
        task, end = queued.task, self._at + queued.group.seconds
        heappush(self._running, (end, next(self._numbers), placement, {}))
        self._living += 1
        self._starts[task], self._ends[task] = self._at, end
        self._deviations[task] = queued.group.deviation
        self._devices[task] = tuple(placement.reservation)

    def _over(self, work: float, *, beyond: bool) -> float:
        """Return when the last task ends; beyond what was placed, work is done as fast as until then."""
        last = max(self._ends.values(), default=self._now)
        if not beyond:
            return max(self._now, last)
        done = sum(self._done(task, end) for task, end in self._ends.items())
        rate = done / max(self._at - self._now, 1e-6)
        return max(last, self._at + max(0.0, work - done) / rate) if rate else last

    def _done(self, task: int, end: float) -> float:
        """Return the work that was done for a task until the moment that the schedule reached."""
        start = self._starts.get(task, self._now)
        return self._weight(self._brain.task_table.terms(task)) * max(0.0, min(end, self._at) - start)

    # ---- the forecast ----

    def forecast(self, course: Course) -> Forecast:
        """Return the forecast that follows from a course, with early and late moments."""
        spread = self.relative_spread()
        tasks = {task: self._expected_task(task, course, spread) for task in course.ends}
        if course.over is None:
            return Forecast(self._now, None, f"{course.stuck:,} of its tasks find no room, as things stand", tasks)
        last = max(course.ends, key=lambda task: course.ends[task], default=0)
        ahead = max(course.over - self._now, 1e-6)
        own = self._deviations.get(last, 0.0) / ahead if course.ends.get(last) == course.over else 0.0
        return Forecast(self._now, self._span(course.over, sqrt(spread**2 + own**2) * ahead), "", tasks)

    def _expected_task(self, task: int, course: Course, spread: float) -> ExpectedTask:
        start, end, own = course.starts.get(task), course.ends[task], self._deviations.get(task, 0.0)
        if start is None:
            return ExpectedTask(None, self._span(end, own))
        before = spread * (start - self._now)
        end_span = self._span(end, sqrt(before**2 + own**2), WAITING_SPREAD)
        return ExpectedTask(self._span(start, before, WAITING_SPREAD), end_span)

    def _span(self, likely: float, deviation: float, least: float = LEAST_SPREAD) -> TimeSpan:
        """Return the span in which 8 of 10 such moments lie; `deviation` is its standard deviation in seconds."""
        ahead = max(likely - self._now, 1e-6)
        off = max(least, QUANTILE * deviation / ahead)
        return TimeSpan(likely, self._now + ahead / (1 + off), self._now + ahead * (1 + off))


def _assumed(ask: MemoryRequest, bytes_: int) -> MemoryRequest:
    return ask if ask.bytes is not None else replace(ask, bytes=max(ask.least, ask.bare, bytes_))


def _as_placement(lease: Lease) -> Placement:
    """Return another scheduler's lease as a placement, so that its end gives back what it had."""
    gpus = [load for key, load in lease.load.items() if key != HOST]
    busy = max(gpus, default=0.0)
    cores = lease.load.get(HOST, 0.0)
    return Placement(0, 0, Purpose.RUN, lease.reserved, cores, EstimateSource.DECLARED, lease.alone, busy=busy)


def _is_called(room: DeviceCapacity, word: str) -> bool:
    return not word or is_called(room.device, word)


def _preference(room: DeviceCapacity, prefer: str) -> tuple[bool, bool, float, int]:
    """Return the key by which the GPUs of a task are sorted, as a decision sorts them."""
    return (not (prefer and is_called(room.device, prefer)), room.unmanaged_bytes > 0, -room.load, -room.bytes)


def forecast(brain: Brain, snapshot: MachineSnapshot, now: float) -> Forecast:
    """Return the forecast of a run; the Brain stays as it is."""
    return likely_course(brain, snapshot, now)[0]


def likely_course(
    brain: Brain,
    snapshot: MachineSnapshot,
    now: float,
    most_tasks: int = MOST_TASKS,
    most_tries: int = MOST_TRIES,
) -> tuple[Forecast, Course | None]:
    """Return the forecast of a run and its likely course; no course where a duration is unknown."""
    if not any(brain.task_table.counts[state] for state in (*LIVING, State.WAITING)):
        return Forecast(now, None, "nothing of it waits or runs"), None
    estimate = EtaEstimate(brain, snapshot, now, most_tasks, most_tries)
    if any(estimate.durations.expect(number, epochs) is None for number, epochs in _classes(brain)):
        return Forecast(now, None, UNKNOWN), None
    course = estimate.course()
    return estimate.forecast(course), course


def count_guessed(brain: Brain) -> int:
    """Return the number of waiting tasks whose duration is taken from other task classes."""
    return sum(
        len(group)
        for (terms, number, _), group in brain.wait_queue.grouped()
        if not brain.profiles.expected(number, brain.terms[terms].epochs)
    )


def _classes(brain: Brain) -> set[tuple[int, int | None]]:
    """Return the class and the epochs of all tasks that wait or live, as far as they are counted."""
    groups = () if brain.draining else islice(brain.wait_queue.grouped(), MOST_GROUPS)
    waiting = {(number, brain.terms[terms].epochs) for (terms, number, _), _ in groups}
    return waiting | {(brain.task_table.kind(task.id), brain.terms[task.terms].epochs) for task in brain.living()}


def _epoch_times(brain: Brain, snapshot: MachineSnapshot) -> list[tuple[int, float]]:
    return [(brain.task_table.kind(task), seconds) for (task, _), (_, seconds) in snapshot.progress.items()]


def _elapsed_times(brain: Brain, now: float) -> list[tuple[int, float]]:
    """Return for how many seconds each living attempt has run, with the number of its class."""
    started = (task for task in brain.living() if task.started_at)
    return [(brain.task_table.kind(task.id), max(0.0, now - task.started_at)) for task in started]
