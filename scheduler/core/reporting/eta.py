"""The ETA of a run: list scheduling of its remaining tasks over the devices' memory and load.

Each living attempt ends after its remaining duration. At each end the waiting tasks are placed by rank where they fit,
by the rules that decide a real start (`placement.fit`), with the present reservations. No task is started and no state
changes. The number of placements that are tried is bounded, so that an estimate takes a few milliseconds for a queue of
any length. The time for the remaining tasks follows from the rate at which the schedule does its work until then. Other
schedulers publish when their attempts end and what their tasks wait for (`published_forecast`), so their tasks take
their turns in the schedule.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count, islice
from math import inf, sqrt
from operator import itemgetter

from scheduler import units
from scheduler.core.brain import Brain
from scheduler.core.leases import Lease
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, LIVING, NO_TASK, Machine, Placement, Purpose, State, Terms
from scheduler.core.placement import fit, node_choice, slot_pass
from scheduler.core.placement.capacity import NodeTable
from scheduler.core.placement.device_capacity import ENOUGH, DeviceCapacity, capacities, is_called, usable
from scheduler.core.placement.refusal import Reason
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, gpus_of
from scheduler.core.profiling import estimator
from scheduler.core.queue.node_end import confined
from scheduler.core.queue.start_gate import StartGate
from scheduler.core.queue.task_group import TOGETHER, Asked
from scheduler.core.reporting.durations import MOST_PROFILES, Duration, classes_of, durations_of, remaining
from scheduler.core.reporting.forecast import IDLE, ExpectedTask, Forecast, TimeSpan, tasks_too_long
from scheduler.core.reporting.other_runs import FairTurns, demands
from scheduler.core.reporting.published_forecast import MOST_ENDS, PublishedForecast, WaitingDemand
from scheduler.core.reporting.schedule import MachineSnapshot, PlannedAttempt, QueuedTask, WaitingGroup, planned
from scheduler.values import replace

MOST_TASKS = 200
"""The most waiting tasks that are placed one by one in the schedule. The time for the other tasks follows from the rate
at which the schedule does its work until then."""
MOST_TRIES = 800
"""The most placements that one estimate tries; each takes 5 to 10 µs."""
MOST_GROUPS = 1000
"""The most groups of waiting tasks whose durations are added up; the other groups are assumed to be like these."""
QUANTILE = 1.28
"""The number of standard deviations on both sides of the mean between which 8 of 10 normally distributed values are."""
LEAST_SPREAD, WAITING_SPREAD = 0.15, 0.3
"""The least distance from the likely to the late time, as a share of the time that remains until the likely one. The
first value is for a run and for a living task, because tasks slow each other down and some are retried. The second
value is for a waiting task, because other tasks may start before it."""
SHARED_ERROR = 0.5
"""The share of the variance of durations that is common to all of them."""
ALL_HELD = "unknown: all unfinished tasks are held"
UNKNOWN = "unknown until a similar task has finished"


class EtaEstimate:
    """One estimate of when the tasks of a run start and end. It reads the Brain and changes nothing."""

    def __init__(self, brain: Brain, snapshot: MachineSnapshot, now: float, most_tasks: int, most_tries: int) -> None:
        self._brain, self._rules, self._snapshot = brain, brain.rules, snapshot
        self._now = self._at = self._opens = now  # _opens: the time at which the run's window opens
        self._most_tasks = most_tasks
        self._gate = StartGate()
        self._bases: dict[int, float] = {}
        """For each placed task, the earliest time at which it can start."""
        self.durations = durations_of(brain, snapshot, now)
        self._attempts: dict[int, PlannedAttempt] = {}
        self._ends: dict[tuple[int, int], float] = {}
        """The expected ends of this run's living attempts; attempts of unknown duration are left out."""
        self._running: list[tuple[float, int, PlannedAttempt]] = []
        """The attempts in the order of their ends, as a heap; a unique number decides between equal ends."""
        self._numbers = count()
        self._groups: dict[Asked, WaitingGroup] = {}
        self._shapes: dict[tuple[ResourceRequest, str, str, str], int] = {}
        self._typical: dict[str, int] = {}
        self._placed_ranks: list[int] = []
        """The positions in the queue of the placed tasks, in ascending order."""
        self._work = self._error = 0.0
        """All remaining work in seconds of one GPU (on the host, of one task), and its standard deviation if all
        durations are too short or all are too long."""
        devices = [budget.device for budget in snapshot.budgets]
        self._nodes = NodeTable(snapshot.budgets)
        self._has_gpus, self._has_slots = any(d.is_gpu for d in devices), any(d.is_slot for d in devices)
        others = () if self._has_slots else snapshot.others
        self._turns = FairTurns(snapshot.uid, snapshot.since, others, has_gpus=self._has_gpus)
        self._tries_left = most_tries * (2 if self._turns.others else 1)
        self._rooms = self._take_stock()
        self._gpus = [room for room in self._rooms.values() if room.device.is_gpu]
        self._hosts = node_choice.hosts_of(self._rooms.values())
        self._queue = list(self._waiting()) if self._count_waiting() else []

    # ---- the machine ----

    def _take_stock(self) -> dict[str, DeviceCapacity]:
        """Return the capacity that living attempts leave on each device, and note when these attempts end."""
        snapshot = self._snapshot
        placements = [self._add_living(task, task.placement) for task in self._brain.living() if task.placement]
        ends = {(one.run, *key): end for one in snapshot.others for key, end in one.ends.items()}
        for lease in snapshot.leases:
            end = ends.get((lease.run, lease.task, lease.attempt), 0.0) or self._end_of(lease)
            attempt = planned(lease, None, end, lease.used, uid=lease.uid, run=lease.run)
            self._turns.hold(attempt, lease.since)
            if end < inf:
                self._run(attempt)
        machine = Machine(self._now, tuple(snapshot.budgets), tuple(snapshot.leases), snapshot.used)
        rooms = capacities(machine, placements, self._rules)
        for room in rooms.values():
            room.coming = False
            if room.shut is not None and room.shut.reason is Reason.YOUNG:  # it opens again within minutes
                room.shut = None
        return rooms

    def _end_of(self, lease: Lease) -> float:
        """Return the time at which the attempt of a lease is expected to end; inf: unknown. The result follows from the
        duration that was expected when the attempt started.
        """
        return self._now + remaining(lease.expected, self._now - lease.since) if lease.expected else inf

    def _add_living(self, task: TaskState, placement: Placement) -> Placement:
        """Add a living attempt to the schedule; return its placement as it is expected to be once its memory is
        known.
        """
        terms, used = self._brain.terms[task.terms], self._snapshot.used.get((task.id, task.attempts), {})
        seconds, deviation = self._remaining(task, terms)
        expected = replace(placement, reservation=self._expected_reservation(placement))
        attempt = planned(
            expected, None, self._now + seconds, used,
            deviation=deviation, weight=_weight(terms), uid=self._snapshot.uid,
        )  # fmt: skip
        self._attempts[task.id] = attempt
        if self._is_known(task, terms):
            self._ends[task.id, task.attempts] = attempt.end
        self._add(attempt, task.started_at)
        self._add_work(seconds, deviation, attempt.weight)
        return expected

    def _run(self, attempt: PlannedAttempt) -> None:
        heappush(self._running, (attempt.end, next(self._numbers), attempt))

    def _look_at(self, at: float) -> None:
        """Let the schedule also try to place tasks at this time, if the time is in the future."""
        if self._at < at < inf:
            self._add(PlannedAttempt(at, at, {}, {}, {}), 0.0)

    def _release(self, attempt: PlannedAttempt) -> None:
        """Give back what an ended attempt had reserved in the schedule."""
        for key, reserved in attempt.reserved.items():
            room = self._rooms.get(key)
            if room is not None:
                room.bytes += max(reserved, attempt.used.get(key, 0))
                room.load += attempt.load.get(key, 0.0)
                room.residents -= 1
                room.ours -= not attempt.run
                room.taken_alone = room.taken_alone and room.residents > 0
        self._turns.release(attempt)

    # ---- what tasks need, and how long they take ----

    def _expected_reservation(self, placement: Placement) -> Mapping[str, int]:
        """Return the bytes that are expected to stay reserved for a living attempt once its need is known."""
        if not placement.source.is_watched and not placement.ram_expected:
            return placement.reservation
        need = self._assumed(self._brain.need(placement.task, len(placement.gpus), untouched=True))
        asked = {HOST: need.host.bytes, **dict(zip(placement.gpus, (ask.bytes for ask in need.gpus), strict=True))}
        return {key: min(bytes_, asked.get(key) or bytes_) for key, bytes_ in placement.reservation.items()}

    def _assumed(self, need: ResourceRequest) -> ResourceRequest:
        """Return the request of a task. Where its memory is unknown, the mean need of other classes is assumed."""
        if not need.unknown and need.host.bytes is not None:
            return need
        gpus = tuple(_at_least(ask, self._typical_bytes(str(place))) for place, ask in enumerate(need.gpus))
        beside = self._rules.unknown_beside if gpus else self._typical_bytes(HOST)
        return replace(need, host=_at_least(need.host, beside), gpus=gpus)

    def _typical_bytes(self, part: str) -> int:
        """Return the reservation for the mean of the known peaks of this run's classes. If none is known, return the
        share `unknown_gpu_least` of the smallest GPU, or `unknown_beside` on the host.
        """
        if part not in self._typical:
            profiles = (profile for _, profile, ours in self._brain.profiles.learned() if ours)
            peaks = [bytes_ for profile in islice(profiles, MOST_PROFILES) if (bytes_ := profile.peaks.get(part, 0))]
            totals = [budget.device.total for budget in self._snapshot.budgets if budget.device.is_gpu]
            half = int(min(totals, default=0) * self._rules.unknown_gpu_least) if part != HOST else 0
            known = estimator.with_margin(sum(peaks) // len(peaks), self._rules) if peaks else 0
            self._typical[part] = known or half or self._rules.unknown_beside
        return self._typical[part]

    def _remaining(self, task: TaskState, terms: Terms) -> tuple[float, float]:
        """Return the seconds until a living attempt ends, and their standard deviation. The seconds follow from the
        attempt's own progress if it is known, else from the class of its task. The deviation follows from the class.
        """
        elapsed = max(0.0, self._now - (task.started_at or self._now))
        done, pace = self._snapshot.progress.get((task.id, task.attempts), (0.0, 0.0))
        duration = self.durations.expect(self._brain.task_table.kind(task.id), terms.epochs)
        whole, spread = duration or (elapsed, 1.0)
        if pace and terms.epochs and done <= terms.epochs:
            seconds = (terms.epochs - done) * pace
        else:
            seconds = remaining(whole, elapsed) if duration else elapsed
        if task.placement is not None and task.placement.purpose is Purpose.PROBE and terms.epochs:
            seconds = seconds * min(1.0, self._rules.profile_epochs / terms.epochs) + whole
        seconds = max(0.01, min(seconds, inf if terms.timeout is None else terms.timeout - elapsed))
        return seconds, min(seconds, whole * spread)

    def _is_known(self, task: TaskState, terms: Terms) -> bool:
        """Tell whether anything is known about the duration of a living attempt."""
        is_told = (task.id, task.attempts) in self._snapshot.progress
        return is_told or self.durations.expect(self._brain.task_table.kind(task.id), terms.epochs) is not None

    def _describe(self, asked: Asked, task: int) -> WaitingGroup:
        brain, terms = self._brain, self._brain.terms[asked[0]]
        need = self._assumed(brain.need(task, gpus_of(terms, self._has_gpus)))
        known = self.durations.expect(asked[1], terms.epochs)
        seconds, spread = known or Duration(1.0, 0.0)
        deviation = seconds * spread
        if need.purpose is Purpose.PROBE and terms.epochs:
            seconds += seconds * min(1.0, self._rules.profile_epochs / terms.epochs)
        seconds = min(seconds, inf if terms.timeout is None else terms.timeout) + self._snapshot.overhead
        least = min((ask.bytes or 0 for ask in need.gpus), default=0)
        load = fit.load_asked(need.busy, self._rules) if need.gpus else 0.0
        shape = self._shapes.setdefault((need, terms.device, terms.node, terms.features), len(self._shapes))
        return WaitingGroup(need, seconds, deviation, terms, least, load, shape, known is not None)

    # ---- all the work that is left ----

    def _add_work(self, seconds: float, deviation: float, weight: int) -> None:
        self._work += seconds * weight
        self._error += deviation * weight

    def _add_waiting_work(self) -> None:
        """Add the time of all waiting tasks to the remaining work, as if each task were alone on its devices."""
        counted, total = 0, self._brain.task_table.counts[State.WAITING]
        work, error = self._work, self._error
        for (number, task_class, _), group in islice(self._brain.wait_queue.grouped(), MOST_GROUPS):
            terms = self._brain.terms[number]
            if duration := self.durations.expect(task_class, terms.epochs):
                counted += len(group)
                seconds, spread = duration
                self._add_work(seconds + self._snapshot.overhead, seconds * spread, _weight(terms) * len(group))
        if counted:
            self._work = work + (self._work - work) * total / counted
            self._error = error + (self._error - error) * total / counted

    def _spread(self) -> float:
        """Return the relative standard deviation of all remaining work."""
        return sqrt(SHARED_ERROR) * self._error / self._work if self._work else 0.0

    # ---- the schedule ----

    def forecast(self) -> Forecast:
        """Return the likely course of the run. The schedule ends when no task is left, nothing more fits, or enough
        tasks were placed.
        """
        waiting, queue = self._count_waiting(), [*self._queue]
        if waiting:
            self._add_waiting_work()
        all_queued = len(queue) == waiting
        blocked = self._blocked()
        for at in {self._brain.dependencies.begins(task) for task in blocked}:
            self._look_at(at)
        self._start(queue)
        while self._running and self._tries_left > 0 and (queue or (blocked and all_queued)):
            self._at = self._running[0][0]
            while self._running and self._running[0][0] <= self._at:
                self._release(heappop(self._running)[2])
            queue += self._freed(blocked)
            self._start(queue)
        tasks = {task: self._expected_task(task, attempt) for task, attempt in self._attempts.items()}
        shut = self._gate.look(self._rules, self._at).refusal
        late = sum(self._in_time(queued.group) is None for queued in queue)
        if late and late == len(queue) and not tasks:
            return Forecast(self._now, None, f"unknown: {tasks_too_long(late)}")
        if len(queue) > late and all_queued and not self._running:
            stuck = f"{units.count(len(queue), 'waiting task')} cannot start beside what is in use now"
            return Forecast(self._now, None, f"unknown: {'the run is paused' if shut else stuck}", tasks)
        beyond = bool(self._running and (len(queue) > late or blocked)) or not all_queued
        return Forecast(self._now, self._end(beyond=beyond), "", tasks, too_long=late)

    def published(self) -> PublishedForecast:
        """Return what other schedulers need for their forecasts: when living attempts of this run end, and what its
        waiting tasks request.
        """
        soonest = sorted(self._ends.items(), key=itemgetter(1))[:MOST_ENDS]
        keys = tuple(budget.device.key for budget in self._snapshot.budgets if not budget.device.is_slot)
        numbers = {asked: len(group) for asked, group in islice(self._brain.wait_queue.grouped(), MOST_GROUPS)}
        closed = self._has_slots or self._gate.look(self._rules, self._now).refusal is not None
        return PublishedForecast(
            self._snapshot.uid, "", self._snapshot.since, keys, self._rules.jobs, dict(soonest),
            () if closed else demands(self._groups, numbers, self._count_waiting()),
        )  # fmt: skip

    def _count_waiting(self) -> int:
        return 0 if self._brain.draining else self._brain.task_table.counts[State.WAITING]

    def _waiting(self) -> Iterator[QueuedTask]:
        """Yield the best-ranked waiting tasks at their places in the queue."""
        line = self._brain.wait_queue
        cursor = line.walk()
        for rank in range(self._most_tasks):
            task = cursor.front()
            if task is None:
                return
            place, asked = cursor.first
            yield QueuedTask(task, rank, self._group(asked, task), line.bypassed(task, place))
            cursor.take()

    def _blocked(self) -> list[int]:
        """Return the first blocked tasks, which wait for other tasks to end or for their begin times."""
        blocked = () if self._brain.draining else self._brain.task_table.in_state(State.BLOCKED)
        return list(islice(blocked, self._most_tasks))

    def _freed(self, blocked: list[int]) -> list[QueuedTask]:
        """Remove the tasks that are no longer blocked from the list, and return them.

        In the schedule, their parents have ended and their begin times have come. They are placed after the tasks that
        waited before.
        """
        freed = []
        for task in blocked:
            ends = [self._attempts.get(parent) for parent in self._brain.dependencies.unfinished(task)]
            begun = self._brain.dependencies.begins(task) <= self._at
            if begun and all(attempt is not None and attempt.end <= self._at for attempt in ends):
                freed.append(task)
        blocked[:] = [task for task in blocked if task not in freed]
        return [self._queued_later(task) for task in freed]

    def _queued_later(self, task: int) -> QueuedTask:
        asked = (self._brain.task_table.terms(task), self._brain.kind_of(task), TOGETHER)
        return QueuedTask(task, self._most_tasks + task, self._group(asked, task), 0)

    def _group(self, asked: Asked, task: int) -> WaitingGroup:
        if asked not in self._groups:
            self._groups[asked] = self._describe(asked, task)
        return self._groups[asked]

    def _start(self, queue: list[QueuedTask]) -> None:
        """Place the waiting tasks of this and of other runs that fit now, in turn."""
        gate = self._gate.look(self._rules, self._at)
        if gate.refusal is not None:
            self._look_at(gate.until if queue else inf)
            self._opens = self._opens if gate.until == inf else max(self._opens, gate.until)
        for room in self._rooms.values():
            room.closed = False
        own = self._own_starts(queue) if gate.refusal is None else iter(())
        self._turns.start(own, self._place_other, self._at)

    def _own_starts(self, queue: list[QueuedTask]) -> Iterator[None]:
        """Place the tasks of this run that fit now, by rank; yield after each. At the end remove them from `queue`."""
        failed, placed = set[int](), set[int]()
        living = sum(attempt.end > self._at for attempt in self._attempts.values())
        left = inf if self._rules.jobs is None else self._rules.jobs - living
        most_bytes, most_load = self._most_free()
        for queued in queue:
            group = queued.group
            if len(placed) >= left or self._tries_left <= 0 or len(failed) == len(self._shapes):
                break
            if group.shape in failed or self._in_time(group) is None:
                continue
            may_fit = group.least_bytes <= most_bytes and group.least_load <= most_load + ENOUGH
            placement = self._fit(queued.task, group) if may_fit or not group.need.gpus else None
            if placement is None:
                failed.add(group.shape)
                self._close_if_bypassed(queued)
            else:
                self._take(queued, placement)
                placed.add(queued.task)
                yield
            most_bytes, most_load = self._most_free()
        if placed:
            queue[:] = [queued for queued in queue if queued.task not in placed]

    def _place_other(self, demand: WaitingDemand, run: PublishedForecast) -> bool:
        """Place a task of another run where it fits now; return whether it fits."""
        need = demand.need
        load = fit.load_asked(need.busy, self._rules) if need.gpus else 0.0
        least = min((ask.bytes or 0 for ask in need.gpus), default=0)
        most_bytes, most_load = self._most_free()
        if self._tries_left <= 0 or (need.gpus and (least > most_bytes or load > most_load + ENOUGH)):
            return False
        self._tries_left -= 1
        here = [room for room in self._gpus if not run.devices or room.device.key in run.devices]
        if len(here) < len(need.gpus) or (not need.gpus and not self._hosts.get("")):
            return False  # it waits for devices of which this run knows nothing
        called = (room for room in here if not demand.device or is_called(room.device, demand.device))
        gpus = sorted(called, key=lambda room: (-room.load, -room.bytes))
        hosts = self._hosts if need.gpus else {"": self._hosts[""]}
        tried = node_choice.fitted(NO_TASK, need, gpus if need.gpus else (), hosts, self._rules)
        if not isinstance(tried, Placement):
            return False
        fit.take(self._rooms, tried)
        for key in tried.by_device:
            self._rooms[key].ours -= 1
        seconds = self._typical_seconds() if demand.seconds is None else demand.seconds
        end = self._at + max(seconds, 0.01)
        self._add(planned(tried, self._at, end, uid=run.uid, run=run.run), self._at)
        return True

    def _typical_seconds(self) -> float:
        """Return the mean duration of this run's waiting tasks. It is assumed for tasks of other runs whose duration is
        unknown.
        """
        groups = self._groups.values()
        return sum(group.seconds for group in groups) / len(groups) if groups else 0.0

    def _add(self, attempt: PlannedAttempt, since: float) -> None:
        """Add an attempt whose reservation began at the time `since`."""
        self._turns.hold(attempt, since)
        self._run(attempt)

    def _close_if_bypassed(self, queued: QueuedTask) -> None:
        """Keep the devices of a task that was bypassed too often, if the task will fit there once all leases have
        ended.
        """
        since_now = len(self._placed_ranks) - bisect_right(self._placed_ranks, queued.rank)
        if since_now + queued.bypassed < self._rules.bypass_limit:
            return
        need, terms = queued.group.need, queued.group.terms
        hosts, gpus = node_choice.hosts_for(terms, len(need.gpus), self._hosts), self._gpus_for(terms)
        devices, never = node_choice.never_now(queued.task, need, gpus, hosts, self._rules)
        if never is None:
            for room in (*devices, *(() if need.gpus else filter(None, hosts.values()))):
                room.closed = True

    def _most_free(self) -> tuple[float, float]:
        """Return the most bytes and the most load that any GPU has left; inf if a GPU is empty."""
        rooms = [room for room in self._gpus if not room.closed]
        if self._has_slots or any(room.residents <= 0 for room in rooms):
            return inf, inf
        return max((room.bytes for room in rooms), default=0), max((room.load for room in rooms), default=0.0)

    def _gpus_for(self, terms: Terms) -> list[DeviceCapacity]:
        """Return the GPUs on which a task may run, ordered as for a real start."""
        return sorted(
            usable(self._gpus, terms),
            key=lambda room: (
                not (terms.prefer and is_called(room.device, terms.prefer)),
                room.unmanaged_bytes > 0,
                -room.load,
                -room.bytes,
            ),
        )

    def _fit(self, task: int, group: WaitingGroup) -> Placement | None:
        self._tries_left -= 1
        rooms, rules, need = self._rooms, self._rules, group.need
        if self._has_slots:
            free = usable(slot_pass.in_turn(rooms.values(), ()), group.terms)
            tried = slot_pass.fit_slot(task, 1, lambda gpus: self._brain.need(task, gpus), free, rooms, rules)
        else:
            terms = self._in_time(group) or group.terms
            gpus = self._gpus_for(terms) if need.gpus else ()
            hosts = node_choice.hosts_for(terms, len(need.gpus), self._hosts)
            tried = node_choice.fitted(task, need, gpus, hosts, rules)
        return tried if isinstance(tried, Placement) else None

    def _in_time(self, group: WaitingGroup) -> Terms | None:
        """Return the terms of a group, limited to the nodes that do not end before its tasks if these start now; None
        if there are none.
        """
        seconds = group.seconds if group.is_known else group.terms.timeout or 0.0
        return confined(group.terms, seconds, self._at, self._nodes.names, self._nodes.ends)

    def _take(self, queued: QueuedTask, placement: Placement) -> None:
        fit.take(self._rooms, placement)
        insort(self._placed_ranks, queued.rank)
        group = queued.group
        end, weight = self._at + group.seconds, _weight(group.terms)
        attempt = planned(placement, self._at, end, deviation=group.deviation, weight=weight, uid=self._snapshot.uid)
        self._attempts[queued.task] = attempt
        self._bases[queued.task] = self._base(queued.task)
        self._add(attempt, self._at)

    def _base(self, task: int) -> float:
        """Return the earliest time at which a task can start: by its begin time, its parents and the window of the
        run.
        """
        links = self._brain.dependencies
        return max(self._opens, links.begins(task), *(self._bases.get(one, 0.0) for one in links.parents(task)))

    # ---- the moments ----

    def _end(self, *, beyond: bool) -> TimeSpan:
        """Return the expected end of the run. With `beyond`, the work of tasks that were not placed is assumed to be
        done at the same rate as the work before it.
        """
        task, last = max(self._attempts.items(), key=lambda item: item[1].end, default=(NO_TASK, None))
        over = max(self._now, last.end if last is not None else 0.0)
        own, base = last.deviation if last is not None else 0.0, self._bases.get(task, self._now)
        done = sum(map(self._done, self._attempts.values())) if beyond else 0.0
        if done:
            rate = done / max(self._at - self._now, 1e-6)
            over, own = max(over, self._at + max(0.0, self._work - done) / rate), 0.0
        return self._span(over, sqrt((self._spread() * (over - base)) ** 2 + own**2), base)

    def _done(self, attempt: PlannedAttempt) -> float:
        """Return the work of an attempt up to the time that the schedule has reached."""
        start = self._now if attempt.start is None else attempt.start
        return attempt.weight * max(0.0, min(attempt.end, self._at) - start)

    def _expected_task(self, task: int, attempt: PlannedAttempt) -> ExpectedTask:
        start, devices, base = attempt.start, tuple(attempt.reserved), self._bases.get(task, self._now)
        if start is None:
            return ExpectedTask(None, self._span(attempt.end, attempt.deviation, base), devices)
        before = self._spread() * (start - base)
        end = self._span(attempt.end, sqrt(before**2 + attempt.deviation**2), base, WAITING_SPREAD)
        return ExpectedTask(self._span(start, before, base, WAITING_SPREAD), end, devices)

    def _span(self, likely: float, deviation: float, base: float, least: float = LEAST_SPREAD) -> TimeSpan:
        """Return the span of time that contains the real time in 8 of 10 cases. `deviation` is the standard deviation
        in seconds; only the time after `base` is uncertain.
        """
        ahead = max(likely - base, 1e-6)
        off = max(least, QUANTILE * deviation / ahead)
        return TimeSpan(likely, base + ahead / (1 + off), base + ahead * (1 + off))


def _weight(terms: Terms) -> int:
    """Return the number of GPUs that a task occupies, at least 1."""
    return max(1, terms.gpus or 1)


def _at_least(ask: MemoryRequest, bytes_: int) -> MemoryRequest:
    return ask if ask.bytes is not None else replace(ask, bytes=max(ask.least, ask.bare, bytes_))


def forecast(
    brain: Brain, snapshot: MachineSnapshot, now: float, most_tasks: int = MOST_TASKS, most_tries: int = MOST_TRIES
) -> Forecast:
    """Return the forecast of a run; it has no end if a duration is unknown. The Brain is not changed."""
    return forecasts(brain, snapshot, now, most_tasks, most_tries)[0]


def forecasts(
    brain: Brain, snapshot: MachineSnapshot, now: float, most_tasks: int = MOST_TASKS, most_tries: int = MOST_TRIES
) -> tuple[Forecast, PublishedForecast | None]:
    """Return the forecast of a run, and the part of it that is published for other schedulers. This part is None if the
    run has nothing to do.
    """
    held = brain.task_table.counts[State.HELD]
    if not any(brain.task_table.counts[state] for state in (*LIVING, State.WAITING, State.BLOCKED)):
        return Forecast(now, None, ALL_HELD if held else IDLE, held=held), None
    estimate = EtaEstimate(brain, snapshot, now, most_tasks, most_tries)
    published = estimate.published()
    if any(estimate.durations.expect(number, epochs) is None for number, epochs in classes_of(brain, MOST_GROUPS)):
        return Forecast(now, None, UNKNOWN, held=held), published
    return replace(estimate.forecast(), held=held), published
