"""Tasks on a machine with GPUs that use none: how they are recognised, and what they request then."""

from __future__ import annotations

from scheduler.core.config import SchedulingConfig
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, Profiling, Terms
from scheduler.core.profiling.profile_index import PredictedPeak, Profile, main_parts


def may_leave_its_gpus(terms: Terms, rules: SchedulingConfig) -> bool:
    """Tell whether a task that uses no GPU may run without a reserved one: neither its row nor its run requests one."""
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
    """Tell whether a task that would get this many GPUs is known to use none: its class, or similar classes, used none.

    A task that ran out of memory on a GPU uses it.
    """
    if not gpus or not may_leave_its_gpus(terms, rules):
        return False
    if tried is not None and any(part != HOST for part in tried.floors):
        return False
    if profile.knows(gpus):
        return profile.is_without(gpus)
    return guess is not None and all(guess.peaks.get(part) == 0 for part in main_parts(gpus))
