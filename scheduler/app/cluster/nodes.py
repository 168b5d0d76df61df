"""The nodes of a run, at its head: connecting to them, and the ports through which the loop uses them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.app.run.options import this_python
from scheduler.cluster.devices import ClusterDevices, ClusterWatcher
from scheduler.cluster.engine import ClusterEngine, ClusterLeases
from scheduler.cluster.forms import DEVICE
from scheduler.cluster.head import Nodes
from scheduler.cluster.link import code_digest
from scheduler.cluster.node import Node
from scheduler.cluster.node_sources import NodeSources
from scheduler.core.model import Device, Placement
from scheduler.errors import DeviceError, UsageError
from scheduler.runtime.settings import READERS, Settings
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.app.run.options import RunOptions
    from scheduler.core.brain import Brain
    from scheduler.runtime.paths import RunPaths

NODES_OWN = ("state", "leases", "notify", "features")
"""The settings for which each node uses its own values."""


def check(options: RunOptions, settings: Settings) -> None:
    """Raise UsageError for options that cannot be combined with `--on`."""
    NodeSources(settings.on.split())
    for flag, given, why in (
        ("--mps", options.mps != "off", "its daemons are not started on nodes yet"),
        ("--power-cap", options.power_cap is not None, "it changes the GPUs of this machine only"),
        ("--fence", bool(options.fence), "its limits are not set on nodes yet"),
        ("--devices slots:", options.devices.startswith("slots:"), "slots are those of one machine"),
    ):
        if given:
            raise UsageError(f"{flag} does not go with --on: {why}; leave one of the two out")


def connect(
    options: RunOptions, settings: Settings, environ: Mapping[str, str], python: str = "", known: Sequence[Device] = ()
) -> ClusterDevices:
    """Greet the nodes that the options name. Raise DeviceError if none can be used, unless some are `known`."""
    check(options, settings)
    nodes = _nodes(options.devices, settings, environ, python or this_python(settings), known)
    try:
        nodes.connect()
    except DeviceError as exc:
        if not known:
            nodes.close(over=False)
            raise UsageError(str(exc)) from exc
    return ClusterDevices(nodes, known)


def _nodes(
    devices: str, settings: Settings, environ: Mapping[str, str], python: str, known: Sequence[Device] = ()
) -> Nodes:
    hello = {
        "code": code_digest(),
        "devices": devices,
        "python": python,
        "settings": {name: getattr(settings, name) for name in READERS if name not in NODES_OWN},
        "environ": dict(environ),
    }
    known_nodes = sorted({device.node for device in known})
    return Nodes(NodeSources(settings.on.split(), known_nodes), hello, settings.node_fence)


def survey(settings: Settings, environ: Mapping[str, str]) -> list[Node]:
    """Return the nodes that the settings name, each with its facts or with why it cannot be used."""
    nodes = _nodes("auto", settings, environ, this_python(settings))
    try:
        with contextlib.suppress(DeviceError):  # each node says why it cannot be used
            nodes.connect()
        return [*nodes.nodes.values()]
    finally:
        nodes.close(over=False)


def known_devices(meta: Mapping[str, str]) -> list[Device]:
    """Return the devices of nodes that the journal of a run names."""
    return [DEVICE.from_dict(one) for one in json.loads(meta.get("nodes", "[]"))]


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of a run on several nodes."""

    nodes: Nodes
    engine: ClusterEngine
    watcher: ClusterWatcher
    leases: ClusterLeases


def join(
    nodes: Nodes, places: RunPaths, meta: Mapping[str, str], umask: int, warm: Mapping[str, Any], brain: Brain
) -> ClusterPorts:
    """Make the agents serve the run with these facts, and return the ports that use the agents.

    `warm` is what the fork servers load before they start calls of an executor; empty: nothing.
    """
    token, epoch, root = meta["token"], int(meta.get("epoch", "0")), os.path.abspath(places.root)
    nodes.join(places, {"token": token, "epoch": epoch, "root": root, "umask": umask, "warm": warm})

    def placement_of(task: int) -> Placement | None:
        state = brain.task(task)
        return state.placement if state is not None else None

    nodes.grace_of = lambda task: brain.terms_of(task).grace
    engine = ClusterEngine(nodes, placement_of, root)
    return ClusterPorts(nodes, engine, ClusterWatcher(nodes), ClusterLeases(nodes, token))
