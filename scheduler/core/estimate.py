"""From what is known of a task to what it is promised."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Profile
from scheduler.core.lifecycle import Task
from scheduler.core.model import KnownBy, Profiling, Purpose, Terms
from scheduler.core.packing import Need, declared
from scheduler.core.rules import Rules


def need(
    terms: Terms, task: Task | None, rules: Rules, profile: Profile | None = None, kind: Kind | None = None
) -> Need:
    """What the task asks for now: what its row says, else what its kind is known to need, else it is unknown."""
    cores = _cores(terms, profile)
    bytes_, bare, known_by = _bytes(terms, rules, profile)
    alone = terms.exclusive
    if task is not None and task.floor:
        alone = alone or task.ooms >= rules.max_ooms
        bytes_, bare = max(bytes_ or 0, task.floor), max(bare, task.seen)
    if bytes_ is None and should_probe(terms, rules, kind):
        return Need(None, cores, KnownBy.PROBE, alone, Purpose.PROBE)
    return Need(bytes_, cores, known_by, alone, bare=bare, retried=task is not None and task.floor > 0)


def _bytes(terms: Terms, rules: Rules, profile: Profile | None) -> tuple[int | None, int, KnownBy]:
    """What to promise, what of that is no margin, and how that is known."""
    said = declared(terms)
    if said is not None:
        return said, said, KnownBy.DECLARED
    if profile is None or not profile.known or rules.profile is Profiling.OFF:
        return None, 0, KnownBy.LIVE
    return promised_for(profile, rules), profile.peak, profile.known_by


def _cores(terms: Terms, profile: Profile | None) -> float:
    """What the row says, else at least one: a task that was measured beside others looks as if it needed less,
    and what is started because of that makes the next one look smaller still."""
    if terms.cpus is not None:
        return terms.cpus
    if profile is not None:
        return max(1.0, round(profile.cores, 1))
    return 1.0


def should_probe(terms: Terms, rules: Rules, kind: Kind | None) -> bool:
    """Whether a short run comes before the real one: always, never, or where it costs next to nothing."""
    if kind is None or not kind.probes or terms.epochs is None:
        return False
    if rules.learn_only or rules.profile is Profiling.PROBE:
        return True
    return rules.profile is Profiling.AUTO and rules.profile_epochs <= terms.epochs * rules.probe_share


def promised_for(profile: Profile, rules: Rules) -> int:
    """A known peak as it is promised; full runs that agree are trusted with less on top."""
    if profile.settled(rules):
        return int(profile.peak * (1 + rules.tight_margin)) + rules.tight_margin_bytes
    return with_margin(profile.peak, rules)


def with_margin(peak: int, rules: Rules) -> int:
    """A peak with room for what the next run may take more."""
    return int(peak * (1 + rules.margin)) + rules.margin_bytes


def after_oom(promised: int, peak: int, rules: Rules) -> int:
    """The least to promise after an out-of-memory: half again what it was promised, and what it held when it ended."""
    return max(promised + promised // 2, with_margin(peak, rules), peak + peak // 2)


def grown(promise: Mapping[str, int], used: Mapping[str, int], rules: Rules) -> dict[str, int] | None:
    """The promise of a living attempt that was seen above it; None where it keeps to it."""
    above = {key: bytes_ for key, bytes_ in used.items() if bytes_ > promise.get(key, 0)}
    if not above:
        return None
    return {**promise, **{key: with_margin(bytes_, rules) for key, bytes_ in above.items()}}


def cut(promise: Mapping[str, int], peak: Mapping[str, int], rules: Rules) -> dict[str, int] | None:
    """The promise of an unknown attempt that has settled: its peak with the margin, never more than before."""
    if not all(peak.get(key, 0) > 0 for key in promise):
        return None
    return {key: min(bytes_, with_margin(peak[key], rules)) for key, bytes_ in promise.items()}


def is_new_peak(before: int, now: int, rules: Rules) -> bool:
    """Whether a sample is above the last peak by enough to matter."""
    if before == 0:
        return now > 0
    return now - before > rules.peak_step_bytes and now > before * (1 + rules.peak_step)
