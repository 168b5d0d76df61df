"""A simulated machine: its clock jumps to the next event, and its tasks follow their behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf, sqrt

from scheduler.core.events import Exited, Started
from scheduler.core.leases import Lease
from scheduler.core.model import HOST, Device, Outcome, Waiter, host_of, on_node
from scheduler.core.ports import Key, Launch
from scheduler.simulation.task_behaviour import Curve, TaskBehaviour
from scheduler.units import size
from scheduler.values import dataclass, field

TERM, KILL = 15, 9
FULLY = 0.95
"""The load up to which tasks on one GPU do not slow each other down."""
MILLION = 1_000_000
LOADED = ""
"""The marker, in place of a device, for the moment from which an attempt uses the time of its GPUs."""


def shared(load: float) -> float:
    """Return the slowdown of all tasks on an overloaded device, if its time is shared."""
    return max(1.0, load)


def fitted(load: float) -> float:
    """Return the slowdown on a GPU, fitted to measured pairs of training jobs and extrapolated beyond pairs."""
    if load <= FULLY:
        return 1.0
    return sqrt(load / FULLY) if load <= 2 else load / 2 * sqrt(2 / FULLY)


@dataclass(slots=True)
class RunningAttempt:
    """One living attempt."""

    order: Launch
    truth: TaskBehaviour
    devices: tuple[str, ...]
    work: float
    began: float
    steps: list[tuple[float, str, int]]
    """Future changes of the attempt's memory: (seconds of work, device, bytes), the next one last; and the end of
    loading."""
    since: float
    """The time up to which `done` counts the work."""
    load: float = 0.0
    """The share of time for which the attempt at present keeps each of its GPUs busy when it is alone there."""
    done: float = 0.0
    slower: float = 1.0
    version: int = 0
    """The number of the attempt's valid entry in the event queue."""
    used: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    ends_at: float = inf
    """The time at which a stopped attempt ends."""
    ending: Outcome = Outcome.INTERRUPTED
    signal: int = TERM

    @property
    def key(self) -> Key:
        return self.order.task, self.order.attempt

    def device(self, key: str) -> str:
        """Return the key by which the machine knows the device that the attempt's node knows by `key`."""
        return on_node(key, self.order.node)

    @property
    def epochs_done(self) -> float | None:
        """The completed epochs, as the attempt's output would report them."""
        return self.done * self.truth.epochs / self.truth.seconds if self.truth.epochs else None

    @property
    def due(self) -> float:
        """The time of the attempt's next event, if everything stays as it is."""
        if self.ends_at < inf:
            return self.ends_at
        mark = min(self.work, self.steps[-1][0]) if self.steps else self.work
        timeout = inf if self.order.timeout is None else self.began + self.order.timeout
        return min(timeout, self.since + (mark - self.done) * self.slower)

    def work_until(self, now: float) -> None:
        """Add the work done until now."""
        if self.ends_at == inf:
            self.done += (now - self.since) / self.slower
            self.since = now


class SimulatedLeases(dict[str, Lease]):
    """Leases by name; the leases of one run are found without a search through all others."""

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
        """Remove a lease, if it is still there."""
        if name in self:
            del self[name]

    def _forget(self, lease: Lease) -> None:
        mine = self._runs[lease.uid, lease.run]
        del mine[lease.name]
        if not mine:
            del self._runs[lease.uid, lease.run]

    def beside(self, uid: int, run: str) -> list[Lease]:
        """Return all leases of other runs."""
        return [lease for run_, mine in self._runs.items() if run_ != (uid, run) for lease in mine.values()]


class SimulatedMachine:
    """Devices, the attempts on them, and the time; equal behaviour of the tasks always leads to an equal course of the
    run.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        now: float = 0.0,
        caps: Mapping[str, int] | None = None,
        unmanaged: Mapping[str, int] | None = None,
        slowdown: Callable[[float], float] = shared,
    ) -> None:
        self.now, self.wall_ahead = now, 0.0
        """The time, and the seconds by which the wall clock is ahead of it."""
        self.devices = tuple(devices)
        self.caps, self.unmanaged = dict(caps or {}), dict(unmanaged or {})
        """The budget in bytes of each device that has one, and the bytes that unmanaged processes use on each
        device."""
        self.leases = SimulatedLeases()
        self.waiters: dict[str, Waiter] = {}
        """Runs that wait for capacity, by run."""
        self.deciding = ""
        """The run that holds the leases' mutex."""
        self.others: dict[int, Mapping[str, int]] = {}
        """The memory that other schedulers' tasks use, by the pid of the task's shim."""
        self.running: dict[Key, RunningAttempt] = {}
        self.past: dict[Key, list[Started | Exited]] = {}
        """The events of each attempt, kept for a later scheduler until the attempt is forgotten."""
        self.hindered: Callable[[Launch, float], tuple[str, str] | None] = lambda order, now: None
        """A function that returns why an attempt cannot be started at a time, and the directory if the reason is that
        it cannot be entered; it returns None if the attempt can be started."""
        self.saved, self.fenced = dict[int, float](), set[Key]()
        """The seconds of work that resumable tasks have saved, and the attempts that will never start."""
        self._devices, self._slowdown = {device.key: device for device in devices}, slowdown
        self._alarms, self._pids = list[float](), 1000
        self._coming: list[tuple[float, Key, int]] = []
        """The next event of each attempt, as a heap ordered by time; an entry with an old version is void."""
        self._ears, self._eyes, self._scales = list[list[Started | Exited]](), list[dict[Key, None]](), list[set[str]]()
        self._on: dict[str, dict[Key, RunningAttempt]] = {device.key: {} for device in devices}
        """The attempts on each device; all of them use the host's cores."""
        self._held: dict[str, int] = dict.fromkeys(self._on, 0)
        self._busy: dict[str, int] = dict.fromkeys(self._on, 0)
        """The load that tasks put on each device, in millionths: sums of whole numbers do not depend on the order."""
        self._pace: dict[str, float] = dict.fromkeys(self._on, 1.0)

    # ---- what it looks like ----

    def free(self, device: Device) -> int:
        """Return the unused bytes of a device."""
        others = sum(used.get(device.key, 0) for used in self.others.values())
        return max(0, device.total - self._held[device.key] - others - self.unmanaged.get(device.key, 0))

    def attempt(self, key: Key) -> RunningAttempt:
        """Return a living attempt, with its work updated."""
        running = self.running[key]
        running.work_until(self.now)
        return running

    def weigh(self) -> set[str]:
        """Return the set to which devices are added when their use changes; the reader removes them."""
        self._scales.append(set(self._devices))
        return self._scales[-1]

    def _hold_more(self, key: str, bytes_: int) -> None:
        self._held[key] += bytes_
        for scale in self._scales:
            scale.add(key)

    def listen(self) -> list[Started | Exited]:
        """Return the list to which events are added from now on."""
        self._ears.append([])
        return self._ears[-1]

    def look(self) -> dict[Key, None]:
        """Return the attempts whose memory has changed; they are removed when they end or are sampled."""
        self._eyes.append(dict.fromkeys(self.running))
        return self._eyes[-1]

    def hold_unmanaged(self, key: str, bytes_: int) -> None:
        """Let processes without a lease use this many bytes of a device from now on."""
        self.unmanaged[key] = bytes_
        self._hold_more(key, 0)

    def join(self, lease: Lease) -> None:
        """Add the task of another scheduler, until `part` removes it."""
        self.leases[lease.name] = lease
        self.others[lease.shim] = lease.used
        for key in lease.used.keys() & self._held.keys():
            self._hold_more(key, 0)

    def part(self, lease: Lease) -> None:
        """Remove the task of another scheduler."""
        self.leases.drop(lease.name)
        for key in self.others.pop(lease.shim, {}).keys() & self._held.keys():
            self._hold_more(key, 0)

    # ---- what is done to it ----

    def start(self, order: Launch, truth: TaskBehaviour, devices: tuple[str, ...]) -> None:
        """Start an attempt at once; one that was given up never starts."""
        if (order.task, order.attempt) in self.fenced:
            self.leases.drop(order.lease)
            self._tell(Exited(order.task, order.attempt, Outcome.LOST, reason="it was given up before"))
            return
        hindered = self.hindered(order, self.now)
        if hindered is not None:
            self.leases.drop(order.lease)
            reason, away = hindered
            self._tell(Exited(order.task, order.attempt, Outcome.UNSTARTED, reason=reason, away=away))
            return
        running = RunningAttempt(
            order,
            truth,
            devices,
            work=truth.work(order.env.get("SCHEDULER_EPOCHS")) - self.saved.get(order.task, 0.0),
            began=self.now,
            since=self.now,
            load=0.0 if truth.loading else truth.utilisation,
            steps=[
                step
                for step in _steps(truth, devices)
                if step[1] == LOADED or on_node(step[1], order.node) in self._devices
            ],
        )
        self.running[running.key] = running
        self._pids += 2
        self._tell(Started(*running.key, self._pids, self._pids, self._pids - 1))
        self._stir(running)
        self._share(running, 1)
        self._schedule(running)
        self._happen_now()

    def stop(self, key: Key, *, kill: bool = False) -> None:
        """Ask an attempt to end; it is killed at the end of its grace period."""
        running = self.running.get(key)
        if running is not None:
            running.work_until(self.now)
            self._stop(running, Outcome.INTERRUPTED, 0.0 if kill else running.order.grace)
            self._happen_now()

    def _stop(self, running: RunningAttempt, ending: Outcome, grace: float) -> None:
        if running.ends_at == inf:
            running.ending = ending
        patience = running.truth.stops_in
        running.signal = KILL if patience > grace or grace <= 0 else TERM
        running.ends_at = min(running.ends_at, self.now + min(patience, grace))
        self._schedule(running)

    def forget(self, key: Key) -> None:
        """Forget the events of an attempt, because its end is recorded."""
        if key not in self.running:
            self.past.pop(key, None)

    def wake_at(self, at: float) -> None:
        """Stop the clock at this time, even if nothing happens."""
        heappush(self._alarms, at)

    # ---- time ----

    def advance(self) -> bool:
        """Let time pass until the next event; return False if there is none."""
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
        """Let time pass until a given time, whatever happens meanwhile."""
        self.wake_at(until)
        while self.now < until and self.advance():
            pass

    def _schedule(self, running: RunningAttempt) -> None:
        """Schedule an attempt's next event; an earlier entry becomes void."""
        running.version += 1
        if (due := running.due) < inf:
            heappush(self._coming, (due, running.key, running.version))

    def _next(self) -> float:
        """Return the time of the next event of all attempts."""
        while self._coming:
            due, key, version = self._coming[0]
            if key in self.running and self.running[key].version == version:
                return due
            heappop(self._coming)
        return inf

    def _take_due(self) -> list[RunningAttempt]:
        """Return the attempts with an event that is due by now."""
        due = []
        while self._next() <= self.now:
            due.append(self.attempt(heappop(self._coming)[1]))
        return due

    def _happen_now(self) -> None:
        """Process all events that are due now; if several are due, that of the first task comes first."""
        while due := self._take_due():
            first = min(due, key=lambda running: running.key)
            for running in due:
                if running is not first:
                    self._schedule(running)
            self._happen(first)

    def _happen(self, running: RunningAttempt) -> None:
        """Process one event: an attempt is lost, times out, changes its memory, or has done its work."""
        if running.ends_at < inf:
            self._end(running, running.ending, signal=running.signal)
        elif running.order.timeout is not None and self.now >= running.began + running.order.timeout:
            self._stop(running, Outcome.TIMEOUT, running.order.grace)
        elif running.steps and running.steps[-1][0] <= running.work:
            running.done, key, bytes_ = running.steps.pop()
            self._schedule(running)
            if key == LOADED:
                self._load_gpus(running)
            else:
                self._hold(running, key, bytes_)
        else:
            running.done = running.work
            self._finish(running)

    def _load_gpus(self, running: RunningAttempt) -> None:
        """Let an attempt that has loaded its data keep its GPUs busy from now on."""
        self._share(running, -1)
        running.load = running.truth.utilisation
        self._share(running, 1)

    def _hold(self, running: RunningAttempt, key: str, bytes_: int) -> None:
        device = running.device(key)
        before, free = running.used.get(key, 0), self.free(self._devices[device])
        if bytes_ - before > free:
            reason = f"out of memory on {key}: it wanted {size(bytes_ - before)} more, {size(free)} were free"
            where = HOST if key == HOST else "gpu"
            self._end(running, Outcome.OOM, code=1, reason=reason, part=where, asked=bytes_ - before)
            return
        self._hold_more(device, bytes_ - before)
        self._stir(running)
        running.used[key] = bytes_
        running.peak[key] = max(running.peak.get(key, 0), bytes_)

    def _finish(self, running: RunningAttempt) -> None:
        truth = running.truth
        if truth.lost:
            self._end(running, Outcome.LOST, reason="its shim was killed")
        elif truth.signal is not None:
            self._end(running, Outcome.FAILED, signal=truth.signal)
        else:
            self._end(running, Outcome.FAILED if truth.code else Outcome.SUCCEEDED, code=truth.code)

    def _end(
        self,
        running: RunningAttempt,
        outcome: Outcome,
        *,
        code: int | None = None,
        signal: int | None = None,
        reason: str = "",
        part: str = "",
        asked: int = 0,
    ) -> None:
        del self.running[running.key]
        if outcome is Outcome.INTERRUPTED and running.truth.resumes and signal == TERM:
            self.saved[running.order.task] = self.saved.get(running.order.task, 0.0) + running.done
        for key, bytes_ in running.used.items():
            self._hold_more(running.device(key), -bytes_)
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

    def _stir(self, running: RunningAttempt) -> None:
        for eye in self._eyes:
            eye[running.key] = None

    def _share(self, running: RunningAttempt, number: int) -> None:
        """Update the speed of all attempts on the devices of an attempt that has started (`number` 1) or ended (-1)."""
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
        """Return the slowdown of all tasks on a device: tasks share the cores of a host; a single task does not slow a
        GPU down.
        """
        load = self._load(device.key) / device.load_capacity
        if not device.is_gpu:
            return shared(load)
        return self._slowdown(load) if len(self._on[device.key]) > 1 else 1.0

    def _load(self, key: str) -> float:
        return self._busy[key] / MILLION

    def busy(self, running: RunningAttempt) -> dict[str, float]:
        """Return an attempt's share of its GPUs' time; on an overloaded GPU each attempt gets less."""
        return {key: running.load / max(1.0, self._load(key)) for key in running.devices if key != HOST}

    def busy_as_a_whole(self, running: RunningAttempt) -> dict[str, float]:
        """Return the share of its GPUs' time that all attempts on them use together."""
        return {key: min(1.0, self._load(key)) for key in running.devices if key != HOST}

    def _set_pace(self, running: RunningAttempt) -> None:
        paces = (self._pace.get(key, 1.0) for key, load in _loads(running) if load or not running.truth.loading)
        slower = max([1.0, *paces])
        if slower != running.slower:
            running.work_until(self.now)
            running.slower = slower
            self._schedule(running)


def _loads(running: RunningAttempt) -> Iterator[tuple[str, float]]:
    yield host_of(running.order.node), running.truth.cores
    for key in running.devices:
        if key != HOST:
            yield key, running.load


def _steps(truth: TaskBehaviour, devices: Sequence[str]) -> list[tuple[float, str, int]]:
    """Return all changes of an attempt's memory on all its devices, the first one last."""
    curves: list[tuple[str, Curve]] = [(key, truth.memory_on(position)) for position, key in enumerate(devices)]
    if HOST not in devices:
        curves.append((HOST, truth.host_memory))
    steps = [(at, key, bytes_) for key, curve in curves for at, bytes_ in curve]
    if truth.loading:
        steps.append((truth.loading, LOADED, 0))
    return sorted(steps, key=lambda step: step[0], reverse=True)
