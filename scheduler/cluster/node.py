"""One node of a run, as its head knows it: the facts of its machine, its last report, and the orders for it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from scheduler.cluster import forms, mirror
from scheduler.cluster.frames import Message
from scheduler.cluster.link import NodeLink, NodeName
from scheduler.core.leases import Lease
from scheduler.core.model import Device, DeviceBudget, Placement, Waiter, host_of
from scheduler.core.ports import Key, Launch
from scheduler.values import dataclass, field, replace


@dataclass(slots=True, eq=False)
class Node:
    """One node of a run."""

    named: NodeName
    facts: forms.NodeFacts | None = None
    """The facts in the node's first answer; None: the node has never answered."""
    link: NodeLink | None = None
    is_there: bool = False
    """True if an agent has answered over the present link."""
    joined: bool = False
    """True if that agent serves this run."""
    why_away: str = "it has not answered yet"
    heard: float = 0.0
    due: float = 0.0
    refused: float = 0.0
    """Three times: of the last message from the node (`heard`), of the next attempt to connect (`due`), and of the last
    refusal of a reservation (`refused`)."""
    view: int = 0
    reported: float = field(default_factory=time.monotonic)
    """The time of the node's last report; before the first report, the time from which this scheduler expects one."""
    budgets: tuple[DeviceBudget, ...] = ()
    layout: int = 0
    """The number of times that the node's devices have changed."""
    oldest: float = 0.0
    """The age of the oldest measurement in the node's last report, in seconds."""
    leases: tuple[Lease, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    closed: Mapping[str, str] = field(default_factory=dict)
    """Devices of the node that are kept for other users, each with the reason."""
    took: Message | None = None
    """The node's answer to the last request for reservations."""
    clock: float = 0.0
    """The node's own clock in its last report; 0: the node has not served this run yet."""
    living: dict[Key, Placement] = field(default_factory=dict)
    started: set[Key] = field(default_factory=set)
    unsent: list[Message] = field(default_factory=list)
    """Orders to forget and to stop attempts, which must reach the node once it answers again."""
    watched: list[Any] = field(default_factory=list)
    carried: mirror.CallSender = field(default_factory=mirror.CallSender)

    @property
    def name(self) -> str:
        """The node's name for users."""
        return self.named.name

    @property
    def features(self) -> tuple[str, ...]:
        """The node's features: those of its own configuration, and those that Slurm lists for it."""
        said = self.facts.features if self.facts is not None else ()
        return tuple(dict.fromkeys((*said, *self.named.features)))

    @property
    def echo(self) -> float:
        """The node's own clock in its last report over the present link; 0 without such a report, because a reboot
        resets the clock.
        """
        return self.clock if self.view else 0.0

    @property
    def away(self) -> str:
        """Why nothing can start on the node now; empty if tasks can start."""
        if not self.is_there:
            return self.why_away
        return "" if self.view or not self.joined else "its agent has just started"

    def order(self, message: Message, *, lasting: bool = False) -> None:
        """Send an order; if the node is away, a `lasting` order waits until the node answers."""
        if self.link is not None and self.joined:
            self.link.send(message)
        elif lasting:
            self.unsent.append(message)

    def launch(self, order: Launch, root: str) -> None:
        """Order a launch, after the files of the run in `root` that its command reads."""
        message, names = {"launch": forms.LAUNCH.to_dict(order)}, mirror.given_to(order.argv, root)
        if not names:
            self.order(message)
            return
        self.carried.add((order.task, order.attempt), names, root, message)
        self.push()

    def stop(self, key: Key, *, kill: bool) -> None:
        """Order an attempt to end, but not before its launch."""
        message = {"stop": [*key, kill]}
        if not self.carried.put_behind(key, message):
            self.order(message, lasting=True)

    def push(self) -> None:
        """Send as many of the waiting launches and their files as the node accepts now."""
        while self.link is not None and self.joined and not self.link.unsent:
            message = self.carried.next()
            if message is None:
                return
            self.link.send(message)


def take_report(node: Node, said: Mapping[str, Any]) -> None:
    """Note what a node reported, and add the node's name to its devices, leases and waiting runs."""
    is_first = not node.view
    node.view, node.clock, node.reported = said["view"], said["clock"], time.monotonic()
    if is_first:
        node.order({"echo": node.echo})  # before this report leads to a launch
    if "budgets" in said:
        _take_budgets(node, said)
    if "leases" in said:
        node.leases = tuple(_of_node(forms.LEASE.from_dict(one), node) for one in said["leases"])
    if "waiters" in said:
        node.waiters = tuple(_of_node(forms.WAITER.from_dict(one), node) for one in said["waiters"])
    node.closed = said.get("closed", node.closed)


def _take_budgets(node: Node, said: Mapping[str, Any]) -> None:
    """Note the states of the devices that have changed; the states of the others stay the same objects."""
    told = [named_budget(forms.BUDGET.from_dict(one), node) for one in said["budgets"]]
    found = {one.device.key: one for one in (*(() if "whole" in said else node.budgets), *told)}
    if [one.device for one in found.values()] != [one.device for one in node.budgets]:
        node.layout += 1
    node.budgets, node.oldest = tuple(found.values()), max((one.age for one in found.values()), default=0.0)


Told = TypeVar("Told", Lease, Waiter)


def _of_node(told: Told, node: Node) -> Told:
    """Return a lease or a waiting run of a node with the node's name, and with this user's id at the head if it belongs
    to the user of this run's agent on the node.
    """
    uid = os.getuid()
    is_ours = told.uid == (node.facts.uid if node.facts is not None else uid)
    return replace(told, name=f"{node.name}/{told.name}", node=node.name, uid=uid if is_ours else told.uid)


def named_budget(budget: DeviceBudget, node: Node) -> DeviceBudget:
    return replace(budget, device=named(budget.device, node))


def named(device: Device, node: Node) -> Device:
    """Return a device of a node with the key and the label that it has in the run."""
    key = host_of(node.name) if device.is_host else device.key
    label, ends = f"{node.name} {device.label}", node.named.ends
    return replace(device, key=key, label=label, node=node.name, features=node.features, node_ends=ends)
