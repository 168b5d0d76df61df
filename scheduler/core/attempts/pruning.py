"""The early stop of tasks: which living attempts are stopped, by their own metrics or in comparison with other tasks.

`--keep-best` is successive halving in the form of ASHA: no task waits for others at a step. A task that reaches a step
is compared with all tasks that reached that step before it, and goes on if it is in the best fraction of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from scheduler.core.events import Pruned, Reached
from scheduler.core.metrics.goal import Goal, loose
from scheduler.core.metrics.stop_rules import IS_NAN, KeepBest, StopRule
from scheduler.core.model import Purpose

if TYPE_CHECKING:
    from scheduler.core.brain import Brain
    from scheduler.core.lifecycle import TaskState
    from scheduler.core.ports import Key, Sample, StepReading


def place(values: Iterable[float | None], value: float | None, goal: Goal) -> int:
    """Return the place of a value among others: the best has place 1, equal values share a place, and None comes
    last.
    """
    others = list(values)
    if value is None:
        return len(others) + 1
    return 1 + sum(other is not None and (other < value if goal is Goal.MIN else other > value) for other in others)


def admitted(number: int, share: float) -> int:
    """Return how many of `number` tasks go on: the fraction `share` of them, rounded up."""
    return math.ceil(number * share - 1e-9)


class PruningJudge:
    """The judge of a run's attempts by their metrics. Its verdicts become events."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._best: dict[Key, float] = {}
        """For each attempt, the best value that it has had so far of the metric of `--keep-best`."""
        self._probes: set[Key] = set()
        """The attempts that are probes, which are not judged."""

    def sampled(self, sample: Sample) -> Sequence[Reached | Pruned]:
        """Return the events that follow from the new readings in a sample: the steps that were reached, and the early
        stop.
        """
        key = (sample.task, sample.attempt)
        task = self._living(key)
        if task is not None and task.placement is not None and task.placement.purpose is Purpose.PROBE:
            self._probes.add(key)
        found: list[Reached | Pruned] = []
        if sample.readings and key not in self._probes:
            found = self._judged(key, sample.readings, may_end=self._may_end(task))
        if sample.ended:
            self._best.pop(key, None)
            self._probes.discard(key)
        return found

    def _living(self, key: Key) -> TaskState | None:
        task = self._brain.task(key[0])
        return task if task is not None and task.placement is not None and task.attempts == key[1] else None

    def _may_end(self, task: TaskState | None) -> bool:
        return task is not None and not task.asked and not self._brain.pruning.is_spared(task.id)

    def _judged(self, key: Key, readings: Sequence[StepReading], *, may_end: bool) -> list[Reached | Pruned]:
        found: list[Reached | Pruned] = []
        rules = self._brain.rules
        for name, value, step in readings:
            why = next((why for rule in rules.stop_when if (why := _broken(rule, name, value, step))), "")
            if rules.keep_best is not None and loose(name) == loose(rules.keep_best.metric):
                reached, fell = self._compared(key, rules.keep_best, value, step)
                found += reached
                why = why or fell
            if why and may_end:
                return [*found, Pruned(*key, why)]
        return found

    def _compared(self, key: Key, rule: KeepBest, value: float, step: float) -> tuple[list[Reached], str]:
        """Return the steps that a task has reached, and why it is stopped at one of them; the reason is empty if it
        goes on.
        """
        best = self._best.get(key)
        if math.isfinite(value) and (best is None or rule.is_better(value, best)):
            best = self._best[key] = value
        found, why = [], ""
        for at in rule.steps:
            others = self._brain.pruning.at(at)
            if at > step or key[0] in others:
                continue
            found.append(Reached(key[0], at, best))
            if not why:
                why = _fell_out(rule, at, best, others.values())
        return found, why


def _broken(rule: StopRule, name: str, value: float, step: float) -> str:
    """Return why a value meets a stop rule, in words for users; empty if it does not meet the rule."""
    if loose(name) != loose(rule.metric) or not rule.is_met(value, step):
        return ""
    where = f"at step {step:g}"
    if rule.sign == IS_NAN:
        return f"{rule.metric} is {value:g} {where}"
    return f"{rule.metric} {value:g} {rule.sign} {rule.bound:g} {where}"


def _fell_out(rule: KeepBest, at: float, value: float | None, others: Collection[float | None]) -> str:
    """Return why a value is not in the best fraction at a step, in words for users; empty if it is."""
    if value is None:
        return f"{rule.metric} has no number at step {at:g}"
    number = len(others) + 1
    most, rank = admitted(number, rule.share), place(others, value, rule.goal)
    if rank <= most:
        return ""
    go_on = f"the best {most} go on" if most > 1 else "the best one goes on"
    return f"{rule.metric} {value:g} at step {at:g} is place {rank} of {number} so far, and {go_on}"
