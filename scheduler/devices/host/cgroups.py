"""The control groups of this process: the limit of each, and how much of the limit is left.

This module uses the standard library only, because the host's sampler child runs a copy of this module in the run's
directory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
"""The file that lists the groups of this process."""
_UNLIMITED = 1 << 60
"""Values from here on mean no limit: cgroup v1 writes 'no limit' as a number near 2^63."""
Group = tuple[int | str, str, str]
"""A tuple of three: the group's limit or the path of the file with the limit, the path of the file with the usage, and
the path of the file that divides this usage into kinds.
"""

REST = 1.0
"""Seconds before a group without a limit is read again; this saves time because free memory is read for every start of
a task.
"""


class MemoryGroup:
    """A cgroup with a memory limit that applies to this process; the files of v1 and v2 differ only in their names."""

    def __init__(self, folder: Path, limit: str, usage: str) -> None:
        self.folder = folder
        self._limit = folder / limit
        self._usage = folder / usage
        self._stat = folder / "memory.stat"
        self._unlimited_until = 0.0

    def limit(self) -> int | None:
        """Return the bytes that the group may use; None if it is not limited."""
        return _limit(str(self._limit))

    def left(self) -> int | None:
        """Return the bytes that the group may still use; page cache that the kernel can drop counts as free."""
        if time.monotonic() < self._unlimited_until:
            return None
        limit = self.limit()
        if limit is None:
            self._unlimited_until = time.monotonic() + REST
            return None
        return limit - self.held()

    def held(self) -> int:
        """Return the bytes that the group uses and that the kernel cannot drop."""
        return _held(str(self._usage), str(self._stat))

    def where(self, limit: int | None = None) -> Group:
        """Return the group's limit and the paths of its files; if `limit` is given, it replaces the group's own
        limit.
        """
        return str(self._limit) if limit is None else limit, str(self._usage), str(self._stat)


def left(group: Group) -> int | None:
    """Return the bytes that a group may still use; None if it is not limited."""
    said, usage, stat = group
    limit = said if isinstance(said, int) else _limit(said)
    return None if limit is None else limit - _held(usage, stat)


def _limit(path: str) -> int | None:
    said = text(path)
    number = int(said) if said.isdigit() else _UNLIMITED
    return number if number < _UNLIMITED else None


def _held(usage: str, stat: str) -> int:
    stats = dict(line.split(" ", 1) for line in text(stat).splitlines() if " " in line)
    droppable = stats.get("total_inactive_file", stats.get("inactive_file", "0"))
    return int(text(usage) or 0) - int(droppable)


def memory_groups(root: Path = ROOT, own: Path = OWN) -> Iterator[MemoryGroup]:
    """Yield the memory cgroups of this process, from its own cgroup up to the root, in v2 and in v1."""
    for version, folder in _own_folders("memory", root, own):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if (folder / names[0]).is_file():
            yield MemoryGroup(folder, *names)


def cpu_quotas(root: Path = ROOT, own: Path = OWN) -> Iterator[tuple[Path, float]]:
    """Yield each limit on the cores of this process, with the directory of the cgroup that sets it."""
    for version, folder in _own_folders("cpu", root, own):
        quota = _quota(folder, version)
        if quota is not None:
            yield folder, quota


def process_limits(root: Path = ROOT, own: Path = OWN) -> Iterator[tuple[Path, int, int]]:
    """Yield each limit on the number of processes and threads: the directory of the cgroup that sets it, the limit, and
    the current number.
    """
    for _, folder in _own_folders("pids", root, own):
        limit, now = text(folder / "pids.max"), text(folder / "pids.current")
        if limit.isdigit():
            yield folder, int(limit), int(now) if now.isdigit() else 0


def device_rules(root: Path = ROOT, own: Path = OWN) -> str:
    """Return the devices that this process may open, as cgroup v1 lists them.

    The result is empty under v2, where these rules are a program in the kernel, which cannot be read.
    """
    lists = (folder / "devices.list" for version, folder in _own_folders("devices", root, own) if version == 1)
    return next((said for path in lists if (said := text(path))), "")


def _own_folders(controller: str, root: Path, own: Path) -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of each cgroup of this process, from its own up to the root.

    In a container, only the topmost folder may exist, at another path than the kernel reports.
    """
    for version, path in _own_groups(controller, own):
        base = root / controller if version == 1 else root
        if version == 2 and (root / "unified").is_dir():
            base = root / "unified"
        folder = base / path.lstrip("/")
        yield version, folder
        while folder not in (base, folder.parent):
            folder = folder.parent
            yield version, folder


def _own_groups(controller: str, own: Path) -> Iterator[tuple[int, str]]:
    for line in text(own).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield 2, path
        elif controller in controllers.split(","):
            yield 1, path


def _quota(folder: Path, version: int) -> float | None:
    if version == 2:
        words = text(folder / "cpu.max").split()
    else:
        words = [text(folder / "cpu.cfs_quota_us"), text(folder / "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def text(path: Path | str) -> str:
    """Return the content of a kernel file; empty if the file does not exist."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("ascii", "replace").strip()
    except OSError:
        return ""
