"""How far one head goes: `python scripts/bench/clusters.py decide|simulate|head [--nodes 64]`.

    decide      the processor time of one decision: on empty nodes for each placement, and after the end of one task
    simulate    the loop to the end of a list on simulated nodes: makespan over its lower bound, decisions, memory
    head        the loop over links to agents that only answer: messages, bytes and processor time of the head by task

Each node has eight GPUs of 24 GiB, and the tasks are of 20 kinds that need 1 to 20 GiB. The agents of `head` are one
process over sockets: what they tell is what real agents tell, and they take no time for the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, ClassVar

from decision import Blind, Rows, classes, truth
from measuring import quantile

from scheduler.cluster import forms
from scheduler.cluster.devices import ClusterDevices, ClusterWatcher
from scheduler.cluster.engine import ClusterEngine, ClusterLeases
from scheduler.cluster.forms import FACTS, NodeFacts
from scheduler.cluster.frames import Channel
from scheduler.cluster.head import Nodes
from scheduler.cluster.link import SSH, NodeName
from scheduler.cluster.node_sources import NodeSources
from scheduler.core.attempts.launch_spec import TaskEnvironment
from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited, Started
from scheduler.core.model import HOST, Decision, Device, DeviceBudget, Machine, Outcome, State, Terms
from scheduler.core.ports import Key
from scheduler.core.profiling.class_profile import Observation
from scheduler.runtime.event_sources import SystemWorld
from scheduler.runtime.look_ahead import look_ahead
from scheduler.runtime.loop import Loop, Ports
from scheduler.runtime.paths import RunPaths
from scheduler.simulation.devices import SimulatedDevices, SimulatedWatcher
from scheduler.simulation.engine import SimulatedEngine
from scheduler.simulation.interference import MODELS
from scheduler.simulation.lower_bound import TaskWork, lower_bound
from scheduler.simulation.machine import SimulatedMachine, fitted
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.memory_store import MemoryLeaseRegistry
from scheduler.simulation.world import SimulatedWorld
from scheduler.units import GIB, MIB
from scheduler.values import replace

KINDS = 20
NODE = "8x24GiB,host:512GiB"
CORES = 64.0
BUSY = 0.4
"""The share of its GPU's time that a task keeps it busy."""
MOST_MS = 1.0
"""Milliseconds that a decision may take."""
HOUR = 3600.0
REPORT = 0.25
"""Seconds between two reports of an agent."""


def devices_of(nodes: int) -> tuple[Device, ...]:
    return parse_machine(f"{nodes}x({NODE})", CORES)


def needs() -> list[Terms]:
    """Return what tasks of each kind declare."""
    return [replace(one, host_memory=4 * GIB) for one in classes(KINDS)]


def brain_with(rows: Rows) -> Brain:
    """Return a Brain that knows what tasks of each kind need, as after the first of them."""
    brain = Brain(SchedulingConfig(), rows.terms)
    for batch in rows.submitted():
        brain.apply(batch)
    look_ahead(brain, rows.kind)
    for task in range(1, KINDS + 1):
        seen = Observation({"0": peak_of(task, rows)}, seconds=HOUR / 2, busy=BUSY)
        brain.profiles.learn(brain.kind_of(task), seen)
    return brain


def peak_of(task: int, rows: Rows) -> int:
    """Return the bytes that a task uses: a little less than its row says."""
    memory = rows.job(task).spec.terms.memory
    assert memory is not None
    return memory - 300 * MIB


@contextmanager
def timed() -> Iterator[list[float]]:
    """Yield a list to which the milliseconds of processor time of each decision are added."""
    taken: list[float] = []
    decide = Brain.decide

    def measured(brain: Brain, machine: Machine) -> Decision:
        began = time.thread_time()
        try:
            return decide(brain, machine)
        finally:
            taken.append(1000 * (time.thread_time() - began))

    Brain.decide = measured  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        Brain.decide = decide  # type: ignore[method-assign]


def shown(taken: Sequence[float]) -> str:
    ordered = sorted(taken)
    return (
        f"median {statistics.median(ordered):.3f} ms, mean {statistics.fmean(ordered):.3f},"
        f" 99 % {quantile(ordered, 0.99):.3f}, slowest {ordered[-1]:.3f} of {len(ordered):,}"
    )


# ---- one decision ----


def decide(nodes: int, turns: int) -> bool:
    """Fill the nodes, end one task after the other, and print what the decisions took."""
    budgets = [DeviceBudget(device, device.total) for device in devices_of(nodes)]
    places = {budget.device.key: at for at, budget in enumerate(budgets)}
    brain, dice, used = brain_with(Rows(20 * nodes * 8, needs())), random.Random(1), dict[Key, Any]()

    def machine() -> Machine:
        return Machine(1.0, tuple(budgets), (), used, {})

    first = 0.0
    placed = 0
    began = time.thread_time()
    while found := brain.decide(machine()).placements:
        first += time.thread_time() - began
        placed += len(found)
        for one in found:
            brain.apply(one)
        began = time.thread_time()
    taken, alone, again = [], [], 0
    for _ in range(turns):
        ended = dice.choice(list(brain.placements()))
        brain.apply(Exited(ended.task, ended.attempt, Outcome.SUCCEEDED))
        here = [at for at in places.values() if budgets[at].device.node == ended.node]
        for at in here:  # the report that comes with an end
            device = budgets[at].device
            budgets[at] = DeviceBudget(device, device.total - dice.randrange(MIB))
        now = machine()
        began = time.thread_time()
        decision = brain.decide(now)
        taken.append(1000 * (time.thread_time() - began))
        alone += taken[-1:] if len(decision.placements) <= 1 else []
        again += len(decision.placements)
        for one in decision.placements:
            brain.apply(one)
    print(
        f"decide {nodes:>5,} x 8 GPUs: on empty nodes {1000 * first / placed:.3f} ms for each of {placed:,} placements;"
    )
    print(f"       after an end, with {again / turns:.1f} placements: {shown(taken)}")
    print(
        f"       {len(alone)} of {turns} with at most one placement: {shown(alone)};"
        f" all together {sum(taken) / max(1, again):.3f} ms for each placement",
        flush=True,
    )
    return max(taken) <= MOST_MS


# ---- a whole list ----


def simulate(nodes: int, tasks: int) -> bool:
    """Run a list to its end on simulated nodes, and print what it took."""
    rows = Rows(tasks, needs())
    machine = SimulatedMachine(devices_of(nodes), now=1e9, slowdown=fitted)
    brain = brain_with(rows)
    engine = SimulatedEngine(machine, lambda order: truth(order, rows.job(order.task).spec.terms))
    watcher = SimulatedWatcher(machine, HOUR)  # every change is seen at once; samples would tell nothing more
    world = SimulatedWorld(machine, [engine, watcher])
    ports = Ports(world, rows, SimulatedDevices(machine), engine, watcher, MemoryLeaseRegistry(machine), Blind())
    began = time.process_time()
    with timed() as taken:
        Loop(brain, ports, TaskEnvironment("1", "python", "/", RunPaths(Path("/none"), 1), {})).run()
    spent, makespan = time.process_time() - began, machine.now - 1e9
    assert brain.state_counts[State.SUCCEEDED] == tasks, dict(brain.state_counts)
    bound = lower_bound([work_of(task, rows) for task in range(1, tasks + 1)], machine.devices, MODELS["fit"])
    print(
        f"simulate {nodes:>5,} x 8 GPUs, {tasks:>9,} tasks: makespan {makespan / bound.makespan:.3f} of the bound"
        f" ({bound.reasons[0].why}), {1000 * spent / tasks:.2f} ms of a core by task, {peak_gib():.2f} GiB;"
        f"\n         {rows.events / tasks:.1f} events by task; a decision: {shown(taken)}",
        flush=True,
    )
    return statistics.fmean(taken) <= MOST_MS


def work_of(task: int, rows: Rows) -> TaskWork:
    return TaskWork(0.0, 600.0 + (task * 2654435761 % 2400), peak_of(task, rows), 1, BUSY, 1.0, 0)


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


# ---- the head and its links ----


class SocketName(NodeName):
    """A node whose agent is at the other end of a socket."""

    sockets: ClassVar[dict[str, socket.socket]] = {}

    def open(self) -> SocketTransport:
        """Return the head's end."""
        return SocketTransport(self.sockets[self.name])


class SocketTransport:
    """The head's end of a socket."""

    def __init__(self, mine: socket.socket) -> None:
        self._mine, self._write = mine, os.dup(mine.fileno())

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors to read from and to write to."""
        return self._mine.fileno(), self._write

    def why_ended(self) -> str:
        """Return a reason."""
        return "it ended"

    def close(self, patience: float) -> None:
        """Close it."""
        self._mine.close()
        os.close(self._write)


class SocketSources(NodeSources):
    """So many nodes over sockets."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(())
        self._fixed = [SocketName(SSH, name) for name in names]


class Agents:
    """The agents of all nodes in one process: they take what is wanted, and their tasks end after some time."""

    def __init__(self, sockets: dict[str, socket.socket], seconds: float) -> None:
        self._seconds = seconds
        self._epoll = select.epoll()
        self._channels: dict[int, tuple[str, Channel]] = {}
        self._due: list[tuple[float, int, list[int]]] = []
        """The reports ([]) and the ends (task, attempt) to come."""
        self._views: dict[int, int] = {}
        self._changes: dict[int, forms.ReportChanges] = {}
        self._devices = [
            DeviceBudget(Device(HOST, HOST, 512 * GIB, CORES), 500 * GIB),
            *(DeviceBudget(Device("", f"GPU {n}", 24 * GIB, 1.0, n), 24 * GIB) for n in range(8)),
        ]
        for name, mine in sockets.items():
            channel = Channel(mine.fileno(), os.dup(mine.fileno()))
            self._epoll.register(channel, select.EPOLLIN)
            self._channels[channel.fileno()] = name, channel

    def serve(self) -> None:
        """Answer until the head is gone."""
        while self._channels:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 1.0
            for fd, _ in self._epoll.poll(wait):
                name, channel = self._channels[fd]
                for what, said in (one for message in channel.receive() for one in message.items()):
                    self._answer(fd, name, channel, what, said)
                if channel.ended:
                    self._epoll.unregister(fd)
                    del self._channels[fd]
            while self._due and self._due[0][0] <= time.monotonic():
                _, fd, key = heappop(self._due)
                if fd in self._channels:
                    self._tell(fd, self._channels[fd][1], key)

    def _answer(self, fd: int, name: str, channel: Channel, what: str, said: Any) -> None:
        if what == "hello":
            facts = NodeFacts(name, name, "b", os.getuid(), 1, "", "process", tuple(self._budgets(name)))
            channel.send({"here": FACTS.to_dict(facts)})
        elif what == "join":
            self._views[fd] = 0
            self._report(fd, channel)
            heappush(self._due, (time.monotonic() + random.random() * REPORT, fd, []))
        elif what == "take":
            placements = [forms.event_from_dict(one) for one in said["placements"]]
            leases = [
                [one.task, one.attempt, "lease", 0, {"CUDA_VISIBLE_DEVICES": "0"}, {}, [0]]  # type: ignore[attr-defined]
                for one in placements
            ]
            channel.send({"took": {"number": said["number"], "leases": leases, "why": ""}})
        elif what == "launch":
            started = Started(said["task"], said["attempt"], 1, 1, 1)
            channel.send({"event": forms.event_to_dict(started)})
            heappush(self._due, (time.monotonic() + self._seconds, fd, [said["task"], said["attempt"]]))

    def _tell(self, fd: int, channel: Channel, key: list[int]) -> None:
        if key:
            channel.send({"event": forms.event_to_dict(Exited(*key, Outcome.SUCCEEDED, 0, seconds=self._seconds))})
        else:
            heappush(self._due, (time.monotonic() + REPORT, fd, []))
        self._report(fd, channel)

    def _report(self, fd: int, channel: Channel) -> None:
        self._views[fd] += 1
        now, changes = time.monotonic(), self._changes.setdefault(fd, forms.ReportChanges())
        changed = changes.of(now, self._budgets(self._channels[fd][0]), leases=[], waiters=[], closed={})
        channel.send({"report": {"view": self._views[fd], "clock": now, **changed}})

    def _budgets(self, name: str) -> list[DeviceBudget]:
        """Return what a node has free: a little other RAM in each report, as on a real one."""
        host, *gpus = self._devices
        found = [DeviceBudget(host.device, host.free - random.randrange(4 * MIB))]
        for budget in gpus:
            device = budget.device
            found.append(
                DeviceBudget(
                    Device(f"{name}-{device.index}", device.label, device.total, 1.0, device.index), budget.free
                )
            )
        return found


class Traffic:
    """Messages and bytes of all links, counted at the head."""

    def __init__(self) -> None:
        self.sent = self.heard = self.sent_bytes = 0
        send, receive = Channel.send, Channel.receive

        def counted_send(channel: Channel, message: Any) -> None:
            self.sent += 1
            self.sent_bytes += len(json.dumps(message))
            send(channel, message)

        def counted_receive(channel: Channel) -> Any:
            messages = receive(channel)
            self.heard += len(messages)
            return messages

        Channel.send, Channel.receive = counted_send, counted_receive  # type: ignore[method-assign, assignment]


def links_to(nodes: int, seconds: float) -> tuple[Nodes, int]:
    """Start the agents of so many nodes, and greet them; return the nodes and the pid of the agents."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    pairs = {name: socket.socketpair() for name in names}
    child = os.fork()
    if not child:
        for mine, _ in pairs.values():
            mine.close()
        Agents({name: theirs for name, (_, theirs) in pairs.items()}, seconds).serve()
        os._exit(0)
    for _, theirs in pairs.values():
        theirs.close()
    SocketName.sockets = {name: mine for name, (mine, _) in pairs.items()}
    made = Nodes(SocketSources(names), {})
    made.connect()
    return made, child


def head(nodes: int, tasks: int, seconds: float) -> None:
    """Run a list over links to so many nodes, and print what the head took."""
    made, child = links_to(nodes, seconds)
    rows = Rows(tasks, needs())
    brain = brain_with(rows)
    made.join(RunPaths(Path("/none"), 1), {})
    world = SystemWorld([made])
    while not all(node.view for node in made.nodes.values()):
        world.wait(0.1)
    idle = share_while_idle(world)
    engine = ClusterEngine(made, lambda task: brain.tasks[task].placement if task in brain.tasks else None, "/none")
    ports = Ports(world, rows, ClusterDevices(made), engine, ClusterWatcher(made), ClusterLeases(made, "t"), Blind())
    traffic, began, clock = Traffic(), time.monotonic(), time.process_time()
    with timed() as taken:
        Loop(brain, ports, TaskEnvironment("1", "python", "/", RunPaths(Path("/none"), 1), {})).run()
    wall, cpu = time.monotonic() - began, time.process_time() - clock
    assert brain.state_counts[State.SUCCEEDED] == tasks, dict(brain.state_counts)
    made.close(over=True)
    os.waitpid(child, 0)
    share = f"{1000 * cpu / tasks:.2f} ms of a core by task, {100 * cpu / wall:.0f} % of a core"
    told = f"{traffic.sent / tasks:.1f} messages sent ({traffic.sent_bytes / tasks:.0f} bytes)"
    print(
        f"head {nodes:>5,} nodes, {tasks:,} tasks of {seconds:g} s: {tasks / wall:.0f}/s, {share}"
        f" ({idle:.0f} % before the run); {peak_gib():.2f} GiB;"
        f"\n     by task {told}, {traffic.heard / tasks:.1f} heard; a decision: {shown(taken)}",
        flush=True,
    )


def share_while_idle(world: SystemWorld) -> float:
    """Return the share of a core that reports alone take, in percent."""
    began, clock = time.monotonic(), time.process_time()
    while time.monotonic() - began < 3.0:
        world.wait(0.5)
    return 100 * (time.process_time() - clock) / (time.monotonic() - began)


def main() -> int:
    """Print the figures; 1 where a decision takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decide", "simulate", "head"])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=100, help="decide: so many ends")
    parser.add_argument("--seconds", type=float, default=1.0, help="head: the time that a task takes")
    args = parser.parse_args()
    if args.what == "decide":
        return 0 if decide(args.nodes, args.turns) else 1
    if args.what == "simulate":
        return 0 if simulate(args.nodes, args.tasks) else 1
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    head(args.nodes, args.tasks, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
