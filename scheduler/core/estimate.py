"""From what is known of a task to what it is promised: declarations, growth after an out-of-memory."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.lifecycle import Task
from scheduler.core.model import KnownBy, Terms
from scheduler.core.packing import Need, declared
from scheduler.core.rules import Rules


def need(terms: Terms, task: Task | None, rules: Rules) -> Need:
    """What the task asks for now."""
    cores = terms.cpus if terms.cpus is not None else 1.0
    said = declared(terms)
    known_by = KnownBy.DECLARED if said is not None else KnownBy.LIVE
    alone = terms.exclusive
    if task is not None and task.floor:
        alone = alone or task.ooms >= rules.max_ooms
        return Need(max(said or 0, task.floor), cores, known_by, alone)
    return Need(said, cores, known_by, alone)


def with_margin(peak: int, rules: Rules) -> int:
    """A peak as it is promised: room for what the next run may take more."""
    return int(peak * (1 + rules.margin)) + rules.margin_bytes


def after_oom(promised: int, peak: int, rules: Rules) -> int:
    """The least to promise after an out-of-memory: what it held with the margin, and half again what was promised."""
    return max(with_margin(peak, rules), promised + promised // 2)


def grown(promise: Mapping[str, int], used: Mapping[str, int], rules: Rules) -> dict[str, int] | None:
    """The promise of a living attempt that was seen above it; None where it keeps to it."""
    above = {key: bytes_ for key, bytes_ in used.items() if bytes_ > promise.get(key, 0)}
    if not above:
        return None
    return {**promise, **{key: with_margin(bytes_, rules) for key, bytes_ in above.items()}}


def is_new_peak(before: int, now: int, rules: Rules) -> bool:
    """Whether a sample is above the last peak by enough to be worth a journal row."""
    if before == 0:
        return now > 0
    return now - before > min(rules.peak_step_bytes, max(1, before)) and now > before * (1 + rules.peak_step)
