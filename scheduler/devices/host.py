"""The host's RAM as a device: what this machine, container or allocation may really use, and its cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scheduler.core.model import HOST, Budget, Device, Placement

_UNLIMITED = 1 << 60
"""cgroup v1 writes 'no limit' as a number near 2^63."""


class HostDevices:
    """One device, `host`; `cap` is a budget for all leases together."""

    def __init__(self, cap: int | None = None, cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._cap = cap
        self._limits = list(memory_groups(cgroup_root))
        self._device = Device(HOST, HOST, self._total(), float(cores(cgroup_root)))

    def discover(self) -> tuple[Device, ...]:
        """The host, with the least of its RAM and every limit that holds for this process."""
        return (self._device,)

    def snapshot(self) -> tuple[Budget, ...]:
        """What is free: the least of what the kernel calls available and what each limit leaves."""
        free = _memory().available
        for group in self._limits:
            left = group.left()
            if left is not None:
                free = min(free, left)
        return (Budget(self._device, int(free), self._cap),)

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """Numeric libraries get as many threads as the task has cores, unless its user says otherwise."""
        threads = str(max(1, round(placement.cores)))
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        if any(name in os.environ for name in names):
            return {}
        return {"OMP_NUM_THREADS": threads}

    def _total(self) -> int:
        total = int(_memory().total)
        for group in self._limits:
            limit = group.limit()
            if limit is not None:
                total = min(total, limit)
        return total


def _memory() -> Any:
    import psutil  # 15 ms that only a run pays

    return psutil.virtual_memory()


def available() -> tuple[int, int]:
    """Total and available RAM of the machine, for views that must not load psutil."""
    lines = dict(line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines() if ":" in line)
    total, free = (int(lines.get(name, "0").split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, free


class MemoryGroup:
    """One cgroup with a memory limit above this process; v1 and v2 differ in names only."""

    def __init__(self, folder: Path, limit: str, usage: str) -> None:
        self._limit = folder / limit
        self._usage = folder / usage
        self._stat = folder / "memory.stat"

    def limit(self) -> int | None:
        """Bytes the group may use; None where it is not limited."""
        text = _text(self._limit)
        number = int(text) if text.isdigit() else _UNLIMITED
        return number if number < _UNLIMITED else None

    def left(self) -> int | None:
        """Bytes the group may still take: page cache that can be dropped counts as free."""
        limit = self.limit()
        if limit is None:
            return None
        usage = int(_text(self._usage) or 0)
        return limit - usage + self._droppable()

    def _droppable(self) -> int:
        stat = dict(line.split(" ", 1) for line in _text(self._stat).splitlines() if " " in line)
        inactive = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
        return int(inactive)


def memory_groups(root: Path) -> Iterator[MemoryGroup]:
    """The memory cgroups this process is in, from its own up to the root, v2 and v1."""
    for version, path in _own_groups("memory"):
        base = root if version == 2 else root / "memory"
        if version == 2 and (root / "unified").is_dir():
            base = root / "unified"
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        folder = base / path.lstrip("/")
        while True:
            if (folder / names[0]).is_file():
                yield MemoryGroup(folder, *names)
            if folder in (base, folder.parent):
                break
            folder = folder.parent


def _own_groups(controller: str) -> Iterator[tuple[int, str]]:
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield 2, path
        elif controller in controllers.split(","):
            yield 1, path


def cores(root: Path) -> float:
    """Cores this process may use: its affinity, cut by a CPU quota of its cgroups."""
    count = float(len(os.sched_getaffinity(0)))
    for version, path in _own_groups("cpu"):
        base = root if version == 2 else root / "cpu"
        quota = _quota(base / path.lstrip("/"), version)
        if quota is not None:
            count = min(count, quota)
    return count


def _quota(folder: Path, version: int) -> float | None:
    if version == 2:
        words = _text(folder / "cpu.max").split()
    else:
        words = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
