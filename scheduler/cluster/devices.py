"""The devices of all nodes as the devices of one run, and the measurement of what its attempts use there."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.cluster import forms
from scheduler.cluster.head import Nodes
from scheduler.cluster.node import Node
from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import Device, DeviceBudget, Placement
from scheduler.core.ports import Key, Watched
from scheduler.values import replace

OLD = 1.0
"""Seconds after which a report is too old for decisions that need a current one."""


class ClusterDevices:
    """The devices of all nodes of a run, as the devices of one machine."""

    gpus = None
    mps = None
    fence = None
    source = ""

    def __init__(self, nodes: Nodes, known: Sequence[Device] = ()) -> None:
        """Prepare the devices of all nodes; `known` are the devices of nodes that answered to an earlier scheduler."""
        self.nodes = nodes
        self._known = {device.key: device for device in known}
        self._unheard = dict(self._known)
        self._layouts: dict[str, int] = {}
        """The layout number of each node when its devices were last noted."""
        self.notes = nodes.notes()
        self.labels: dict[str, str] = {}
        """The names of all devices of the run so far, by key. Devices of nodes that join are added."""

    def discover(self) -> tuple[Device, ...]:
        """Return the devices of all nodes that have ever answered."""
        found = dict(self._known)
        for node in self.nodes.present():
            found |= {budget.device.key: budget.device for budget in node.budgets}
        self.labels.update({key: device.label for key, device in found.items()})
        return tuple(found.values())

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return what each device had free in the last report of its node."""
        now = time.monotonic()
        budgets: list[DeviceBudget] = []
        for node in self.nodes.nodes.values():
            if self._layouts.get(node.name) != node.layout:
                self._meet(node)
            since, away = now - node.reported, node.away
            if not away and since + node.oldest <= OLD:
                budgets += node.budgets
            else:
                budgets += [_aged(budget, since, away) for budget in node.budgets]
        for device in self._unheard.values():
            why = self.nodes.nodes[device.node].why_away if device.node in self.nodes.nodes else "left the run"
            budgets.append(DeviceBudget(device, 0, away=why))
        return tuple(budgets)

    def _meet(self, node: Node) -> None:
        """Note the devices of a node that has answered for the first time, or whose devices have changed."""
        self._layouts[node.name] = node.layout
        for device in (budget.device for budget in node.budgets):
            self.labels[device.key] = device.label
            self._unheard.pop(device.key, None)

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the variables that the node gave to a placement together with its reservation."""
        plain, numbered, _ = self.nodes.environments[placement.task, placement.attempt]
        return numbered if numbers else plain

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the numbers that CUDA inside the task gives to its GPUs, as its node knows them."""
        return self.nodes.environments[placement.task, placement.attempt][2]

    @property
    def usual(self) -> int:
        """The number of GPUs of a task that declares no number."""
        return max((node.facts.usual for node in self.nodes.present() if node.facts is not None), default=1)

    @property
    def limits(self) -> Mapping[str, str]:
        """Return nothing, because each node has limits of its own."""
        return {}

    @property
    def drivers(self) -> Mapping[str, str]:
        """A description of each node's driver and of how it reads memory. Together with the model of a GPU, it decides
        which profile applies.
        """
        there = [(node.name, node.facts) for node in self.nodes.present()]
        return {name: f" ({facts.driver}, by {facts.reads})" for name, facts in there if facts is not None}

    def to_json(self) -> str:
        """Return the devices for the journal, so that the run can be taken over while a node cannot be reached."""
        return json.dumps([forms.DEVICE.to_dict(device) for device in self.discover()])

    def close(self) -> None:
        """End the links, unless the end of the run has already ended them."""
        self.nodes.close(over=False)


def _aged(budget: DeviceBudget, since: float, away: str) -> DeviceBudget:
    """Return the last reported state of a device, with its age increased by the `since` seconds since that report."""
    age = budget.age + since
    return replace(budget, age=age if age > OLD else budget.age, away=away or budget.away)


class ClusterWatcher:
    """The samplers of all nodes, combined into one watcher."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._told: dict[str, list[tuple[Key, Watched]]] = {}
        """The attempts that each node samples."""

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        """Tell each node which attempts to sample; a node finds the processes of other leases by itself."""
        by_node: dict[str, list[Any]] = {}
        for key, watched in attempts.items():
            node = self._nodes.node_of(key)
            if node is not None and key in node.living:
                by_node.setdefault(node.name, []).append((key, watched))
        for name in {**self._told, **by_node}:
            here = by_node.get(name, [])
            if here != self._told.get(name, []):
                self._told[name] = here
                node = self._nodes.nodes[name]
                node.watched = [[*key, forms.WATCHED.to_dict(watched)] for key, watched in here]
                node.order({"watch": node.watched})

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """Return the memory that another lease uses, as its node reported it."""
        for node in self._nodes.nodes.values():
            for lease in node.leases:
                if lease.name == whose:
                    return lease.used
        return {}

    def troubles(self) -> Sequence[str]:
        """Return what users should know about the nodes."""
        return self._nodes.sentences()
