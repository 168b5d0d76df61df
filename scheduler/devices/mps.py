"""MPS as a run uses it: what each task is launched with, whether it came to be a client, and whether all is well."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from scheduler.core.model import Placement
from scheduler.core.mps import CLIENT, TURNS
from scheduler.core.ports import Attended, Key, Sample, Watched
from scheduler.devices import mps_ending
from scheduler.devices.mps_control import DIRECTORY, LIMIT, PERCENTAGE, Control, Silent
from scheduler.devices.mps_home import Home
from scheduler.errors import DeviceError
from scheduler.paths import PACKAGE
from scheduler.processes import tree
from scheduler.units import MIB
from scheduler.values import dataclass

LOOK = 0.25
"""Seconds between looks at daemons of which something is to be known."""
HEALTH = 2.0
"""The same where nothing is."""
SILENT = 60.0
"""Seconds without an answer after which a daemon that lives is replaced."""
TAKES = 4.0
"""Seconds a task that uses its GPU may not be on its daemon's list before it is taken to be outside of MPS."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a daemon said, or why it did not."""

    began: float
    clients: frozenset[int] = frozenset()
    faulty: bool | None = False
    """None: its daemon is too old to tell."""
    trouble: str = ""
    revived: bool = False


@dataclass(slots=True)
class Gpu:
    """One GPU's daemon."""

    label: str
    control: Control
    home: Home | None = None
    """None: it is somebody else's."""
    fd: int = -1
    answered: float = 0.0
    """When its daemon last did."""
    look: Look | None = None
    news: bool = False
    suspected: float = 0.0
    why: str = ""
    before: frozenset[int] = frozenset()
    """Who were its clients when it was suspected."""


@dataclass(slots=True)
class Unverified:
    """An attempt of which nobody knows yet whether MPS took it."""

    shim: int
    uuid: str
    since: float = field(default=0.0)
    """When it was first seen to use its GPU."""


class Mps:
    """Sharing and Watcher of a run. A thread of its own talks to the daemons, so that none of them stops the loop."""

    def __init__(self, gpus: Mapping[str, Gpu], *, exclusive: bool = False) -> None:
        self._gpus = dict(gpus)
        self._exclusive = exclusive
        self._code = str(PACKAGE.parent)
        self._holds: Callable[[Key, str], int] = lambda key, uuid: 0
        self._open: dict[Key, Unverified] = {}
        self._known: set[Key] = set()
        self._news: list[str] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poked = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Use the daemon of every GPU, started where none of ours runs; all of them or none. Raises DeviceError."""
        try:
            for gpu in self._gpus.values():
                if gpu.home is not None:
                    gpu.fd = gpu.home.enter(exclusive=self._exclusive)
                    gpu.answered = time.monotonic()
        except (DeviceError, Silent) as exc:
            self._leave_all()
            raise DeviceError(f"MPS on {gpu.label}: {exc}") from exc

    def serve(self, code: Path, holds: Callable[[Key, str], int]) -> None:
        """From now on look after them; `holds` is what an attempt was last seen to hold of a GPU."""
        self._code, self._holds = str(code), holds
        self._thread = threading.Thread(target=self._look_after, name="mps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Use them no more."""
        self._over = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join()
        self._leave_all()
        os.close(self._bell)

    def _leave_all(self) -> None:
        for gpu in self._gpus.values():
            if gpu.home is not None and gpu.fd >= 0:
                with contextlib.suppress(DeviceError):  # what stays is cleaned by the next run
                    gpu.home.leave(gpu.fd)
                gpu.fd = -1

    # ---- launching ----

    def attend(self, placement: Placement) -> Attended:
        """Its daemon, its share of the threads, the limit of its memory: for exactly the GPU that it sees."""
        (uuid,) = placement.gpus
        gpu = self._gpus[uuid]
        limit = f"{uuid}={placement.fence // MIB}M" if placement.fence else None
        environ = {
            DIRECTORY: gpu.control.directory,
            PERCENTAGE: str(placement.percentage) if placement.percentage < 100 else None,
            LIMIT: limit,
        }
        return Attended(environ, mps_ending.command(self._code, gpu.control.program, gpu.control.directory), gpu.fd)

    def suspect(self, device: str, sentence: str) -> None:
        """Nothing more starts there before it is seen to be well."""
        gpu = self._gpus.get(device)
        if gpu is None:
            return
        gpu.before = gpu.look.clients if gpu.look is not None else frozenset()
        gpu.suspected, gpu.why = time.monotonic(), sentence
        self._poked.set()

    def closed(self) -> Mapping[str, str]:
        """GPUs whose daemon is silent, or is suspected."""
        found = {}
        for uuid, gpu in self._gpus.items():
            why = (gpu.look.trouble if gpu.look is not None else "") or gpu.why
            if why:
                found[uuid] = why
        return found

    def percentages(self) -> dict[str, float]:
        """The share of the threads that each daemon says it gives, by what people call its GPU."""
        found = {}
        for gpu in self._gpus.values():
            with contextlib.suppress(Silent):
                found[gpu.label] = gpu.control.percentage()
        return found

    # ---- looking ----

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Find out of each new attempt under MPS whether it came to be a client."""
        self._known &= attempts.keys()
        mine = {key: watched for key, watched in attempts.items() if watched.mps and key not in self._known}
        self._open = {
            key: self._open.get(key) or Unverified(watched.shim, next(iter(watched.promise)))
            for key, watched in mine.items()
        }
        if self._open:
            self._poked.set()

    def used_by(self, shim: int, _whose: str = "") -> Mapping[str, int]:
        """Nothing that the others did not see."""
        return {}

    def troubles(self) -> list[str]:
        """What the user should hear, once."""
        news, self._news = self._news, []
        return news

    def fileno(self) -> int:
        """Readable when a daemon said something."""
        return self._bell

    def collect(self) -> list[Sample]:
        """Who is known to be a client, or to be none, since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        fresh = [uuid for uuid, gpu in self._gpus.items() if gpu.news]
        for uuid in fresh:
            self._gpus[uuid].news = False
            self._heard(self._gpus[uuid])
        found = [(key, self._verdict(key, one)) for key, one in self._open.items() if one.uuid in fresh]
        samples = [Sample(*key, {}, {}, mps=verdict) for key, verdict in found if verdict]
        for sample in samples:
            del self._open[sample.task, sample.attempt]
            self._known.add((sample.task, sample.attempt))
        return samples

    def _heard(self, gpu: Gpu) -> None:
        look = gpu.look
        assert look is not None
        if look.revived:
            self._news.append(f"the MPS daemon of {gpu.label} had died, and was started again")
        if not gpu.suspected or look.began < gpu.suspected or look.trouble:
            return
        if not (gpu.before & look.clients if look.faulty is None else look.faulty):
            gpu.suspected, gpu.why = 0.0, ""

    def _verdict(self, key: Key, one: Unverified) -> str:
        look = self._gpus[one.uuid].look
        if look is None or look.trouble:
            return ""
        if not look.clients.isdisjoint(tree(one.shim)):
            return CLIENT
        if not self._holds(key, one.uuid):
            return ""
        one.since = one.since or look.began
        if look.began - one.since < TAKES:
            return ""
        label = self._gpus[one.uuid].label
        self._news.append(
            f"task {key[0]} uses {label} outside of MPS: it takes turns with the others, and nothing limits its memory"
        )
        return TURNS

    # ---- the thread ----

    def _look_after(self) -> None:
        while not self._over:
            busy = bool(self._open) or any(gpu.suspected for gpu in self._gpus.values())
            for gpu in list(self._gpus.values()):
                gpu.look = _look(gpu)
                gpu.news = True
            with contextlib.suppress(OSError):
                os.eventfd_write(self._bell, 1)
            self._poked.wait(LOOK if busy else HEALTH)
            self._poked.clear()


def _look(gpu: Gpu) -> Look:
    """Ask one daemon for all there is to know; bring it back where it has died."""
    began = time.monotonic()
    try:
        revived = _revive(gpu)
        servers = gpu.control.servers()
        clients = frozenset(pid for server in servers for pid in gpu.control.clients(server))
        states = [gpu.control.is_faulty(server) for server in servers]
    except (Silent, DeviceError, OSError) as exc:
        return Look(began, trouble=f"its MPS daemon is not well: {exc}")
    faulty = True if True in states else None if None in states else False
    return Look(began, clients, faulty, revived=revived)


def _revive(gpu: Gpu) -> bool:
    """Start a daemon anew that has died; one that lives may only be busy with somebody's end, for a while."""
    try:
        gpu.control.percentage()
    except Silent:
        busy = time.monotonic() - gpu.answered < SILENT and gpu.home is not None and gpu.home.is_running()
        if gpu.home is None or busy:
            raise
        return gpu.home.revive()
    gpu.answered = time.monotonic()
    return False
