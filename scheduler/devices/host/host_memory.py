"""The host's RAM and cores as a device, within the limits of this machine, container or allocation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.core.model import HOST, Device, DeviceBudget, Placement
from scheduler.devices.host.cgroups import (
    OWN,
    ROOT,
    Group,
    MemoryGroup,
    cpu_quotas,
    memory_groups,
    text,
)
from scheduler.units import MIB
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.devices.host.sampler_client import HostWatcher


@dataclass(frozen=True, slots=True)
class HostLimit:
    """A limit on a resource of the host, and the source of that limit."""

    what: str
    """The limited resource: `memory` (in bytes), or `cores`."""
    value: float
    source: str


REST = 0.01
"""Seconds before the kernel is asked again for free memory; its counters change only about once a second."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class HostDevices:
    """A device port with a single device, `host`; `cap` is the budget in bytes for all leases together."""

    def __init__(
        self,
        cap: int | None = None,
        cgroup_root: Path = ROOT,
        environ: Mapping[str, str] | None = None,
        own_groups: Path = OWN,
    ) -> None:
        self._cap = cap
        self._environ = os.environ if environ is None else environ
        self._says_threads = any(name in self._environ for name in THREADS)
        self._groups = list(memory_groups(cgroup_root, own_groups))
        self._slurm = slurm_memory(self._environ)
        self._memory = min(self._memory_limits(), key=lambda limit: limit.value)
        self._cores = min(_core_limits(cgroup_root, own_groups), key=lambda limit: limit.value)
        self._device = Device(HOST, HOST, int(self._memory.value), self._cores.value)
        self._looked, self._available = float("-inf"), 0
        self._seen: Callable[[int], int] = int

    def discover(self) -> tuple[Device, ...]:
        """Return the host as a device; its capacity is the lowest of its RAM and all limits that apply to this
        process.
        """
        return (self._device,)

    def limits(self) -> tuple[HostLimit, ...]:
        """Return the limits that apply to memory and to cores: the lowest of each."""
        return self._memory, self._cores

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return the free memory: the lower of the kernel's available memory and the memory that the limits leave."""
        lefts = [group.left() for group in self._groups]
        if time.monotonic() - self._looked >= REST:
            self._looked, self._available = time.monotonic(), _available()
        frees = [self._available, *lefts, *self._left_by_slurm()]
        free = self._seen(int(min(bytes_ for bytes_ in frees if bytes_ is not None)))
        return (DeviceBudget(self._device, max(0, free), self._cap),)

    def watcher(self, code: Path) -> HostWatcher:
        """Return the watcher of the memory that tasks use; its child starts from a run's copies. After this call,
        `snapshot` counts no more memory as free than the watcher measured.

        Memory that a task has freed since the last sample still counts as used by the task, so it must not count as
        free too.
        """
        from scheduler.devices.host.sampler_client import HostWatcher  # not needed by views, which only show the host

        watcher = HostWatcher(code, list(self._limiting()))
        self._seen = watcher.free
        return watcher

    def _limiting(self) -> Iterator[Group]:
        """Yield, for each control group with a limit, the files that show how much memory the limit leaves."""
        yield from (group.where() for group in self._groups)
        job = self._job_group()
        if job is not None and self._slurm is not None:
            yield job.where(int(self._slurm.value))

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the variables that limit numeric libraries to as many threads as the task has cores; none if the user
        has set any such limit.
        """
        return self.threads(placement.cores)

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return an empty sequence, because the host has no GPUs."""
        return ()

    def threads(self, cores: float) -> dict[str, str | None]:
        """Return the variables that limit numeric libraries to this many cores; none if the user has set any such
        limit.
        """
        if self._says_threads:
            return {}
        return {"OMP_NUM_THREADS": str(max(1, round(cores)))}

    def _memory_limits(self) -> Iterator[HostLimit]:
        yield HostLimit("memory", int(_memory().total), "RAM")
        for group in self._groups:
            limit = group.limit()
            if limit is not None:
                yield HostLimit("memory", limit, f"cgroup {group.folder}")
        if self._slurm is not None:
            yield self._slurm

    def _left_by_slurm(self) -> Iterator[int]:
        """Yield the bytes that are left of a Slurm allocation.

        The use of the Slurm job can only be read if the job has a cgroup; otherwise the whole limit counts as left.
        """
        if self._slurm is None:
            return
        job = self._job_group()
        yield int(self._slurm.value) - (0 if job is None else job.held())

    def _job_group(self) -> MemoryGroup | None:
        name = f"job_{self._environ.get('SLURM_JOB_ID', '')}"
        return next((group for group in self._groups if group.folder.name == name), None)


def slurm_memory(environ: Mapping[str, str]) -> HostLimit | None:
    """Return the memory that Slurm allocated on this node as a limit; None outside of Slurm, or if Slurm allocated all
    memory (`--mem=0`).
    """
    for sizes, numbers in (("SLURM_MEM_PER_NODE", ""), ("SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")):
        size, number = environ.get(sizes, ""), environ.get(numbers, "") if numbers else "1"
        if size.isdecimal() and number.isdecimal() and int(size) * int(number):
            source = f"{sizes} x {numbers}" if numbers else sizes
            return HostLimit("memory", int(size) * int(number) * MIB, source)
    return None


def _core_limits(root: Path, own: Path) -> Iterator[HostLimit]:
    """Yield the limits on cores: the CPU affinity of this process, and every CPU quota of its cgroups."""
    mine = len(os.sched_getaffinity(0))
    yield HostLimit("cores", float(mine), "sched_getaffinity" if mine != os.cpu_count() else "all cores")
    for folder, quota in cpu_quotas(root, own):
        yield HostLimit("cores", quota, f"cpu quota of cgroup {folder}")


def _memory() -> Any:
    try:
        import psutil  # it takes 15 ms to load, and only runs need it
    except ModuleNotFoundError:
        from scheduler.runtime.python_envs import missing_package  # it loads shutil

        raise missing_package("psutil") from None
    return psutil.virtual_memory()


def _available() -> int:
    """Return the memory that the kernel reports as available."""
    fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
    try:
        said = os.read(fd, 256).partition(b"MemAvailable:")[2].split(None, 1)
    finally:
        os.close(fd)
    return int(said[0]) * 1024 if said else int(_memory().available)


def available() -> tuple[int, int]:
    """Return the total and the available RAM of the machine in bytes, for views that must not load psutil."""
    lines = dict(line.split(":", 1) for line in text(Path("/proc/meminfo")).splitlines() if ":" in line)
    total, free = (int(lines.get(name, "0").split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, free
