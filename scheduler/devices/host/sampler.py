"""The sampler child of the host: reads from /proc what trees of processes hold.

Orders (`sampler_protocol`): `{"trees": {name: [pid, log, progress, activity]}, "other_shims": [pid], "groups":
[[limit, usage, stat]]}`. Answers: `{"trees": {name: [used, peak, epochs done, processor seconds, rested]},
"other_use": {pid: used}, "at": began, "free": bytes}`. Processor seconds are null unless `activity` is true.
`at` is the moment at which the look began; `free` is the least that was free before and after it, of the machine and of
each group. The child ends at end-of-file. Standard library only: it is started from a copy in the run's directory, so
that a changed installation cannot change a living run.

Memory of one process is its RSS (and its high-water mark, which no poll can miss). Of several it is their PSS: shared
pages are counted once. Since that is expensive, the sum of RSS is the trigger: PSS is looked at only when that sum
passes the highest one looked at by a twentieth, never again before a hundred times the last look's cost.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from scheduler.devices.host.activity import Activity
from scheduler.devices.host.cgroups import Group, left
from scheduler.devices.sampler_protocol import Board, serve
from scheduler.runtime.shim import children_finder, descendants

PAGE = os.sysconf("SC_PAGE_SIZE")
FAST, SLOW = 0.1, 1.0
"""Seconds between samples while something is new, and when nothing has grown for a while."""
CALM = 20.0
SHARE = 50.0
"""A sample is followed by a pause of at least this many times its processor time: 2 % of a core at most."""
TRIGGER = 1.05
PSS_REST = 100.0
PROGRESS_REST = 0.5
TAIL = 2048
_COUNT = re.compile(rb"(\d+(?:\.\d+)?)\s*/\s*\d+")
_EPOCH = re.compile(rb"epoch[\s:#\[=]*(\d+(?:\.\d+)?)", re.IGNORECASE)


class Tree:
    """The memory and progress of one attempt's processes, as far as they were measured."""

    def __init__(self, pid: int, log: str = "", progress: str = "") -> None:
        self.pid = pid
        self.log = log
        self.progress = progress
        self.activity: Activity | None = None
        """The work of its processes; None where it is not asked for."""
        self.epochs: float | None = None
        self._read_at = 0.0
        self.used = 0
        self.peak = 0
        self._looked_at = 0
        """The sum of RSS when PSS was last read."""
        self._share = 1.0
        """The ratio of PSS to the sum of RSS at that time."""
        self._next_look = 0.0

    def look(self, children: Callable[[int], list[int]]) -> bool:
        """Take one sample; return whether the peak rose."""
        before = self.peak
        pids = descendants(self.pid, children)
        rss = sum(resident(pid) for pid in pids)
        if len(pids) == 1:
            self.used = rss
            self.peak = max(self.peak, rss, high_water(pids[0]))
        else:
            self._look_at_several(pids, rss)
        self._look_at_progress()
        if self.activity is not None:
            self.activity.look(pids, time.monotonic())
        return self.peak > before

    def told(self) -> list[Any]:
        """Return what the last look found, as the answer has it."""
        cpu, rested = (None, 0.0) if self.activity is None else (self.activity.cpu_seconds, self.activity.rested)
        return [self.used, self.peak, self.epochs, cpu, rested]

    def attend(self, asked: bool) -> None:
        """Look at its activity from now on, or no longer."""
        self.activity = (self.activity or Activity()) if asked else None

    def _look_at_progress(self) -> None:
        """Read how many epochs are done: from SCHEDULER_PROGRESS if that exists, else from the last epoch line of
        the output.
        """
        now = time.monotonic()
        if now - self._read_at < PROGRESS_REST:
            return
        self._read_at = now
        said = _done(_tail(self.progress), b"") if self.progress else None
        if said is None and self.log:
            said = _done(_tail(self.log), b"epoch")
        self.epochs = said if said is not None else self.epochs

    def _look_at_several(self, pids: list[int], rss: int) -> None:
        now = time.monotonic()
        if rss > self._looked_at * TRIGGER and now >= self._next_look:
            pss = sum(proportional(pid) for pid in pids)
            self._next_look = now + (time.monotonic() - now) * PSS_REST
            self._looked_at, self._share = rss, min(1.0, pss / rss) if rss else 1.0
            self.peak = max(self.peak, pss)
        self.used = int(rss * self._share)


def _done(text: bytes, word: bytes) -> float | None:
    """Return the last count in a text: `3/10`, or the number after the word as in `epoch 3`."""
    found = (_EPOCH if word else _COUNT).findall(text)
    return float(found[-1]) if found else None


def _tail(path: str) -> bytes:
    """Return the end of a task's output; nothing if it is not a regular file, above all for a pipe."""
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read()
    except OSError:
        return b""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def resident(pid: int) -> int:
    """Return the RSS of one process; 0 if it has ended."""
    return _statm(pid, 1) * PAGE


def private(pid: int) -> int:
    """Return RSS without shared pages, which is all that can be read of other users' processes."""
    return max(0, _statm(pid, 1) - _statm(pid, 2)) * PAGE


def _statm(pid: int, field: int) -> int:
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[field]) if len(words) > field else 0


def high_water(pid: int) -> int:
    """Return the highest RSS that a process ever had."""
    return _kilobytes(_read(f"/proc/{pid}/status"), b"VmHWM:")


def proportional(pid: int) -> int:
    """Return the PSS of one process, or its RSS if the kernel provides no PSS."""
    text = _read(f"/proc/{pid}/smaps_rollup")
    return _kilobytes(text, b"\nPss:") if text else resident(pid)


def available(groups: Iterable[Group]) -> int:
    """Return the memory that the kernel reports as available, or less if a control group's limit leaves less."""
    lefts = [room for room in map(left, groups) if room is not None]
    return min([_kilobytes(_read("/proc/meminfo"), b"MemAvailable:"), *lefts])


def _kilobytes(text: bytes, name: bytes) -> int:
    words = text.partition(name)[2].split(None, 1)
    return int(words[0]) * 1024 if words else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


class HostSampler:
    """The sampling of the trees and processes that the last order names."""

    gather = 0.02

    def __init__(self, board: Board) -> None:
        self._board = board
        self.trees: dict[str, Tree] = {}
        self.other_shims: list[int] = []
        self._groups: list[Group] = []
        self._last_rise = time.monotonic()

    def order(self, said: dict[str, Any]) -> None:
        """Take a new list of trees and processes; what was on the old list keeps its history."""
        known = self.trees
        self.trees = {}
        for name, (pid, log, progress, activity) in said["trees"].items():
            old = known.get(name)
            self.trees[name] = old if old is not None and old.pid == pid else Tree(pid, log, progress)
            self.trees[name].attend(activity)
            if old is None:
                self._last_rise = time.monotonic()
        self.other_shims = said["other_shims"]
        self._groups = said.get("groups", [])

    def look(self) -> dict[str, Any]:
        """Take one sample of everything."""
        at, before, children = time.monotonic(), available(self._groups), children_finder()
        for name, tree in self.trees.items():
            self._announce(name)
            if tree.look(children):
                self._last_rise = time.monotonic()
        other_use = {pid: self._held_by(pid, children) for pid in self.other_shims}
        trees = {name: tree.told() for name, tree in self.trees.items()}
        free = min(before, available(self._groups))
        self._board.rest()
        return {"trees": trees, "other_use": other_use, "at": at, "free": free}

    def _held_by(self, shim: int, children: Callable[[int], list[int]]) -> int:
        self._announce(f"!{shim}")
        return sum(private(pid) for pid in descendants(shim, children))

    def _announce(self, name: str) -> None:
        self._board.begin(name)
        self._board.say("look")

    def rest(self, cost: float) -> float | None:
        """Return the seconds until the next sample; None if there is nothing to sample."""
        if not self.trees and not self.other_shims:
            return None
        calm = time.monotonic() - self._last_rise > CALM
        return max(SLOW if calm else FAST, cost * SHARE)


def main() -> None:
    """Run as the sampler child of the host."""
    serve(HostSampler)


if __name__ == "__main__":
    main()
