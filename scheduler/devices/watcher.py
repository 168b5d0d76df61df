"""The scheduler's end of the sampler child: tells it what to look at, takes its samples, starts it again if it dies."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from scheduler.core.model import HOST
from scheduler.core.ports import Key, Sample, Watched
from scheduler.devices.cgroups import Group
from scheduler.processes import Child, isolated_python, start_child

MOST_STARTS = 20
"""A sampler that keeps dying is given up: the run goes on with what the shims measure."""

LONG = 30.0
"""Seconds after which a look says nothing any more of what is free."""
AGAIN = 1.0
"""Seconds after which one that could not be started is tried again."""
PAUSE = 0.1
"""Least seconds between orders: as long as the child rests between looks."""

_START = "import sys; sys.path.insert(0, sys.argv[1]); from scheduler.devices.sampler import main; main()"


class HostWatcher:
    """Watches host RAM; `fileno` becomes readable when there are samples."""

    def __init__(self, code: Path, groups: Sequence[Group] = ()) -> None:
        """`groups` are those whose limits count, too."""
        self._code = code
        self._groups = list(groups)
        self._starts = 0
        self._order = b""
        self._unsent, self._send_at = False, 0.0
        """Whether the child does not know the order yet, and when it may be told."""
        self._pending = b""
        self._strangers: Mapping[str, int] = {}
        self._looked = 0.0
        """When the look began that they were seen at."""
        self._free: int | None = None
        """What was free then."""
        self._held: dict[str, int] = {}
        """By attempts and strangers' shims then."""
        self._here: frozenset[str] = frozenset()
        """Those of them who live."""
        self._asked: dict[int, tuple[str, float]] = {}
        """By shim for whose lease it was asked about last, and since when."""
        self._child: Child | None = None

    def fileno(self) -> int:
        """To wait on; -1 where no sampler lives."""
        return self._child.stdout.fileno() if self._child and self._child.stdout else -1

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Send the whole list if it changed."""
        self._asked = {shim: since for shim, since in self._asked.items() if shim in strangers}
        trees = {f"{task}.{attempt}": [w.shim, w.log, w.progress] for (task, attempt), w in attempts.items()}
        self._here = frozenset((*trees, *map(str, strangers)))
        said = {"trees": trees, "strangers": sorted(strangers), "groups": self._groups}
        order = json.dumps(said).encode() + b"\n"
        if order == self._order and self._child is not None:
            return
        self._order = order
        if self._child is not None or trees:
            self._unsent = True
            self._send_if_due()

    def _send_if_due(self) -> None:
        """Not at every start of a task that is over before anybody could look at it."""
        now = time.monotonic()
        if self._unsent and now >= self._send_at:
            self._unsent, self._send_at = False, now + PAUSE
            self._send()

    def _send(self) -> None:
        if self._child is None and not self._start():
            return
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(self._order)
            self._child.stdin.flush()
        except OSError:
            self._bury()

    def _start(self) -> bool:
        if self._starts >= MOST_STARTS:
            return False
        try:
            self._child = start_child([*isolated_python(), "-c", _START, str(self._code)])
        except OSError:  # this user may have no more processes, or the machine has no memory for one
            self._unsent, self._send_at = True, time.monotonic() + AGAIN
            return False
        self._starts += 1
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        return True

    def _bury(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
        self._pending = b""

    def collect(self) -> list[Sample]:
        """The newest sample of each attempt."""
        self._send_if_due()
        latest = b""
        while (got := self._read()) is not None:
            *lines, self._pending = (self._pending + got).split(b"\n")
            latest = lines[-1] if lines else latest
        return self._samples(latest) if latest else []

    def _read(self) -> bytes | None:
        if self._child is None or self._child.stdout is None:
            return None
        try:
            got = os.read(self._child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        if not got:
            self._bury()
            self._send()
            return None
        return got

    def _samples(self, line: bytes) -> list[Sample]:
        said = json.loads(line)
        self._strangers, self._looked = said["strangers"], said.get("at", inf)
        self._free = said.get("free")
        self._held = {**self._strangers, **{name: used for name, (used, _, _) in said["trees"].items()}}
        samples = []
        for name, (used, peak, epochs) in said["trees"].items():
            task, attempt = name.split(".")
            samples.append(Sample(int(task), int(attempt), {HOST: used}, {HOST: peak}, epochs))
        return samples

    def free(self, now: int) -> int:
        """How much of what is free `now` was so when it was last seen what those hold who live.

        What the others held who were seen then is free since they ended. After a long time without a look that says
        nothing any more: then all that is still taken for held may have been given back, and be counted in `now`.
        """
        if self._free is None or self._here.isdisjoint(self._held):
            return now
        if time.monotonic() - self._looked > LONG:
            return now - sum(used for name, used in self._held.items() if name in self._here)
        return min(now, self._free + sum(used for name, used in self._held.items() if name not in self._here))

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """What another scheduler's tree was seen to hold, in a look that began once the shim was that lease's.

        A shim that has just gone on to another attempt would seem to hold what the one before gave back.
        """
        if shim not in self._asked or self._asked[shim][0] != whose:
            self._asked[shim] = whose, time.monotonic()
        return {HOST: self._strangers.get(str(shim), 0) if self._looked > self._asked[shim][1] else 0}

    def troubles(self) -> list[str]:
        """The host's memory is always there."""
        return []

    def close(self) -> None:
        """End the sampler."""
        self._starts = MOST_STARTS
        self._bury()
