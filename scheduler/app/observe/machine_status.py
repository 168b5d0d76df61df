"""The state of this machine: leases and wait tickets of all users, GPUs, drained devices, the user's latest runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from scheduler.app.control import device_reservations
from scheduler.app.observe.device_readings import of_leases, readings_of, readings_of_all
from scheduler.app.observe.lease_holders import holders
from scheduler.app.observe.run_facts import facts_of_runs, places
from scheduler.core.leases import Lease, trees, unnamed_shims
from scheduler.core.model import DeviceBudget, Placement, Waiter
from scheduler.devices.host.host_memory import available
from scheduler.errors import SchedulerError
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import find_directory
from scheduler.store.machine.wait_tickets import waiters
from scheduler.store.run.catalog import RunCatalog
from scheduler.ui.text import clean
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.observe.run_reader import RunReader
    from scheduler.devices.pool import DevicePool

REST = 2.0
"""Seconds between two reads of devices, leases and processes."""
MOST_RUNS = 10
LIBRARY = "libnvidia-ml.so.1"
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)  # fmt: skip


class MonitoredDevices:
    """Devices selected as by `--devices`, kept open between two reads; empty if they cannot be read."""

    def __init__(self, said: str, settings: Settings) -> None:
        from scheduler.app.run.devices import find_devices

        self.pool: DevicePool | None = None
        self.why = ""
        """Why the devices cannot be read; empty if they can be read."""
        try:
            self.pool = find_devices(said, settings)
        except SchedulerError as exc:
            self.why = str(exc)

    def look(self, leases: Sequence[Lease]) -> tuple[Sequence[DeviceBudget], list[Lease]]:
        """Read the devices; return them and the leases with the GPU memory that their process trees use."""
        if self.pool is None:
            return (), list(leases)
        gpus = self.pool.gpus
        if gpus is None:
            return self.pool.snapshot(), list(leases)
        gpus.look_again(trees(leases), unnamed_shims(leases))
        return self.pool.snapshot(), [replace(one, used={**one.used, **gpus.used_by(one.shim)}) for one in leases]

    def close(self) -> None:
        """Close the devices."""
        if self.pool is not None:
            self.pool.close()


class MachineMonitor:
    """The live state of the machine for `status`, `top --all` and the page; it keeps devices and runs open between
    calls.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._devices: MonitoredDevices | None = None
        self._readers: dict[int, RunReader] = {}
        self._facts: dict[str, Any] = {}
        self._next = 0.0

    def facts(self) -> dict[str, Any]:
        """Return the state of the machine as JSON values, at most two seconds old; commands of other users are left
        out.
        """
        if time.monotonic() >= self._next:
            self._facts = self._read()
            self._next = time.monotonic() + REST
        return self._facts

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of the user's running runs on several machines, as last reported to their schedulers."""
        from scheduler.app.observe.run_reader import RunReader

        catalog, found = RunCatalog(places(self._settings)), list[dict[str, Any]]()
        for number in (run["number"] for run in self.facts()["runs"] if run.get("alive")):
            info = catalog.info(number)
            readings = readings_of(info) if "nodes" in info.meta else None
            if readings is None:
                continue
            with contextlib.closing(RunReader(info)) as reader:
                placements = [task.placement for task in reader.brain.living() if task.placement is not None]
            for name in dict.fromkeys(budget.device.node for budget in readings.budgets):
                here = [budget for budget in readings.budgets if budget.device.node == name]
                found.append({"run": number, "node": name, **_node(here, [p for p in placements if p.node == name])})
        return found

    def runs(self) -> list[dict[str, Any]]:
        """Return the facts of the user's latest runs."""
        return [*islice(facts_of_runs(RunCatalog(places(self._settings)), self._readers), MOST_RUNS)]

    def _read(self) -> dict[str, Any]:
        (total, free), runs = available(), self.runs()
        held = holders(self._settings, used=True)
        alive = [run["number"] for run in runs if run.get("alive")]
        budgets, leases = self._look([holder.lease for holder in held], alive)
        labels = {key: label for run in reversed(runs) for key, label in run.get("devices", {}).items()}
        labels |= {budget.device.key: budget.device.label for budget in budgets}
        told = [_lease(lease, one.user, one.pid, labels) for one, lease in zip(held, leases, strict=True)]
        return {
            "hostname": os.uname().nodename,
            "host": {"total": total, "available": free},
            "leases": sorted(told, key=lambda one: (one["user"], one["task"])),
            "waiting": [_waiter(one, labels) for one in waiters(find_directory(self._settings.leases or None))],
            "gpus": [_gpu(budget, leases) for budget in budgets if budget.device.is_gpu],
            "gpus_trouble": self._devices.why if self._devices is not None else "",
            **device_reservations.told(self._settings, labels),
            "runs": runs,
        }

    def _look(self, leases: list[Lease], alive: Sequence[int]) -> tuple[Sequence[DeviceBudget], list[Lease]]:
        """Return the devices as one of these running runs measured them a moment ago; if none did, measure them
        here.
        """
        home = places(self._settings)
        readings = readings_of_all(map(home.run, alive)) if self._devices is None else None
        if readings is not None:
            return of_leases(readings, leases)
        if self._devices is None and has_driver():
            self._devices = MonitoredDevices("auto", self._settings)
        return self._devices.look(leases) if self._devices is not None else ((), leases)

    def close(self) -> None:
        """Close the runs and the devices; a later call opens them again."""
        while self._readers:
            with contextlib.suppress(SchedulerError):
                self._readers.popitem()[1].close()
        if self._devices is not None:
            self._devices.close()
        self._devices = None


def _node(budgets: Sequence[DeviceBudget], placements: Sequence[Placement]) -> dict[str, Any]:
    """Return the data of one node of a run: its devices, the run's reservations on them, and the tasks on the node."""
    gpus = [budget for budget in budgets if budget.device.is_gpu]
    hosts = [budget for budget in budgets if budget.device.is_host]
    reserved: Counter[str] = Counter()
    for placement in placements:
        reserved.update(placement.by_device)
    return {
        "away": budgets[0].away,
        "gpus": len(gpus),
        "gpu_memory": _memory(gpus, reserved),
        "ram": _memory(hosts, reserved),
        "cores": sum(host.device.load_capacity for host in hosts),
        "tasks": sorted(placement.task for placement in placements),
    }


def _memory(budgets: Sequence[DeviceBudget], reserved: Mapping[str, int]) -> dict[str, int]:
    return {
        "total": sum(budget.device.total for budget in budgets),
        "free": sum(budget.free for budget in budgets),
        "reserved": sum(reserved.get(budget.device.key, 0) for budget in budgets),
    }


def _lease(lease: Lease, user: str, pid: int, labels: Mapping[str, str]) -> dict[str, Any]:
    def named(by_device: Mapping[str, int]) -> dict[str, int]:
        return {_called(key, labels): bytes_ for key, bytes_ in by_device.items()}

    return {
        "user": user,
        "run": lease.number,
        "task": lease.task,
        "pid": pid,
        "shim": lease.shim,
        "since": lease.since,
        "reserved": named(lease.reserved),
        "used": named(lease.used),
        "alone": lease.alone,
        "unreadable": bool(lease.unreadable),
        "ends": lease.ends or None,
    }


def _waiter(waiter: Waiter, labels: Mapping[str, str]) -> dict[str, Any]:
    ticket = waiter.ticket
    return {
        "user": user_name(waiter.uid),
        "run": waiter.run.partition("-")[0],
        "task": ticket.task,
        "devices": [_called(key, labels) for key in ticket.devices],
        "gpus": len(ticket.gpus),
        "bytes": max((bytes_ or 0 for bytes_ in ticket.gpus or (ticket.host,)), default=0) or None,
        "waited": round(ticket.waited, 1),
        "keeps_devices": ticket.closed,
    }


def _gpu(budget: DeviceBudget, leases: Sequence[Lease]) -> dict[str, Any]:
    reserved = sum(lease.reserved.get(budget.device.key, 0) for lease in leases)
    return {
        "device": budget.device.label,
        "total": budget.device.total,
        "free": budget.free,
        "reserved": reserved,
        "unmanaged": [one.to_dict() for one in budget.unmanaged],
        "tasks": sum(budget.device.key in lease.reserved for lease in leases),
        "drained": budget.closed,
        "busy": budget.busy,
        "celsius": budget.celsius,
        "watts": budget.watts,
    }


def has_driver() -> bool:
    """Tell whether NVIDIA's library exists; a sampler process is started only if it exists."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *LIBRARIES]
    paths = ["/dev/nvidiactl", *(f"{folder}/{LIBRARY}" for folder in folders if folder)]
    return any(map(os.path.exists, paths))


def _called(key: str, labels: Mapping[str, str]) -> str:
    """Return the label of a device; a label from another user's file is stripped of control characters."""
    return labels.get(key) or clean(key)
