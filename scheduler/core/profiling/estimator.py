"""The estimate of a task's need: from profiles and declared values to requests and reservations."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, EstimateSource, Placement, Profiling, Purpose, Terms
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, declared
from scheduler.core.profiling.class_profile import Peaks, PredictedPeak, Profile, main_parts
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.core.profiling.task_class import TaskClass


def need(  # all that determines a need
    terms: Terms,
    task: TaskState | None,
    rules: SchedulingConfig,
    profile: Profile | None = None,
    kind: TaskClass | None = None,
    gpus: int = 0,
    guess: PredictedPeak | None = None,
) -> ResourceRequest:
    """Return the present request of a task. It is the declared need, else the need that is known for its class, else
    unknown.
    """
    source, asks = _main(terms, rules, profile, gpus, guess)
    host = asks[0] if not gpus else _beside(terms, rules, profile, guess)
    asked = ResourceRequest(
        host=host,
        gpus=asks if gpus else (),
        cores=_cores(terms, profile, gpus),
        busy=(profile.busy if profile is not None else 0.0) or (guess.busy if guess is not None else 0.0) or rules.busy,
        source=source,
        alone=terms.exclusive,
    )
    if task is not None and task.floors:
        asked = retried(asked, task, rules)
    if asked.unknown and should_probe(terms, rules, kind):
        return replace(asked, source=EstimateSource.PROBE, purpose=Purpose.PROBE)
    return asked


def _main(
    terms: Terms, rules: SchedulingConfig, profile: Profile | None, gpus: int, guess: PredictedPeak | None
) -> tuple[EstimateSource, tuple[MemoryRequest, ...]]:
    """Return the source of the need, and the requests for the devices on which a task runs: its GPUs, or the host if it
    has none.
    """
    parts = main_parts(gpus)
    said = declared(terms, gpus)
    if said is not None:
        return EstimateSource.DECLARED, tuple(MemoryRequest(said, said) for _ in parts)
    if rules.profile is Profiling.OFF:
        return EstimateSource.MEASURED, tuple(MemoryRequest(None) for _ in parts)
    if profile is not None and profile.knows(gpus):
        return profile.source(gpus), tuple(_known(profile.part(part), rules, shares=gpus > 0) for part in parts)
    above = [_above(profile, part, rules) for part in parts]
    if guess is not None and all(part in guess.peaks for part in parts):
        guessed = (_guessed(guess, part, rules) for part in parts)
        return guess.by, tuple(map(_at_least, guessed, above))
    return EstimateSource.MEASURED, tuple(MemoryRequest(None, least=bytes_, shown=bytes_) for bytes_ in above)


def _above(profile: Profile | None, part: str, rules: SchedulingConfig) -> int:
    """Return the highest use, or request, of failed attempts of a class whose need is unknown, with the margin; 0 if
    there are none.
    """
    seen = profile.part(part).above if profile is not None else 0
    return with_margin(seen, rules) if seen else 0


def _at_least(ask: MemoryRequest, above: int) -> MemoryRequest:
    """Return an expected request, raised to at least `above`, the need that failed attempts of the class have shown."""
    least = max(ask.least, above)
    return replace(ask, bytes=max(ask.bytes or 0, above), least=least, shown=least)


def _beside(
    terms: Terms, rules: SchedulingConfig, profile: Profile | None, guess: PredictedPeak | None
) -> MemoryRequest:
    """Return the RAM request of a task that runs on GPUs."""
    if terms.host_memory is not None:
        return MemoryRequest(terms.host_memory, terms.host_memory)
    if rules.profile is Profiling.OFF:
        return MemoryRequest(None)
    if profile is not None and profile.part(HOST).known:
        return _known(profile.part(HOST), rules)
    return _guessed(guess, HOST, rules) if guess is not None and HOST in guess.peaks else MemoryRequest(None)


def _known(peaks: Peaks, rules: SchedulingConfig, *, shares: bool = False) -> MemoryRequest:
    shared = least_shared(peaks.peak, rules) if shares and rules.share_margins else 0
    return MemoryRequest(reserved_for(peaks, rules), peaks.peak, shared=shared)


def _guessed(guess: PredictedPeak, part: str, rules: SchedulingConfig) -> MemoryRequest:
    peak = guess.peaks[part]
    if guess.by is not EstimateSource.EARLIER:
        return MemoryRequest(with_margin(peak, rules), 0, least=peak)
    bytes_ = int(peak * (1 + margin_of(guess, rules))) + rules.margin_bytes
    return MemoryRequest(bytes_, 0, least=peak, enough=0 if guess.confirmed else with_margin(peak, rules))


def margin_of(guess: PredictedPeak, rules: SchedulingConfig) -> float:
    """Return the margin, as a share, for a need that is known from an earlier version of the script.

    While the need is not confirmed, the margin allows for growth; growth that was already observed is subtracted.
    """
    if guess.confirmed >= rules.earlier_sure and guess.grown == 1.0:
        return rules.margin
    if guess.confirmed:
        return rules.earlier_margin
    return max(rules.earlier_margin, (1 + rules.unconfirmed_margin) / guess.grown - 1)


def _cores(terms: Terms, profile: Profile | None, gpus: int) -> float:
    """Return the cores that a task requests: declared, else measured; on the host at least one.

    A task that is measured while other tasks use the cores seems to need fewer of them. Without the minimum of one
    core, more and more tasks would start, and each would be measured with fewer cores. GPU tasks need no minimum,
    because their number is not limited by cores.
    """
    if terms.cpus is not None:
        return terms.cpus
    seen = round(profile.cores, 2 if gpus else 1) if profile is not None else 0.0
    return seen if gpus else max(1.0, seen)


def with_usual(
    asked: ResourceRequest, usual: int, expected: int, enough: int, rules: SchedulingConfig
) -> ResourceRequest:
    """Return the request `asked`, in which each GPU with unknown memory has the expected need if an expected need is
    known.

    An expected need is an upper bound already; where margins are shared it gets no margin of its own.
    """
    above = least_shared if rules.share_margins else with_margin

    def told(ask: MemoryRequest) -> MemoryRequest:
        if ask.bytes is not None:
            return ask
        least = max(ask.least, usual)
        if not expected:
            return replace(ask, least=least)
        bytes_ = above(max(expected, ask.least), rules)
        return replace(ask, bytes=bytes_, least=min(least, bytes_), enough=max(ask.least, above(enough, rules)))

    return replace(asked, gpus=tuple(map(told, asked.gpus))) if usual or expected else asked


def retried(asked: ResourceRequest, task: TaskState, rules: SchedulingConfig) -> ResourceRequest:
    """Return the request of a task after it ran out of memory; the last attempt that it is allowed requests a device to
    itself.
    """

    def raised(ask: MemoryRequest, part: str) -> MemoryRequest:
        floor = task.floors.get(part, 0)
        if not floor:
            return ask
        had, wanted = task.wanted.get(part, (0, 0))
        seen = max(ask.bare, task.seen.get(part, 0))
        if ask.bytes is None and part != HOST:
            return MemoryRequest(None, seen, True, had, wanted, max(ask.least, floor), floor)
        return MemoryRequest(max(ask.bytes or 0, floor), seen, True, had, wanted, max(ask.least, wanted), floor)

    gpus = tuple(raised(ask, str(position)) for position, ask in enumerate(asked.gpus))
    alone = asked.alone or task.ooms >= rules.max_ooms
    return replace(asked, host=raised(asked.host, HOST), gpus=gpus, alone=alone)


def should_probe(terms: Terms, rules: SchedulingConfig, kind: TaskClass | None) -> bool:
    """Tell whether a task is probed before its first real attempt. The profiling mode decides: always, never, or if the
    probe costs little. A task whose number of epochs is unknown is never probed.
    """
    if kind is None or not kind.probes or terms.epochs is None:
        return False
    if rules.learn_only or rules.profile is Profiling.PROBE:
        return True
    return rules.profile is Profiling.AUTO and rules.profile_epochs <= terms.epochs * rules.probe_share


def reserved_for(peaks: Peaks, rules: SchedulingConfig) -> int:
    """Return the reservation for a known peak; the margin is smaller if full attempts had nearly equal peaks."""
    if peaks.settled(rules):
        return int(peaks.peak * (1 + rules.tight_margin)) + rules.tight_margin_bytes
    return with_margin(peaks.peak, rules)


def with_margin(peak: int, rules: SchedulingConfig) -> int:
    """Return a peak plus the usual margin."""
    return int(peak * (1 + rules.margin)) + rules.margin_bytes


def least_shared(peak: int, rules: SchedulingConfig) -> int:
    """Return the least reservation for a known peak on a GPU where other tasks have enough spare bytes."""
    return int(peak * (1 + rules.tight_margin))


def with_shared_margin(peak: int, full: int, spare: int, squares: float, rules: SchedulingConfig) -> int:
    """Return the reservation for a known peak on a GPU where tasks of known memory have `spare` bytes reserved above
    their peaks.

    `squares` is the sum of the squares of these peaks, and `full` is the reservation with a margin of its own.
    Independent errors add up to the root of the sum of their squares, so one headroom for that sum serves all tasks on
    the GPU.
    """
    headroom = rules.margin_bytes + rules.margin * sqrt(squares + float(peak) * peak)
    return min(full, max(least_shared(peak, rules), peak + int(headroom) - spare))


def short_of(placement: Placement, event: Exited) -> tuple[str, ...]:
    """Return the parts that ran out of memory: the part that the task named, else all of its GPUs."""
    gpus = len(placement.gpus)
    if placement.visible and (event.part == "gpu" or event.position is not None):
        gpus = len(placement.visible)  # it ran out before it was seen to use one
    if not gpus or event.part == HOST:
        return (HOST,)
    if event.position is not None and event.position < gpus:
        return (str(event.position),)
    return main_parts(gpus)


def after_oom(reserved: int, peak: int, rules: SchedulingConfig, asked: int = 0) -> int:
    """Return the least number of bytes to reserve for the next attempt of a task that ran out of memory.

    If the attempt reported its last request, this is its use plus that request, with the margin. Otherwise it is one
    and a half times its reservation or its use, whichever is higher.
    """
    if asked:
        return with_margin(peak + asked, rules)
    return max(reserved + reserved // 2, with_margin(peak, rules), peak + peak // 2)


def grown(
    reservation: Mapping[str, int], used: Mapping[str, int], rules: SchedulingConfig, ram_left: int | None = None
) -> dict[str, int] | None:
    """Return the new reservation of a living attempt that uses more than is reserved; None if it does not.

    `ram_left` is the RAM that may still be reserved; None: unknown.
    """
    above = {key: bytes_ for key, bytes_ in used.items() if bytes_ > reservation.get(key, 0)}
    if not above:
        return None
    new = {**reservation, **{key: with_margin(bytes_, rules) for key, bytes_ in above.items()}}
    if HOST in above:
        new[HOST] = within(reservation.get(HOST, 0), new[HOST], above[HOST] + rules.peak_step_bytes, ram_left)
    return new


def once_loaded(held: int, rules: SchedulingConfig) -> int:
    """Return the RAM that a task on GPUs is expected to need, if it uses `held` bytes and may still be loading its
    data.
    """
    return int(held / rules.loaded_share) + rules.unknown_beside


def within(had: int, wanted: int, least: int, left: int | None) -> int:
    """Return the new size of a reservation of `had` bytes that should grow to `wanted` bytes.

    It grows by at most `left` bytes, which may still be reserved (None: unknown). But it always reaches `least`, or
    `wanted` if that is less: measured use is reserved even if that overcommits the device, but a margin is not.
    """
    return wanted if left is None else min(wanted, max(least, had + max(0, left)))


def cut(
    placement: Placement,
    peak: Mapping[str, int],
    rules: SchedulingConfig,
    beside: Mapping[str, tuple[int, float]] | None = None,
) -> dict[str, int] | None:
    """Return the reduced reservation of an attempt of unknown need that has settled: its peak with the margin, but no
    more than before. Return None if nothing was measured.

    Where margins are shared, `beside` has the spare bytes and the squares of the peaks of the other known tasks, by
    GPU.
    """
    if not all(peak.get(key, 0) > 0 for key in placement.devices):
        return None

    def settled(key: str) -> int:
        full = with_margin(peak[key], rules)
        return with_shared_margin(peak[key], full, *beside[key], rules) if beside and key in beside else full

    return {
        key: min(bytes_, settled(key)) if peak.get(key) else bytes_ for key, bytes_ in placement.reservation.items()
    }


def is_new_peak(before: int, now: int, rules: SchedulingConfig) -> bool:
    """Tell whether the use `now` exceeds the peak `before` by enough to count as a new peak."""
    if before == 0:
        return now > 0
    return now - before > rules.peak_step_bytes and now > before * (1 + rules.peak_step)


def is_watched(placement: Placement, settled: bool) -> bool:
    """Tell whether an attempt was started with an unknown need, or with that of an earlier version, and has not settled
    yet.
    """
    return placement.source.is_watched and placement.purpose is Purpose.RUN and not settled


def is_at_its_beginning(task: TaskState, rules: SchedulingConfig) -> bool:
    """Tell whether other tasks wait for an attempt of unknown memory to grow: it has used no more than a CUDA context
    on its GPUs, and is not overdue.
    """
    placement = task.placement
    if placement is None or task.overdue or not is_watched(placement, task.settled):
        return False
    return bool(placement.gpus) and max(task.peak.get(key, 0) for key in placement.gpus) <= rules.context


def youth(task: TaskState, rules: SchedulingConfig) -> bool | None:
    """Return True for an attempt of unknown memory at its beginning. Return False for an attempt of known memory that
    has used no more than a CUDA context on its GPUs, and None for any other attempt.
    """
    placement = task.placement
    if placement is None or not placement.gpus:
        return None
    if placement.source.is_watched:
        return True if is_at_its_beginning(task, rules) else None
    return False if max(task.peak.get(key, 0) for key in placement.gpus) <= rules.context else None
