"""The monitor of one run for `top` and the page: it reads devices, leases and process trees repeatedly."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from scheduler.app.observe.device_readings import ALL, of_leases, readings_of
from scheduler.app.observe.lease_holders import holders
from scheduler.app.observe.machine_status import REST, MonitoredDevices
from scheduler.app.observe.run_facts import forecast_of
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget
from scheduler.core.ports import Key
from scheduler.core.reporting.device_readings import DeviceReadings
from scheduler.core.reporting.live_status import LiveStatus, ObservedState, StatusBuilder
from scheduler.devices.host.sampler import Tree, read_in_turn
from scheduler.runtime.paths import open_plain
from scheduler.runtime.settings import Settings
from scheduler.runtime.shim import children_finder
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.text import scheduler_ended
from scheduler.values import replace

TAIL = 4096
"""The number of bytes at the end of a run's log that are searched for its last lines."""


class RunMonitor:
    """The live state of a run in any terminal, from its journal and the machine."""

    def __init__(self, info: RunInfo, settings: Settings) -> None:
        self.info = info
        self._settings = settings
        self.reader = RunReader(info)
        self._devices: MonitoredDevices | None = None
        self._builder = StatusBuilder(
            info.number,
            info.what,
            self.reader.brain,
            self.reader.history,
            self.reader.name,
            self.reader.labels,
        )
        self._trees: dict[Key, Tree] = {}
        self._seen = ObservedState()
        self._next = 0.0
        self._turn = 0
        self._on_nodes = "nodes" in info.meta

    @property
    def alive(self) -> bool:
        """Tell whether the run has a running scheduler."""
        return is_locked(self.info.places.root)

    @property
    def living(self) -> bool:
        """Tell whether a task of the run is alive, even without a scheduler."""
        return self.reader.brain.placements_exist()

    def goes_on(self) -> bool:
        """Tell whether there is something to watch: a scheduler, or tasks that outlived it."""
        return self.alive or self.living

    @property
    def stands(self) -> str:
        """Return a sentence about a run that has ended or has no scheduler."""
        number = self.info.number
        if self.reader.unfinished:
            return f"run {number} is not over, and {scheduler_ended(number)}"
        return f"run {number} is over: scheduler results r{number}"

    def picture(self) -> LiveStatus:
        """Return the state of the run now."""
        self.reader.catch_up()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REST
            self._look()
        return self._builder.paint(self._seen, time.time())

    def recent(self) -> Sequence[str]:
        """Return the last lines of the run's log, with times of day."""
        try:
            with open_plain(self.info.places.log) as file:
                file.seek(max(0, file.seek(0, 2) - TAIL))
                lines = file.read(TAIL).decode("utf-8", "replace").splitlines()[1:]
        except OSError:
            return ()
        return [line.partition("T")[2] for line in lines]

    def _look(self) -> None:
        if self._on_nodes:
            self._look_at_nodes()
            return
        budgets, leases = self._devices_now([holder.lease for holder in holders(self._settings, used=True)])
        uid = self.info.places.root.stat().st_uid
        mine = {one.task: one for one in leases if one.uid == uid and one.number == str(self.info.number)}
        children = children_finder()
        used: dict[Key, Mapping[str, int]] = {}
        trees: dict[Key, Tree] = {}
        for task in self.reader.brain.living():
            lease, key = mine.get(task.id), (task.id, task.attempts)
            if lease is None or not lease.shim:
                continue
            tree = trees[key] = self._trees.get(key) or self._tree(key, lease.shim)
            tree.look(children)
            used[key] = {**lease.used, "host": tree.used}
        others = [replace(lease, load={}) for lease in leases if mine.get(lease.task) is not lease]
        self._see(trees, ObservedState(budgets, used, {}, others, {task: one.expected for task, one in mine.items()}))

    def _look_at_nodes(self) -> None:
        """Take the state of the devices and the use of attempts from the last reports to the run's scheduler; read
        metrics from the files at the head.
        """
        readings = readings_of(replace(self.info, alive=self.alive)) or DeviceReadings(0.0, (), {})
        keys = [(task.id, task.attempts) for task in self.reader.brain.living()]
        trees = {key: self._trees.get(key) or self._tree(key, 0) for key in keys}
        self._see(trees, ObservedState(readings.budgets, readings.attempts))

    def _see(self, trees: dict[Key, Tree], seen: ObservedState) -> None:
        """Read the epochs and metrics of these attempts, and keep them together with the measured state `seen`."""
        epochs: dict[Key, float] = {}
        totals: dict[Key, float] = {}
        metrics: dict[Key, Mapping[str, Sequence[float | None]]] = {}
        self._trees = trees
        self._turn = read_in_turn([*trees.values()], self._turn)
        for key, tree in trees.items():
            if (files := tree.files) is not None:
                done, of = files.record.progress or (None, None)
                epochs |= {} if done is None else {key: done}
                totals |= {} if of is None else {key: of}
                metrics[key] = files.record.last_values(files.first)
        forecast = forecast_of(self.info)
        self._seen = replace(seen, epochs=epochs, totals=totals, metrics=metrics, forecast=forecast)

    def _devices_now(self, leases: Sequence[Lease]) -> tuple[Sequence[DeviceBudget], list[Lease]]:
        """Return the devices as the run's scheduler measured them a moment ago; if it did not, measure them here."""
        readings = readings_of(replace(self.info, alive=self.alive))
        if readings is not None:
            return of_leases(readings, leases)
        if self._devices is None:
            chosen = json.loads(self.info.meta.get("choices", "{}"))
            self._devices = MonitoredDevices(chosen.get("devices", ALL), self._settings)
        return self._devices.look(leases)

    def _tree(self, key: Key, shim: int) -> Tree:
        return Tree(shim, self.reader.metrics.files(*key, living=True))

    def close(self) -> None:
        """Close the journal and the devices."""
        self.reader.close()
        if self._devices is not None:
            self._devices.close()
