"""From what is known of a task to what it is promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scheduler.core.events import Exited
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Guess, Peaks, Profile, main_parts
from scheduler.core.lifecycle import Task
from scheduler.core.model import HOST, KnownBy, Placement, Profiling, Purpose, Terms
from scheduler.core.packing import Ask, Need, declared
from scheduler.core.rules import Rules


def need(  # all that a need follows from
    terms: Terms,
    task: Task | None,
    rules: Rules,
    profile: Profile | None = None,
    kind: Kind | None = None,
    gpus: int = 0,
    guess: Guess | None = None,
) -> Need:
    """What the task asks for now: what its row says, else what its kind is known to need, else it is unknown."""
    known_by, asks = _main(terms, rules, profile, gpus, guess)
    host = asks[0] if not gpus else _beside(terms, rules, profile, guess)
    asked = Need(
        host=host,
        gpus=asks if gpus else (),
        cores=_cores(terms, profile, gpus),
        busy=(profile.busy if profile is not None else 0.0) or (guess.busy if guess is not None else 0.0) or rules.busy,
        known_by=known_by,
        alone=terms.exclusive,
    )
    if task is not None and task.floors:
        asked = retried(asked, task, rules)
    if asked.unknown and should_probe(terms, rules, kind):
        return replace(asked, known_by=KnownBy.PROBE, purpose=Purpose.PROBE)
    return asked


def _main(
    terms: Terms, rules: Rules, profile: Profile | None, gpus: int, guess: Guess | None
) -> tuple[KnownBy, tuple[Ask, ...]]:
    """How its need on its GPUs (or on the host, where it has none) is known, and what it is."""
    parts = main_parts(gpus)
    said = declared(terms, gpus)
    if said is not None:
        return KnownBy.DECLARED, tuple(Ask(said, said) for _ in parts)
    if rules.profile is Profiling.OFF:
        return KnownBy.LIVE, tuple(Ask(None) for _ in parts)
    if profile is not None and profile.knows(gpus):
        return profile.known_by(gpus), tuple(_known(profile.part(part), rules) for part in parts)
    if guess is not None and all(part in guess.peaks for part in parts):
        return guess.by, tuple(_guessed(guess.peaks[part], rules) for part in parts)
    above = [profile.part(part).above if profile is not None else 0 for part in parts]
    return KnownBy.LIVE, tuple(Ask(None, least=with_margin(bytes_, rules) if bytes_ else 0) for bytes_ in above)


def _beside(terms: Terms, rules: Rules, profile: Profile | None, guess: Guess | None) -> Ask:
    """What a task on GPUs needs of the host's RAM."""
    if terms.host_memory is not None:
        return Ask(terms.host_memory, terms.host_memory)
    if rules.profile is Profiling.OFF:
        return Ask(None)
    if profile is not None and profile.part(HOST).known:
        return _known(profile.part(HOST), rules)
    return _guessed(guess.peaks[HOST], rules) if guess is not None and HOST in guess.peaks else Ask(None)


def _known(peaks: Peaks, rules: Rules) -> Ask:
    return Ask(promised_for(peaks, rules), peaks.peak)


def _guessed(peak: int, rules: Rules) -> Ask:
    return Ask(with_margin(peak, rules), 0, least=peak)


def _cores(terms: Terms, profile: Profile | None, gpus: int) -> float:
    """What the row says, else on the host at least one: a task that was measured beside others looks as if it needed
    less, and what is started because of that makes the next one look smaller still. Beside GPUs it is no lock."""
    if terms.cpus is not None:
        return terms.cpus
    seen = round(profile.cores, 2 if gpus else 1) if profile is not None else 0.0
    return seen if gpus else max(1.0, seen)


def with_usual(asked: Need, usual: int) -> Need:
    """The same, where what nobody knows of it is taken to be at least what is usual."""
    gpus = tuple(replace(ask, least=max(ask.least, usual)) if ask.bytes is None else ask for ask in asked.gpus)
    return replace(asked, gpus=gpus) if usual else asked


def retried(asked: Need, task: Task, rules: Rules) -> Need:
    """What it asks for once it has run out of memory; the last time alone."""

    def raised(ask: Ask, part: str) -> Ask:
        floor = task.floors.get(part, 0)
        if not floor:
            return ask
        had, wanted = task.wanted.get(part, (0, 0))
        seen = max(ask.bare, task.seen.get(part, 0))
        if ask.bytes is None and part != HOST:
            return Ask(None, seen, True, had, wanted, max(ask.least, floor))
        return Ask(max(ask.bytes or 0, floor), seen, True, had, wanted, max(ask.least, wanted))

    gpus = tuple(raised(ask, str(position)) for position, ask in enumerate(asked.gpus))
    alone = asked.alone or task.ooms >= rules.max_ooms
    return replace(asked, host=raised(asked.host, HOST), gpus=gpus, alone=alone)


def should_probe(terms: Terms, rules: Rules, kind: Kind | None) -> bool:
    """Whether a short run comes before the real one: always, never, or where it costs next to nothing."""
    if kind is None or not kind.probes or terms.epochs is None:
        return False
    if rules.learn_only or rules.profile is Profiling.PROBE:
        return True
    return rules.profile is Profiling.AUTO and rules.profile_epochs <= terms.epochs * rules.probe_share


def promised_for(peaks: Peaks, rules: Rules) -> int:
    """A known peak as it is promised; full runs that agree are trusted with less on top."""
    if peaks.settled(rules):
        return int(peaks.peak * (1 + rules.tight_margin)) + rules.tight_margin_bytes
    return with_margin(peaks.peak, rules)


def with_margin(peak: int, rules: Rules) -> int:
    """A peak with room for what the next run may take more."""
    return int(peak * (1 + rules.margin)) + rules.margin_bytes


def short_of(placement: Placement, event: Exited) -> tuple[str, ...]:
    """The parts that an out-of-memory was about: the one it named, else all on its GPUs."""
    gpus = len(placement.gpus)
    if not gpus or event.part == HOST:
        return (HOST,)
    if event.position is not None and event.position < gpus:
        return (str(event.position),)
    return main_parts(gpus)


def after_oom(promised: int, peak: int, rules: Rules, asked: int = 0) -> int:
    """The least to promise after an out-of-memory.

    What it held and what it asked for besides, where it said so; else half again what it was promised, or held.
    """
    if asked:
        return with_margin(peak + asked, rules)
    return max(promised + promised // 2, with_margin(peak, rules), peak + peak // 2)


def grown(promise: Mapping[str, int], used: Mapping[str, int], rules: Rules) -> dict[str, int] | None:
    """The promise of a living attempt that was seen above it; None where it keeps to it."""
    above = {key: bytes_ for key, bytes_ in used.items() if bytes_ > promise.get(key, 0)}
    if not above:
        return None
    return {**promise, **{key: with_margin(bytes_, rules) for key, bytes_ in above.items()}}


def cut(placement: Placement, peak: Mapping[str, int], rules: Rules) -> dict[str, int] | None:
    """The promise of an unknown attempt that has settled: its peak with the margin, never more than before."""
    if not all(peak.get(key, 0) > 0 for key in placement.devices):
        return None
    return {
        key: min(bytes_, with_margin(peak[key], rules)) if peak.get(key) else bytes_
        for key, bytes_ in placement.promise.items()
    }


def is_new_peak(before: int, now: int, rules: Rules) -> bool:
    """Whether a sample is above the last peak by enough to matter."""
    if before == 0:
        return now > 0
    return now - before > rules.peak_step_bytes and now > before * (1 + rules.peak_step)


def is_watched(placement: Placement, settled: bool) -> bool:  # of the attempt
    """Whether an attempt was started without knowing what it needs, and nobody knows it yet."""
    return placement.known_by is KnownBy.LIVE and placement.purpose is Purpose.RUN and not settled
