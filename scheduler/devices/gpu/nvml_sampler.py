"""The sampler child of the GPUs: it reads the use of processes from the NVIDIA library, and their owners from /proc.

`nvml_library` loads pynvml. `sampler_protocol` describes orders, answers, and the board on which the child announces
every call. At end-of-file the child ends, whatever the library is doing. It uses the standard library only, because it
runs from a copy in the run's directory.

    begin   {"find": true, "skip": [index]}: answered with {"node": {...}}; else with {"ready": 1}; or {"failed": [...]}
            {"cards": true}: answered with {"cards": [...]}, and that is all
            {"index": index}, a GPU that could not be read: answered with {"ready": 1, "divided": [[{...}]]}
    order   {"gpus": [[uuid, bus, index, part]], "attempts": {name: [shim, [uuid], settled, guest]},
             "others": [[shim, guest]], "divided": [[index, [uuid]]]}; a guest may be 0
    round   {"looks": {uuid: {...} or {"failed": [...]}}, "pids": {pid: [owner, age, uid]}, "clients": [name],
             "divided": [[{...}]] of GPUs that are divided in another way than the order says}

The owner of a pid is an attempt's name, `!` and a shim's pid for another user's attempt, or empty: no lease.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scheduler.devices.gpu.node_facts import (
    GpuDivisions,
    facts_of,
    find_gpus,
    instances,
    is_divided,
    look_at_cards,
    uuid_of,
)
from scheduler.devices.gpu.nvml_library import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    Library,
    NvmlFailure,
)
from scheduler.devices.gpu.process_owner import ProcessOwners, has_container_client, roots
from scheduler.devices.sampler_protocol import Board, serve, tell
from scheduler.runtime.shim import children_finder, descendants

FAST, CALM, IDLE = 0.075, 0.5, 1.0
"""Seconds between rounds: while an attempt has not settled or a use has risen lately, while neither is true, and while
no attempt has a GPU.
"""
RISEN = 3.0
"""Seconds after a rise during which rounds are frequent."""
RISE = 16 << 20
SHARE = 30.0
"""The least pause after a round, as a multiple of the processor time of the round: a sampler uses at most 3 % of a
core.
"""
LONGEST = 2.0
SELDOM = 0.25
"""Seconds between samples of values that change slowly or are expensive: utilisation, accounting, names of
processes."""
XID_EVENT = 8
"""NVML's type of event for a critical error."""
EVENT_WAIT = 1
"""Milliseconds for which a sample waits for events."""
FATAL = frozenset({48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143})
"""Critical errors (XID) after which the GPU needs a reset, according to NVIDIA's catalogue; programs cause most other
XID errors.
"""
GPU_SENSOR = 0


_Listed = dict[int, tuple[int | None, bool]]
"""The listed processes: {pid: (bytes or None, is a client of MPS)}; None: the driver hides the bytes."""


class CriticalErrors:
    """The critical errors (XID) of the GPUs of one child, since the child began to sample each GPU; empty if the driver
    does not report such errors.

    All GPUs share one event set, and an error belongs to the GPU that the event names: a library may report the errors
    of every GPU to every set.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._events: Any = None
        self._fatal: dict[str, int] = {}
        self._registered: set[str] = set()
        with contextlib.suppress(NvmlFailure):
            self._events = library.call("nvmlEventSetCreate")

    def register(self, uuid: str, handle: Any) -> None:
        """Collect the errors of one more GPU."""
        if self._events is not None and uuid not in self._registered:
            self._registered.add(uuid)
            with contextlib.suppress(NvmlFailure):
                self._library.call("nvmlDeviceRegisterEvents", handle, XID_EVENT, self._events)

    def fatal(self, uuid: str) -> int:
        """Return the number of the error that requires a reset of this GPU; 0 if there is no such error."""
        while self._events is not None:
            try:
                said = self._library.call("nvmlEventSetWait_v2", self._events, EVENT_WAIT)
            except NvmlFailure as failure:
                if failure.code != TIMEOUT:
                    self._events = None
                break
            if said.eventData in FATAL:
                with contextlib.suppress(NvmlFailure):  # a GPU that cannot name itself is noticed by its own sample
                    self._fatal[uuid_of(self._library, said.device)] = int(said.eventData)
        return self._fatal.get(uuid, 0)


class SampledGpu:
    """One GPU or MIG instance: its handle, and its samples so far."""

    def __init__(self, library: Library, errors: CriticalErrors, uuid: str, bus: str, index: int, part: int) -> None:
        self.uuid = uuid
        self._library = library
        self._errors = errors
        self._card = ""
        """The UUID of the whole GPU, by which critical errors name it; empty until the GPU is opened."""
        self._place = (bus, index)
        self._part = part
        self._handle: Any = None
        self._divisible = False
        self._seldom_at = 0.0
        self._busy: float | None = None
        self._celsius: int | None = None
        self._watts: float | None = None
        self._shares: dict[int, float] = {}
        self._shares_since = 0
        self._accounting = False
        self._peaks: dict[int, int] = {}
        self._last: _Listed = {}

    def look(self, own: Callable[[Iterable[int]], set[int]]) -> dict[str, Any]:
        """Take one sample. Free memory is read before and after the processes, and the lower value is used, so that no
        memory seems to be both used and free.
        """
        began = time.monotonic()
        self._library.board.begin(self.uuid)
        try:
            handle = self._open()
            before = self._library.memory(handle)
            processes = self._processes(handle)
            memory = self._library.memory(handle)
            memory["free"] = min(before["free"], memory["free"])
            if began - self._seldom_at >= SELDOM and (xid := self._errors.fatal(self._card)):
                return {"failed": [xid, f"XID {xid}", "nvmlEventSetWait"]}
            self._look_seldom(handle, began, own(self._last.keys() | (processes or {}).keys()), processes or {})
        except NvmlFailure as failure:
            return {"failed": [failure.code, self._library.word(failure.code), failure.call]}
        now = time.monotonic()
        listed = (
            None if processes is None else [[pid, used, self._shares.get(pid)] for pid, (used, _) in processes.items()]
        )
        seldom = {"busy": self._busy, "celsius": self._celsius, "watts": self._watts, "peaks": self._peaks}
        return {**memory, "at": now, "cost": now - began, "processes": listed, **seldom}

    def _open(self) -> Any:
        """Return the GPU's handle by its PCI address: a search by UUID queries every GPU, and fails if one of them is
        lost. After a reconfiguration the handle of a MIG instance may refer to another instance, so the handle is
        checked each time.
        """
        call = self._library.call
        if self._handle is None:
            try:
                handle = call("nvmlDeviceGetHandleByPciBusId", self._place[0].encode())
            except NvmlFailure as failure:
                if failure.code not in (FUNCTION_NOT_FOUND, NOT_FOUND, INVALID_ARGUMENT):
                    raise
                handle = call("nvmlDeviceGetHandleByIndex", self._place[1])
            self._card = uuid_of(self._library, handle)
            self._errors.register(self._card, handle)
            if self._part >= 0:
                handle = self._instance(handle)
            elif self._card != self.uuid:
                raise NvmlFailure(NOT_FOUND, "nvmlDeviceGetUUID")
            self._accounting = self._library.maybe("nvmlDeviceGetAccountingMode", handle) == 1
            self._divisible = self._part < 0 and self._library.maybe("nvmlDeviceGetMigMode", handle) is not None
            self._handle = handle
        elif self._part >= 0 and not self._is_there():
            self._handle = None
            raise NvmlFailure(NOT_FOUND, "nvmlDeviceGetMigDeviceHandleByIndex")
        if self._divisible and is_divided(self._library, self._handle):
            raise NvmlFailure(NOT_FOUND, "nvmlDeviceGetMigMode")
        return self._handle

    def _is_there(self) -> bool:
        """Tell whether the handle still refers to this MIG instance."""
        try:
            return uuid_of(self._library, self._handle) == self.uuid
        except NvmlFailure as failure:
            if failure.code not in (NOT_FOUND, INVALID_ARGUMENT):
                raise
            return False

    def _instance(self, parent: Any) -> Any:
        """Return the handle of the MIG instance, whatever position it has on its GPU now."""
        for _, handle in instances(self._library, parent, first=self._part):
            if uuid_of(self._library, handle) == self.uuid:
                return handle
        raise NvmlFailure(NOT_FOUND, "nvmlDeviceGetMigDeviceHandleByIndex")

    def _processes(self, handle: Any) -> _Listed | None:
        """Return the listed processes; the memory of a process that is in several lists is the highest of their
        values.
        """
        found: _Listed = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            try:
                listed = self._library.processes(kind, handle)
            except NvmlFailure as failure:
                if failure.code not in (NOT_SUPPORTED, NO_PERMISSION):
                    raise
                if kind == "Compute":
                    return None
                continue
            for pid, used in listed:
                before, mps = found.get(pid, (None, False))
                most = used if before is None else max(before, used or 0)
                found[pid] = (most, mps or kind == "MPSCompute")
        return found

    def _look_seldom(self, handle: Any, now: float, own: set[int], listed: _Listed) -> None:
        gone = own - listed.keys()
        if now - self._seldom_at >= SELDOM or gone:
            all_listed = self._last | listed
            self._peaks = {pid: peak for pid in own if not all_listed[pid][1] for peak in self._peak(handle, pid)}
        if now - self._seldom_at >= SELDOM:
            self._seldom_at = now
            self._look_how_busy(handle)
        self._last = listed

    def _peak(self, handle: Any, pid: int) -> Iterator[int]:
        """Yield the exact peak of a process if accounting mode is on; the peak stays available after the end of the
        process.
        """
        if self._accounting:
            with contextlib.suppress(NvmlFailure):
                peak = self._library.call("nvmlDeviceGetAccountingStats", handle, pid).maxMemoryUsage
                yield from [peak] if peak else []

    def _look_how_busy(self, handle: Any) -> None:
        said = self._library.maybe("nvmlDeviceGetUtilizationRates", handle)
        self._busy = None if said is None else said.gpu / 100.0
        self._celsius = self._library.maybe("nvmlDeviceGetTemperature", handle, GPU_SENSOR)
        power = self._library.maybe("nvmlDeviceGetPowerUsage", handle)
        self._watts = None if power is None else power / 1000.0
        try:
            samples = self._library.call("nvmlDeviceGetProcessUtilization", handle, self._shares_since)
        except NvmlFailure:
            self._shares = {}  # NOT_FOUND: no process used it since; NOT_SUPPORTED: it is not recorded
            return
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            self._shares_since = max(self._shares_since, sample.timeStamp)
            by_pid.setdefault(sample.pid, []).append(sample.smUtil)
        self._shares = {pid: sum(shares) / len(shares) / 100.0 for pid, shares in by_pid.items() if pid}


class GpuSampler:
    """The sampler of the GPUs that the last order names, round after round."""

    gather = 0.0

    def __init__(self, library: Library) -> None:
        self._library = library
        self._owners = ProcessOwners()
        self._errors = CriticalErrors(library)
        self._divisions = GpuDivisions(library)
        self._gpus: dict[str, SampledGpu] = {}
        self._attempts: dict[str, tuple[int, list[str], bool, int]] = {}
        self._clients: list[str] = []
        self._clients_at = 0.0
        self._high: dict[str, int] = {}
        self._risen_at = time.monotonic()

    def order(self, said: dict[str, Any]) -> None:
        """Replace the list of GPUs and attempts to sample; GPUs and attempts that are in both lists keep their
        history.
        """
        self._gpus = {
            uuid: self._gpus.get(uuid) or SampledGpu(self._library, self._errors, uuid, bus, index, part)
            for uuid, bus, index, part in said["gpus"]
        }
        self._divisions.order(said["divided"])
        self._attempts = {name: tuple(rest) for name, rest in said["attempts"].items()}
        own = {name: (shim, guest) for name, (shim, _, _, guest) in self._attempts.items()}
        self._owners.order(roots(own, said["others"]))

    def look(self) -> dict[str, Any]:
        """Take one sample of every GPU."""
        looks = {uuid: gpu.look(self._own) for uuid, gpu in self._gpus.items()}
        divided = self._divisions.changes()
        self._library.board.rest()
        listed = {pid for look in looks.values() for pid, *_ in look.get("processes") or ()}
        pids = self._owners.of(listed)
        self._note_rises(looks)
        clients = self._container_clients({said[0] for said in pids.values()})
        return {"looks": looks, "pids": pids, "clients": clients, "divided": divided}

    def _own(self, pids: Iterable[int]) -> set[int]:
        return {pid for pid in pids if self._owners.owner(pid) in self._attempts}

    def _note_rises(self, looks: dict[str, Any]) -> None:
        for uuid, look in looks.items():
            if look.get("held", 0) > self._high.get(uuid, 0) + RISE:
                self._risen_at = time.monotonic()
            self._high[uuid] = look.get("held", 0)

    def _container_clients(self, seen: set[str]) -> list[str]:
        """Return the attempts without GPU memory for which a container daemon may do the work."""
        now = time.monotonic()
        if now - self._clients_at >= SELDOM:
            self._clients_at = now
            children = children_finder()
            hidden = [(name, shim) for name, (shim, gpus, *_) in self._attempts.items() if gpus and name not in seen]
            self._clients = [name for name, shim in hidden if has_container_client(descendants(shim, children))]
        return self._clients

    def rest(self, cost: float) -> float:
        """Return the seconds until the next round; the last one used `cost` seconds of processor time."""
        here = [settled for _, gpus, settled, _ in self._attempts.values() if gpus]
        rising = not all(here) or time.monotonic() - self._risen_at < RISEN
        period = IDLE if not here else FAST if rising else CALM
        return min(LONGEST, max(period, cost * SHARE))


def _first_answer(library: Library, first: dict[str, Any]) -> dict[str, Any]:
    if first.get("find"):
        return {"node": find_gpus(library, set(first.get("skip", ())))}
    if "index" not in first:
        return {"ready": 1}
    library.board.begin(str(first["index"]))
    return {"ready": 1, "divided": [facts_of(library, first["index"])]}


def begin(board: Board) -> GpuSampler | None:
    """Initialise the library, and carry out the first order; return None if the order needs no sampler, or if
    initialisation fails.
    """
    library, first = Library(sys.argv[3], board), json.loads(sys.argv[4])
    board.begin("init")
    try:
        library.call("nvmlInit")
        if first.get("cards"):
            tell(cards=look_at_cards(library))
            return None
        tell(**_first_answer(library, first))
    except NvmlFailure as failure:
        tell(failed=[failure.code, library.word(failure.code), failure.call])
        return None
    board.rest()
    return GpuSampler(library)


def main() -> None:
    """Run as a sampler child of GPUs; the arguments after the board are the path of pynvml.py and the first order."""
    serve(begin)


if __name__ == "__main__":
    main()
