"""Simulated devices with the interface of real ones: the free bytes, and the bytes that each attempt uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from scheduler.core.leases import NO_UNNAMED, Trees, UnnamedShim
from scheduler.core.model import HOST, Device, DeviceBudget, Placement
from scheduler.core.ports import Key, Sample, StepReading, Watched
from scheduler.errors import DeviceError
from scheduler.simulation.machine import RunningAttempt, SimulatedMachine
from scheduler.simulation.task_behaviour import METRIC

MANY = 1000
"""Once the set of quiet attempts has about this many ended attempts in it, they are removed."""
SOON = 5.0
"""Seconds from a change, which is seen at once, to the next sample; the time doubles while nothing changes."""
LATEST = 10.0
"""The longest time between two samples while a task has not settled. A real machine is sampled ten times a second. With
less frequent samples here, tasks that wait for another task to settle would start late."""


class SimulatedDevices:
    """The devices of a simulated machine. Free memory is what no attempt really uses, whatever is reserved."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._at = {device.key: (at, device) for at, device in enumerate(machine.devices)}
        self._budgets = [DeviceBudget(device, device.total) for device in machine.devices]
        self._snapshot: tuple[DeviceBudget, ...] = ()
        self._changed = machine.weigh()

    def discover(self) -> tuple[Device, ...]:
        """Return all devices."""
        if not self._machine.devices:
            raise DeviceError("the simulated machine has no devices: give it one")
        return self._machine.devices

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        """Return the state of each device at the machine's current time."""
        if self._changed:
            for key in self._changed:
                at, device = self._at[key]
                self._budgets[at] = DeviceBudget(device, self._machine.free(device), self._machine.caps.get(key))
            self._changed.clear()
            self._snapshot = tuple(self._budgets)
        return self._snapshot

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> Mapping[str, str | None]:
        """Return the variables with the GPUs that an attempt may use."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(placement.sees)}

    def cuda_numbers(self, placement: Placement) -> Sequence[int]:
        """Return the positions of the attempt's GPUs in CUDA_VISIBLE_DEVICES."""
        return range(len(placement.sees))


class SimulatedWatcher:
    """A watcher that sees every change at once, and samples less and less often what does not change."""

    def __init__(self, machine: SimulatedMachine, soon: float = SOON) -> None:
        self._machine = machine
        self._soon = soon
        self._pause = soon
        self._attempts: Mapping[Key, Watched] = {}
        self._others: Trees = {}
        self._quiet: set[Key] = set()
        """Attempts of which a sample would show nothing new since their last change."""
        self._nothing = {device.key_there: 0 for device in machine.devices if device.is_host}
        """The sample of a task that uses no RAM."""
        self._told: dict[Key, int] = {}
        """The number of epochs whose metric was reported, by attempt."""
        self._stirred = machine.look()
        self._next = 0.0
        self._alarm = inf

    def watch(
        self,
        attempts: Mapping[Key, Watched],
        others: Trees,
        _unnamed: frozenset[UnnamedShim] = NO_UNNAMED,
    ) -> None:
        """Sample these attempts from now on, and no others."""
        self._attempts = attempts
        self._others = others
        if self._attempts:
            self._look_soon()

    def _look_soon(self) -> None:
        """Schedule a sample soon; an attempt that always changes does not delay the sample of all others."""
        self._pause = self._soon
        if not self._machine.now < self._next <= self._machine.now + self._soon:
            self._look_in(self._soon)

    def _look_in(self, pause: float) -> None:
        self._pause = pause
        self._next = self._machine.now + pause
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Set the alarm for the next sample, unless one is set; an alarm that comes too early is set again."""
        if not self._machine.now < self._alarm <= self._next:
            self._alarm = self._next
            self._machine.wake_at(self._alarm)

    def used_by(self, shim: int, whose: str = "") -> Mapping[str, int]:
        """Return the bytes that another scheduler's task uses; `whose` is the name of its lease."""
        lease = self._machine.leases.get(whose)
        simulated = lease is not None and shim not in self._machine.others
        if lease is not None and simulated and (lease.task, lease.attempt) in self._machine.running:
            return dict(self._machine.running[lease.task, lease.attempt].used)
        return self._machine.others.get(shim, {}) if shim in self._others else {}

    def troubles(self) -> list[str]:
        """Return nothing, because simulated devices have no troubles."""
        return []

    def collect(self) -> list[Sample]:
        """Return samples of the attempts whose memory has changed; now and then, also of the attempts that `_changing`
        returns.
        """
        changed = sorted(key for key in self._stirred if key in self._attempts)
        for key in changed:
            del self._stirred[key]
        look = self._machine.now >= self._next and any(key in self._machine.running for key in self._attempts)
        if look:
            self._look_in(self._soon if changed else min(self._pause * 2, self._latest()))
        elif changed:
            self._look_soon()
        elif self._alarm <= self._machine.now < self._next:
            self._set_alarm()
        return [self._sample(key) for key in sorted({*changed, *self._changing()} if look else changed)]

    def _latest(self) -> float:
        report = any(one.truth.metrics for one in self._machine.running.values())
        return max(self._soon, LATEST) if report or not all(map(_is_settled, self._attempts.values())) else inf

    def _changing(self) -> list[Key]:
        """Return the attempts about which a sample tells more than their last change did: attempts that have not
        settled, use GPUs, or report epochs.
        """
        if len(self._quiet) > 2 * len(self._attempts) + MANY:
            self._quiet &= self._attempts.keys()
        running = self._machine.running
        living = {key: running[key] for key in self._attempts.keys() - self._quiet if key in running}
        changing = [
            key
            for key, one in living.items()
            if one.truth.epochs or one.devices != (HOST,) or not _is_settled(self._attempts[key])
        ]
        self._quiet.update(living.keys() - set(changing))
        return changing

    def _sample(self, key: Key) -> Sample:
        running = self._machine.attempt(key)
        busy, whole = self._machine.busy(running), self._machine.busy_as_a_whole(running)
        peak = {**self._nothing, **running.peak}
        absent = tuple(gpu for gpu in busy if not running.peak.get(gpu))
        cpu = running.done * running.truth.cores
        done, news = running.epochs_done, self._news(key, running)
        return Sample(*key, dict(running.used), peak, done, busy, whole, absent=absent, cpu_seconds=cpu, readings=news)

    def _news(self, key: Key, running: RunningAttempt) -> list[StepReading]:
        """Return the metrics of the epochs that an attempt has completed since the last sample."""
        if not running.truth.metrics:
            return []
        told, done = self._told.get(key, 0), int(running.epochs_done or 0)
        self._told[key] = done
        return [(METRIC, running.truth.metrics[epoch - 1], float(epoch)) for epoch in range(told + 1, done + 1)]


def _is_settled(watched: Watched) -> bool:
    """Return whether the need of an attempt is known, on its GPUs and in the host's RAM."""
    return watched.settled and not watched.ram_expected
