"""The devices of one run: its GPUs, and the host's RAM beside them, asked as if they were one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.core.model import Budget, Device, Placement
from scheduler.core.ports import Key, Watched, Watcher
from scheduler.devices.host import HostDevices
from scheduler.devices.mps import Mps
from scheduler.devices.nvml import NvmlDevices
from scheduler.devices.task_environment import gpu_environment

FIRST_PORT, PORTS = 20_000, 12_000
"""Below the ports that the kernel gives away by itself."""
SHARERS = 2
"""The cores are shared out as if so many tasks ran on each GPU."""


class Pool:
    """Everything a run may use; `gpus` is None where it uses the host alone."""

    def __init__(
        self,
        host: HostDevices,
        gpus: NvmlDevices | None = None,
        *,
        ordinals: Mapping[str, int] | None = None,
        visible: str = "uuid",
        source: str = "",
        notes: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self.gpus = gpus
        self.source = source
        """What limits the GPUs to these: a variable's name; empty where nothing does."""
        self.notes = list(notes)
        self._environ = os.environ if environ is None else environ
        """What tasks start from."""
        self._ordinals = dict(ordinals or {})
        """The numbers by which CUDA knows the GPUs, by UUID."""
        self._visible = visible
        self.mps: Mps | None = None
        """The daemons by which tasks really share its GPUs, where the run wants that."""

    def discover(self) -> tuple[Device, ...]:
        """Its GPUs, then the host."""
        return (*(self.gpus.discover() if self.gpus else ()), *self.host.discover())

    def snapshot(self) -> tuple[Budget, ...]:
        """What each of them has free."""
        return (*(self.gpus.snapshot() if self.gpus else ()), *self.host.snapshot())

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """The GPUs it may use and how libraries are kept from taking all of one; threads as its share of the cores."""
        mine = list(placement.gpus)
        ordinals = [self._ordinals.get(uuid, 0) for uuid in mine]
        told = gpu_environment(mine, self._visible, ordinals, self._environ)
        if not mine:
            return {**self.host.environment_for(placement), **told}
        if "MASTER_PORT" not in self._environ:
            told["MASTER_PORT"] = str(free_port(placement.task, placement.attempt))
        return {**self.host.threads(self._share(len(mine))), **told}

    def _share(self, mine: int) -> float:
        assert self.gpus is not None
        cores = self.host.discover()[0].load_capacity
        return cores * mine / (len(self.gpus.discover()) * SHARERS)

    @property
    def usual(self) -> int:
        """How many GPUs a task gets that does not say it, where there are any."""
        return 1

    @property
    def limits(self) -> Mapping[str, str]:
        """Who limits its GPUs, its memory and its cores; empty where all there is may be used."""
        said = {limit.what: limit.source for limit in self.host.limits()}
        return {"gpus": self.source, **{what: by for what, by in said.items() if by not in ("RAM", "all cores")}}

    @property
    def driver(self) -> str:
        """Version of the driver; empty without GPUs."""
        return f"driver {self.gpus.node().driver}" if self.gpus else ""

    @property
    def reads(self) -> str:
        """Whether GPU memory is seen per `process`, or only per `device`."""
        return self.gpus.node().reads if self.gpus else "process"

    def moved_gpus(self, code: Path) -> list[NvmlDevices]:
        """Its GPUs, looked at by the run's own copies from now on."""
        gpus = [] if self.gpus is None else [self.gpus]
        for one in gpus:
            one.move(code)
        return gpus

    def serving_mps(self, code: Path) -> list[Mps]:
        """The daemons it shares GPUs by, looked after from now on."""
        if self.mps is None or self.gpus is None:
            return []
        self.mps.serve(code, self.gpus.held_by)
        return [self.mps]

    def close(self) -> None:
        """Let the GPUs go."""
        if self.mps is not None:
            self.mps.close()
            self.mps = None
        if self.gpus is not None:
            self.gpus.close()


def free_port(task: int, attempt: int) -> int:
    """A port that nobody listens on now, another one for each attempt."""
    first = (task * 31 + attempt) % PORTS
    for offset in range(PORTS):
        port = FIRST_PORT + (first + offset) % PORTS
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    return FIRST_PORT + first


class Watchers:
    """Several watchers as one: each sees its own kind of memory of the same attempts."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Have all of them look at these."""
        for watcher in self._watchers:
            watcher.watch(attempts, strangers)

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """What the tree of another scheduler's shim holds, on all devices."""
        used: dict[str, int] = {}
        for watcher in self._watchers:
            used.update(watcher.used_by(shim, whose))
        return used

    def troubles(self) -> list[str]:
        """What all of them have to say."""
        return [sentence for watcher in self._watchers for sentence in watcher.troubles()]
