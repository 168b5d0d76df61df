"""One line for each thing a test needs: tasks, devices, a Brain, events, decisions, whole simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler.app.simulate import simulated_run
from scheduler.core.brain import Brain
from scheduler.core.causes import Action, ResizeCause
from scheduler.core.config import SchedulingConfig
from scheduler.core.control.messages import why
from scheduler.core.events import (
    Asked,
    Event,
    Exited,
    Peaked,
    Refused,
    Resized,
    Started,
    Submitted,
)
from scheduler.core.leases import Lease
from scheduler.core.model import (
    HOST,
    NAMED,
    Decision,
    Device,
    DeviceBudget,
    EstimateSource,
    Machine,
    Outcome,
    Placement,
    Profiling,
    Purpose,
    RankOrder,
    Spec,
    Terms,
    host_of,
)
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import Key, Launch, Request, View
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.reporting.run_history import RunHistory
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.memory_store import MemoryRunStore
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.simulation.workload import GivenTask
from scheduler.units import parse_size

Size = int | str

made: list[Brain] = []
"""The Brains that `brain` has made; a fixture checks their invariants after each test."""


def size(said: Size) -> int:
    """Parse a size; numbers are bytes."""
    return said if isinstance(said, int) else parse_size(said)


# ---- tasks ----


def terms(memory: Size | None = None, host_memory: Size | None = None, **said: Any) -> Terms:
    """Make the terms of a task."""
    sizes = {"memory": memory, "host_memory": host_memory}
    return Terms(**said, **{name: size(value) for name, value in sizes.items() if value is not None})


def tasks(number: int, memory: Size | None = None, **said: Any) -> list[Terms]:
    """Make `number` equal tasks; a list of them is a batch, and lists add up."""
    return [terms(memory, **said)] * number


def spec(filename: str = "train.py", row: int = 2, **said: Any) -> Spec:
    """Make a row of the five-column form; all other arguments go into its terms."""
    if command := said.pop("command", ""):
        said, filename = {"executable": "", **said}, command
    texts = {"directory": "", "executable": "-1", "name": "", "env": (), "own": (), "after": ""}
    texts.update({name: said.pop(name) for name in list(said) if name in texts})
    return Spec(row=row, command=filename, terms=terms(**said), **texts)  # type: ignore[arg-type]


def specs(number: int, filename: str = "train.py --n {n}", **said: Any) -> list[Spec]:
    """Make rows that differ in one argument."""
    return [spec(filename.replace("{n}", str(n)), row=n + 2, **said) for n in range(number)]


# ---- machines ----


def host(total: Size = "24GiB", free: Size | None = None, cores: float = 4, cap: Size | None = None) -> DeviceBudget:
    """Make the host's RAM, all of it free by default."""
    return budget(HOST, total, free, cores, cap)


def gpu(number: int = 0, total: Size = "24GiB", free: Size | None = None, cap: Size | None = None) -> DeviceBudget:
    """Make one GPU."""
    return budget(f"GPU-{number}", total, free, 1.0, cap, index=number)


def node(name: str, *devices: DeviceBudget) -> list[DeviceBudget]:
    """Make these devices those of one of several nodes; keys of GPUs become `GPU-NODE-0`."""
    return [replace(one, device=_on(one.device, name)) for one in devices]


def _on(device: Device, name: str) -> Device:
    key = host_of(name) if device.key == HOST else device.key.replace("GPU-", f"GPU-{name}-")
    return replace(device, key=key, label=f"{name} {device.label}", node=name)


def slot(name: str, *cards: str, place: int = 0) -> DeviceBudget:
    """Make a slot for one task with the user's name for it; `cards` are the GPUs of that name."""
    return DeviceBudget(Device(f"{NAMED}{place}:{name}", f"slot {name}", size("24GiB"), 1.0, cards=cards), 0)


def slots(*names: str) -> list[DeviceBudget]:
    """Make slots by their names; numbers are GPUs of these numbers."""
    return [
        slot(name, *(f"GPU-{number}" for number in name.split(",") if number.isdecimal()), place=place)
        for place, name in enumerate(names)
    ]


def budget(key: str, total: Size, free: Size | None, load: float, cap: Size | None, index: int = -1) -> DeviceBudget:
    device = Device(key, key, size(total), float(load), index)
    return DeviceBudget(device, size(total if free is None else free), None if cap is None else size(cap))


def hold(reserved: Size, used: Size = 0, cores: float = 1.0, key: str = HOST, unreadable: str = "") -> Lease:
    """Make the lease of another scheduler."""
    return lease_of({key: size(reserved)}, {key: size(used)}, {HOST: cores}, unreadable=unreadable)


def lease_of(
    reserved: Mapping[str, int],
    used: Mapping[str, int] | None = None,
    load: Mapping[str, float] | None = None,
    **said: Any,
) -> Lease:
    """Make a lease of another run, which uses so much."""
    who: dict[str, Any] = {"name": "x", "uid": -1, "run": "9", "task": 1, "attempt": 1, "shim": 0}
    return Lease(**{**who, "reserved": reserved, "load": load or {}, "used": used or {}, **said})


def machine(
    *budgets: DeviceBudget,
    leases: Sequence[Lease] = (),
    used: Mapping[Key, Mapping[str, Size]] | None = None,
    now: float = 0.0,
) -> Machine:
    """Make the machine of a decision; one host with 24 GiB and 4 cores by default."""
    seen = {key: {device: size(b) for device, b in by.items()} for key, by in (used or {}).items()}
    return Machine(now, budgets or (host(),), tuple(leases), seen)


# ---- a Brain ----


def rules(**said: Any) -> SchedulingConfig:
    """Make rules; sizes may be texts."""
    sizes = {name: size(value) for name, value in said.items() if isinstance(value, str) and value[0].isdigit()}
    words = {name: kind(said[name]) for name, kind in (("order", RankOrder), ("profile", Profiling)) if name in said}
    return SchedulingConfig(**{**said, **sizes, **words})


def brain(*batches: Sequence[Terms], first: int = 1, knowledge: ProfileIndex | None = None, **said: Any) -> Brain:
    """Make a Brain with these batches; ids count from `first`."""
    new = Brain(rules(**said), [], knowledge)
    made.append(new)
    return submit(new, *batches, first=first)


def submit(to: Brain, *batches: Sequence[Terms], first: int | None = None) -> Brain:
    """Give a Brain more batches."""
    for batch in batches:
        numbers = []
        for one in batch:
            if one not in to.terms:
                to.terms.append(one)
            numbers.append(to.terms.index(one))
        known = max(to.task_table, default=0) + 1 if first is None else first
        to.apply(Submitted(to.task_table.batches + 1, known, numbers))
        first = None
    return to


def ordered(brain_: Brain) -> list[int]:
    """Return all waiting ids by rank, in the order of a pass."""
    walk, found = brain_.wait_queue.walk(), []
    while (task := walk.front()) is not None:
        found.append(task)
        walk.take()
    return found


def states(brain_: Brain) -> dict[int, str]:
    """Return the state of every task."""
    return {task: str(brain_.state(task)) for task in brain_.task_table}


def picture(brain_: Brain) -> Any:
    """Return all visible state of a Brain; two with equal state behave alike."""
    return (
        states(brain_),
        {state: number for state, number in brain_.task_table.counts.items() if number},
        sorted(repr(task) for task in brain_.tasks.values()),
        [(task, brain_.wait_queue.rank(task), brain_.wait_queue.bypassed(task)) for task in ordered(brain_)],
        brain_.draining,
    )


# ---- events ----


def placed(
    task: int,
    memory: Size = "1GiB",
    attempt: int = 1,
    device: str = HOST,
    cores: float = 1.0,
    purpose: Purpose = Purpose.RUN,
    source: EstimateSource = EstimateSource.DECLARED,
    alone: bool = False,
) -> Placement:
    return Placement(task, attempt, purpose, {device: size(memory)}, cores, source, alone)


def started(task: int, attempt: int = 1) -> Started:
    return Started(task, attempt, pid=1000 + task, start=5, shim=2000 + task)


def peaked(task: int, memory: Size, attempt: int = 1, device: str = HOST) -> Peaked:
    return Peaked(task, attempt, {device: size(memory)})


def resized(task: int, memory: Size, cause: str = "grew", attempt: int = 1, device: str = HOST) -> Resized:
    return Resized(task, attempt, {device: size(memory)}, ResizeCause(cause))


def exited(task: int, outcome: str = "succeeded", attempt: int = 1, peak: Size | None = None, **said: Any) -> Exited:
    if peak is not None:
        said["peak"] = {HOST: size(peak)}
    return Exited(task, attempt, Outcome(outcome), **said)


def refused(task: int, reason: str = "too large") -> Refused:
    return Refused(task, reason)


def asked(what: str, *numbers: int) -> Asked:
    return Asked(Action(what), numbers)


def run(task: int, outcome: str = "succeeded", memory: Size = "1GiB", attempt: int = 1, **said: Any) -> list[Event]:
    """Make the events of one whole attempt."""
    ended = exited(task, outcome, attempt, **said)
    return [placed(task, memory, attempt), started(task, attempt), ended]


def tell(brain_: Brain, *events: Event | Sequence[Event]) -> Brain:
    """Apply events, one after another."""
    for event in events:
        for one in event if isinstance(event, Sequence) else (event,):
            brain_.apply(one)
    return brain_


# ---- decisions ----


def starts(brain_: Brain, *budgets: DeviceBudget, **said: Any) -> list[int]:
    """Return the tasks that would start now."""
    return [placement.task for placement in decide(brain_, *budgets, **said).placements]


def decide(brain_: Brain, *budgets: DeviceBudget, **said: Any) -> Decision:
    return checked(brain_.decide(machine(*budgets, **said)))


def checked(decision: Decision) -> Decision:
    """Return a decision after checks of what holds for every one: whole numbers, and sentences without gaps."""
    for refusal in (*decision.refusals, *decision.impossible):
        numbers = (refusal.wanted, refusal.room, refusal.total)
        assert type(refusal.task) is int, refusal
        assert refusal.task >= 0, refusal
        assert all(type(number) is int and number >= 0 for number in numbers), refusal
        assert type(refusal.device) is str, refusal
        assert type(refusal.text) is str, refusal
        assert "None" not in why(refusal), refusal
    for placement in decision.placements:
        assert type(placement.task) is int, placement
        assert placement.attempt >= 1, placement
        assert all(type(key) is str and bytes_ >= 0 for key, bytes_ in placement.reservation.items()), placement
        assert placement.cores >= 0, placement
    return decision


def place(brain_: Brain, *budgets: DeviceBudget, **said: Any) -> list[int]:
    """Decide, start what was placed, and return the started tasks."""
    placements = decide(brain_, *budgets, **said).placements
    tell(brain_, *placements)
    tell(brain_, *(started(placement.task, placement.attempt) for placement in placements))
    return [placement.task for placement in placements]


def reasons(brain_: Brain, *budgets: DeviceBudget, **said: Any) -> dict[int, str]:
    """Return why the named tasks do not start now, one word each."""
    return {refusal.task: refusal.reason for refusal in decide(brain_, *budgets, **said).refusals}


# ---- simulated runs ----


Job = GivenTask
"""A row with the behaviour of its task."""


def jobs(number: int, seconds: float = 60.0, peak: Size = "1GiB", late: bool = False, **said: Any) -> list[Job]:
    """Make equal jobs; facts of their behaviour go there, all else into the row."""
    its_own = {"cores", "utilisation", "loading", "code", "signal", "lost", "says", "stops_in", "host_memory"}
    known = {name: said.pop(name) for name in its_own & said.keys()}
    epochs = said.get("epochs")
    memory = (curve(size(peak), seconds, late=late, epochs=epochs),)
    truth = TaskBehaviour(seconds, memory, epochs=epochs, **known)
    return [Job(one, truth) for one in specs(number, **said)]


@dataclass
class Heard(View):
    """A view that keeps the events and sentences it was given."""

    sentences: list[str] = field(default_factory=list)
    waiting: list[Sequence[Refusal]] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        self.waiting.append(refusals)

    def hang_up(self) -> None:
        self.sentences.append("(hung up)")

    @property
    def whys(self) -> list[str]:
        """Return the different sentences on why tasks waited."""
        return list(dict.fromkeys(why(refusal) for refusals in self.waiting for refusal in refusals))


class Simulation(simulated_run.Simulation):
    """A run on a simulated machine, with a view that keeps its events."""

    view: Heard

    def __init__(
        self,
        given: Iterable[Job],
        *budgets: DeviceBudget,
        others: Sequence[Lease] = (),
        unmanaged: Mapping[str, int] | None = None,
        machine_: SimulatedMachine | None = None,
        requests: Sequence[tuple[float, Request]] = (),
        truth: Callable[[Launch, TaskBehaviour], TaskBehaviour] = lambda order, truth: truth,
        num: int = 20,
        **said: Any,
    ) -> None:
        budgets = budgets or (host(),)
        caps = {b.device.key: b.cap for b in budgets if b.cap is not None}
        machine = machine_ or SimulatedMachine([b.device for b in budgets], now=1e9, caps=caps, unmanaged=unmanaged)
        for lease in others:
            machine.join(lease)
        book = MemoryRunStore(num=num)
        brain_ = Brain(rules(**said), book.terms)
        super().__init__(list(given), machine, brain_, book, Heard(), requests=requests, truth=truth)
        made.append(self.brain)

    def run(self) -> Simulation:
        """Run to the end, or until it was left."""
        super().run()
        return self

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in self.book.recorded]

    @property
    def history(self) -> RunHistory:
        return history_of(self.book.recorded)

    @property
    def states(self) -> dict[str, int]:
        """Return the number of tasks in each state."""
        return {str(state): number for state, number in self.brain.state_counts.items() if number}

    @property
    def makespan(self) -> float:
        history = self.history
        return (history.last or 0.0) - (history.first or 0.0)


def simulate(given: Iterable[Job], *budgets: DeviceBudget, **said: Any) -> Simulation:
    """Run jobs on a simulated machine to their end."""
    return Simulation(given, *budgets, **said).run()


def replay(brain_: Brain, submitted: Iterable[Submitted], events: Iterable[tuple[Event, float]]) -> Brain:
    """Make a Brain with the same rules, and apply the same events."""
    again = Brain(brain_.rules, brain_.terms)
    made.append(again)
    for batch in submitted:
        again.apply(batch)
    for event, at in events:
        again.apply(event, at)
    return again


def history_of(recorded: Iterable[tuple[Event, float]]) -> RunHistory:
    """Return the history of events with their times."""
    history = RunHistory()
    for event, at in recorded:
        history.take(event, at)
    return history
