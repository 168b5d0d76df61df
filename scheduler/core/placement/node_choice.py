"""The choice of a node. All devices of a task are on one node, so its GPUs and its host are tried together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Device, Placement, Terms
from scheduler.core.placement import fit
from scheduler.core.placement.device_capacity import DeviceCapacity, is_called, is_named, is_on, listed
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import ResourceRequest, gpus_of
from scheduler.units import count
from scheduler.values import dataclass

Hosts = Mapping[str, DeviceCapacity | None]
"""The host of each node; None for a node whose host is not a device of the run."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The bytes to reserve on the devices of one node."""

    node: str
    reservation: Mapping[str, int]
    """Bytes by device, as the node names them."""
    host: DeviceCapacity | None


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault in the nodes, the features or the number of GPUs that a row requests, in words without the subject."""

    column: str
    text: str


def fault_of_nodes(
    terms: Terms, devices: Sequence[Device], otherwise: str = "name nodes with --on"
) -> NodeFault | None:
    """Return why a task can never run on these devices because of its nodes; None if it can. `otherwise` tells the user
    how to name nodes.
    """
    there = list(dict.fromkeys(device.node for device in devices if device.node))
    missing = [node for node in terms.node.split(",") if terms.node and node not in there]
    if missing:
        has = f"has {listed(there, 'node')}" if there else f"has this machine only: {otherwise}"
        return NodeFault("Node", f"names the node {missing[0]!r}; this run {has}")
    if terms.features and not there:
        return NodeFault("Features", f"asks for features of nodes; this run has this machine only: {otherwise}")
    if fault := _fault_of_features(terms, devices):
        return fault
    gpus = gpus_of(terms, any(device.is_gpu for device in devices))
    nodes = Counter(device.node for device in devices if device.is_gpu and is_on(device, terms))
    most = max(nodes.values(), default=0)
    if not there or gpus <= most:
        return None
    named = f" of {terms.node}" if terms.node else f" with {terms.features}" if terms.features else ""
    most_there = f"the most on one node{named} is {most}"
    return NodeFault("GPUs" if terms.gpus else "Node", f"needs {count(gpus, 'GPU')} on one node; {most_there}")


def _fault_of_features(terms: Terms, devices: Sequence[Device]) -> NodeFault | None:
    """Return why no node has the features that a task asks for; None if one has them."""
    if not terms.features or any(is_on(device, terms) for device in devices):
        return None
    there = list(dict.fromkeys(name for device in devices for name in device.features))
    lacking = [name for name in terms.features.split(",") if name not in there]
    if lacking:
        known = f"they have {listed(there, 'feature')}" if there else "the setting `features` of a machine names them"
        return NodeFault("Features", f"asks for {lacking[0]!r}, which no node has; {known}")
    return NodeFault("Features", f"no node{f' of {terms.node}' if terms.node else ''} has all of {terms.features}")


def hosts_of(rooms: Iterable[DeviceCapacity]) -> Hosts:
    """Return the host of each node to which one of the devices belongs."""
    found: dict[str, DeviceCapacity | None] = {}
    for room in rooms:
        found[room.device.node] = room if room.device.is_host else found.get(room.device.node)
    return found


def hosts_for(terms: Terms, gpus: int, hosts: Hosts) -> Hosts:
    """Return the hosts of the nodes on which a task that requests this many GPUs may run."""
    if not terms.is_bound or (gpus and not terms.node and not terms.features):
        return hosts
    there = {node: host for node, host in hosts.items() if _may_be_on(node, host, terms)}
    if gpus or not terms.device:
        return there
    return {node: host for node, host in there.items() if host and is_called(host.device, terms.device)}


def _may_be_on(node: str, host: DeviceCapacity | None, terms: Terms) -> bool:
    return is_on(host.device, terms) if host is not None else is_named(node, terms) and not terms.features


def fitted(
    task: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity], hosts: Hosts, rules: SchedulingConfig
) -> Placement | Refusal:
    """Place the first attempt of a task on one node, or return a refusal."""
    found = room_on_a_node(task, need, gpus, hosts, rules)
    if isinstance(found, Refusal):
        return found
    return fit.placed(task, 1, need, found.reservation, found.host, 0.0, found.node)


def room_on_a_node(
    task: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity], hosts: Hosts, rules: SchedulingConfig
) -> NodeShare | Refusal:
    """Return what to reserve for a task on a node where all of it fits, or the most informative refusal.

    `gpus` are those that the task may use, best first. If it fits on several nodes, compare the worst GPU that it would
    use on each, and take the node where this GPU ranks best.
    """
    if len(hosts) == 1:
        node, host = next(iter(hosts.items()))
        only = fit.room_for(task, need, gpus, host, rules)
        return only if isinstance(only, Refusal) else NodeShare(node, only, host)
    refusal: Refusal | None = None
    best: NodeShare | None = None
    worst, several = len(gpus), len(need.gpus) > 1
    full: set[str] = set()
    for place, node, some in _places(len(need.gpus), gpus, hosts):
        if best is not None and place >= worst:
            return best
        if node in full:
            continue
        host = hosts[node]
        tried = _room_on(task, need, some, host, rules)
        if isinstance(tried, Refusal):
            refusal = tried if refusal is None else fit.better(refusal, tried)
            if host is not None and tried.device == host.device.label:
                full.add(node)  # its other GPUs cannot help
        elif (last := _last_of(tried, gpus) if several else -1) < worst:
            best, worst = NodeShare(node, tried, host), last
    return best or refusal or Refusal(task, Reason.GPUS, wanted=len(need.gpus), total=_most_gpus(gpus))


def _room_on(
    task: int,
    need: ResourceRequest,
    gpus: Sequence[DeviceCapacity],
    host: DeviceCapacity | None,
    rules: SchedulingConfig,
) -> dict[str, int] | Refusal:
    """Return the bytes to reserve on one of several nodes, or a refusal. A host that can never hold the task is named
    first.
    """
    never = None if host is None or rules.slots is not None else fit.too_small(task, need.host, host, rules)
    return never or fit.room_for(task, need, gpus, host, rules)


def _last_of(reservation: Mapping[str, int], gpus: Sequence[DeviceCapacity]) -> int:
    """Return the position in `gpus` of the worst GPU that a reservation uses."""
    return max(place for place, room in enumerate(gpus) if room.device.key in reservation)


def never_now(
    task: int, need: ResourceRequest, gpus: Sequence[DeviceCapacity], hosts: Hosts, rules: SchedulingConfig
) -> tuple[list[DeviceCapacity], Refusal | None]:
    """Return the GPUs of all nodes on which a task would fit if all leases ended now. If it would fit on no node,
    return why.
    """
    found: list[DeviceCapacity] = []
    refusal: Refusal | None = None
    fits = False
    for node, some in _by_node(gpus).items() if need.gpus else ((node, []) for node in hosts):
        there, never = fit.never_now(task, need, some, hosts[node], rules)
        found += there
        fits = fits or never is None
        if never is not None:
            refusal = never if refusal is None else fit.better(refusal, never)
    if fits:
        return found, None
    return [], refusal or Refusal(task, Reason.GPUS, wanted=len(need.gpus), total=_most_gpus(gpus))


def _places(
    number: int, gpus: Sequence[DeviceCapacity], hosts: Hosts
) -> Iterator[tuple[int, str, Sequence[DeviceCapacity]]]:
    """Yield several nodes in the order in which they are tried, each with its GPUs. The number before a node is the
    best position that the worst GPU used on that node can have.
    """
    if not number:
        yield from ((0, host.device.node, ()) for host in sorted(filter(None, hosts.values()), key=_most_left))
    elif number == 1:
        yield from ((place, room.device.node, (room,)) for place, room in enumerate(gpus))
    else:
        yield from _with_enough(number, gpus)


def _most_left(host: DeviceCapacity) -> tuple[float, int]:
    return -host.load, -host.bytes


def _with_enough(number: int, gpus: Sequence[DeviceCapacity]) -> Iterator[tuple[int, str, Sequence[DeviceCapacity]]]:
    """Yield the nodes that have at least `number` of the GPUs, in the order in which they reach that number."""
    count: dict[str, int] = {}
    by_node = _by_node(gpus)
    for place, room in enumerate(gpus):
        node = room.device.node
        count[node] = count.get(node, 0) + 1
        if count[node] == number:
            yield place, node, by_node[node]


def _by_node(gpus: Sequence[DeviceCapacity]) -> dict[str, list[DeviceCapacity]]:
    found: dict[str, list[DeviceCapacity]] = {}
    for room in gpus:
        found.setdefault(room.device.node, []).append(room)
    return found


def _most_gpus(gpus: Sequence[DeviceCapacity]) -> int:
    """Return the largest number of these GPUs that are on one node."""
    return max(map(len, _by_node(gpus).values()), default=0)
