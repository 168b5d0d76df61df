"""The devices of a machine that is not there, seen as real ones are: what is free, and what each attempt holds."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.model import HOST, Budget, Device, Placement
from scheduler.core.ports import Key, Sample, Watched
from scheduler.core.simulation import SimulatedMachine
from scheduler.errors import DeviceError

SOON = 5.0
"""Seconds from a change, which is seen at once, to the next look; then twice as long while nothing changes."""


class SimulatedDevices:
    """What the machine has; free is what nobody really holds, whatever was promised."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    def discover(self) -> tuple[Device, ...]:
        """All of its devices."""
        if not self._machine.devices:
            raise DeviceError("the simulated machine has no devices: give it one")
        return self._machine.devices

    def snapshot(self) -> tuple[Budget, ...]:
        """What each has free at the machine's moment."""
        machine = self._machine
        return tuple(Budget(device, machine.free(device), machine.caps.get(device.key)) for device in machine.devices)

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """The GPUs it may use, by the names they have here; none on the host alone."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(key for key in placement.devices if key != HOST)}


class SimulatedWatcher:
    """Sees every change at once, and looks again ever more rarely at what does not change."""

    def __init__(self, machine: SimulatedMachine, soon: float = SOON) -> None:
        self._machine = machine
        self._soon = soon
        self._pause = soon
        self._attempts: frozenset[Key] = frozenset()
        self._strangers: frozenset[int] = frozenset()
        self._seen: dict[Key, Mapping[str, int]] = {}
        self._next = 0.0

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Look at these from now on."""
        self._attempts = frozenset(attempts)
        self._strangers = strangers
        self._seen = {key: seen for key, seen in self._seen.items() if key in attempts}
        if self._attempts:
            self._look_in(self._soon)

    def _look_in(self, pause: float) -> None:
        self._pause = pause
        self._next = self._machine.now + pause
        self._machine.wake_at(self._next)

    def used_by(self, shim: int) -> Mapping[str, int]:
        """What another scheduler's task holds."""
        return self._machine.strangers.get(shim, {}) if shim in self._strangers else {}

    def troubles(self) -> list[str]:
        """Simulated devices have none."""
        return []

    def collect(self) -> list[Sample]:
        """The attempts whose memory has changed, and now and then all of them."""
        living = sorted(key for key in self._attempts if key in self._machine.running)
        changed = [key for key in living if self._machine.running[key].used != self._seen.get(key)]
        look = bool(living) and self._machine.now >= self._next
        if changed:
            self._look_in(self._soon)
        elif look:
            self._look_in(self._pause * 2)
        return [self._sample(key) for key in (living if look else changed)]

    def _sample(self, key: Key) -> Sample:
        running = self._machine.running[key]
        self._seen[key] = dict(running.used)
        busy = self._machine.busy(running)
        return Sample(*key, dict(running.used), dict(running.peak), running.epochs_done, busy)
