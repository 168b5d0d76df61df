"""The facts that a sampler child reads about the node's GPUs and MIG instances: model, division, state.

This module uses the standard library only, because the child runs a copy of this module in the run's directory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from scheduler.devices.gpu.nvml_library import NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Library, NvmlFailure, as_text

UNCORRECTED, SINCE_LOAD = 1, 0
"""The kind of memory errors that NVML is asked for, and the period for which they are counted: since the driver was
loaded.
"""
SM, MEMORY = 1, 2
"""The types of a GPU's clocks in NVML."""
AGAIN = 2.0
"""Seconds between two checks of how GPUs are divided."""


def find_gpus(library: Library, skip: set[int]) -> dict[str, Any]:
    """Return the GPUs of this node. Each GPU is queried by itself, because one lost GPU must not hide the others."""
    gpus, errors = [], []
    driver, cuda = _versions(library)
    for index in range(library.call("nvmlDeviceGetCount")):
        if index in skip:
            continue
        library.board.begin(str(index))
        try:
            gpus += facts_of(library, index)
        except NvmlFailure as failure:
            errors.append([index, failure.code, library.word(failure.code), failure.call])
    library.board.rest()
    return {"gpus": gpus, "errors": errors, "driver": driver, "cuda": cuda, "first_namespace": _in_first_namespace()}


def _versions(library: Library) -> tuple[str, str]:
    cuda = library.maybe("nvmlSystemGetCudaDriverVersion_v2") or library.maybe("nvmlSystemGetCudaDriverVersion") or 0
    driver = as_text(library.maybe("nvmlSystemGetDriverVersion") or "")
    return driver, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""


def facts_of(library: Library, index: int) -> list[dict[str, Any]]:
    """Return the facts of a GPU, and the facts of each of its MIG instances."""
    handle = library.call("nvmlDeviceGetHandleByIndex", index)
    mig = is_divided(library, handle)
    gpu = {
        "index": index,
        "uuid": as_text(library.call("nvmlDeviceGetUUID", handle)),
        "model": as_text(library.call("nvmlDeviceGetName", handle)),
        "bus_id": as_text(library.call("nvmlDeviceGetPciInfo", handle).busId),
        "total": _total(library, handle, may_be_hidden=mig),
        "minor": _or(library.maybe("nvmlDeviceGetMinorNumber", handle), -1),
        "mig": mig,
        "compute_mode": library.maybe("nvmlDeviceGetComputeMode", handle) or 0,
        "capability": list(library.maybe("nvmlDeviceGetCudaComputeCapability", handle) or ()),
        "accounting": library.maybe("nvmlDeviceGetAccountingMode", handle) == 1,
        **_health(library, handle),
    }
    return [gpu, *_instance_facts(library, gpu, handle)] if mig else [gpu]


def is_divided(library: Library, handle: Any) -> bool:
    """Tell whether a GPU is in MIG mode now."""
    mode = library.maybe("nvmlDeviceGetMigMode", handle)
    return mode is not None and mode[0] == 1


class GpuDivisions:
    """The division of GPUs into MIG instances: an administrator may change it during a run."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[int, list[str]] = {}
        self._due = 0.0

    def order(self, known: list[tuple[int, list[str]]]) -> None:
        """From now on, compare with `known`: the index of each GPU, and the UUIDs of its instances. For a GPU without
        instances, `known` has the UUID of the GPU itself.
        """
        self._known = {index: sorted(uuids) for index, uuids in known}

    def changes(self) -> list[list[dict[str, Any]]]:
        """Return the facts of each GPU whose division into instances has changed, and of its instances."""
        now = time.monotonic()
        if now < self._due:
            return []
        self._due = now + AGAIN
        changed = []
        for index, known in self._known.items():
            self._library.board.begin(str(index))
            with contextlib.suppress(NvmlFailure):  # its samples report what is wrong with a GPU
                if self._parts(index) != known:
                    changed.append(facts_of(self._library, index))
        return changed

    def _parts(self, index: int) -> list[str]:
        handle = self._library.call("nvmlDeviceGetHandleByIndex", index)
        whole = not is_divided(self._library, handle)
        parts = [handle] if whole else [part for _, part in instances(self._library, handle)]
        return sorted(uuid_of(self._library, part) for part in parts)


def _health(library: Library, handle: Any) -> dict[str, Any]:
    """Return the memory errors and the clocks that a GPU reports; None for each value that it does not report."""

    def maybe(name: str, *arguments: int) -> Any:
        with contextlib.suppress(NvmlFailure):
            return library.maybe(name, handle, *arguments)

    rows = maybe("nvmlDeviceGetRemappedRows") or (0, 0, 0, 0)
    return {
        "uncorrected": maybe("nvmlDeviceGetTotalEccErrors", UNCORRECTED, SINCE_LOAD),
        "pending": bool(maybe("nvmlDeviceGetRetiredPagesPendingStatus")) or bool(rows[2]),
        "worn": bool(rows[3]),
        "throttled": maybe("nvmlDeviceGetCurrentClocksThrottleReasons") or 0,
    }


def _instance_facts(library: Library, gpu: dict[str, Any], parent: Any) -> list[dict[str, Any]]:
    found, owners = [], []
    for part, handle in instances(library, parent):
        said = {"uuid": uuid_of(library, handle), "model": as_text(library.call("nvmlDeviceGetName", handle))}
        own = {"mig": False, "accounting": False, "parent": gpu["uuid"], "part": part}
        found.append({**gpu, **said, **_memory_facts(library, handle), **own})
        owners.append(_or(library.maybe("nvmlDeviceGetGpuInstanceId", handle), -1 - part))
    return [{**one, "sharers": owners.count(owner)} for one, owner in zip(found, owners, strict=True)]


def _memory_facts(library: Library, handle: Any) -> dict[str, Any]:
    """Return the memory of an instance, or the reason why it cannot be read. An error is not raised, because the other
    instances of the GPU can still be used.
    """
    try:
        return {"total": library.memory(handle)["total"]}
    except NvmlFailure as failure:
        return {"total": 0, "failure": [failure.code, library.word(failure.code), failure.call]}


def instances(library: Library, parent: Any, first: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield (number, handle) of the MIG instances of a GPU; numbers without an instance are skipped."""
    most = library.maybe("nvmlDeviceGetMaxMigDeviceCount", parent) or 0
    for part in sorted(range(most), key=lambda part: part != first):
        try:
            yield part, library.call("nvmlDeviceGetMigDeviceHandleByIndex", parent, part)
        except NvmlFailure as failure:
            if failure.code not in (NOT_FOUND, NOT_SUPPORTED):
                raise


def _total(library: Library, handle: Any, *, may_be_hidden: bool) -> int:
    """Return the memory of a GPU in bytes; 0 for a GPU in MIG mode if the process may read the memory of instances
    only.
    """
    try:
        return int(library.memory(handle)["total"])
    except NvmlFailure as failure:
        if not may_be_hidden or failure.code not in (NO_PERMISSION, NOT_SUPPORTED):
            raise
        return 0


def uuid_of(library: Library, handle: Any) -> str:
    return as_text(library.call("nvmlDeviceGetUUID", handle))


def look_at_cards(library: Library) -> list[dict[str, Any]]:
    """Return the clocks, throttle reasons, power and energy of every GPU; None for each value that a GPU does not
    report.
    """
    cards = []
    for index in range(library.call("nvmlDeviceGetCount")):
        library.board.begin(str(index))
        with contextlib.suppress(NvmlFailure):
            cards.append(_card(library, index))
    return cards


def _card(library: Library, index: int) -> dict[str, Any]:
    handle = library.call("nvmlDeviceGetHandleByIndex", index)

    def maybe(name: str, *arguments: int) -> Any:
        try:
            return library.maybe(name, handle, *arguments)
        except NvmlFailure:  # a value that only describes the GPU is not essential
            return None

    return {
        "index": index,
        "uuid": as_text(library.call("nvmlDeviceGetUUID", handle)),
        "sm_clock_mhz": maybe("nvmlDeviceGetClockInfo", SM),
        "sm_clock_max_mhz": maybe("nvmlDeviceGetMaxClockInfo", SM),
        "memory_clock_mhz": maybe("nvmlDeviceGetClockInfo", MEMORY),
        "memory_clock_max_mhz": maybe("nvmlDeviceGetMaxClockInfo", MEMORY),
        "power_mw": maybe("nvmlDeviceGetPowerUsage"),
        "power_cap_mw": maybe("nvmlDeviceGetEnforcedPowerLimit"),
        "temperature_c": maybe("nvmlDeviceGetTemperature", 0),
        "throttled": maybe("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "energy_mj": maybe("nvmlDeviceGetTotalEnergyConsumption"),
    }


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _in_first_namespace() -> bool:
    """Tell, by the kernel's number of the namespace, whether this is the first pid namespace; NVML reports only pids of
    the first one.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    except OSError:
        return True
