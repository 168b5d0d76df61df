"""The file of a run with the last measurements of its devices.

The run's scheduler writes it, and views read it so that they need no sampler.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget
from scheduler.core.reporting.device_readings import DeviceReadings
from scheduler.runtime.clock import since_boot
from scheduler.runtime.paths import RunPaths, open_plain, replace_file
from scheduler.store.run.catalog import RunInfo
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession
    from scheduler.core.ports import Key, Sample

EVERY, CALM = 1.0, 5.0
"""Seconds between two writes while a task runs, and while no task runs."""
RECENT = 2.5
"""Seconds for which written readings are used; a view that finds only older ones measures the devices itself."""
LARGEST = 16 << 20
VISIBLE = "CUDA_VISIBLE_DEVICES"
NODES = "nodes"
"""The word that readings contain in place of the devices of a run on nodes. No view of this machine uses the readings
of such a run."""
ALL = "auto"
"""The value of `--devices` with which a run sees the same devices as a view."""


class ReadingsWriter:
    """The observer of a run with GPUs, or on nodes, that writes what its samplers measured.

    A full disk only makes views slower.
    """

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._due = 0.0
        chosen = json.loads(session.meta.get("choices", "{}")).get("devices", ALL)
        self._on_nodes = "nodes" in session.meta
        self._sees = [NODES if self._on_nodes else chosen, os.environ.get(VISIBLE)]
        self._used: dict[Key, Mapping[str, int]] = {}
        """The use of attempts on nodes, whose processes no view of this machine finds."""

    def see(self, sample: Sample) -> None:
        """Note what an attempt on a node uses."""
        if self._on_nodes and not sample.ended:
            self._used[sample.task, sample.attempt] = sample.used

    def draw(self) -> float:
        """Write the readings if that is due; return the seconds until the next write is due."""
        now = since_boot()
        if now >= self._due:
            self._due = now + (EVERY if self._session.brain.task_table.living or self._on_nodes else CALM)
            with contextlib.suppress(OSError):
                self._write(now)
        return self._due - now

    def _write(self, now: float) -> None:
        devices = self._session.devices
        gpus = devices.gpus
        if gpus is None and not self._on_nodes:
            return
        used = {} if gpus is None else gpus.used_by_shims()
        living = {(task.id, task.attempts) for task in self._session.brain.living()} if self._used else set()
        self._used = {key: by_device for key, by_device in self._used.items() if key in living}
        readings = DeviceReadings(now, devices.snapshot(), used, self._used)
        said = {**readings.to_dict(), "sees": self._sees}
        replace_file(self._session.places.readings, json.dumps(said).encode(), durable=False)


def readings_of(info: RunInfo) -> DeviceReadings | None:
    """Return the devices of a run as its running scheduler measured them a moment ago; None if there are no recent
    readings.
    """
    found = _read(info.places) if info.alive and not info.elsewhere else None
    return None if found is None else found[0]


def readings_of_all(runs: Iterable[RunPaths]) -> DeviceReadings | None:
    """Return the readings of the first of these runs that sees all GPUs that this process sees, if they are recent."""
    for places in runs:
        if (found := _read(places)) is not None:
            readings, sees = found
            if sees == [ALL, os.environ.get(VISIBLE)]:
                return readings
    return None


def _read(places: RunPaths) -> tuple[DeviceReadings, object] | None:
    """Return recent readings, and which devices their run sees."""
    try:
        with open_plain(places.readings) as file:
            data = json.loads(file.read(LARGEST))
        readings, sees = DeviceReadings.from_dict(data), data["sees"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (readings, sees) if 0 <= since_boot() - readings.at < RECENT else None


def of_leases(readings: DeviceReadings, leases: Sequence[Lease]) -> tuple[list[DeviceBudget], list[Lease]]:
    """Return the devices and the leases with the GPU memory that their process trees used when it was measured.

    Memory of attempts that have ended since then counts as free; otherwise it would seem to be unmanaged.
    """
    measured = time.time() - (since_boot() - readings.at)
    living = {one.shim for one in leases if one.since <= measured}  # a shim may run another attempt by now
    ended: Counter[str] = Counter()
    for shim, by_device in readings.used.items():
        if shim not in living:
            ended.update(by_device)
    budgets = [replace(one, free=min(one.device.total, one.free + ended[one.device.key])) for one in readings.budgets]
    used = {shim: by_device for shim, by_device in readings.used.items() if shim in living}
    return budgets, [replace(one, used={**one.used, **used.get(one.shim, {})}) for one in leases]
