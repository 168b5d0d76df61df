"""A machine that is not there: its clock jumps to whatever happens next, and its tasks do what their truths say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from heapq import heappop, heappush
from math import inf, sqrt

from scheduler.core.events import Exited, Started
from scheduler.core.model import HOST, Device, Outcome, Waiter
from scheduler.core.ports import Key, Launch
from scheduler.core.promises import Lease
from scheduler.core.truth import Curve, Truth
from scheduler.units import size
from scheduler.values import dataclass

TERM, KILL = 15, 9
FULLY = 0.95
"""Up to this load tasks on one GPU do not slow each other down."""
MILLION = 1_000_000


def shared(load: float) -> float:
    """How many times slower everything on a device gets when it is asked for more than it has: time is shared."""
    return max(1.0, load)


def fitted(load: float) -> float:
    """The same for GPUs, as pairs of training jobs were measured; beyond pairs it is extrapolation."""
    if load <= FULLY:
        return 1.0
    return sqrt(load / FULLY) if load <= 2 else load / 2 * sqrt(2 / FULLY)


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
    since: float
    """When `done` was true."""
    done: float = 0.0
    slower: float = 1.0
    version: int = 0
    """Which of its entries among what comes next still holds."""
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

    @property
    def due(self) -> float:
        """When something happens to it next, if everything stays as it is."""
        if self.ends_at < inf:
            return self.ends_at
        mark = min(self.work, self.steps[-1][0]) if self.steps else self.work
        timeout = inf if self.order.timeout is None else self.began + self.order.timeout
        return min(timeout, self.since + (mark - self.done) * self.slower)

    def work_until(self, now: float) -> None:
        """Be as far as it is by now."""
        if self.ends_at == inf:
            self.done += (now - self.since) / self.slower
            self.since = now


class Leases(dict[str, Lease]):
    """Leases by name; those of one run are told from all others without looking at each."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[tuple[int, str], dict[str, Lease]] = {}

    def __setitem__(self, name: str, lease: Lease) -> None:
        super().__setitem__(name, lease)
        self._runs.setdefault((lease.uid, lease.run), {})[name] = lease

    def __delitem__(self, name: str) -> None:
        self._forget(self[name])
        super().__delitem__(name)

    def drop(self, name: str) -> None:
        """Remove one, if it is still there."""
        if name in self:
            del self[name]

    def _forget(self, lease: Lease) -> None:
        mine = self._runs[lease.uid, lease.run]
        del mine[lease.name]
        if not mine:
            del self._runs[lease.uid, lease.run]

    def beside(self, uid: int, run: str) -> list[Lease]:
        """All that are not of this run."""
        return [lease for run_, mine in self._runs.items() if run_ != (uid, run) for lease in mine.values()]


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
        self.leases = Leases()
        self.waiters: dict[str, Waiter] = {}
        """Runs that wait for room, by run."""
        self.deciding = ""
        """The run that has the leases' mutex."""
        self.strangers: dict[int, Mapping[str, int]] = {}
        """What other schedulers' tasks hold, by the pid of their shim."""
        self.running: dict[Key, Running] = {}
        self.past: dict[Key, list[Started | Exited]] = {}
        """What happened to an attempt, until it is forgotten: what a later scheduler finds."""
        self.fenced: set[Key] = set()
        """Attempts that never will start."""
        self._devices = {device.key: device for device in devices}
        self._slowdown = slowdown
        self._alarms, self._pids = list[float](), 1000
        self._coming: list[tuple[float, Key, int]] = []
        """When something happens to whom, the next first; an entry of another version than its attempt's is void."""
        self._ears, self._eyes = list[list[Started | Exited]](), list[dict[Key, None]]()
        self._scales: list[set[str]] = []
        self._on: dict[str, dict[Key, Running]] = {device.key: {} for device in devices}
        """Who runs where; all of them use the host's cores."""
        self._held: dict[str, int] = dict.fromkeys(self._on, 0)
        self._busy: dict[str, int] = dict.fromkeys(self._on, 0)
        """What its tasks ask of each device, in millionths: whole numbers come out the same in any order."""
        self._pace: dict[str, float] = dict.fromkeys(self._on, 1.0)

    # ---- what it looks like ----

    def free(self, device: Device) -> int:
        """What nobody holds."""
        others = sum(used.get(device.key, 0) for used in self.strangers.values())
        return max(0, device.total - self._held[device.key] - others - self.foreign.get(device.key, 0))

    def attempt(self, key: Key) -> Running:
        """A living attempt, as far as it is by now."""
        running = self.running[key]
        running.work_until(self.now)
        return running

    def weigh(self) -> set[str]:
        """Devices of which more or less is held from now on come in here; whoever looks takes them out."""
        self._scales.append(set(self._devices))
        return self._scales[-1]

    def _hold_more(self, key: str, bytes_: int) -> None:
        self._held[key] += bytes_
        for scale in self._scales:
            scale.add(key)

    def listen(self) -> list[Started | Exited]:
        """What happens to attempts from now on comes into this list."""
        self._ears.append([])
        return self._ears[-1]

    def look(self) -> dict[Key, None]:
        """Attempts whose memory changes from now on come in here, and go when they end or were looked at."""
        self._eyes.append(dict.fromkeys(self.running))
        return self._eyes[-1]

    def join(self, lease: Lease, used: Mapping[str, int]) -> None:
        """Another scheduler's task runs here as well, until it parts."""
        self.leases[lease.name] = lease
        self.strangers[lease.shim] = used
        for key in used.keys() & self._held.keys():
            self._hold_more(key, 0)

    def part(self, lease: Lease) -> None:
        """Another scheduler's task is over."""
        self.leases.drop(lease.name)
        for key in self.strangers.pop(lease.shim, {}).keys() & self._held.keys():
            self._hold_more(key, 0)

    # ---- what is done to it ----

    def start(self, order: Launch, truth: Truth, devices: tuple[str, ...]) -> None:
        """An attempt starts at once; one that was given up never does."""
        if (order.task, order.attempt) in self.fenced:
            self.leases.drop(order.lease)
            self._tell(Exited(order.task, order.attempt, Outcome.LOST, reason="it was given up before"))
            return
        running = Running(
            order,
            truth,
            devices,
            work=truth.work(order.env.get("SCHEDULER_EPOCHS")),
            began=self.now,
            since=self.now,
            steps=[step for step in _steps(truth, devices) if step[1] in self._devices],
        )
        self.running[running.key] = running
        self._pids += 2
        self._tell(Started(*running.key, self._pids, self._pids, self._pids - 1))
        self._stir(running)
        self._share(running, 1)
        self._schedule(running)
        self._happen_now()

    def stop(self, key: Key, *, kill: bool = False) -> None:
        """An attempt is asked to end, and is killed once its grace is over."""
        running = self.running.get(key)
        if running is not None:
            running.work_until(self.now)
            self._stop(running, Outcome.INTERRUPTED, 0.0 if kill else running.order.grace)
            self._happen_now()

    def _stop(self, running: Running, ending: Outcome, grace: float) -> None:
        if running.ends_at == inf:
            running.ending = ending
        patience = running.truth.stops_in
        running.signal = KILL if patience > grace or grace <= 0 else TERM
        running.ends_at = min(running.ends_at, self.now + min(patience, grace))
        self._schedule(running)

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
        at = max(self.now, min(alarm, self._next()))
        if at == inf:
            return False
        self.now = at
        while self._alarms and self._alarms[0] <= at:
            heappop(self._alarms)
        for running in sorted(self._take_due(), key=lambda running: running.key):
            self._happen(running)
        self._happen_now()
        return True

    def sleep(self, until: float) -> None:
        """Let time pass up to a moment, whatever happens meanwhile."""
        self.wake_at(until)
        while self.now < until and self.advance():
            pass

    def _schedule(self, running: Running) -> None:
        """Note when something happens to it next; what was noted before is void."""
        running.version += 1
        if (due := running.due) < inf:
            heappush(self._coming, (due, running.key, running.version))

    def _next(self) -> float:
        """When something happens to anybody."""
        while self._coming:
            due, key, version = self._coming[0]
            if key in self.running and self.running[key].version == version:
                return due
            heappop(self._coming)
        return inf

    def _take_due(self) -> list[Running]:
        """To whom something happens by now."""
        due = []
        while self._next() <= self.now:
            due.append(self.attempt(heappop(self._coming)[1]))
        return due

    def _happen_now(self) -> None:
        """Whatever else is due at this very moment, until it is quiet; of several the first task's."""
        while due := self._take_due():
            first = min(due, key=lambda running: running.key)
            for running in due:
                if running is not first:
                    self._schedule(running)
            self._happen(first)

    def _happen(self, running: Running) -> None:
        """One thing: it is gone, it has taken too long, its memory changes, or it has done its work."""
        if running.ends_at < inf:
            self._end(running, running.ending, signal=running.signal)
        elif running.order.timeout is not None and self.now >= running.began + running.order.timeout:
            self._stop(running, Outcome.TIMEOUT, running.order.grace)
        elif running.steps and running.steps[-1][0] <= running.work:
            running.done, key, bytes_ = running.steps.pop()
            self._schedule(running)
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
        self._hold_more(key, bytes_ - before)
        self._stir(running)
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
        for device, bytes_ in running.used.items():
            self._hold_more(device, -bytes_)
        for eye in self._eyes:
            eye.pop(running.key, None)
        self.leases.drop(running.order.lease)
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
        self._share(running, -1)

    def _tell(self, event: Started | Exited) -> None:
        for ear in self._ears:
            ear.append(event)
        self.past.setdefault((event.task, event.attempt), []).append(event)

    def _stir(self, running: Running) -> None:
        for eye in self._eyes:
            eye[running.key] = None

    def _share(self, running: Running, number: int) -> None:
        """Somebody came (1) or went (-1): the pace of all beside it may change."""
        moved = {running.key: running} if number > 0 else {}
        for key, amount in _loads(running):
            if key not in self._devices:
                continue
            if number > 0:
                self._on[key][running.key] = running
            else:
                del self._on[key][running.key]
            self._busy[key] += number * round(amount * MILLION)
            before, self._pace[key] = self._pace[key], self._pace_on(self._devices[key])
            if self._pace[key] != before:
                moved.update(self._on[key])
        for one in moved.values():
            self._set_pace(one)

    def _pace_on(self, device: Device) -> float:
        """How many times slower everything on a device comes: cores are shared; on a GPU nobody slows himself down."""
        load = self._load(device.key) / device.load_capacity
        if not device.is_gpu:
            return shared(load)
        return self._slowdown(load) if len(self._on[device.key]) > 1 else 1.0

    def _load(self, key: str) -> float:
        return self._busy[key] / MILLION

    def busy(self, running: Running) -> dict[str, float]:
        """The share of its GPUs' time that an attempt gets: of one that is asked for too much, everybody gets less."""
        utilisation = running.truth.utilisation
        return {key: utilisation / max(1.0, self._load(key)) for key in running.devices if key != HOST}

    def busy_as_a_whole(self, running: Running) -> dict[str, float]:
        """The share of its GPUs' time that all on them get together."""
        return {key: min(1.0, self._load(key)) for key in running.devices if key != HOST}

    def _set_pace(self, running: Running) -> None:
        slower = max([1.0, *(self._pace.get(key, 1.0) for key, _ in _loads(running))])
        if slower != running.slower:
            running.work_until(self.now)
            running.slower = slower
            self._schedule(running)


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
