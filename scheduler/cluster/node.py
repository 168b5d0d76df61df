"""One node of a run, as its head knows it: the facts of its machine, its last report, and what was ordered there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.cluster import forms, mirror
from scheduler.cluster.frames import Message
from scheduler.cluster.link import NodeLink, NodeName
from scheduler.core.leases import Lease
from scheduler.core.model import Device, DeviceBudget, Placement, Waiter, host_of
from scheduler.core.ports import Key, Launch
from scheduler.values import replace


class Node:
    """One node of a run."""

    def __init__(self, named: NodeName) -> None:
        self.named = named
        self.facts: forms.NodeFacts | None = None
        """The facts that it told first; None: it has never answered."""
        self.link: NodeLink | None = None
        self.is_there = False
        """True if an agent has answered over the present link."""
        self.joined = False
        """True if that agent serves this run."""
        self.why_away = "it has not answered yet"
        self.heard = self.due = self.refused = 0.0
        """When it was last heard, when the next link is due, and when it last refused what was decided."""
        self.view = 0
        self.reported = time.monotonic()
        """When its last report came; before the first one, when this scheduler began to expect one."""
        self.budgets: tuple[DeviceBudget, ...] = ()
        self.leases: tuple[Lease, ...] = ()
        self.waiters: tuple[Waiter, ...] = ()
        self.closed: Mapping[str, str] = {}
        """Devices that are kept for other users there, each with the reason."""
        self.took: Message | None = None
        """Its answer to the last request for reservations."""
        self.clock = 0.0
        """Its own clock in its last report; 0: it has not served this run yet."""
        self.living: dict[Key, Placement] = {}
        self.started: set[Key] = set()
        self.unsent: list[Message] = []
        """Orders that must reach it once it is back: what to forget and to stop."""
        self.watched: list[Any] = []
        self.carried = mirror.CallSender()

    @property
    def name(self) -> str:
        """Its name for users."""
        return self.named.name

    @property
    def echo(self) -> float:
        """Its own clock in its last report over the present link, 0 without one: another boot has another clock."""
        return self.clock if self.view else 0.0

    @property
    def away(self) -> str:
        """Why nothing can start there now; empty if something can."""
        if not self.is_there:
            return self.why_away
        return "" if self.view or not self.joined else "its agent has just begun"

    def order(self, message: Message, *, lasting: bool = False) -> None:
        """Send an order; a `lasting` one waits until the node is there."""
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
        """Send what is carried, as far as the node takes it now."""
        while self.link is not None and self.joined and not self.link.unsent:
            message = self.carried.next()
            if message is None:
                return
            self.link.send(message)


def take_report(node: Node, said: Mapping[str, Any]) -> None:
    """Note what a node reported, with its name on everything."""
    name, uid = node.name, os.getuid()
    is_first = not node.view
    node.view, node.clock, node.reported = said["view"], said["clock"], time.monotonic()
    if is_first:
        node.order({"echo": node.echo})  # before anything is launched by this report
    node.budgets = named_budgets([forms.BUDGET.from_dict(one) for one in said["budgets"]], name)
    theirs = node.facts.uid if node.facts is not None else uid
    leases = [forms.LEASE.from_dict(one) for one in said["leases"]]
    node.leases = tuple(
        replace(one, name=f"{name}/{one.name}", node=name, uid=uid if one.uid == theirs else one.uid) for one in leases
    )
    waiters = [forms.WAITER.from_dict(one) for one in said["waiters"]]
    node.waiters = tuple(
        replace(one, name=f"{name}/{one.name}", node=name, uid=uid if one.uid == theirs else one.uid) for one in waiters
    )
    node.closed = said["closed"]


def named_budgets(budgets: Sequence[DeviceBudget], node: str) -> tuple[DeviceBudget, ...]:
    return tuple(replace(budget, device=named(budget.device, node)) for budget in budgets)


def named(device: Device, node: str) -> Device:
    """Return a device of a node as one of the run's."""
    key = host_of(node) if device.is_host else device.key
    return replace(device, key=key, label=f"{node} {device.label}", node=node)
