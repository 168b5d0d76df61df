"""The sampler child of the host: reads from /proc what trees of processes hold.

Orders (`sampler_protocol`): `{"trees": {name: [pid, guest, activity, [log, progress, result, kept, names, watched]]},
"others": [[pid, guest]], "groups": [[limit, usage, stat]]}`; the six strings are arguments of a `MetricReader`.
Answers: `{"trees": {name: [used, peak, progress, processor seconds, rested, metrics]}, "other_use": {pid: used},
"at": began, "free": bytes, "readings": {name: [[metric, value, step]]}, "ended": {name: readings}}`. Progress is
[epochs done, of], processor seconds are null unless `activity` is true, and metrics are null unless they have changed:
{name: last values}, the newest at the end. Readings are the new values of watched metrics. `ended` has the last
readings of trees that have ended, once their files have been read to the end.
`at` is the moment at which the look began; `free` is the least that was free before and after it, of the machine and of
each group. The child ends at end-of-file. It uses the standard library only and runs from a copy in the run's
directory, so that a changed installation cannot change a living run.

The memory of one process is its RSS (and its high-water mark, which no poll can miss). The memory of several processes
is their PSS, which counts shared pages once. Reading PSS is expensive, so it is only read when the sum of RSS exceeds
the sum at the last reading by a twentieth. Before the next reading, at least a hundred times the processor time of the
last one must pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from scheduler.devices.host.activity import Activity
from scheduler.devices.host.cgroups import Group, left
from scheduler.devices.metric_reader import MetricReader
from scheduler.devices.sampler_protocol import Board, serve
from scheduler.runtime.shim import children_finder, lease_members

PAGE = os.sysconf("SC_PAGE_SIZE")
FAST, SLOW = 0.1, 1.0
"""Seconds between samples: while a tree is new or its memory grows, and when nothing has grown for a while."""
CALM = 20.0
SHARE = 50.0
"""The least pause after a sample, as a multiple of the processor time of the sample: a sampler uses at most 2 % of a
core.
"""
TRIGGER = 1.05
PSS_REST = 100.0
PROGRESS_REST, SAVE_REST = 0.5, 2.0
"""Seconds between two reads of the files of a task, and between two writes of its metrics."""
LONGEST_LOOK = 0.02
"""Seconds of processor time after which the reading of files stops and continues at a later sample."""


class Tree:
    """The memory and progress of one attempt's processes, as measured so far."""

    def __init__(self, pid: int, files: MetricReader | None = None, guest: int = 0) -> None:
        self.pid = pid
        self.guest = guest
        """The pid of a process outside of the shim's tree that, like its descendants, may use the attempt's devices; 0:
        there is none.
        """
        self.files = files
        """The reader of the attempt's epochs and metrics; None if the order does not request them."""
        self.activity: Activity | None = None
        """The work of the attempt's processes; None if the order does not request it."""
        self.unsaid = files is not None and bool(files.record.curves)
        """True if the attempt's metrics have changed since they were last sent."""
        self._read_at = self._saved_at = 0.0
        self.used = 0
        self.peak = 0
        self._looked_at = 0
        """The sum of RSS in bytes at the last reading of PSS."""
        self._share = 1.0
        """The ratio of PSS to the sum of RSS at the last reading of PSS."""
        self._next_look = 0.0

    def look(self, children: Callable[[int], list[int]], shims: Collection[int] = ()) -> bool:
        """Take one sample; return whether the peak rose."""
        before = self.peak
        pids = lease_members(self.pid, self.guest, children, shims)
        rss = sum(resident(pid) for pid in pids)
        if len(pids) == 1:
            self.used = rss
            self.peak = max(self.peak, rss, high_water(pids[0]))
        else:
            self._look_at_several(pids, rss)
        if self.activity is not None:
            self.activity.look(pids, time.monotonic())
        return self.peak > before

    def told(self) -> list[Any]:
        """Return the last sample in the form of the child's answer."""
        cpu, rested = (None, 0.0) if self.activity is None else (self.activity.cpu_seconds, self.activity.rested)
        progress = self.files.record.progress if self.files is not None else None
        metrics = self._last_values() if self.unsaid else None
        self.unsaid = False
        return [self.used, self.peak, progress, cpu, rested, metrics]

    def _last_values(self) -> dict[str, list[float | None]] | None:
        return self.files.record.last_values(self.files.first) if self.files is not None else None

    def attend(self, asked: bool) -> None:
        """Begin or end the measurement of the tree's activity, as `asked` says."""
        self.activity = (self.activity or Activity()) if asked else None

    def read_files(self, now: float) -> None:
        """Read the next part of the attempt's epochs and metrics if the reading is due, and save the metrics if that is
        due.
        """
        if self.files is None or now - self._read_at < PROGRESS_REST:
            return
        self._read_at = now
        self.files.look()
        self.unsaid |= self.files.changed
        if now - self._saved_at >= SAVE_REST:
            self._saved_at = now
            self.files.save()

    def is_read(self) -> bool:
        """Read the next part of the files of an ended attempt. Return whether their ends are reached; then the metrics
        are saved.
        """
        if self.files is None:
            return True
        if self.files.look():
            return False
        self.files.finish()
        return True

    def news(self) -> list[tuple[str, float, float]]:
        """Return the values of watched metrics since the last call, each with its step."""
        return self.files.news() if self.files is not None else []

    def _look_at_several(self, pids: list[int], rss: int) -> None:
        now = time.monotonic()
        if rss > self._looked_at * TRIGGER and now >= self._next_look:
            began = time.process_time()  # on a busy machine the wall clock would make the next pause too long
            pss = sum(proportional(pid) for pid in pids)
            self._next_look = now + (time.process_time() - began) * PSS_REST
            self._looked_at, self._share = rss, min(1.0, pss / rss) if rss else 1.0
            self.peak = max(self.peak, pss)
        self.used = int(rss * self._share)


def read_in_turn(trees: Sequence[Tree], first: int) -> int:
    """Read the files of trees for a limited time, beginning with the tree at index `first`; return the index at which
    to continue.
    """
    now, began = time.monotonic(), time.process_time()
    for place in range(len(trees)):
        trees[(first + place) % len(trees)].read_files(now)
        if time.process_time() - began > LONGEST_LOOK:
            return (first + place + 1) % len(trees)
    return 0


def resident(pid: int) -> int:
    """Return the RSS of one process in bytes; 0 if it has ended."""
    return _statm(pid, 1) * PAGE


def private(pid: int) -> int:
    """Return the RSS without shared pages; for processes of other users, this is all that can be read."""
    return max(0, _statm(pid, 1) - _statm(pid, 2)) * PAGE


def _statm(pid: int, field: int) -> int:
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[field]) if len(words) > field else 0


def high_water(pid: int) -> int:
    """Return the highest RSS that a process has ever had, in bytes."""
    return _kilobytes(_read(f"/proc/{pid}/status"), b"VmHWM:")


def proportional(pid: int) -> int:
    """Return the PSS of one process in bytes, or its RSS if the kernel provides no PSS."""
    text = _read(f"/proc/{pid}/smaps_rollup")
    return _kilobytes(text, b"\nPss:") if text else resident(pid)


def available(groups: Iterable[Group]) -> int:
    """Return the memory in bytes that the kernel reports as available, or less if the limit of a control group leaves
    less.
    """
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
    """The sampler of the process trees that the last order names."""

    gather = 0.02

    def __init__(self, board: Board) -> None:
        self._board = board
        self.trees: dict[str, Tree] = {}
        self.others: list[tuple[int, int]] = []
        """The shims of other leases, each with the guest of the lease."""
        self._groups: list[Group] = []
        self._last_rise = time.monotonic()
        self._ended: list[tuple[str, Tree]] = []
        """Ended trees whose files have not been read to the end yet."""
        self._files_at = self._files_cost = 0.0
        """The time from which files may be read again, and the processor time in seconds that the last reading took."""
        self._turn = 0
        """The index of the tree whose files are read next."""

    def order(self, said: dict[str, Any]) -> None:
        """Replace the list of trees and processes to sample; trees that are in both lists keep their history."""
        known = self.trees
        self.trees = {}
        for name, (pid, guest, activity, files) in said["trees"].items():
            old = known.pop(name, None)
            self.trees[name] = old if old is not None and old.pid == pid else Tree(pid, MetricReader(*files), guest)
            self.trees[name].attend(activity)
            if old is None:
                self._last_rise = time.monotonic()
        self._ended += known.items()
        self.others = [(shim, guest) for shim, guest in said["others"]]
        self._groups = said.get("groups", [])

    def look(self) -> dict[str, Any]:
        """Take one sample of every tree."""
        at, before, children = time.monotonic(), available(self._groups), children_finder()
        shims = {*(tree.pid for tree in self.trees.values()), *(shim for shim, _ in self.others)}
        for name, tree in self.trees.items():
            self._announce(name)
            if tree.look(children, shims):
                self._last_rise = time.monotonic()
        other_use = {pid: self._held_by(pid, guest, children, shims) for pid, guest in self.others}
        ended = self._read_files()
        readings = {name: news for name, tree in self.trees.items() if (news := tree.news())}
        trees = {name: tree.told() for name, tree in self.trees.items()}
        free = min(before, available(self._groups))
        self._board.rest()
        return {"trees": trees, "other_use": other_use, "at": at, "free": free, "readings": readings, "ended": ended}

    def _read_files(self) -> dict[str, list[tuple[str, float, float]]]:
        """Read the files of tasks for at most 2 % of the time, however much the tasks write: one tree after another.

        Return the last values of watched metrics of ended trees whose files were read to the end.
        """
        ended: dict[str, list[tuple[str, float, float]]] = {}
        now, began = time.monotonic(), time.process_time()
        self._files_cost = 0.0
        if now < self._files_at:
            return ended
        self._turn = read_in_turn([*self.trees.values()], self._turn)
        while self._ended and time.process_time() - began < LONGEST_LOOK:
            if self._ended[0][1].is_read():
                name, tree = self._ended.pop(0)
                ended[name] = tree.news()
        self._files_cost = time.process_time() - began
        self._files_at = now + self._files_cost * SHARE
        return ended

    def _held_by(self, shim: int, guest: int, children: Callable[[int], list[int]], shims: set[int]) -> int:
        self._announce(f"!{shim}")
        return sum(private(pid) for pid in lease_members(shim, guest, children, shims))

    def _announce(self, name: str) -> None:
        self._board.begin(name)
        self._board.say("look")

    def rest(self, cost: float) -> float | None:
        """Return the seconds until the next sample, after one that took `cost` seconds of processor time; None if there
        is nothing to sample.
        """
        if not self.trees and not self.others:
            return FAST if self._ended else None
        calm = time.monotonic() - self._last_rise > CALM
        return max(SLOW if calm else FAST, (cost - self._files_cost) * SHARE)


def main() -> None:
    """Run as the sampler child of the host."""
    serve(HostSampler)


if __name__ == "__main__":
    main()
