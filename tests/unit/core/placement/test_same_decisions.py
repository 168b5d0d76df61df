"""The fast scheduling pass decides what a plain walk over all tasks and devices decides, and changes nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Exited
from scheduler.core.model import (
    HOST,
    Decision,
    Device,
    DeviceBudget,
    EstimateSource,
    Machine,
    Outcome,
    Placement,
    State,
    UnmanagedUse,
    host_of,
    on_node,
)  # fmt: skip
from scheduler.core.placement.capacity import CapacityView, is_open
from scheduler.core.placement.device_capacity import DeviceCapacity, capacities
from scheduler.core.placement.refusal import Refusal
from scheduler.core.placement.request import RequestCache
from scheduler.core.placement.scheduling_pass import SchedulingPass
from scheduler.core.placement.scratch_machine import NodeHosts, ScratchCapacity, ScratchMachine
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.profiling.estimator import is_at_its_beginning
from scheduler.core.profiling.family.computed_peaks import ComputedPeaks
from scheduler.core.profiling.family.families import Family
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.queue.head_requests import HeadRequests
from scheduler.core.queue.task_group import Rank
from scheduler.core.run_state import RunState, TermsSummary
from scheduler.units import GIB, MIB
from tests.support.builders import brain, gpu, host, machine, peaked, placed, refused, started, submit, tell, terms
from tests.support.share import cases

SEEDS = range(cases(100, 40))
STEPS = 25
CACHES: dict[type, set[str]] = {
    Brain: {"_last", "_policy", "_beginning"},
    TermsSummary: {"without_gpus", "preempt", "_number"},
    CapacityView: set(vars(CapacityView(brain().rules))) - {"_here", "_rules", "_young"},
    HeadRequests: set(vars(HeadRequests())),
    RequestCache: set(vars(RequestCache())),
    Family: set(vars(Family())) - {"_columns", "_numbers", "_rows", "_peaks", "_beside", "_runs", "_computed"},
    ComputedPeaks: {"cell", "_functions"},
}
"""The attributes that decisions may change, because they are computed on demand from what events change."""


class PlainMachine(ScratchMachine):
    """The working copy that is computed for this pass alone, and looked at device by device."""

    def __init__(self, of: Brain, machine: Machine) -> None:
        super().__init__(of.capacity, of.rules)
        rooms = steadied(capacities(machine, of.placements(), of.rules), of)
        self.rooms = ScratchCapacity(rooms)
        self.hosts = NodeHosts(of.capacity, self.rooms)
        self.refresh()

    def is_full(self, *, some_without_gpus: bool) -> bool:
        if not self.kept_for and any(is_open(self.rooms[key], self._rules) for key in self.gpus):
            return False
        with_host = some_without_gpus or not self.gpus
        return not with_host or not any(is_open(host, self._rules) for host in self.hosts.values() if host)

    def idle_gpus(self) -> set[str]:
        rooms = [self.rooms[key] for key in self.gpus if not self.kept_for]
        largest = max((room.most for room in self.rooms.values() if room.device.is_gpu), default=0)
        idle = [room for room in rooms if room.residents == 0 and is_open(room, self._rules)]
        return {room.device.key for room in idle if room.most == largest}


class Plain(SchedulingPass):
    """A pass that looks at every group, device and reservation, and keeps nothing between passes."""

    def _scratch(self, brain: RunState, machine: Machine) -> ScratchMachine:
        assert isinstance(brain, Brain)
        return PlainMachine(brain, machine)

    def _front(self) -> int | None:
        return self.walk.front()

    def _look_up(self, number: int, rank: Rank, terms: int, kind: int) -> WaitingTask:
        of, known = self.brain, super()._look_up(number, rank, terms, kind)
        assert isinstance(of, Brain)
        return replace(known, need=of._need(terms, kind, known.gpus, known.tried))

    def _start(self, task: WaitingTask) -> Placement | Refusal:
        return self._fit_now(task)


def steadied(rooms: Mapping[str, DeviceCapacity], of: Brain) -> dict[str, DeviceCapacity]:
    """Return capacities with what one moment cannot give: their released bytes smoothed by earlier measurements, and
    the attempts on each that have used no more than a context.
    """
    return {
        key: replace(room, released=of.capacity.rooms[key].released, **young(key, of)) for key, room in rooms.items()
    }


def young(key: str, of: Brain) -> dict[str, Any]:
    """Return what is known of the attempts on a GPU that have used no more than a context, from each living task."""
    here = [(task, task.placement) for task in of.living() if task.placement is not None and key in task.placement.gpus]
    unknown = [task.id for task, _ in here if is_at_its_beginning(task, of.rules)]
    known = [
        one
        for task, one in here
        if not one.source.is_watched and max(task.peak.get(gpu, 0) for gpu in one.gpus) <= of.rules.context
    ]
    return {
        "unsettled": len(unknown),
        "beginning": unknown[0] if unknown else 0,
        "arriving": any(one.reservation[key] > 2 * of.rules.context for one in known),
    }


class Life:
    """A Brain on a machine, and random events that happen to them one after another."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.devices = self._devices()
        self.free = {device.key: device.total for device in self.devices}
        self.budgets = {device.key: DeviceBudget(device, device.total) for device in self.devices}
        self.used: dict[tuple[int, int], dict[str, int]] = {}
        self.ended: dict[str, float] = {}
        self.now = 1000.0
        said: dict[str, Any] = {
            "bypass_limit": self.dice.choice([0, 1, 3, 50]),
            "profile": self.dice.choice(["off", "live", "auto"]),
            "order": self.dice.choice(["batch", "global"]),
        }
        if self.dice.random() < 0.2:
            said[self.dice.choice(["slots", "max_per_device", "jobs"])] = self.dice.choice([1, 3])
        self.brain = brain(**said)
        self.kinds = [TaskClass(f"kind {n}", f"kind {n}", probes=n % 2 == 0) for n in range(5)]
        self.kinds += [TaskClass(f"script {n}", f"script {n}", False, f"script {n}") for n in range(12)]
        slots = [(("--lr", str(n % 3)), ("--bs", str(n // 3))) for n in range(9)]
        self.kinds += [TaskClass(f"train {its}", "train.py", False, "train.py", its) for its in slots]

    def _devices(self) -> list[Device]:
        sizes = [8 * GIB, 24 * GIB, 24 * GIB, 80 * GIB]
        number = self.dice.choice([0, 1, 2, 5, 40])
        gpus = [
            Device(f"GPU-{n}", f"GPU {n}", self.dice.choice(sizes), 1.0, n, single=self.dice.random() < 0.05)
            for n in range(number)
        ]
        if (number == 40 and self.dice.random() < 0.6) or (number == 5 and self.dice.random() < 0.5):
            return self._on_nodes(gpus)
        return gpus + ([Device(HOST, HOST, 256 * GIB, 64.0)] if not gpus or self.dice.random() < 0.7 else [])

    def _on_nodes(self, gpus: list[Device]) -> list[Device]:
        """Return the GPUs as those of several nodes, with their hosts."""
        names = ["n0", "n1", "n2", "n3", "n4"][: 2 if len(gpus) == 5 else 5]
        there = [replace(gpu, node=self.dice.choice(names)) for gpu in gpus]
        return there + [Device(host_of(name), f"{name} host", 64 * GIB, 16.0, node=name) for name in names]

    def machine(self) -> Machine:
        return Machine(self.now, tuple(self.budgets.values()), (), self.used, self.ended)

    def step(self) -> None:
        """Let something happen."""
        what = self.dice.choice([self.submit, self.submit, self.end, self.end, self.see, self.see, self.meddle])
        what()
        self.now += self.dice.choice([0.1, 1.0, 100.0])

    def submit(self) -> None:
        batch = [self._terms() for _ in range(self.dice.randrange(1, 12))]
        first = len(self.brain.task_table) + 1
        submit(self.brain, batch)
        for task in range(first, len(self.brain.task_table) + 1):
            if self.dice.random() < 0.7:
                self.brain.assign(task, self.dice.choice(self.kinds))

    def _terms(self) -> Any:
        gpus = [device for device in self.devices if device.is_gpu]
        said: dict[str, Any] = {"priority": self.dice.randrange(3), "epochs": self.dice.choice([None, 3, 500])}
        if self.dice.random() < 0.7:
            said["memory"] = self.dice.randrange(64 * MIB, 40 * GIB)
        if gpus and self.dice.random() < 0.3:
            said["gpus"] = self.dice.choice([0, 1, 2, 3])
        if gpus and self.dice.random() < 0.2:
            said[self.dice.choice(["device", "prefer"])] = str(self.dice.choice(gpus).index)
        if self.devices[0].node and self.dice.random() < 0.2:
            said["node"] = ",".join(self.dice.sample(["n0", "n1"], self.dice.choice([1, 2])))
        if self.dice.random() < 0.3:
            said |= {"host_memory": self.dice.randrange(64 * MIB, 90 * GIB), "cpus": self.dice.choice([0.5, 2, 8])}
        return terms(exclusive=self.dice.random() < 0.1, **said)

    def end(self) -> None:
        living = self.brain.living()
        if not living:
            return
        task = self.dice.choice(living)
        assert task.placement is not None
        for key in task.placement.by_device:
            self.ended[key] = self.now
        used = self.used.pop((task.id, task.attempts), {})
        for key, bytes_ in used.items():
            self._hold(on_node(key, task.placement.node), -bytes_)
        outcome = self.dice.choice(["succeeded", "succeeded", "failed", "oom", "lost"])
        peak = {key: bytes_ or GIB for key, bytes_ in used.items()}
        busy = self.dice.choice([0.0, 0.25, 0.5, 1.0])
        self.brain.apply(Exited(task.id, task.attempts, Outcome(outcome), peak=peak, seconds=50.0, busy=busy))

    def _hold(self, key: str, bytes_: int) -> None:
        self.free[key] -= bytes_
        self.budgets[key] = DeviceBudget(
            self.budgets[key].device, max(0, self.free[key]), unmanaged=self.budgets[key].unmanaged
        )

    def see(self) -> None:
        """Take a sample: an attempt uses another amount now."""
        living = self.brain.living()
        if not living:
            return
        task = self.dice.choice(living)
        assert task.placement is not None
        key = (task.id, task.attempts)
        seen = {
            name: self.dice.randrange(0, max(1, bytes_ * 5 // 4)) for name, bytes_ in task.placement.reservation.items()
        }
        for name, bytes_ in seen.items():
            self._hold(on_node(name, task.placement.node), bytes_ - self.used.get(key, {}).get(name, 0))
        self.used[key] = seen
        for event in self.brain.watch(*key, seen, self.now, busy=0.5):
            self.brain.apply(event, self.now)

    def meddle(self) -> None:
        """Let unmanaged memory come or go."""
        key = self.dice.choice(self.devices).key
        there = DeviceBudget(self.budgets[key].device, max(0, self.free[key]))
        unmanaged_process = UnmanagedUse(self.dice.randrange(0, 3 * GIB), "ben", calm=self.dice.choice([5.0, 500.0]))
        known = self.budgets[key]
        self.budgets[key] = (
            there if known.unmanaged else DeviceBudget(there.device, there.free, unmanaged=(unmanaged_process,))
        )

    def start(self, placements: Sequence[Placement]) -> None:
        for placement in placements:
            self.brain.apply(placement, self.now)
            self.brain.apply(started(placement.task, placement.attempt), self.now)


def named(decision: Decision) -> tuple[int, str] | None:
    return (decision.refusals[0].task, decision.refusals[0].reason) if decision.refusals else None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fast_pass_decides_what_a_plain_pass_decides(seed: int) -> None:
    life = Life(seed)
    for step in range(STEPS):
        life.step()
        now = life.machine()
        plain = Plain(life.brain, now).decide() if life.brain.waiting else Decision()
        fast = life.brain.decide(now)
        where = f"seed {seed}, step {step}"
        assert fast.placements == plain.placements, where
        assert fast.impossible == plain.impossible, where
        if len(life.devices) <= 32 and not life.devices[0].node:  # of several nodes only the most hopeful are named
            assert named(fast) == named(plain), where
        life.start(fast.placements)
        for refusal in fast.impossible:
            if life.brain.state(refusal.task) is State.WAITING:
                life.brain.apply(refused(refusal.task))


@pytest.mark.parametrize("seed", SEEDS)
def test_cached_capacities_equal_computed_ones(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
        now = life.machine()
        life.brain.capacity.look(now)
        rooms = capacities(now, life.brain.placements(), life.brain.rules, life.brain.known_peaks)
        assert life.brain.capacity.rooms == steadied(rooms, life.brain)
        life.start(life.brain.decide(now).placements)


@pytest.mark.parametrize(("source", "then"), [("measured", (1, 1, False)), ("declared", (0, 0, True))])
def test_a_gpu_is_seen_to_be_used_as_soon_as_a_peak_is_applied(source: str, then: tuple[int, int, bool]) -> None:
    life, now = brain([terms()]), machine(gpu(), host())
    life.capacity.look(now)
    tell(life, placed(1, "4GiB", device="GPU-0", source=EstimateSource(source)), started(1))
    before = life.capacity.look(now).rooms["GPU-0"]
    tell(life, peaked(1, "3GiB", device="GPU-0"))
    after = life.capacity.look(now).rooms["GPU-0"]
    assert (before.unsettled, before.beginning, before.arriving) == then
    assert (after.unsettled, after.beginning, after.arriving) == (0, 0, False)


def owned(what: Any, above: tuple[int, ...] = ()) -> Any:
    """Return everything that belongs to an object except caches, as plain values that stay as they are."""
    if id(what) in above:
        return "itself"
    above = (*above, id(what))
    match what:
        case dict():
            return [(owned(key, above), owned(value, above)) for key, value in what.items()]
        case list() | tuple():
            return [owned(one, above) for one in what]
        case set() | frozenset():
            return sorted(map(repr, what))
        case FunctionType() | MethodType() | type():
            return what.__qualname__
    names = [*getattr(what, "__dict__", ()), *(name for base in type(what).__mro__ for name in slots_of(base))]
    names = [name for name in names if name not in CACHES.get(type(what), ()) and hasattr(what, name)]
    return [(name, owned(getattr(what, name), above)) for name in names] if names else repr(what)


def slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_a_decision_changes_nothing_but_caches(seed: int) -> None:
    life = Life(seed)
    for step in range(STEPS):
        life.step()
        before = dict(owned(life.brain))
        decision = life.brain.decide(life.machine())
        after = dict(owned(life.brain))
        assert [name for name in before | after if before.get(name) != after.get(name)] == [], f"seed {seed}, {step}"
        life.start(decision.placements)
