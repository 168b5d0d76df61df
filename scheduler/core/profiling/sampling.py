"""The events that follow from a sample of a living attempt: a new peak, a reservation that grows or shrinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scheduler.core.causes import ResizeCause
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Event, Peaked, Resized
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, EstimateSource, Placement, Purpose, host_of
from scheduler.core.placement.request import ResourceRequest
from scheduler.core.profiling import estimator, without_gpu
from scheduler.values import replace


class SampledRun(without_gpu.JudgedRun, Protocol):
    """The part of a Brain that is needed to judge a sample."""

    def need(self, task: int, gpus: int, *, untouched: bool = False) -> ResourceRequest:
        """Return the present request of a task; with `untouched`, the request of an equal task without any attempt."""

    def is_unlike(self, task: TaskState) -> bool:
        """Tell whether an attempt uses far less than every known class, so that its peak has probably not come yet."""

    def load_beside(self, placement: Placement) -> Mapping[str, float]:
        """Return the load that the other tasks put on each GPU of a placement."""


def watch(
    run: SampledRun,
    living: TaskState,
    placement: Placement,
    used: Mapping[str, int],
    now: float,
    busy: float | None,
    evidence: ResizeCause | None = None,
) -> list[Event]:
    """Return the events of one sample, and change nothing. `evidence` is a sign that the attempt needs no GPU; None:
    there is none.
    """
    peak, rules = living.peak, run.rules
    news = {k: b for k, b in used.items() if b > peak.get(k, 0) and estimator.is_new_peak(peak.get(k, 0), b, rules)}
    events: list[Event] = [Peaked(living.id, living.attempts, news)] if news else []
    if (moved := without_gpu.moved(run, living, placement, used, now, evidence)) is not None:
        return [*events, moved]
    return [*events, *_resized(run, living, placement, used, news, now, busy)]


def _resized(
    run: SampledRun,
    living: TaskState,
    placement: Placement,
    used: Mapping[str, int],
    news: Mapping[str, int],
    now: float,
    busy: float | None,
) -> list[Event]:
    """Return the changes of the reservation of an attempt that stays on its devices; `news` are its new peaks."""
    task, attempt = living.id, living.attempts
    events: list[Event] = []
    seen = {**living.peak, **{key: b for key, b in used.items() if b > living.peak.get(key, -1)}}
    still = 0.0 if HOST in news else now - living.last_ram_peak_at
    if (ram := _corrected_ram(run, living, placement, seen, still)) is not None:
        if ram.cause is ResizeCause.RAM_SETTLED:
            events.append(Peaked(task, attempt, {HOST: seen[HOST]}))
        events.append(ram)
        placement = replace(placement, reservation=ram.reservation)
    growth = _grown(run, placement, used)
    if growth is not None:
        events.append(Resized(task, attempt, growth, _why_grown(living, placement, used)))
    elif (known := _known_meanwhile(run, living, placement, seen)) is not None:
        events.append(Resized(task, attempt, known, ResizeCause.KNOWN))
    elif (less := _settled(run, living, placement, seen, news, now, busy == 0.0)) is not None:
        events.append(Peaked(task, attempt, seen))
        events.append(Resized(task, attempt, less, ResizeCause.SETTLED, busy or 0.0))
    elif (expected := _expected_meanwhile(run, living, placement, seen)) is not None:
        events.append(Resized(task, attempt, expected, ResizeCause.EXPECTED))
    elif _is_overdue(run, living, placement, now):
        events.append(Resized(task, attempt, placement.reservation, ResizeCause.OVERDUE, busy or 0.0))
    elif busy is not None and _has_other_load(run, living, placement, now, busy):
        events.append(Resized(task, attempt, placement.reservation, ResizeCause.LOAD, busy))
    return events


def _grown(run: SampledRun, placement: Placement, used: Mapping[str, int]) -> dict[str, int] | None:
    """Return the new reservation of an attempt that uses more than its reservation; None if it does not."""
    for key, bytes_ in used.items():
        if bytes_ > placement.reservation.get(key, 0):
            left = run.capacity.left(host_of(placement.node))
            return estimator.grown(placement.reservation, used, run.rules, left)
    return None


def _why_grown(living: TaskState, placement: Placement, used: Mapping[str, int]) -> ResizeCause:
    """Return GREW if an attempt uses more than was reserved on a device, SEEN if nothing was reserved there."""
    above = [key for key, bytes_ in used.items() if bytes_ > placement.reservation.get(key, 0)]
    nothing = not any(placement.reservation.get(key, 0) for key in above)
    beside = HOST in above and len(above) == 1 and bool(placement.gpus) and not living.settled
    return ResizeCause.SEEN if nothing or beside else ResizeCause.GREW


def _known_meanwhile(
    run: SampledRun, living: TaskState, placement: Placement, seen: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the new reservation of an attempt on GPUs after another attempt of its class has shown the need.

    If the attempt has not settled, its reservation can shrink. It can also grow, so that other tasks on the GPU do not
    fail because the attempt exceeds its reservation. Return None if the reservation stays as it is.
    """
    gpus, rules = placement.gpus, run.rules
    if not gpus or placement.source is EstimateSource.DECLARED:
        return None
    asked = run.need(living.id, len(gpus), untouched=True)
    if asked.unknown or asked.source is EstimateSource.MEASURED or asked.visible:
        return None
    if not all(seen.get(key) for key in gpus):
        return None
    unsettled = estimator.is_watched(placement, living.settled)
    reservation = dict(placement.reservation)
    for key, ask in zip(gpus, asked.gpus, strict=True):
        need = max(ask.bytes or 0, estimator.with_margin(seen[key], rules))
        most = ask.bytes or 0
        if asked.source is EstimateSource.EARLIER:  # its wide margin is for new attempts
            most = estimator.with_margin(ask.least, rules)
        if unsettled and need < reservation[key]:
            reservation[key] = need
        elif estimator.is_new_peak(reservation[key], most, rules):
            reservation[key] = max(most, estimator.with_margin(seen[key], rules))
    return reservation if reservation != placement.reservation else None


def _expected_meanwhile(
    run: SampledRun, living: TaskState, placement: Placement, seen: Mapping[str, int]
) -> dict[str, int] | None:
    """Return a smaller reservation for an unsettled attempt on GPUs, once other classes show that it should need less.
    Return None if the reservation stays as it is.
    """
    if not estimator.is_watched(placement, living.settled):
        return None
    gpus, rules = placement.gpus, run.rules
    if not gpus or rules.slots is not None:
        return None
    asked = run.need(living.id, len(gpus))
    if asked.unknown or asked.source is not EstimateSource.MEASURED:
        return None
    reservation = dict(placement.reservation)
    for key, ask in zip(gpus, asked.gpus, strict=True):
        need = max(ask.bytes or 0, estimator.with_margin(seen.get(key, 0), rules))
        if estimator.is_new_peak(need, reservation[key], rules):
            reservation[key] = need
    return reservation if reservation != placement.reservation else None


def _corrected_ram(
    run: SampledRun, living: TaskState, placement: Placement, seen: Mapping[str, int], still: float
) -> Resized | None:
    """Return the corrected reservation of an attempt whose need of RAM was only expected; None if the reservation stays
    as it is.

    `still` is the number of seconds for which the attempt's use of RAM has not grown.

    The need is known after the class of the attempt has shown it, or after the use has not grown for the settle time of
    GPU memory. Before that, once the attempt uses its GPUs and has not grown for the settle time of the host, it keeps
    a multiple of what it uses: it may still load more data, but other tasks need not wait for that.
    """
    rules, had, held = run.rules, placement.reservation.get(HOST, 0), seen.get(HOST)
    if not placement.ram_expected or held is None:
        return None
    left = run.capacity.left(host_of(placement.node))

    def resized(ram: int, cause: ResizeCause) -> Resized:
        return Resized(living.id, living.attempts, {**placement.reservation, HOST: ram}, cause)

    asked, least = run.need(living.id, len(placement.gpus)).host, estimator.with_margin(held, rules)
    if asked.bytes is not None and not asked.is_expected:
        known = estimator.within(had, max(asked.bytes, least), held, left)
        return resized(known, ResizeCause.RAM_SETTLED)
    if still >= rules.gpu_settle:
        return resized(min(had, least), ResizeCause.RAM_SETTLED)
    if still < rules.settle or not all(map(seen.get, placement.gpus)):
        return None
    wanted = estimator.with_margin(estimator.once_loaded(held, rules), rules)
    loading = estimator.within(had, wanted, held, left)
    moved = estimator.is_new_peak(min(had, loading), max(had, loading), rules)
    return resized(loading, ResizeCause.RAM_SEEN) if moved else None


def _settled(
    run: SampledRun,
    living: TaskState,
    placement: Placement,
    seen: Mapping[str, int],
    news: Mapping[str, int],
    now: float,
    idle: bool,
) -> dict[str, int] | None:
    """Return the reservation of an attempt that settles with this sample; None if it does not."""
    if any(key in placement.devices for key in news) or not _may_settle(run, living, placement, now, idle):
        return None
    if not placement.source.is_watched and placement.purpose is Purpose.RUN:
        return dict(placement.reservation)
    beside = run.capacity.margins_beside(placement) if run.rules.share_margins else {}
    return estimator.cut(placement, seen, run.rules, beside)


def _may_settle(run: SampledRun, living: TaskState, placement: Placement, now: float, idle: bool) -> bool:
    """Tell whether an attempt settles now: its need was unknown or not confirmed, its peak has not grown for the settle
    time, and it does not use far less than every known class.
    """
    rules = run.rules
    if living.settled or living.last_peak_at == 0.0:
        return False
    unknown = placement.source.is_watched or placement.purpose is Purpose.PROBE
    if not unknown and not (placement.gpus and run.is_unsure(living.id)):
        return False
    if placement.gpus and rules.by_evidence and run.is_unlike(living):
        return False
    settle = _settle_time(living, placement, rules)
    settle *= rules.idle_patience if idle else _slowed(run, placement)
    return now - living.last_peak_at >= settle


def _is_overdue(run: SampledRun, living: TaskState, placement: Placement, now: float) -> bool:
    """Tell whether other tasks no longer wait for an attempt of unknown need to settle.

    This holds if its memory has been flat for the settle time and is much less than the memory of every known class. An
    attempt that uses no more than a CUDA context is overdue only after several settle times.
    """
    if not estimator.is_watched(placement, living.settled or living.overdue) or not placement.gpus:
        return False
    flat, rules = now - living.last_peak_at, run.rules
    if flat >= rules.gpu_settle * rules.idle_patience:
        return estimator.is_at_its_beginning(living, rules)
    return flat >= rules.gpu_settle and run.is_unlike(living)


def _has_other_load(run: SampledRun, living: TaskState, placement: Placement, now: float, busy: float) -> bool:
    """Tell whether an attempt keeps its GPUs busy for a different share of time than expected.

    The measured share counts once the attempt's memory has been flat for the settle time.
    """
    differs = busy > 0 and abs(busy - placement.busy) > run.rules.load_step
    return differs and bool(placement.gpus) and now - living.last_peak_at >= _settle_time(living, placement, run.rules)


def _settle_time(living: TaskState, placement: Placement, rules: SchedulingConfig) -> float:
    """Return the seconds for which the memory of an attempt must be flat before it has settled, if its GPU is not
    overloaded.

    On GPUs this is a share of the time that the attempt took to reach its peak, with a lower and an upper limit. A
    fixed time counts instead if the user set one, and while the attempt uses only a CUDA context.
    """
    if not placement.gpus:
        return rules.settle
    if not rules.by_evidence or max(living.peak.get(key, 0) for key in placement.gpus) <= rules.context:
        return rules.gpu_settle
    took = living.last_peak_at - living.started_at
    return min(rules.gpu_settle, max(rules.settle, rules.flat_share * took))


def _slowed(run: SampledRun, placement: Placement) -> float:
    """Return how many times slower an attempt runs because the tasks on its GPU request more than all of the GPU's
    time.
    """
    return max([1.0, *(load + placement.busy for load in run.load_beside(placement).values())])
