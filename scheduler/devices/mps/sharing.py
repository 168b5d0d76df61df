"""The use of MPS by a run: the launch parameters of each task, the tasks that are clients, the daemons' health."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scheduler.core.attempts.mps_policy import CLIENT, TURNS
from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import Placement
from scheduler.core.ports import Key, MpsLaunch, Sample, Watched
from scheduler.devices.mps import terminate_client
from scheduler.devices.mps.control import DIRECTORY, LIMIT, PERCENTAGE, DaemonSilent, MpsControl
from scheduler.devices.mps.daemon import MpsHome
from scheduler.devices.task_env import INSTANCE
from scheduler.errors import DeviceError
from scheduler.runtime.paths import PACKAGE
from scheduler.runtime.processes import tree
from scheduler.runtime.threads import StartedThread, start_thread
from scheduler.units import MIB
from scheduler.values import dataclass, field

LOOK = 0.25
"""Seconds between checks while it is not known whether an attempt is a client, or while a daemon is suspected."""
HEALTH = 2.0
"""Seconds between checks while every client is known and no daemon is suspected."""
SILENT = 60.0
"""Seconds without an answer after which a daemon that is still running is replaced."""
LEAVE = 15.0
"""The most seconds for which the thread may wait for its last answers, at most three, when the run ends."""
TAKES = 4.0
"""Seconds for which a task may use its GPU without being on its daemon's list of clients; after that it counts as
outside of MPS.
"""


@dataclass(frozen=True, slots=True)
class DaemonLook:
    """The answers of a daemon, or the reason why it did not answer."""

    began: float
    clients: frozenset[int] = frozenset()
    faulty: bool | None = False
    """True if the daemon's server accepts no clients because of a fault; None: the daemon is too old to tell."""
    trouble: str = ""
    revived: bool = False


@dataclass(slots=True)
class MpsGpu:
    """The daemon of one GPU."""

    label: str
    control: MpsControl
    home: MpsHome | None = None
    """The directory of the daemon; None if the daemon belongs to another user."""
    fd: int = -1
    answered: float = 0.0
    """The time at which the daemon last answered."""
    look: DaemonLook | None = None
    news: bool = False
    suspected: float = 0.0
    why: str = ""
    before: frozenset[int] = frozenset()
    """The clients of the daemon at the moment when the daemon was suspected."""


@dataclass(slots=True)
class UnverifiedClient:
    """An attempt for which it is not known yet whether it became a client of MPS."""

    shim: int
    uuid: str
    since: float = field(default=0.0)
    """The time at which the attempt was first seen to use its GPU."""


class MpsSharing:
    """The GpuSharing and Watcher ports of a run. A separate thread talks to the daemons, so that none of them can block
    the loop.
    """

    def __init__(self, gpus: Mapping[str, MpsGpu], *, exclusive: bool = False) -> None:
        self._gpus = dict(gpus)
        self._exclusive = exclusive
        self._code = str(PACKAGE.parent)
        self._holds: Callable[[Key, str], int] = lambda key, uuid: 0
        self._open: dict[Key, UnverifiedClient] = {}
        self._known: set[Key] = set()
        self._news: list[str] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poked = threading.Event()
        self._over = False
        self._thread: StartedThread | None = None

    def begin(self) -> None:
        """Become a user of the daemon of every GPU, and start the daemons that are not running. Raise DeviceError if
        one of them fails; then none is used.
        """
        try:
            for gpu in self._gpus.values():
                if gpu.home is not None:
                    gpu.fd = gpu.home.enter(exclusive=self._exclusive)
                    gpu.answered = time.monotonic()
        except (DeviceError, DaemonSilent) as exc:
            self._leave_all()
            raise DeviceError(f"MPS on {gpu.label}: {exc}") from exc

    def serve(self, code: Path, holds: Callable[[Key, str], int]) -> None:
        """Check the daemons from now on; `holds` returns an attempt's last measured use of a GPU."""
        self._code, self._holds = str(code), holds
        self._thread = start_thread(self._look_after)
        if self._thread is None:
            raise DeviceError("no thread can be started to check the MPS daemons: raise ulimit -u, or leave --mps out")

    def close(self) -> None:
        """Stop using all daemons."""
        self._over = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join(LEAVE)
        self._leave_all()
        if self._thread is None or not self._thread.is_alive():  # else the thread still writes to it
            os.close(self._bell)

    def _leave_all(self) -> None:
        for gpu in self._gpus.values():
            if gpu.home is not None and gpu.fd >= 0:
                with contextlib.suppress(DeviceError):  # the next run cleans up what is left
                    gpu.home.leave(gpu.fd)
                gpu.fd = -1

    # ---- launching ----

    def attend(self, placement: Placement) -> MpsLaunch:
        """Return the attempt's daemon, its percentage of the threads and its memory limit, for the one GPU that the
        attempt sees.
        """
        (uuid,) = placement.sees
        gpu = self._gpus[uuid]
        # A process on an instance sees nothing else; the documentation names limits by UUID for whole GPUs only.
        device = "0" if uuid.startswith(INSTANCE) else uuid
        limit = f"{device}={placement.fence // MIB}M" if placement.fence else None
        environ = {
            DIRECTORY: gpu.control.directory,
            PERCENTAGE: str(placement.percentage) if placement.percentage < 100 else None,
            LIMIT: limit,
        }
        return MpsLaunch(
            environ, terminate_client.command(self._code, gpu.control.program, gpu.control.directory), gpu.fd
        )

    def suspect(self, device: str, sentence: str) -> None:
        """Close a GPU to new tasks until its daemon is known to work."""
        gpu = self._gpus.get(device)
        if gpu is None:
            return
        gpu.before = gpu.look.clients if gpu.look is not None else frozenset()
        gpu.suspected, gpu.why = time.monotonic(), sentence
        self._poked.set()

    def closed(self) -> Mapping[str, str]:
        """Return the GPUs whose daemon does not answer or is suspected, with the reason for each."""
        found = {}
        for uuid, gpu in self._gpus.items():
            why = (gpu.look.trouble if gpu.look is not None else "") or gpu.why
            if why:
                found[uuid] = why
        return found

    def percentages(self) -> dict[str, float]:
        """Return the percentage of the threads that each daemon gives to tasks, by the name of the GPU."""
        found = {}
        for gpu in self._gpus.values():
            with contextlib.suppress(DaemonSilent):
                found[gpu.label] = gpu.control.percentage()
        return found

    # ---- looking ----

    def watch(
        self,
        attempts: Mapping[Key, Watched],
        _others: Trees,
        _unnamed: frozenset[UnnamedShim] = NO_UNNAMED,
    ) -> None:
        """Find out whether each new attempt under MPS became a client."""
        self._known &= attempts.keys()
        mine = {key: watched for key, watched in attempts.items() if watched.mps and key not in self._known}
        self._open = {
            key: self._open.get(key) or UnverifiedClient(watched.shim, next(iter(watched.reservation)))
            for key, watched in mine.items()
        }
        if self._open:
            self._poked.set()

    def used_by(self, shim: int, _whose: str = "") -> Mapping[str, int]:
        """Return nothing, because this watcher measures no memory of its own."""
        return {}

    def troubles(self) -> list[str]:
        """Return sentences for the user, each of them once."""
        news, self._news = self._news, []
        return news

    def fileno(self) -> int:
        """Return a descriptor that is readable when a daemon has answered."""
        return self._bell

    def collect(self) -> list[Sample]:
        """Return a sample for each attempt that was found, since the last call, to be a client or not to be one."""
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

    def _heard(self, gpu: MpsGpu) -> None:
        look = gpu.look
        assert look is not None
        if look.revived:
            self._news.append(f"the MPS daemon of {gpu.label} has died and was started again")
        if not gpu.suspected or look.began < gpu.suspected or look.trouble:
            return
        if not (gpu.before & look.clients if look.faulty is None else look.faulty):
            gpu.suspected, gpu.why = 0.0, ""

    def _verdict(self, key: Key, one: UnverifiedClient) -> str:
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
            f"task {key[0]} uses {label} outside of MPS: it takes turns with other tasks, and its memory is not limited"
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


def _look(gpu: MpsGpu) -> DaemonLook:
    """Query the whole state of one daemon; start the daemon again if it has died."""
    began = time.monotonic()
    try:
        revived = _revive(gpu)
        servers = gpu.control.servers()
        clients = frozenset(pid for server in servers for pid in gpu.control.clients(server))
        states = [gpu.control.is_faulty(server) for server in servers]
    except (DaemonSilent, DeviceError, OSError) as exc:
        return DaemonLook(began, trouble=f"its MPS daemon has failed: {exc}")
    faulty = True if True in states else None if None in states else False
    return DaemonLook(began, clients, faulty, revived=revived)


def _revive(gpu: MpsGpu) -> bool:
    """Start a daemon again if it has died; return whether that was necessary. A daemon that runs but does not answer
    may only be busy with the end of a client.
    """
    try:
        gpu.control.percentage()
    except DaemonSilent:
        busy = time.monotonic() - gpu.answered < SILENT and gpu.home is not None and gpu.home.is_running()
        if gpu.home is None or busy:
            raise
        return gpu.home.revive()
    gpu.answered = time.monotonic()
    return False
