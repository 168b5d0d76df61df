"""Whose process a pid is: what /proc tells the sampler child of the GPUs about the processes that NVML lists.

Standard library only: it is started from a copy in the run's directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from scheduler.shim import children_finder, descendants

SELDOM = 1.0
"""Seconds between looks through whole trees, which cost more."""
CLIENTS = frozenset({b"docker", b"podman", b"nerdctl"})
"""Their containers are no descendants of theirs (singularity's and apptainer's are: they need no help)."""
TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """What /proc says about one."""

    name: bytes
    parent: int
    start: int


def process(pid: int) -> Process | None:
    """Look at a process; None where there is none."""
    name, _, rest = _read(f"/proc/{pid}/stat").rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(name.partition(b"(")[2], int(fields[1]), int(fields[19]))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def pids_outside_in(pid: int | str) -> list[int]:
    """A process's pids, from that of this /proc down to that of the innermost namespace it is in."""
    words = _read(f"/proc/{pid}/status").partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return [int(word) for word in words]


class Owners:
    """Whose process a pid is: found by climbing from it to a shim, and remembered even when its parents have gone."""

    def __init__(self) -> None:
        self.roots: dict[int, str] = {}
        self._found: dict[int, tuple[int, str, int]] = {}
        """(start, owner, uid) of a pid."""
        self._inside: dict[int, str] = {}
        self._inside_at = 0.0

    def owner(self, pid: int) -> str:
        """Who it was found to belong to, when it was last listed."""
        return self._found.get(pid, (0, "", 0))[1]

    def order(self, roots: dict[int, str]) -> None:
        """These are the shims now; who had no owner before may have one now."""
        self.roots = _as_this_proc_counts(roots)
        self._found = {pid: found for pid, found in self._found.items() if found[1]}

    def of(self, pids: Iterable[int]) -> dict[int, list[Any]]:
        """{pid: [owner, age in seconds, uid]} of those that there are."""
        told: dict[int, list[Any]] = {}
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        for pid in pids:
            seen = process(pid)
            if seen is not None:
                _, owner, uid = self._of(pid, seen)
                told[pid] = [owner, max(0.0, uptime - seen.start / TICKS), uid]
            elif owner := self._among_inner(pid):
                told[pid] = [owner, 0.0, -1]
        self._found = {pid: found for pid, found in self._found.items() if pid in told}
        return told

    def _of(self, pid: int, seen: Process) -> tuple[int, str, int]:
        found = self._found.get(pid)
        if found is None or found[0] != seen.start:
            owner = self._climb(pid, seen)
            found = self._found[pid] = (seen.start, owner, -1 if owner else _user(pid))
        return found

    def _climb(self, pid: int, seen: Process | None) -> str:
        for _ in range(1000):
            if pid in self.roots:
                return self.roots[pid]
            if seen is None or seen.parent <= 1:
                break
            pid, seen = seen.parent, process(seen.parent)
        return ""

    def _among_inner(self, pid: int) -> str:
        """The owner of a pid that does not exist here, but in a namespace of its own inside one of the trees."""
        if time.monotonic() - self._inside_at >= SELDOM:
            self._inside_at = time.monotonic()
            children = children_finder()
            self._inside = {
                inner: owner
                for root, owner in self.roots.items()
                for below in descendants(root, children)
                for inner in pids_outside_in(below)[1:]
            }
        return self._inside.get(pid, "")


def _as_this_proc_counts(roots: dict[int, str]) -> dict[int, str]:
    """Where /proc is that of an outer pid namespace, our own pids are others there."""
    if os.readlink("/proc/self") == str(os.getpid()):
        return roots
    level = len(pids_outside_in("self")) - 1
    outer = {}
    for name in os.listdir("/proc"):
        pids = pids_outside_in(name) if name.isdigit() else []
        if len(pids) > level:
            outer[pids[level]] = int(name)
    return {outer[pid]: owner for pid, owner in roots.items() if pid in outer}


def _user(pid: int) -> int:
    words = _read(f"/proc/{pid}/status").partition(b"\nUid:")[2].split(None, 1)
    return int(words[0]) if words else -1


def has_container_client(pids: list[int]) -> bool:
    """Whether one of these asks a container daemon to do its work."""
    return any(seen.name in CLIENTS for pid in pids if (seen := process(pid)))
