"""Joins looks at what holds memory, hours apart: who of them has done nothing in between."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.shim import children_finder, descendants, start_time
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.core.ports import Happening  # `status` needs none of them

AWAKE = 0.01
"""Who keeps a core busy for less than this share of the time does nothing; launching work on a GPU takes more."""
LOOKS = 60.0
"""A scheduler looks once in so many seconds, so that `status` can tell what was before anybody asked."""


class Looks:
    """Looks once in a while as long as a run goes on; nothing ever happens because of it."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._next = 0.0

    def fileno(self) -> int:
        """It wakes nobody."""
        return -1

    def collect(self) -> Sequence[Happening]:
        """Look, if it is time to."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOKS
            self._look()
        return ()


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody who holds memory: the trees of these processes."""

    pids: tuple[int, ...]
    user: str = ""
    what: str = ""
    holds: Mapping[str, int] = field(default_factory=dict)
    since: float = 0.0
    """When it began to hold that, where one process may be at the head of several trees in turn."""


def idle_for(path: Path, held: Sequence[Held]) -> list[tuple[Held, float]]:
    """For how many seconds each is known to have done nothing; this look is remembered in a file of the user's."""
    before, now = _read(path), time.clock_gettime(time.CLOCK_BOOTTIME)
    boot = _boot()
    after: dict[str, list[float]] = {}
    found = []
    for one in held:
        key = f"{boot}.{one.pids[0]}.{start_time(one.pids[0])}.{one.since:.0f}"
        spent = cpu_seconds(one.pids)
        since, had = before.get(key, (now, spent))
        if spent - had > AWAKE * (now - since) or since > now:
            since, had = now, spent
        after[key] = [since, had]
        found.append((one, now - since))
    if after != before:
        _write(path, after)
    return found


def cpu_seconds(roots: Iterable[int]) -> float:
    """What processes and all below them have used of the cores so far."""
    children, tick = children_finder(), os.sysconf("SC_CLK_TCK")
    pids = [pid for root in roots for pid in (root, *descendants(root, children))]
    return sum(map(_ticks, pids)) / tick


def _ticks(pid: int) -> int:
    """Its own, and those of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    except (OSError, ValueError):
        return 0


def _boot() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()[:8]
    return ""


def _read(path: Path) -> dict[str, list[float]]:
    try:
        said = json.loads(path.read_text(encoding="ascii"))
        return {str(key): [float(since), float(had)] for key, (since, had) in said.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(path: Path, looks: Mapping[str, list[float]]) -> None:
    """Remember, where that can be done: a view must not fail because of its memory."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        if path.parent.is_dir():
            part.write_text(json.dumps(looks), encoding="ascii")
            part.rename(path)
