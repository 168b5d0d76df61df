"""The engine and the leases of a run on several nodes; the agents on the nodes do the work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.cluster import forms
from scheduler.cluster.head import REFUSED, Nodes
from scheduler.core.events import Exited, Started
from scheduler.core.leases import NO_OFFER, HeldLease, Lease, RoomCall, RoomOffer
from scheduler.core.model import Placement, Waiter, WaitTicket, host_of
from scheduler.core.ports import Key, Launch
from scheduler.core.reporting.published_forecast import PublishedForecast
from scheduler.core.site_policy import SitePolicy
from scheduler.errors import LeaseError
from scheduler.values import replace

PlacementOf = Callable[[int], Placement | None]
"""A function that returns the placement of a living task."""

AGAIN = 1.0
"""Seconds between two tickets that are sent to one node and differ only in how long the task has waited."""


class ClusterEngine:
    """The engine of a run on several nodes; `Nodes` returns the events of the nodes, not this engine."""

    def __init__(self, nodes: Nodes, placement_of: PlacementOf, root: str) -> None:
        """Prepare the engine of the run in the directory `root`."""
        self._nodes, self._placement_of, self._root = nodes, placement_of, root
        self._lost: list[Started | Exited] = []

    def launch(self, order: Launch) -> None:
        """Order the launch on the node that took the reservation; if the node has been lost since, nothing starts."""
        node = self._nodes.node_of((order.task, order.attempt))
        assert node is not None
        node.launch(order, self._root)

    def stop(self, task: int, attempt: int, *, kill: bool = False) -> None:
        """Pass the request on to the attempt's node, at once or as soon as the node answers again."""
        node = self._nodes.node_of((task, attempt))
        if node is not None and (task, attempt) in node.living:
            node.stop((task, attempt), kill=kill)

    def adopt(self, task: int, attempt: int) -> None:
        """Order a node to take over an attempt that an earlier scheduler placed there."""
        placement = self._placement_of(task)
        assert placement is not None
        self._nodes.adopt(placement)

    def collect(self) -> list[Started | Exited]:
        """Return nothing, because `Nodes.collect` returns the events of all nodes."""
        return []

    def has_ended(self, task: int, attempt: int) -> bool:
        """Tell whether the end of an attempt was reported."""
        node = self._nodes.node_of((task, attempt))
        return node is None or (task, attempt) not in node.living

    def troubles(self) -> Sequence[str]:
        """Return nothing, because `ClusterWatcher` has the sentences about the nodes."""
        return ()

    def forget(self, task: int, attempt: int) -> None:
        """Remove the files of an attempt on its node; keep its files at the head."""
        self._nodes.forget((task, attempt))


class ClusterLeases:
    """The leases of a run in the directories of all its nodes; `deciding` holds no mutex."""

    has_moved = False

    def __init__(self, nodes: Nodes, run: str) -> None:
        self._nodes = nodes
        self.run = run
        self.uid = os.getuid()
        self._shown: dict[str, tuple[WaitTicket, float]] = {}
        """The last ticket that was sent to each node, and when it was sent."""

    @contextmanager
    def deciding(self) -> Iterator[ClusterLeases]:
        """Let the run decide by the nodes' last reports; a node refuses a reservation that does not agree with its
        present state.
        """
        yield self

    def others(self) -> list[Lease]:
        """Return the leases of other runs in the last reports."""
        return [lease for node in self._nodes.nodes.values() for lease in node.leases]

    def seen(self) -> list[Lease]:
        """Return the leases of other runs in the last reports."""
        return self.others()

    def take(self, placement: Placement, guest: str = "") -> HeldLease:
        """Take one reservation. Raise LeaseError if its node refuses it. `guest` is ignored: guests exist only in runs
        on one machine.
        """
        for _, lease in self._nodes.take([placement]):
            return lease
        raise LeaseError(f"{placement.node} does not take task {placement.task} now")

    def take_all(self, wanted: Sequence[tuple[Placement, str]]) -> Iterator[tuple[Placement, HeldLease]]:
        """Take reservations, with one message to each node; leave out reservations that their node refuses now."""
        return self._nodes.take([placement for placement, _ in wanted])

    def waiters(self) -> list[Waiter]:
        """Return the schedulers that wait on the nodes."""
        return [waiter for node in self._nodes.nodes.values() for waiter in node.waiters]

    def wait(self, ticket: WaitTicket | None) -> None:
        """Publish on each node what this run waits for on that node."""
        if ticket is None and not self._shown:
            return
        now = time.monotonic()
        for name, node in self._nodes.nodes.items():
            here = None if ticket is None else self._on(name, ticket)
            shown, at = self._shown.get(name, (None, 0.0))
            if here == shown or (_is_alike(here, shown) and now - at < AGAIN):
                continue
            node.order({"ticket": None if here is None else forms.TICKET.to_dict(here)})
            if here is None:
                del self._shown[name]
            else:
                self._shown[name] = here, now

    def _on(self, name: str, ticket: WaitTicket) -> WaitTicket | None:
        """Return the part of a ticket that concerns a node, with devices as that node names them."""
        node = self._nodes.nodes[name]
        keys = {budget.device.key: budget.device.key_there for budget in node.budgets}
        devices = tuple(keys[key] for key in ticket.devices if key in keys)
        return replace(ticket, devices=devices) if devices and node.joined else None

    def house(self) -> SitePolicy:
        """Return the devices that a node's administrator or users keep for others; the agents apply the quotas."""
        closed: dict[str, str] = {}
        now = time.monotonic()
        for name, node in self._nodes.nodes.items():
            if node.closed:
                closed |= {host_of(name) if key == "host" else key: why for key, why in node.closed.items()}
            if node.took is not None and node.took.get("why") and now - node.refused < REFUSED and node.joined:
                closed |= {budget.device.key: f"{name} is asked again: {node.took['why']}" for budget in node.budgets}
        return SitePolicy(closed=closed)

    def calls(self) -> Sequence[RoomCall]:
        """Return nothing: attempts on nodes make no room for other runs yet."""
        return ()

    def rewrite(self, placement: Placement, shim: int, offer: RoomOffer = NO_OFFER) -> bool:
        """Make the node update the lease of a living attempt."""
        node = self._nodes.nodes[placement.node]
        key = (placement.task, placement.attempt)
        if key in node.living:
            node.living[key] = placement
        said = {"placement": forms.event_to_dict(placement), "shim": shim, "offer": forms.OFFER.to_dict(offer)}
        node.order({"rewrite": said})
        return True

    def troubles(self) -> Sequence[str]:
        """Return nothing, because agents send their own sentences."""
        return ()

    def adopt(self, task: int, attempt: int) -> None:
        """Do nothing: the agent adopts the lease with the attempt."""

    def missing(self) -> Sequence[Key]:
        """Return nothing: agents create lost leases again."""
        return ()

    def restore(self, living: Sequence[tuple[Placement, int, str]]) -> str:
        """Do nothing: agents create lost leases again."""
        return ""

    def drop(self, task: int, attempt: int) -> None:
        """Make the node remove the lease of an attempt that was lost, or that will not be launched."""
        if (node := self._nodes.node_of((task, attempt))) is not None:
            node.living.pop((task, attempt), None)
            node.order({"drop": [task, attempt]})

    def forget(self, task: int, attempt: int) -> None:
        """Make the node forget the lease of an ended attempt."""
        if (node := self._nodes.node_of((task, attempt))) is not None:
            node.order({"released": [task, attempt]})

    def leave(self) -> None:
        """Withdraw this run's wait tickets."""
        self.wait(None)

    def publish(self, forecast: PublishedForecast | None) -> None:
        """Do nothing: forecasts of other runs do not yet count the tasks of a run on nodes."""


def _is_alike(one: WaitTicket | None, other: WaitTicket | None) -> bool:
    """Tell whether two tickets differ at most in how long their task has waited."""
    return one is not None and other is not None and replace(one, waited=other.waited) == other
