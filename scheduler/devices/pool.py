"""The devices of one run: its GPUs and the host's RAM behind a single port."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import Device, DeviceBudget, Placement
from scheduler.core.ports import Key, MemoryFence, Watched, Watcher
from scheduler.devices.gpu.nvml_devices import NvmlDevices
from scheduler.devices.host.host_memory import HostDevices
from scheduler.devices.mps.sharing import MpsSharing
from scheduler.devices.power_cap import PowerCaps
from scheduler.devices.task_env import ALL, INDEX, INSTANCE, UUID, gpu_environment

SHARERS = 2
"""The assumed number of tasks per GPU: for each of its GPUs, a task gets the host's cores divided by the number of GPUs
and by this number.
"""


class DevicePool:
    """All devices of a run; `gpus` is None if the run uses the host alone."""

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
        """The name of the variable that limits the GPUs; empty if no variable does."""
        self.notes = list(notes)
        self._environ = os.environ if environ is None else environ
        """The environment in which tasks start, before the run's variables are added."""
        self._ordinals = dict(ordinals or {})
        """CUDA's numbers of the GPUs, by UUID."""
        self._visible = visible
        self.labels: dict[str, str] = {}
        """The names of all devices that the run has had so far, by key; MIG instances that join are added."""
        self.fence: MemoryFence | None = None
        """The limit on the GPU memory of tasks outside of MPS; None if the run sets none."""
        self.power: PowerCaps | None = None
        """The power limits that the run has set; None if it has set none."""
        self.mps: MpsSharing | None = None
        """The MPS daemons of the run's GPUs, if the run uses MPS."""

    def discover(self) -> tuple[Device, ...]:
        """Return the run's GPUs, then the host."""
        devices = (*(self.gpus.discover() if self.gpus else ()), *self.host.discover())
        self.labels.update({device.key: device.label for device in devices})
        return devices

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return the state of each device with its free memory."""
        budgets = (*(self.gpus.snapshot() if self.gpus else ()), *self.host.snapshot())
        if any(budget.device.key not in self.labels for budget in budgets):  # one has joined
            self.labels.update({budget.device.key: budget.device.label for budget in budgets})
        return budgets

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the variables that name the task's GPUs, prevent preallocation of GPU memory, and limit threads to the
        task's share of the cores.
        """
        mine = list(placement.sees)
        ordinals = [self._ordinals.get(uuid, 0) for uuid in mine]
        visible = INDEX if numbers and self._visible == UUID else self._visible
        if any(uuid.startswith(INSTANCE) for uuid in mine):
            visible = UUID
        variables = gpu_environment(mine, visible, ordinals, self._environ)
        if not placement.gpus:
            return {**self.host.environment_for(placement), **variables}
        return {**self.host.threads(self._share(len(mine))), **variables}

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the positions of the task's GPUs in CUDA_VISIBLE_DEVICES; if the task sees all GPUs, return CUDA's
        numbers of its GPUs instead.
        """
        if self._visible == ALL:
            return [self._ordinals.get(uuid, 0) for uuid in placement.sees]
        return range(len(placement.sees))

    def _share(self, mine: int) -> float:
        assert self.gpus is not None
        cores = self.host.discover()[0].load_capacity
        return cores * mine / (len(self.gpus.discover()) * SHARERS)

    @property
    def usual(self) -> int:
        """The number of GPUs of a task that does not declare a number, if the run has GPUs."""
        return 1

    @property
    def limits(self) -> Mapping[str, str]:
        """The sources of the limits on the run's GPUs, memory and cores; an entry is missing or empty if all may be
        used.
        """
        sources = {limit.what: limit.source for limit in self.host.limits()}
        return {"gpus": self.source, **{what: by for what, by in sources.items() if by not in ("RAM", "all cores")}}

    @property
    def driver(self) -> str:
        """The version of the NVIDIA driver; empty without GPUs."""
        return f"driver {self.gpus.node().driver}" if self.gpus else ""

    @property
    def drivers(self) -> Mapping[str, str]:
        """The driver's version and the way in which it reports memory, in words; a task's need depends on these two and
        on the GPU's model.
        """
        return {"": f" ({self.driver}, by {self.reads})"}

    @property
    def reads(self) -> str:
        """How GPU memory is read: per `process`, or only per `device`."""
        return self.gpus.node().reads if self.gpus else "process"

    def moved_gpus(self, code: Path) -> list[NvmlDevices]:
        """Start samplers of the GPUs from the run's own copies from now on; return the GPUs' port in a list, which is
        empty if there is none.
        """
        gpus = [] if self.gpus is None else [self.gpus]
        for device in gpus:
            device.move(code)
        return gpus

    def serving_mps(self, code: Path) -> list[MpsSharing]:
        """Check the MPS daemons from now on; return the MPS port in a list, which is empty if there is none."""
        if self.mps is None or self.gpus is None:
            return []
        self.mps.serve(code, self.gpus.held_by)
        return [self.mps]

    def close(self) -> None:
        """End the samplers of the GPUs, restore power limits that the run has set, and stop using its MPS daemons."""
        if self.power is not None:
            self.power.restore()
            self.power = None
        if self.mps is not None:
            self.mps.close()
            self.mps = None
        if self.gpus is not None:
            self.gpus.close()


class Watchers:
    """Several watchers as one: each measures another kind of memory of the attempts."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def watch(
        self, attempts: Mapping[Key, Watched], others: Trees, unnamed: frozenset[UnnamedShim] = NO_UNNAMED
    ) -> None:
        """Make all watchers sample these attempts."""
        for watcher in self._watchers:
            watcher.watch(attempts, others, unnamed)

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """Return the memory that the process tree of another scheduler's shim uses, in bytes by device."""
        used: dict[str, int] = {}
        for watcher in self._watchers:
            used.update(watcher.used_by(shim, whose))
        return used

    def troubles(self) -> list[str]:
        """Return the sentences of all watchers."""
        return [sentence for watcher in self._watchers for sentence in watcher.troubles()]
