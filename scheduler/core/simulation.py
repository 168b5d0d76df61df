"""A machine that is not there: its clock jumps to whatever happens next, and its tasks do what their truths say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, sqrt

from scheduler.core.events import Exited, Started
from scheduler.core.model import HOST, Device, Outcome
from scheduler.core.ports import Key, Launch, Lease
from scheduler.core.truth import Curve, Truth
from scheduler.units import size

TERM, KILL = 15, 9


def shared(load: float) -> float:
    """How many times slower everything on a device gets when it is asked for more than it has: time is shared."""
    return max(1.0, load)


def fitted(load: float) -> float:
    """The same for GPUs, as pairs of training jobs were measured; beyond pairs it is extrapolation."""
    if load <= 0.95:
        return 1.0
    return sqrt(load / 0.95) if load <= 2 else load / 2 * sqrt(2 / 0.95)


@dataclass(slots=True)
class Running:
    """One attempt that lives."""

    order: Launch
    truth: Truth
    devices: tuple[str, ...]
    work: float
    began: float
    steps: list[tuple[float, str, int]]
    """What its memory does: (seconds of work, device, bytes), the next last."""
    done: float = 0.0
    slower: float = 1.0
    used: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    ends_at: float = inf
    """When it is gone, once it was stopped."""
    ending: Outcome = Outcome.INTERRUPTED
    signal: int = TERM

    @property
    def key(self) -> Key:
        return self.order.task, self.order.attempt

    @property
    def epochs_done(self) -> float | None:
        """How far it is, as its output would say."""
        return self.done * self.truth.epochs / self.truth.seconds if self.truth.epochs else None

    def due(self, now: float) -> float:
        """When something happens to it next, if everything stays as it is."""
        if self.ends_at < inf:
            return self.ends_at
        mark = min(self.work, self.steps[-1][0]) if self.steps else self.work
        timeout = inf if self.order.timeout is None else self.began + self.order.timeout
        return min(timeout, now + (mark - self.done) * self.slower)


class SimulatedMachine:
    """Devices, what runs on them, and the time; the same truths always come to the same end."""

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        now: float = 0.0,
        caps: Mapping[str, int] | None = None,
        foreign: Mapping[str, int] | None = None,
        slowdown: Callable[[float], float] = shared,
    ) -> None:
        self.now = now
        self.devices = tuple(devices)
        self.caps = dict(caps or {})
        self.foreign = dict(foreign or {})
        """What is held by nobody who has a lease."""
        self.leases: dict[str, Lease] = {}
        self.deciding = ""
        """The run that has the leases' mutex."""
        self.strangers: dict[int, Mapping[str, int]] = {}
        """What other schedulers' tasks hold, by the pid of their shim."""
        self.running: dict[Key, Running] = {}
        self.told: list[Started | Exited] = []
        """Everything that happened to attempts, in order."""
        self.past: dict[Key, list[Started | Exited]] = {}
        """The same by attempt, until it is forgotten: what a later scheduler finds."""
        self.fenced: set[Key] = set()
        """Attempts that never will start."""
        self._devices = {device.key: device for device in devices}
        self._slowdown = slowdown
        self._load: dict[str, float] = {}
        self._alarms: list[float] = []
        self._pids = 1000

    # ---- what it looks like ----

    def free(self, device: Device) -> int:
        """What nobody holds."""
        held = sum(r.used.get(device.key, 0) for r in self.running.values())
        others = sum(used.get(device.key, 0) for used in self.strangers.values())
        return max(0, device.total - held - others - self.foreign.get(device.key, 0))

    def join(self, lease: Lease, used: Mapping[str, int]) -> None:
        """Another scheduler's task runs here as well, and will for ever."""
        self.leases[lease.name] = lease
        self.strangers[lease.shim] = used

    def busy(self, running: Running) -> dict[str, float]:
        """The share of each of its GPUs that an attempt has of its time: all it asks for, or what is left to it."""
        mine = running.truth.utilisation
        return {key: mine / max(1.0, self._load.get(key, 0.0)) for key in running.devices if key != HOST}

    # ---- what is done to it ----

    def start(self, order: Launch, truth: Truth, devices: tuple[str, ...]) -> None:
        """An attempt starts at once; one that was given up never does."""
        if (order.task, order.attempt) in self.fenced:
            self.leases.pop(order.lease, None)
            self._tell(Exited(order.task, order.attempt, Outcome.LOST, reason="it was given up before"))
            return
        running = Running(
            order,
            truth,
            devices,
            work=truth.work(order.env.get("SCHEDULER_EPOCHS")),
            began=self.now,
            steps=[step for step in _steps(truth, devices) if step[1] in self._devices],
        )
        self.running[running.key] = running
        self._pids += 2
        self._tell(Started(*running.key, self._pids, self._pids, self._pids - 1))
        self._share()
        self._happen_now()

    def stop(self, key: Key, *, kill: bool = False) -> None:
        """An attempt is asked to end, and is killed once its grace is over."""
        running = self.running.get(key)
        if running is not None:
            self._stop(running, Outcome.INTERRUPTED, 0.0 if kill else running.order.grace)
            self._happen_now()

    def _stop(self, running: Running, ending: Outcome, grace: float) -> None:
        if running.ends_at == inf:
            running.ending = ending
        patience = running.truth.stops_in
        running.signal = KILL if patience > grace or grace <= 0 else TERM
        running.ends_at = min(running.ends_at, self.now + min(patience, grace))

    def forget(self, key: Key) -> None:
        """Whoever wanted to know what became of an attempt has it written down."""
        if key not in self.running:
            self.past.pop(key, None)

    def wake_at(self, at: float) -> None:
        """Let the clock stop there, even if nothing happens."""
        heappush(self._alarms, at)

    # ---- time ----

    def advance(self) -> bool:
        """Let time pass until something happens; False where nothing ever will."""
        alarm = self._alarms[0] if self._alarms else inf
        at = max(self.now, min([alarm, *(running.due(self.now) for running in self.running.values())]))
        if at == inf:
            return False
        due = [running for running in self.running.values() if running.due(self.now) <= at]
        self._work_until(at)
        while self._alarms and self._alarms[0] <= at:
            heappop(self._alarms)
        for running in sorted(due, key=lambda running: running.key):
            self._happen(running)
        self._happen_now()
        return True

    def _work_until(self, at: float) -> None:
        for running in self.running.values():
            if running.ends_at == inf:
                running.done += (at - self.now) / running.slower
        self.now = at

    def _happen_now(self) -> None:
        """Whatever else is due at this very moment, until it is quiet."""
        while due := [running for running in self.running.values() if running.due(self.now) <= self.now]:
            self._happen(min(due, key=lambda running: running.key))

    def _happen(self, running: Running) -> None:
        """One thing: it is gone, it has taken too long, its memory changes, or it has done its work."""
        if running.ends_at < inf:
            self._end(running, running.ending, signal=running.signal)
        elif running.order.timeout is not None and self.now >= running.began + running.order.timeout:
            self._stop(running, Outcome.TIMEOUT, running.order.grace)
        elif running.steps and running.steps[-1][0] <= running.work:
            running.done, key, bytes_ = running.steps.pop()
            self._hold(running, key, bytes_)
        else:
            running.done = running.work
            self._finish(running)

    def _hold(self, running: Running, key: str, bytes_: int) -> None:
        before, free = running.used.get(key, 0), self.free(self._devices[key])
        if bytes_ - before > free:
            reason = f"out of memory on {key}: it wanted {size(bytes_ - before)} more, {size(free)} were free"
            where = HOST if key == HOST else "gpu"
            self._end(running, Outcome.OOM, code=1, reason=reason, part=where, asked=bytes_ - before)
            return
        running.used[key] = bytes_
        running.peak[key] = max(running.peak.get(key, 0), bytes_)

    def _finish(self, running: Running) -> None:
        truth = running.truth
        if truth.lost:
            self._end(running, Outcome.LOST, reason="its shim was killed")
        elif truth.signal is not None:
            self._end(running, Outcome.FAILED, signal=truth.signal)
        else:
            self._end(running, Outcome.FAILED if truth.code else Outcome.SUCCEEDED, code=truth.code)

    def _end(
        self,
        running: Running,
        outcome: Outcome,
        *,
        code: int | None = None,
        signal: int | None = None,
        reason: str = "",
        part: str = "",
        asked: int = 0,
    ) -> None:
        del self.running[running.key]
        self.leases.pop(running.order.lease, None)
        exited = Exited(
            *running.key,
            outcome,
            code=code,
            signal=signal,
            reason=reason,
            peak=dict(running.peak),
            seconds=self.now - running.began,
            cpu_seconds=running.done * running.truth.cores,
            part=part,
            asked=asked,
            last=running.truth.says if outcome is Outcome.FAILED else "",
        )
        self._tell(exited)
        self._share()

    def _tell(self, event: Started | Exited) -> None:
        self.told.append(event)
        self.past.setdefault((event.task, event.attempt), []).append(event)

    def _share(self) -> None:
        """Somebody came or went: everybody's pace may change."""
        load = self._load = dict[str, float]()
        for running in self.running.values():
            for key, amount in _loads(running):
                load[key] = load.get(key, 0.0) + amount
        pace = {d.key: self._slowdown(load.get(d.key, 0.0) / d.load_capacity) for d in self.devices}
        for running in self.running.values():
            running.slower = max([1.0, *(pace.get(key, 1.0) for key, _ in _loads(running))])


def _loads(running: Running) -> Iterator[tuple[str, float]]:
    yield HOST, running.truth.cores
    for key in running.devices:
        if key != HOST:
            yield key, running.truth.utilisation


def _steps(truth: Truth, devices: Sequence[str]) -> list[tuple[float, str, int]]:
    """All that its memory will do on all its devices, the first last."""
    curves: list[tuple[str, Curve]] = [(key, truth.memory_on(position)) for position, key in enumerate(devices)]
    if HOST not in devices:
        curves.append((HOST, truth.host_memory))
    steps = [(at, key, bytes_) for key, curve in curves for at, bytes_ in curve]
    return sorted(steps, key=lambda step: step[0], reverse=True)
