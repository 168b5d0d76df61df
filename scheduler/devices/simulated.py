"""The devices of a machine that is not there, seen as real ones are: what is free, and what each attempt holds."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from scheduler.core.model import HOST, Budget, Device, Placement
from scheduler.core.ports import Key, Sample, Watched
from scheduler.core.simulation import SimulatedMachine
from scheduler.errors import DeviceError

MANY = 1000
"""So many attempts that have ended are remembered before they are sorted out."""
SOON = 5.0
"""Seconds from a change, which is seen at once, to the next look; then twice as long while nothing changes."""
LATEST = 10.0
"""So long at most while somebody has not settled: a real machine is looked at ten times a second, and whoever waits for
that would start late."""


class SimulatedDevices:
    """What the machine has; free is what nobody really holds, whatever was promised."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._at = {device.key: (at, device) for at, device in enumerate(machine.devices)}
        self._budgets = [Budget(device, device.total) for device in machine.devices]
        self._snapshot: tuple[Budget, ...] = ()
        self._changed = machine.weigh()

    def discover(self) -> tuple[Device, ...]:
        """All of its devices."""
        if not self._machine.devices:
            raise DeviceError("the simulated machine has no devices: give it one")
        return self._machine.devices

    def snapshot(self) -> tuple[Budget, ...]:
        """What each has free at the machine's moment."""
        if self._changed:
            for key in self._changed:
                at, device = self._at[key]
                self._budgets[at] = Budget(device, self._machine.free(device), self._machine.caps.get(key))
            self._changed.clear()
            self._snapshot = tuple(self._budgets)
        return self._snapshot

    def environment_for(self, placement: Placement) -> Mapping[str, str | None]:
        """The GPUs it may use, by the names they have here; none on the host alone."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(key for key in placement.devices if key != HOST)}


class SimulatedWatcher:
    """Sees every change at once, and looks again ever more rarely at what does not change."""

    def __init__(self, machine: SimulatedMachine, soon: float = SOON) -> None:
        self._machine = machine
        self._soon = soon
        self._pause = soon
        self._attempts: Mapping[Key, Watched] = {}
        self._strangers: frozenset[int] = frozenset()
        self._quiet: set[Key] = set()
        """Attempts of which no look can tell more than their last change did."""
        self._stirred = machine.look()
        self._next = 0.0
        self._alarm = inf

    def watch(self, attempts: Mapping[Key, Watched], strangers: frozenset[int]) -> None:
        """Look at these from now on."""
        self._attempts = attempts
        self._strangers = strangers
        if self._attempts:
            self._look_soon()

    def _look_soon(self) -> None:
        """Look again before long; what always changes must not put off the look at all the others."""
        self._pause = self._soon
        if not self._machine.now < self._next <= self._machine.now + self._soon:
            self._look_in(self._soon)

    def _look_in(self, pause: float) -> None:
        self._pause = pause
        self._next = self._machine.now + pause
        self._set_alarm()

    def _set_alarm(self) -> None:
        """One alarm at a time is enough: when it rings too early, the next one is set."""
        if not self._machine.now < self._alarm <= self._next:
            self._alarm = self._next
            self._machine.wake_at(self._alarm)

    def used_by(self, shim: int, _whose: str = "") -> Mapping[str, int]:
        """What another scheduler's task holds."""
        return self._machine.strangers.get(shim, {}) if shim in self._strangers else {}

    def troubles(self) -> list[str]:
        """Simulated devices have none."""
        return []

    def collect(self) -> list[Sample]:
        """The attempts whose memory has changed, and now and then all of them."""
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
        return [self._sample(key) for key in sorted({*changed, *self._telling()} if look else changed)]

    def _latest(self) -> float:
        return inf if all(watched.settled for watched in self._attempts.values()) else max(self._soon, LATEST)

    def _telling(self) -> list[Key]:
        """Those of which a look can tell more than their last change did: who has not settled, who counts epochs."""
        if len(self._quiet) > 2 * len(self._attempts) + MANY:
            self._quiet &= self._attempts.keys()
        running = self._machine.running
        living = {key: running[key] for key in self._attempts.keys() - self._quiet if key in running}
        telling = [key for key, one in living.items() if not self._attempts[key].settled or one.truth.epochs]
        self._quiet.update(living.keys() - set(telling))
        return telling

    def _sample(self, key: Key) -> Sample:
        running = self._machine.attempt(key)
        busy, whole = self._machine.busy(running), self._machine.busy_as_a_whole(running)
        return Sample(*key, dict(running.used), dict(running.peak), running.epochs_done, busy, whole)
