"""A Ray cluster as the head sees it: its nodes, and links to them through one bridge process."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from scheduler.errors import UsageError
from scheduler.runtime.processes import Child, start_link

RAY = "ray"
MODULE = "scheduler.cluster.ray_bridge"
CONNECT = 40.0
"""Seconds within which the bridge must have reached the cluster when a run starts."""
KNOCK = 3.0
"""Seconds within which the address of a cluster must accept a connection."""
AGAIN = 2.0
"""Seconds between two starts of the bridge."""
_PACKET = 1 << 16


class RayLink:
    """One link, as the two descriptors of its bytes."""

    def __init__(self, cluster: RayCluster, name: str, mine: socket.socket) -> None:
        """Create a link over the socket `mine`, whose other end the bridge has."""
        self._cluster, self._name, self._mine = cluster, name, mine
        self._write = os.dup(mine.fileno())
        self.ends = mine.fileno(), self._write

    def why_ended(self) -> str:
        """Return the last message of the agent or the bridge."""
        return self._cluster.why_ended(self._name)

    def close(self, patience: float) -> None:
        """End the input of the agent, wait up to `patience` seconds until it has ended, then close the link."""
        with contextlib.suppress(OSError):
            self._mine.shutdown(socket.SHUT_WR)
        end = time.monotonic() + patience
        while patience and (left := end - time.monotonic()) > 0 and select.select([self._mine], [], [], left)[0]:
            with contextlib.suppress(BlockingIOError):
                if not self._mine.recv(_PACKET):
                    break
        os.close(self._write)
        self._mine.close()


class RayCluster:
    """The nodes of a cluster, by their host names. It connects again when the cluster, or the bridge to it, is back."""

    def __init__(self, address: str, *, insecure: bool) -> None:
        """Note the address of the cluster: `H:P`, or `auto` for the cluster of this machine."""
        self._address, self._insecure = address, insecure
        self._token = os.urandom(8).hex()
        """A random string that distinguishes the actors of this head from those of other heads."""
        self._errors = -1
        self._bridge: Child | None = None
        self._packets: socket.socket | None = None
        self._ids: dict[str, list[str]] = {}
        """The Ray ids of each host: a host has two while Ray has not noticed that its first node has ended."""
        self._reasons: dict[str, str] = {}
        self._failed = ""
        self._due = 0.0

    def connect(self) -> None:
        """Reach the cluster. Raise UsageError with the reason if it cannot be used."""
        _require_ray(self.said)
        _knock(self._address)
        self._errors = os.memfd_create("bridge", os.MFD_CLOEXEC)
        self._start()
        end = time.monotonic() + CONNECT
        while not self._ids and not self._failed and (left := end - time.monotonic()) > 0:
            bridge = () if self._packets is None else (self._packets,)  # none: it was killed, and is started again
            select.select(bridge, [], [], left if bridge else min(left, AGAIN))
            self.look()
        if not self._ids:
            self.close()
            why = self._failed or f"it has not answered within {CONNECT:g} s"
            raise UsageError(f"--on {self.said}: {why}")

    @property
    def said(self) -> str:
        """The cluster as `--on` names it."""
        return "ray" if self._address == "auto" else f"ray://{self._address}"

    def names(self) -> list[str]:
        """Return the host names of the nodes that the cluster has now."""
        return list(self._ids)

    def look(self) -> None:
        """Read the messages of the bridge; start it again if it has ended."""
        while self._packets is not None:
            try:
                packet = self._packets.recv(_PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._stop()
                return
            self._hear(json.loads(packet))
        if self._errors >= 0 and time.monotonic() >= self._due:
            self._start()

    def _hear(self, said: dict[str, Any]) -> None:
        if "failed" in said:
            self._failed = str(said["failed"])
        if "nodes" in said:
            self._ids = {}
            for node in said["nodes"]:
                self._ids.setdefault(node["name"], []).append(node["id"])
            self._failed = self._refusal(str(said["address"]), token=bool(said["token"]))
            if self._failed:
                self._ids = {}
        if "ended" in said:
            name = next((name for name, ids in self._ids.items() if said["ended"] in ids), said["ended"])
            self._reasons[name] = str(said["reason"])
            if len(self._ids.get(name, ())) > 1:
                self._ids[name].append(self._ids[name].pop(0))  # the next link tries its other id

    def _refusal(self, address: str, *, token: bool) -> str:
        if token or self._insecure or _is_loopback(address.rpartition(":")[0]):
            return ""
        return (
            f"the cluster at {address} takes orders from anyone who reaches it: start Ray with RAY_AUTH_MODE=token and"
            " set it here too, or give --on-insecure if the network is trusted"
        )

    def open(self, name: str, words: Sequence[str]) -> RayLink:
        """Start an agent on a node. Raise OSError if the bridge or the node is missing."""
        self.look()
        if self._packets is None or name not in self._ids:
            raise ConnectionError(self._failed or f"{self.said} has no node {name} now")
        mine, theirs = socket.socketpair()
        order = {"open": self._ids[name][0], "name": f"{self._token}-{name}", "words": list(words)}
        self._reasons.pop(name, None)
        with theirs:
            try:
                socket.send_fds(self._packets, [json.dumps(order).encode()], [theirs.fileno()])
            except OSError:
                mine.close()
                raise
        return RayLink(self, name, mine)

    def why_ended(self, name: str) -> str:
        """Return why the last link to a node ended, in the words of its agent or of the bridge."""
        self.look()
        return self._reasons.get(name) or "the link through Ray ended"

    def close(self) -> None:
        """End the bridge; without it the actors end by themselves."""
        self._due = float("inf")
        self._stop()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1

    def _start(self) -> None:
        self._due = time.monotonic() + AGAIN
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        with theirs:
            try:
                argv = [sys.executable, "-m", MODULE, self._address, f"gpu-batch-scheduler-{os.getuid()}"]
                self._bridge = start_link(argv, self._errors, theirs)
            except OSError:
                mine.close()
                return
        self._packets = mine

    def _stop(self) -> None:
        if self._packets is not None:
            self._packets.close()
            self._packets = None
        if self._bridge is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._bridge.wait(0.2)
            self._bridge.kill()
            self._bridge.wait()
            self._bridge = None
        self._ids = {}
        self._due = max(self._due, time.monotonic() + AGAIN)


def _require_ray(said: str) -> None:
    if find_spec("ray") is None:
        raise UsageError(f"--on {said}: Ray is not installed here: pip install 'gpu-batch-scheduler[ray]'")


def _knock(address: str) -> None:
    """Raise UsageError if nothing listens at an address."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), KNOCK).close()
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise UsageError(
            f"--on ray://{address}: no Ray cluster answers there ({why}): start one with `ray start --head`"
        ) from exc


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
