"""Joins a run as it stands with a simulated machine on which it goes on: the same Brain and loop, no real task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import count
from pathlib import Path
from typing import Any

from scheduler.core.brain import Brain
from scheduler.core.events import Event, Exited, Placed
from scheduler.core.forecast import Course, Forecast, joined
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, main_parts
from scheduler.core.lifecycle import Task
from scheduler.core.model import (
    HOST,
    LIVING,
    Budget,
    Job,
    KnownBy,
    Outcome,
    Placement,
    Purpose,
    Refusal,
    Spec,
    State,
    Terms,
)
from scheduler.core.orders import Surroundings
from scheduler.core.ports import Arrivals, Happening, Key, Launch
from scheduler.core.promises import Lease
from scheduler.core.simulation import SimulatedMachine
from scheduler.core.times import Time, Times, left
from scheduler.core.truth import Truth, curve
from scheduler.core.world import SimulatedWorld
from scheduler.devices.simulated import SimulatedDevices, SimulatedWatcher
from scheduler.engines.simulated import SimulatedEngine
from scheduler.errors import SchedulerError
from scheduler.loop import Loop, Ports
from scheduler.paths import RunPlaces
from scheduler.processes import ask_aside, spent_aside
from scheduler.store.memory import MemoryLedger
from scheduler.values import dataclass

MOST_ENDS = 150
"""So many ends are simulated; how long the rest takes follows from how much got done until then."""
GOES, FEWEST = 6, 3
"""So often it is simulated at most and at least, each time with other times for the tasks."""
PATIENCE = 0.25
"""Seconds of processor time after which no other go is begun."""
CPU = 3
"""Seconds of processor time that one go may take."""
UNKNOWN = "unknown yet: nothing like these tasks has run to its end"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of the machine and of living attempts, which the Brain does not know."""

    budgets: Sequence[Budget]
    others: Sequence[tuple[Lease, Mapping[str, int]]] = ()
    """Everybody else's leases, with what their tasks hold."""
    used: Mapping[Key, Mapping[str, int]] = field(default_factory=dict)
    """What each living attempt holds."""
    progress: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    """How many epochs it has done, and how many seconds one takes."""
    overhead: float = 0.0
    """Seconds for which a place is taken before its task starts and after it has ended."""


class Enough(Exception):
    """As much was simulated as was wanted."""


class Lookahead:
    """A view that notes who starts and ends when."""

    def __init__(self, brain: Brain, most: int) -> None:
        self.starts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.devices: dict[int, Sequence[str]] = {task.id: _keys(task.placement) for task in brain.living()}
        self._most = most

    def show(self, event: Event, at: float) -> None:
        """Note it; raises Enough after so many ends."""
        if isinstance(event, Placed) and event.purpose is Purpose.RUN:
            self.starts.setdefault(event.task, at)
            self.devices[event.task] = tuple(event.promise)
        elif isinstance(event, Exited) and event.outcome is Outcome.SUCCEEDED:
            self.ends[event.task] = at
            if len(self.ends) >= self._most:
                raise Enough

    def say(self, sentence: str) -> None:
        """Nobody listens."""

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Nobody asks why."""

    def hang_up(self) -> None:
        """Nobody is there."""


def _keys(placement: Placement | None) -> tuple[str, ...]:
    return tuple(placement.promise) if placement is not None else ()


class Unwritten:
    """A book in which nothing is written: what tasks are called does not matter to how long they take."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._ids = count(1 << 40)

    def record(self, events: Sequence[Event], at: float, *, later: bool = False) -> None:
        """Nobody will read it."""

    def job(self, task: int) -> Job:
        """Its terms, and no text."""
        terms = self._brain.terms[self._brain.roll.terms(task)]
        return Job(Spec(0, "", "-1", "task", "", "", (), (), terms), "", "")

    def result(self, task: int, attempt: int) -> Mapping[str, Any]:
        """It leaves nothing."""
        return {}

    def number_of(self, terms: Terms) -> int:
        """Nobody changes any here."""
        return self._brain.terms.index(terms)

    def kind(self, task: int) -> Kind:
        """Whoever stands so far behind that nobody has looked is as all that ask for the same."""
        return Kind(f"terms {self._brain.roll.terms(task)}", "", False)

    def learn(self, kind: Kind, evidence: Evidence) -> None:
        """Nothing is learned for good."""

    def probe_id(self, task: int) -> int:
        """An id that no task has."""
        return next(self._ids)

    def end_probe(self, task: int, told: int) -> None:
        """It leaves nothing."""

    def arrivals(self, *, last: bool) -> Arrivals:
        """Only what has come is foreseen."""
        return Arrivals()


class ForeseenWorld(SimulatedWorld):
    """A simulated world that other schedulers' tasks leave when they are expected to."""

    def __init__(
        self,
        machine: SimulatedMachine,
        tellers: Sequence[SimulatedEngine | SimulatedWatcher],
        leaving: Sequence[Leaving],
    ) -> None:
        super().__init__(machine, tellers, arrivals=[at for at, _ in leaving])
        self._room = machine
        self._leaving = sorted(leaving, key=lambda one: one[0], reverse=True)

    def wait(self, timeout: float) -> list[Happening]:
        """The world's happenings."""
        happened = super().wait(timeout)
        while self._leaving and self._leaving[-1][0] <= self._room.now:
            self._room.part(self._leaving.pop()[1])
        return happened


Leaving = tuple[float, Lease]


class Foresight:
    """One go: the run's own Brain on a machine that is not there. The Brain is another one afterwards."""

    def __init__(self, brain: Brain, sight: Sight, now: float, seed: int = 0, most: int = MOST_ENDS) -> None:
        self._brain, self._sight, self._now, self._seed = brain, sight, now, seed
        self._times = Times(brain.knowledge, _paces(brain, sight), _running(brain, now))
        self._look = Lookahead(brain, most)
        self._machine = self._furnished()
        for task in brain.living():
            self._begin(task)

    def _furnished(self) -> SimulatedMachine:
        """The devices that take tasks, with what others hold of them."""
        theirs: Counter[str] = Counter()
        for used in (*self._sight.used.values(), *(used for _, used in self._sight.others)):
            theirs.update(used)
        budgets = [budget for budget in self._sight.budgets if not budget.closed]
        foreign = {b.device.key: max(0, b.device.total - b.free - theirs[b.device.key]) for b in budgets}
        caps = {b.device.key: b.cap for b in budgets if b.cap is not None}
        machine = SimulatedMachine(
            [b.device for b in budgets], now=self._now, caps=caps, foreign=foreign, slowdown=lambda load: 1.0
        )  # times were learned beside neighbours
        for lease, used in self._sight.others:
            machine.join(lease, used)
        return machine

    # ---- what tasks will do ----

    def _time(self, task: int) -> Time | None:
        epochs = self._brain.terms[self._brain.roll.terms(task)].epochs
        return self._times.of(self._brain.roll.kind(task), epochs)

    def _begin(self, task: Task) -> None:
        """A living attempt, with what is left of it."""
        placement = task.placement
        assert placement is not None
        key = (task.id, task.attempts)
        used = self._sight.used.get(key, {})
        left_ = self._left(task)
        parts = {part: max(b, used.get(k, 0)) for k, b, part in self._foreseen(placement)}
        truth = self._truth(task.id, placement.gpus, left_, parts, placement.by_part(used))
        order = Launch(*key, placement.purpose, (), "", {}, None, 30.0)
        self._machine.start(order, truth, placement.devices)

    def _foreseen(self, placement: Placement) -> list[tuple[str, int, str]]:
        """What a living attempt will hold of each device, and as which part of its memory."""
        knowledge, kind = self._brain.knowledge, self._brain.roll.kind(placement.task)
        known = dict(knowledge.profile(kind).peaks)
        if placement.known_by is not KnownBy.DECLARED and (guess := knowledge.guess(kind)) is not None:
            known = {**guess.peaks, **known}
        said = []
        for device, promised in placement.promise.items():
            part = next(iter(placement.by_part({device: 0})), HOST)
            least = promised // 2 if placement.known_by is KnownBy.LIVE else promised
            said.append((device, min(promised, known.get(part) or least), part))
        return said

    def _left(self, task: Task) -> float:
        """Seconds until a living attempt ends, by its own epochs, else by what is known of its like."""
        terms = self._brain.terms[task.terms]
        elapsed = max(0.0, self._now - (task.started_at or self._now))
        done, pace = self._sight.progress.get((task.id, task.attempts), (0.0, 0.0))
        if pace and terms.epochs and done <= terms.epochs:
            found = Time((terms.epochs - done) * pace, 0.08, f"task {task.id}").drawn(self._seed, task.id)
        else:
            time_ = self._time(task.id)
            found = left(time_.still(self._seed, task.id, elapsed), elapsed) if time_ is not None else elapsed
        if task.placement is not None and task.placement.purpose is Purpose.PROBE and terms.epochs:
            found *= min(1.0, self._brain.rules.profile_epochs / terms.epochs)
        return max(0.01, min(found, terms.timeout - elapsed) if terms.timeout is not None else found)

    def _drawn(self, order: Launch) -> Truth:
        """What a waiting task will do once it starts."""
        time_ = self._time(order.task)
        seconds = time_.drawn(self._seed, order.task) if time_ is not None else 1.0
        placement = self._brain.tasks[order.task].placement
        assert placement is not None
        parts = {part: bytes_ for _, bytes_, part in self._foreseen(placement)}
        if order.timeout is not None:
            seconds = min(seconds, order.timeout)
        return self._truth(order.task, placement.gpus, seconds + self._sight.overhead, parts, {})

    def _truth(
        self, task: int, gpus: Sequence[str], seconds: float, peaks: Mapping[str, int], used: Mapping[str, int]
    ) -> Truth:
        def memory(part: str) -> tuple[tuple[float, int], ...]:
            held, peak = used.get(part, 0), peaks.get(part, 0)
            return ((0.0, peak),) if held >= peak else ((0.0, held), *curve(peak, seconds)[1:])

        busy = self._brain.knowledge.profile(self._brain.roll.kind(task)).busy or self._brain.rules.busy
        return Truth(
            seconds,
            tuple(memory(part) for part in main_parts(len(gpus))),
            memory(HOST) if gpus and used.get(HOST) else (),
            cores=0.0,
            utilisation=busy if gpus else 0.0,
            epochs=self._brain.terms[self._brain.roll.terms(task)].epochs if not used else None,
        )

    # ---- the go ----

    def run(self) -> Course:
        """Let it go on until nothing is left, nothing more can start, or enough has ended."""
        try:
            self._loop().run()
        except Enough:
            return self._course(beyond=True)
        except SchedulerError:
            pass  # whoever waits now waits for what nobody can foresee
        return self._course(beyond=False)

    def _loop(self) -> Loop:
        machine, brain = self._machine, self._brain
        engine, watcher = SimulatedEngine(machine, self._drawn), SimulatedWatcher(machine)
        leaving = [
            (max(self._now, lease.since + lease.expected), lease) for lease, _ in self._sight.others if lease.expected
        ]
        world = ForeseenWorld(machine, [engine, watcher], leaving)
        ports = Ports(
            world, Unwritten(brain), SimulatedDevices(machine), engine, watcher, MemoryLedger(machine), self._look
        )
        loop = Loop(brain, ports, Surroundings("1", "python", "/", RunPlaces(Path("/foreseen"), 1), {}))
        loop.adopt()
        loop.digest(world.wait(0.0))
        return loop

    def _course(self, *, beyond: bool) -> Course:
        look, counts = self._look, self._brain.roll.counts
        stuck = 0 if beyond or self._brain.draining else counts[State.WAITING]
        over = None if stuck else self._over(beyond=beyond)
        return Course(look.starts, look.ends, over, look.devices, stuck)

    def _over(self, *, beyond: bool) -> float:
        """When the last task ends: beyond what was simulated, as much gets done in a second as until then."""
        now = self._machine.now
        if not beyond:
            return max([now, *self._look.ends.values()])
        done = sum(
            self._weight(task) * (end - self._look.starts.get(task, self._now)) for task, end in self._look.ends.items()
        )
        under_way = sum(self._weight(key[0]) * running.done for key, running in self._machine.running.items())
        rate = (done + under_way) / max(now - self._now, 1e-6)
        return now + self._to_come() / rate

    def _weight(self, task: int) -> int:
        """A task on several GPUs keeps so many from others."""
        return max(1, self._brain.terms[self._brain.roll.terms(task)].gpus or 1)

    def _to_come(self) -> float:
        """What all that wait or run will still take, as if each were alone on its devices."""
        brain, found, known, told = self._brain, 0.0, 0, 0
        for (terms, kind, _), group in brain.line.grouped():
            number = len(group)
            time_ = self._times.of(kind, brain.terms[terms].epochs)
            told += number
            if time_ is not None:
                known += number
                found += (
                    (time_.drawn(self._seed, 0) + self._sight.overhead) * number * max(1, brain.terms[terms].gpus or 1)
                )
        under_way = sum(self._weight(k[0]) * max(0.0, r.work - r.done) for k, r in self._machine.running.items())
        return (found * told / known if known else 0.0) + under_way


def forecast(brain: Brain, sight: Sight, now: float, most: int = MOST_ENDS) -> Forecast:
    """What is expected of a run; the Brain is as it was before, because each go is made by a copy of this process."""
    return likely(brain, sight, now, most)[0]


def likely(brain: Brain, sight: Sight, now: float, most: int = MOST_ENDS) -> tuple[Forecast, Course | None]:
    """The same, and the way in which the run most likely goes on; None where nobody knows."""
    if not any(brain.roll.counts[state] for state in (*LIVING, State.WAITING)):
        return Forecast(now, None, "nothing of it waits or runs"), None
    times = Times(brain.knowledge, _paces(brain, sight), _running(brain, now))
    if any(times.of(kind, brain.terms[terms].epochs) is None for terms, kind in _asked(brain)):
        return Forecast(now, None, UNKNOWN), None
    goes: list[Course] = []
    began = spent_aside()
    for seed in range(GOES):
        go = ask_aside(_going(brain, sight, now, seed, most), CPU)
        if go is not None:
            goes.append(go)
        if not goes or (seed + 1 >= FEWEST and spent_aside() - began > PATIENCE):
            break
    if not goes:
        return Forecast(now, None, "unknown: it could not be simulated"), None
    return joined(now, goes), goes[0]


def guesses(brain: Brain) -> int:
    """Of how many waiting tasks the time is taken from others."""
    groups = brain.line.grouped()
    known = [(group, brain.knowledge.expected(kind, brain.terms[terms].epochs)) for (terms, kind, _), group in groups]
    return sum(len(group) for group, seconds in known if not seconds)


def _asked(brain: Brain) -> set[tuple[int, int]]:
    """Terms and kinds of all that waits or runs, by their numbers."""
    waiting = set() if brain.draining else {(terms, kind) for (terms, kind, _), _ in brain.line.grouped()}
    return waiting | {(task.terms, brain.roll.kind(task.id)) for task in brain.living()}


def _paces(brain: Brain, sight: Sight) -> list[tuple[int, float]]:
    return [(brain.roll.kind(task), seconds) for (task, _), (_, seconds) in sight.progress.items()]


def _running(brain: Brain, now: float) -> list[tuple[int, float]]:
    """For how long each living attempt runs, by its kind."""
    return [(brain.roll.kind(task.id), max(0.0, now - task.started_at)) for task in brain.living() if task.started_at]


def _going(brain: Brain, sight: Sight, now: float, seed: int, most: int) -> Callable[[], Course]:
    return lambda: Foresight(brain, sight, now, seed, most).run()
