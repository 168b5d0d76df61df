"""Monitors of a run and of the machine for `top`: devices, leases and process trees, read again and again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.app.observe import machine_status
from scheduler.app.observe.lease_holders import holders
from scheduler.app.observe.run_reader import RunReader, forecast_of
from scheduler.app.run.devices import find_devices
from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget
from scheduler.core.ports import Key
from scheduler.core.reporting.live_status import LiveStatus, ObservedState, StatusBuilder
from scheduler.devices.host.sampler import Tree
from scheduler.errors import SchedulerError
from scheduler.runtime.paths import open_plain
from scheduler.runtime.settings import Settings
from scheduler.runtime.shim import children_finder
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run.catalog import RunInfo

TAIL = 4096
"""The bytes at the end of a run's log in which its last lines are searched."""
REST = 2.0
"""Seconds between two reads of devices, leases and processes; the journal is read for every picture."""


class MonitoredDevices:
    """The devices of a run, kept open; none if they cannot be read."""

    def __init__(self, said: str, settings: Settings) -> None:
        self.pool = None
        self.why = ""
        try:
            self.pool = find_devices(said, settings)
        except SchedulerError as exc:
            self.why = str(exc)

    def look(self, leases: Sequence[Lease]) -> tuple[Sequence[DeviceBudget], list[Lease]]:
        """Read the devices and all leases, with the GPU memory that their trees use."""
        if self.pool is None:
            return (), list(leases)
        gpus = self.pool.gpus
        if gpus is None:
            return self.pool.snapshot(), list(leases)
        gpus.look_again(frozenset(lease.shim for lease in leases if lease.shim))
        return self.pool.snapshot(), [replace(one, used={**one.used, **gpus.used_by(one.shim)}) for one in leases]

    def close(self) -> None:
        """Let them go."""
        if self.pool is not None:
            self.pool.close()


class RunMonitor:
    """The live state of a run of any terminal, from its journal and the machine."""

    def __init__(self, info: RunInfo, settings: Settings) -> None:
        self.info = info
        self._settings = settings
        self.telling = RunReader(info)
        chosen = json.loads(info.meta.get("choices", "{}"))
        self._cards = MonitoredDevices(chosen.get("devices", "auto"), settings)
        self._painter = StatusBuilder(
            info.number,
            info.what,
            self.telling.brain,
            self.telling.fold,
            self.telling.name,
            self.telling.labels,
        )
        self._trees: dict[Key, Tree] = {}
        self._seen = ObservedState()
        self._next = 0.0

    @property
    def alive(self) -> bool:
        """Tell whether a scheduler holds the run now."""
        return is_locked(self.info.places.root)

    @property
    def living(self) -> bool:
        """Tell whether a task of the run is alive, with or without a scheduler."""
        return self.telling.brain.placements_exist()

    def goes_on(self) -> bool:
        """Tell whether there is something to watch: a scheduler, or tasks that outlived theirs."""
        return self.alive or self.living

    @property
    def stands(self) -> str:
        """A sentence on a run that has ended or has no scheduler."""
        number = self.info.number
        if self.telling.unfinished:
            return f"run {number} is not over and no scheduler holds it: scheduler resume {number}"
        return f"run {number} is over: scheduler results {number}"

    def picture(self) -> LiveStatus:
        """Return the state of the run now."""
        self.telling.catch_up()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REST
            self._look()
        return self._painter.paint(self._seen, time.time())

    def recent(self) -> Sequence[str]:
        """Return the last lines of its log, with times of day."""
        try:
            with open_plain(self.info.places.log) as file:
                file.seek(max(0, file.seek(0, 2) - TAIL))
                lines = file.read(TAIL).decode("utf-8", "replace").splitlines()[1:]
        except OSError:
            return ()
        return [line.partition("T")[2] for line in lines]

    def _look(self) -> None:
        budgets, leases = self._cards.look([holder.lease for holder in holders(self._settings, used=True)])
        uid = self.info.places.root.stat().st_uid
        mine = {one.task: one for one in leases if one.uid == uid and one.number == str(self.info.number)}
        children = children_finder()
        used: dict[Key, Mapping[str, int]] = {}
        epochs: dict[Key, float] = {}
        trees: dict[Key, Tree] = {}
        for task in self.telling.brain.living():
            lease, key = mine.get(task.id), (task.id, task.attempts)
            if lease is None or not lease.shim:
                continue
            tree = trees[key] = self._trees.get(key) or self._tree(key, lease.shim)
            tree.look(children)
            used[key] = {**lease.used, "host": tree.used}
            if tree.epochs is not None:
                epochs[key] = tree.epochs
        self._trees = trees
        others = [replace(lease, load={}) for lease in leases if mine.get(lease.task) is not lease]
        expected = {task: lease.expected for task, lease in mine.items()}
        self._seen = ObservedState(budgets, used, epochs, others, expected, forecast_of(self.info))

    def _tree(self, key: Key, shim: int) -> Tree:
        places = self.info.places
        return Tree(shim, str(places.task_log(*key)), places.progress(*key))

    def close(self) -> None:
        """Let its journal and the devices go."""
        self.telling.close()
        self._cards.close()


class MachineMonitor:
    """The live state of the whole machine, as `status` shows it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cards = MonitoredDevices("auto", settings) if machine_status.has_driver() else None
        self._tellings: dict[int, RunReader] = {}
        self._facts: dict[str, Any] = {}
        self._next = 0.0

    def facts(self) -> dict[str, Any]:
        """Return the state of the machine, at most two seconds old."""
        from scheduler.app.observe.run_reader import machine_facts

        if time.monotonic() >= self._next:
            self._facts = machine_facts(self._settings, self._look if self._cards else None, self._tellings)
            self._next = time.monotonic() + REST
        return self._facts

    def _look(self, leases: Sequence[Lease]) -> machine_status.GpuUsage:
        assert self._cards is not None
        budgets, looked = self._cards.look(leases)
        return machine_status.GpuUsage(budgets, {one.shim: one.used for one in looked if one.shim}, self._cards.why)

    def close(self) -> None:
        """Let the runs and the devices go."""
        for telling in self._tellings.values():
            with contextlib.suppress(SchedulerError):
                telling.close()
        if self._cards is not None:
            self._cards.close()
