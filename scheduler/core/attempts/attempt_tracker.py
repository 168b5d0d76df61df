"""The samples of living attempts, and the outcome of an attempt at its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from scheduler.core.attempts import mps_policy, out_of_memory
from scheduler.core.attempts.early_abort import gist
from scheduler.core.attempts.out_of_memory import LAST_LOOK
from scheduler.core.attempts.throughput import SATURATED, Colocation, MeanLoad, Throughput, alone
from scheduler.core.brain import Brain
from scheduler.core.causes import Action, ResizeCause
from scheduler.core.events import Event, Exited, Strayed
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Outcome, Placement, host_of
from scheduler.core.ports import Devices, GpuSharing, Key, RunStore, Sample, World
from scheduler.core.profiling.estimator import is_new_peak
from scheduler.core.profiling.without_gpu import Signs
from scheduler.core.tasks import command
from scheduler.units import MIB
from scheduler.values import replace

FULL = 128 * MIB
"""A GPU counts as full if fewer bytes than this were free on it when a task failed. If a GPU was full, output that only
mentions a GPU is enough to count the failure as an out-of-memory."""
SECOND_LOOK = 4.0
"""Seconds for which the judgement of a failed task waits for a newer measurement of its GPUs. The loss of a GPU may be
noticed later than the failure, by up to the deadline of one driver call."""
GO_ON = 75
"""The exit code EX_TEMPFAIL, by which a resumable task asks for another turn."""

_SAVED = (Outcome.FAILED, Outcome.INTERRUPTED, Outcome.TIMEOUT)
"""Outcomes that do not count as failures of an attempt that was asked to save or was stopped early, because the attempt
ended on request."""
_UNSEEN = Throughput()
"""The throughput of an attempt that has not been sampled yet."""


class AttemptTracker:
    """The tracker of one run's attempts: it keeps their samples, and completes the events for their ends."""

    def __init__(
        self, brain: Brain, world: World, book: RunStore, devices: Devices, sharing: GpuSharing | None, python: str
    ) -> None:
        """Create a tracker; `python` is the interpreter that an Executable of `-1` means, unless the task has a shell
        of its own.
        """
        self._brain, self._book, self._devices, self._sharing, self._python = brain, book, devices, sharing, python
        self._now = world.now
        self.used: dict[Key, Mapping[str, int]] = {}
        self.ended_on: dict[str, float] = {}
        """For each GPU, the time at which an attempt on it last ended."""
        self.crowd = Colocation()
        self.adopted: set[Key] = set()
        self._peak: dict[Key, Mapping[str, int]] = {}
        self._pace: dict[Key, Throughput] = {}
        self._busy: dict[Key, MeanLoad] = {}
        self._shares: dict[Key, tuple[float, Mapping[str, float]]] = {}
        """For each attempt, the time of its newest sample and its share of each of its GPUs at that time."""
        self._mps: dict[Key, str] = {}
        self._signs: dict[Key, Signs] = {}
        self._strayed: dict[Key, Mapping[str, int]] = {}
        """For each attempt, the bytes that events have recorded on GPUs that it was not given."""
        self._failed: dict[Key, float] = {}
        """Failed attempts on GPUs whose outcome is not decided yet, each with the time at which the failure was
        reported."""

    def forget(self, key: Key) -> None:
        """Forget an attempt whose end was recorded."""
        seen = (
            self.used, self._peak, self._pace, self._busy, self._shares, self._mps, self._failed, self._signs,
            self._strayed,
        )  # fmt: skip
        for memory in seen:
            memory.pop(key, None)
        self.adopted.discard(key)
        self.crowd.leave(key)

    def devices_of(self, task: int) -> Sequence[str]:
        """Return the devices of the run on which a living attempt computes: its GPUs, or a host."""
        placement = found.placement if (found := self._brain.task(task)) is not None else None
        return () if placement is None else placement.sees or (host_of(placement.node),)

    def argv(self, task: int) -> Sequence[str]:
        """Return the command of a task for a real run, not for a probe."""
        job = self._book.job(task)
        python = job.shell.python if job.shell is not None else self._python
        return command.argv(job.spec, task, job.spec.terms.epochs, python, job.append)

    def sampled(self, sample: Sample) -> list[Event]:
        """Take a sample of a living attempt; return the events for the peaks and reservations that it changes."""
        key = (sample.task, sample.attempt)
        task = self._brain.task(sample.task)
        if task is None or task.placement is None or task.attempts != sample.attempt:
            return []  # the sample was on its way when the attempt ended
        changed = self._take_use(key, sample)
        busy = self._busy.get(key) or self._busy.setdefault(key, MeanLoad())
        busy.see(self._loads(task, task.placement, sample))
        if sample.mps:
            self._mps[key] = sample.mps
        now = self._now()
        signs = self._signs.get(key) or self._signs.setdefault(key, Signs())
        signs.see(sample.absent, sample.cpu_seconds, sample.rested)
        if sample.progress is not None:
            pace = self._pace.get(key) or self._pace.setdefault(key, Throughput())
            pace.see(sample.progress, now, beside=self.crowd.beside(key))
        signs.epoch = self._pace.get(key, _UNSEEN).seconds is not None
        seen = {name: max(bytes_, sample.used.get(name, 0)) for name, bytes_ in sample.peak.items()}
        evidence = self._evidence(key, task, now)
        events = self._brain.watch(
            sample.task, sample.attempt, seen, now, busy=busy.value, evidence=evidence, is_flat=not changed
        )
        return [*events, *self._astray(key, sample.strayed)] if sample.strayed else events

    def _take_use(self, key: Key, sample: Sample) -> bool:
        """Store the measured use and peak of an attempt; tell whether its use has changed."""
        used, peak = self.used.get(key), self._peak.get(key)
        if peak is None or not sample.peak.items() <= peak.items():
            self._peak[key] = {**(peak or {}), **sample.peak}
        if used is not None and sample.used.items() <= used.items():
            return False
        self.used[key] = {**(used or {}), **sample.used}
        return True

    def _astray(self, key: Key, held: Mapping[str, int]) -> list[Event]:
        """Return the event for memory on GPUs that the attempt was not given; an empty list if there is none, or if it
        has not grown.
        """
        known = self._strayed.get(key, {})
        more = {gpu: b for gpu, b in held.items() if is_new_peak(known.get(gpu, 0), b, self._brain.rules)}
        self._strayed[key] = {**known, **more}
        return [Strayed(*key, more)] if more else []

    def _evidence(self, key: Key, task: TaskState, now: float) -> ResizeCause | None:
        """Return the evidence that a living attempt computes without its GPUs; None while there is no such evidence."""
        assert task.placement is not None
        if not self._signs[key].absent:
            return None
        unseen = key in self.adopted or not task.began  # its earlier behaviour is unknown
        if task.without or unseen or self._mps.get(key) == mps_policy.CLIENT:
            return None
        evidence = self._signs[key].evidence(task.placement, now - task.started_at, self._brain.rules)
        return evidence if evidence and self._are_seen(task.placement.sees) else None

    def _are_seen(self, gpus: Collection[str]) -> bool:
        """Tell whether the newest measurements of these GPUs are recent enough to show which processes use them."""
        ages = {budget.device.key: budget.age for budget in self._devices.snapshot() if not budget.closed}
        return all(ages.get(gpu, LAST_LOOK) < LAST_LOOK for gpu in gpus)

    def _loads(self, task: TaskState, placement: Placement, sample: Sample) -> dict[str, float]:
        """Return the load that a sampled attempt would put on each of its GPUs if it were alone there."""
        if not sample.busy:
            return {}
        self._shares[task.id, task.attempts] = (self._now(), sample.busy)
        if task.loaded and any(whole >= SATURATED for whole in sample.whole.values()):
            return dict.fromkeys(sample.busy, placement.busy)  # shares of a full GPU are known by the measured loads
        if all(share >= 1.0 or sample.whole.get(gpu, 1.0) < SATURATED for gpu, share in sample.busy.items()):
            return {gpu: min(share, 1.0) for gpu, share in sample.busy.items()}  # neighbours take no time from it
        beside = self._brain.load_beside(placement)
        return {
            gpu: alone(share, beside.get(gpu, 0.0), sample.whole.get(gpu), self._scale(gpu))
            for gpu, share in sample.busy.items()
        }

    def _scale(self, gpu: str) -> float:
        """Return the ratio of load to share on a GPU: the sum of the loads that its attempts would have if each were
        alone there, divided by the sum of their present shares. Only attempts with a measured load count; 0 if there
        are none.
        """
        loads = shares = 0.0
        for other in self._brain.measured_on(gpu):
            at, sampled = self._shares.get((other.task, other.attempt), (0.0, {}))
            if self._now() - at <= LAST_LOOK and (share := sampled.get(gpu, 0.0)):
                loads, shares = loads + other.busy, shares + share
        return loads / shares if shares else 0.0

    def completed(self, exited: Exited) -> Exited:
        """Return the event for an attempt's end, completed with what its samples show. The peak is the higher one of
        the shim's measurement and the samples.
        """
        key = (exited.task, exited.attempt)
        task = self._brain.task(exited.task)
        if task is not None and task.placement is not None:
            self.ended_on.update(dict.fromkeys(task.placement.gpus, self._now()))
        sampled = self._peak.get(key, {})
        names = {*sampled, *exited.peak}
        peak = {name: max(sampled.get(name, 0), exited.peak.get(name, 0)) for name in names}
        peak |= dict.fromkeys(self._never_used(key), 0)
        pace, busy = self._pace.get(key, _UNSEEN), self._busy.get(key)
        held = task is not None and bool(self._brain.terms_of(exited.task).guest)
        watched = 0.5 if key in self.adopted or (held and not sampled) else 1.0  # the shim does not measure a guest
        judged = self._compared(self._judged(self._under_mps(exited, task.placement if task is not None else None)))
        result, reason = self._book.result(*key), judged.reason
        if not result and judged.outcome is Outcome.SUCCEEDED:
            reason = reason or self._book.ignored_result(*key)
        return replace(
            self._at_edge(replace(judged, peak=peak, reason=reason)),
            epoch_seconds=pace.seconds,
            stretch=None if pace.stretch is None else round(pace.stretch, 3),
            solo=None if pace.solo_share is None else round(pace.solo_share * exited.seconds, 3),
            busy=0.0 if busy is None else round(busy.value or 0.0, 3),
            watched=watched,
            result=result,
        )

    def _at_edge(self, exited: Exited) -> Exited:
        """Return the event for an attempt's end. After an out-of-memory, the event says whether the attempt had nearly
        all of its devices.
        """
        task = self._brain.task(exited.task)
        if exited.outcome is not Outcome.OOM or task is None or task.placement is None:
            return exited
        named, budgets = self._brain.terms[task.terms].device, self._devices.snapshot()
        devices = out_of_memory.devices_at_end(exited, task.placement, budgets, self.used, named)
        varies = self._brain.profiles.has_succeeded(self._brain.kind_of(task.id))
        return out_of_memory.judged_at_edge(exited, task, devices, varies, self._brain.rules)

    def _never_used(self, key: Key) -> Sequence[str]:
        """Return the GPUs that an ended attempt has certainly never used.

        A client of MPS counts as using its GPU, even if the driver's lists do not show the client.
        """
        absent = self._signs[key].absent if key in self._signs else ()
        if not absent or key in self.adopted or self._mps.get(key) == mps_policy.CLIENT:
            return ()
        return absent if self._are_seen(absent) else ()

    def _under_mps(self, exited: Exited, placement: Placement | None) -> Exited:
        """Return the event for an attempt's end, changed if MPS caused the end: MPS may have refused the attempt, or a
        fault on the GPU may have ended it.
        """
        if placement is None:
            return exited
        judged = mps_policy.judged(exited, placement, self._mps.get((exited.task, exited.attempt), ""))
        if self._sharing is not None and judged.mps in mps_policy.FAILED:
            self._sharing.suspect(placement.sees[0], mps_policy.sentence(judged.mps))
        return judged

    def is_too_fresh(self, exited: Exited) -> bool:
        """Tell whether a failed attempt cannot be judged yet, because its GPUs have not been measured since its
        failure.
        """
        task = self._brain.task(exited.task)
        if exited.outcome is not Outcome.FAILED or task is None or task.placement is None:
            return False
        now, here = self._now(), task.placement.gpus
        since = now - self._failed.setdefault((exited.task, exited.attempt), now)
        budgets = [b for b in self._devices.snapshot() if b.device.key in here and not b.closed]
        return since < SECOND_LOOK and any(budget.age > since for budget in budgets)

    def _compared(self, exited: Exited) -> Exited:
        """Return the event for an attempt's end, with the last error of its output added in a form that can be compared
        between rows.
        """
        if exited.outcome is not Outcome.FAILED or not self._brain.rules.first_rows:
            return exited
        line = exited.last or exited.reason
        words = self.argv(exited.task)
        return replace(exited, last=line, gist=gist(line, words))

    def _judged(self, exited: Exited) -> Exited:
        """Return the event for an attempt's end with its final outcome. If one of its GPUs was lost, the outcome does
        not blame the task. If one was full, and the output mentions a GPU, the outcome is an out-of-memory.
        """
        task = self._brain.task(exited.task)
        if task is not None and exited.outcome in _SAVED and task.asked in (Action.PRUNE, Action.SAVE):
            return self._ended_as_asked(exited, task.asked)
        if exited.outcome is not Outcome.FAILED or task is None or task.placement is None:
            return exited
        if exited.code == GO_ON and self._brain.terms[task.terms].resumable:
            return self._wants_to_go_on(exited, task)
        here = [b for b in self._devices.snapshot() if b.device.key in task.placement.gpus]
        for budget in here:
            if budget.closed:
                return replace(exited, outcome=Outcome.LOST, reason=f"{budget.device.label}: {budget.closed}")
        full = [b.device.label for b in here if b.least is not None and b.least < FULL]
        if full and exited.part == "gpu":
            reason = f"{_how(exited)} while {full[0]} was full"
            return replace(exited, outcome=Outcome.OOM, reason=reason)
        return replace(exited, part="") if exited.part else exited

    def _ended_as_asked(self, exited: Exited, asked: Action) -> Exited:
        if asked is Action.PRUNE:
            return replace(exited, outcome=Outcome.INTERRUPTED, reason=self._brain.pruning.why(exited.task))
        return replace(exited, outcome=Outcome.AGAIN, reason=f"{_how(exited)} when it was asked to save")

    def _wants_to_go_on(self, exited: Exited, task: TaskState) -> Exited:
        """Return the event for the end of a task that asks to continue later. If the task has asked too often, the
        reason of the event says so.
        """
        rules = self._brain.rules
        reason = f"exit {GO_ON}: it goes on in its next turn"
        if exited.seconds < rules.short_turn and task.short_turns + 1 >= rules.max_short_turns:
            often = f"{rules.max_short_turns} times in a row within {rules.short_turn:g} s of its start"
            reason = f"exit {GO_ON} {often}, so it makes no progress"
        return replace(exited, outcome=Outcome.AGAIN, reason=reason)

    def lasts(self, task: TaskState) -> float | None:
        """Return the expected remaining seconds of a living attempt, estimated from its own progress or from the
        durations of its class; None if unknown.
        """
        epochs = self._brain.terms[task.terms].epochs
        pace = self._pace.get((task.id, task.attempts), Throughput()).seconds
        whole = (
            pace * epochs if pace and epochs else self._brain.profiles.expected(self._brain.kind_of(task.id), epochs)
        )
        if not whole or not task.started_at:
            return None
        return max(0.0, whole - (self._now() - task.started_at))


def _how(exited: Exited) -> str:
    return f"exit {exited.code}" if exited.signal is None else f"signal {exited.signal}"
