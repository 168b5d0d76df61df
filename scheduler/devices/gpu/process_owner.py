"""The owners of processes: the sampler child of the GPUs finds in /proc the owner of each process that NVML lists.

A scheduler also uses this module in its own process: leases may have been granted after the child's last order, and the
child cannot yet know the owners of the processes under these leases. This module uses the standard library only,
because the child runs a copy of it in the run's directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler.runtime.shim import children_finder, descendants

SELDOM = 1.0
"""Seconds between two searches through whole process trees, which are expensive."""
CLIENTS = frozenset({b"docker", b"podman", b"nerdctl"})
"""Programs whose containers are not their descendants; containers of singularity and apptainer are."""
TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """The facts that /proc has about one process."""

    name: bytes
    parent: int
    start: int


def process(pid: int) -> Process | None:
    """Return the facts about a process; None if it does not exist."""
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
    """Return all pids of a process, from its pid in this /proc to its pid in its innermost namespace."""
    words = _read(f"/proc/{pid}/status").partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return [int(word) for word in words]


class ProcessOwners:
    """The owners of pids. An owner is found by climbing from a process to a shim, and is remembered even after the
    parents of the process have ended.
    """

    def __init__(self) -> None:
        self.roots: dict[int, str] = {}
        self._found: dict[int, tuple[int, str, int]] = {}
        """The start time, the owner and the user id of each process, by its pid."""
        self._stale: set[int] = set()
        """Pids whose owner may have changed, because the guest of a lease may use one lease after another."""
        self._inside: dict[int, str] = {}
        self._inside_at = 0.0

    def owner(self, pid: int) -> str:
        """Return the owner that a pid had when it was last listed."""
        return self._found.get(pid, (0, "", 0))[1]

    def order(self, roots: dict[int, str]) -> None:
        """Set the roots of the process trees with their owners; the owner of a process that had none is searched for
        again.
        """
        self.roots = _as_this_proc_counts(roots)
        self._found = {pid: found for pid, found in self._found.items() if found[1]}
        self._stale = set(self._found)

    def of(self, pids: Iterable[int]) -> dict[int, list[Any]]:
        """Return {pid: [owner, age in seconds, uid]} of the processes that exist."""
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

    def owned(self, pids: Iterable[int]) -> dict[int, str]:
        """Return the owners of the given processes; a process that has ended, or has no owner, is left out."""
        self._found = {pid: self._of(pid, seen) for pid in pids if (seen := process(pid)) is not None}
        return {pid: owner for pid, (_, owner, _) in self._found.items() if owner}

    def _of(self, pid: int, seen: Process) -> tuple[int, str, int]:
        found = self._found.get(pid)
        if found is None or found[0] != seen.start:
            owner = self._climb(pid, seen)
            found = self._found[pid] = (seen.start, owner, -1 if owner else _user(pid))
        elif pid in self._stale:
            found = self._found[pid] = (found[0], self._climb(pid, seen) or found[1], found[2])
        self._stale.discard(pid)
        return found

    def _climb(self, pid: int, seen: Process | None) -> str:
        for _ in range(1000):
            if pid in self.roots:
                return self.roots[pid]
            if seen is None or seen.parent < 1:
                break
            pid, seen = seen.parent, process(seen.parent)
        return ""

    def _among_inner(self, pid: int) -> str:
        """Return the owner of a pid that exists only in an inner pid namespace of one of the trees."""
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


def roots(own: Mapping[str, tuple[int, int]], others: Iterable[tuple[int, int]]) -> dict[int, str]:
    """Return the owners of process trees by the pids at their roots: the shims, and the guests of leases.

    `own` has (shim, guest) of each attempt, `others` the (shim, guest) pairs of other leases; a guest of 0 means that
    the lease has none.
    """
    found = {root: f"!{shim}" for shim, guest in others for root in (shim, guest) if root}
    return found | {root: name for name, pair in own.items() for root in pair if root}


def _as_this_proc_counts(roots: dict[int, str]) -> dict[int, str]:
    """Return the roots with the pids of this /proc, which numbers processes differently if it belongs to an outer pid
    namespace.
    """
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
    """Tell whether one of the processes is the client program of a container daemon."""
    return any(seen.name in CLIENTS for pid in pids if (seen := process(pid)))
