"""Tasks on a machine with GPUs that use none: how they are recognised, and what they request then.

A task class is known to need no GPU after one attempt of it has succeeded without using any. Before that an attempt may
show while it runs that it computes without them: by processor time, by an epoch, or by resting, with nothing on its
GPUs. From then on it counts as a task of the host, so that other tasks may use its GPUs. A part of a GPU stays reserved
for a while, in case the attempt begins to use the GPU after all. Then it is a task of unknown need, like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.core.causes import ResizeCause
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Resized
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, EstimateSource, Placement, Profiling, Purpose, Terms
from scheduler.core.placement.device_capacity import DeviceCapacity
from scheduler.core.profiling.class_profile import PredictedPeak, Profile, main_parts
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.values import dataclass, replace


@dataclass(slots=True)
class Signs:
    """Signs that a living attempt computes without its GPUs."""

    absent: Sequence[str] = ()
    """The GPUs that the attempt has provably not used so far."""
    cpu_seconds: float = 0.0
    """The processor time of the attempt's processes so far."""
    rested: float = 0.0
    """Seconds for which no process of the attempt has run."""
    epoch: bool = False
    """True if the attempt has completed a whole epoch."""

    def see(self, absent: Sequence[str] | None, cpu_seconds: float | None, rested: float) -> None:
        """Note what one sample says about the attempt; None for `absent` or `cpu_seconds` means not measured."""
        if absent is not None:
            self.absent = absent
        if cpu_seconds is not None:
            self.cpu_seconds, self.rested = cpu_seconds, rested

    def evidence(self, placement: Placement, seconds: float, rules: SchedulingConfig) -> ResizeCause | None:
        """Return RESTING or WITHOUT for an attempt that began `seconds` ago; None while it has shown neither.

        Several processes may use much processor time before any of them could load a model, so the time since the start
        counts as well.
        """
        if not placement.sees or any(gpu not in self.absent for gpu in placement.sees):
            return None
        if self.epoch or min(self.cpu_seconds, seconds) >= rules.without_seconds:
            return ResizeCause.WITHOUT
        return ResizeCause.RESTING if min(self.rested, seconds) >= rules.rest else None


class _Capacity(Protocol):
    @property
    def rooms(self) -> Mapping[str, DeviceCapacity]:
        """The capacity of every device."""

    def left(self, key: str) -> int | None:
        """Return the bytes of a device that may still be reserved; None: unknown."""

    def margins_beside(self, placement: Placement) -> dict[str, tuple[int, float]]:
        """Return two sums for each GPU of a placement, over the other tasks of known memory there: the bytes reserved
        above their peaks, and the squares of these peaks.
        """

    def kept_aside(self, key: str) -> int:
        """Return the bytes of a GPU that are reserved for attempts that compute without it."""


class JudgedRun(Protocol):
    """The part of a Brain that is needed to judge whether an attempt needs its GPUs."""

    rules: SchedulingConfig

    @property
    def capacity(self) -> _Capacity:
        """The capacity of all devices."""

    def terms_of(self, task: int) -> Terms:
        """Return the terms of a task."""

    def is_unsure(self, task: int) -> bool:
        """Tell whether a second attempt must confirm what the class of a task needs."""


def may_leave_its_gpus(terms: Terms, rules: SchedulingConfig) -> bool:
    """Tell whether a task that uses no GPU may run without one: neither its row nor the settings of its run request
    one.
    """
    said = (terms.gpus, terms.memory, terms.thread_percentage)
    if terms.device or terms.exclusive or any(one is not None for one in said):
        return False
    return rules.policy == "packed" and rules.slots is None and rules.profile is not Profiling.OFF


def needs_no_gpu(
    terms: Terms,
    tried: TaskState | None,
    rules: SchedulingConfig,
    profile: Profile,
    guess: PredictedPeak | None,
    gpus: int,
) -> bool:
    """Tell whether a task that would get this many GPUs is known to need none, because its class, or similar classes,
    used none.

    A task that ran out of memory on a GPU does need one.
    """
    if not gpus or not may_leave_its_gpus(terms, rules):
        return False
    if tried is not None and any(part != HOST for part in tried.floors):
        return False
    if profile.knows(gpus):
        return profile.is_without(gpus)
    return guess is not None and all(guess.peaks.get(part) == 0 for part in main_parts(gpus))


def moved(
    run: JudgedRun,
    living: TaskState,
    placement: Placement,
    used: Mapping[str, int],
    now: float,
    evidence: ResizeCause | None,
) -> Resized | None:
    """Return the event that records that an attempt leaves its GPUs or comes back to them; None if it does neither."""
    if any(used.get(gpu) for gpu in placement.visible):
        return Resized(living.id, living.attempts, _returned(run, placement, used), ResizeCause.TOUCHED)
    if placement.visible and living.without_at and now - living.without_at >= run.rules.gpu_settle:
        kept = {key: bytes_ for key, bytes_ in placement.reservation.items() if key not in placement.visible}
        if kept != placement.reservation:
            return Resized(living.id, living.attempts, kept, ResizeCause.RESTING)
    if evidence is None or living.without or (evidence is ResizeCause.RESTING and placement.visible):
        return None
    if placement.visible:
        news = run.is_unsure(living.id)
        return Resized(living.id, living.attempts, dict(placement.reservation), evidence) if news else None
    if not _may_leave(run, living, placement):
        return None
    return Resized(living.id, living.attempts, _without(run, placement), evidence)


def on_other_side(
    task: TaskState, sees: tuple[str, ...], cause: ResizeCause, at: float, rules: SchedulingConfig
) -> Placement:
    """Return the new placement of an attempt that has left its GPUs or come back to them, and update its task."""
    placement = task.placement
    assert placement is not None
    if cause is ResizeCause.TOUCHED:
        task.settled = task.without = False
        task.last_peak_at, task.without_at = at, 0.0
        return replace(placement, visible=(), source=EstimateSource.MEASURED, busy=rules.busy)
    task.last_peak_at = max(task.last_peak_at, task.last_ram_peak_at)
    task.without_at = task.without_at or at
    task.without = task.without or cause is ResizeCause.WITHOUT
    cores = max(1.0, placement.cores)
    return replace(placement, visible=sees, busy=0.0, cores=cores, ram_expected=False)


def learn(profiles: ProfileIndex, kind: int, task: TaskState, cause: ResizeCause) -> list[int]:
    """Note for the class of an attempt that it has left its GPUs or come back to them. Return the classes about which
    more or less is known now.
    """
    placement = task.placement
    assert placement is not None
    if cause is ResizeCause.TOUCHED:
        return profiles.note_use(kind, placement.by_part(task.peak))
    return profiles.note_absence(kind, len(placement.visible), sure=cause is ResizeCause.WITHOUT)


def _may_leave(run: JudgedRun, living: TaskState, placement: Placement) -> bool:
    """Tell whether an attempt may leave its GPUs: it got them only because its need was unknown, and other tasks can
    use them.

    On a GPU that admits one process at a time the attempt could never come back.
    """
    unknown = placement.source.is_watched and placement.purpose is Purpose.RUN and not living.settled
    rooms = [run.capacity.rooms.get(gpu) for gpu in placement.gpus]
    shared = all(room is not None and not room.device.single for room in rooms)
    return (
        unknown and shared and HOST in placement.reservation and may_leave_its_gpus(run.terms_of(living.id), run.rules)
    )


def _without(run: JudgedRun, placement: Placement) -> dict[str, int]:
    """Return the reservation of an attempt that computes without its GPUs; at first it keeps a part of each.

    All attempts of a run that compute without a GPU share the part that is kept of it, because not all of them will
    begin to use the GPU.
    """
    reservation = dict(placement.reservation)
    for gpu in placement.gpus:
        part = int(run.capacity.rooms[gpu].most * run.rules.late_share) - run.capacity.kept_aside(gpu)
        reservation[gpu] = min(reservation[gpu], part)
        if reservation[gpu] <= 0:
            del reservation[gpu]
    return reservation


def _returned(run: JudgedRun, placement: Placement, used: Mapping[str, int]) -> dict[str, int]:
    """Return the reservation of an attempt that uses its GPUs after all. On each GPU the attempt gets all free memory,
    as for any unknown need, but none that other attempts have reserved.
    """
    reservation = dict(placement.reservation)
    for gpu in placement.visible:
        had, left = reservation.get(gpu, 0), run.capacity.left(gpu)
        reservation[gpu] = max(used.get(gpu, 0), had + max(0, left or 0))
    return reservation
