"""Joins what a list would come to with the words for it: what starts now, what waits, when the rest does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from scheduler.core import explain
from scheduler.core.brain import Brain
from scheduler.core.forecast import Forecast
from scheduler.core.model import Budget, Decision, Job
from scheduler.values import dataclass
from scheduler.view import opening, planned
from scheduler.wiring.foreseeing import Sight, guesses, likely

MOST = 1000
"""So many ends are planned one by one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A list that was looked at as `run` would."""

    what: str
    brain: Brain
    decision: Decision
    jobs: Mapping[int, Job]
    """Of the first tasks."""
    budgets: Sequence[Budget]


def show(plan: Plan, hints: Sequence[str], out: TextIO, *, as_json: bool) -> None:
    """Tell it to people, or to a program."""
    bars, told, guessed = _timeline(plan)
    number = plan.brain.waiting
    if as_json:
        facts = {**_now(plan), **planned.facts(told, bars), "guessed": guessed, "hints": list(hints)}
        out.write(json.dumps(facts, indent=1) + "\n")
        return
    lines = opening.plan_lines(plan.what, plan.brain, plan.decision, plan.jobs)
    width = min(120, _columns(out))
    out.writelines(line + "\n" for line in [*lines, *planned.lines(told, bars, number, guessed, width), *hints])


def _timeline(plan: Plan) -> tuple[list[planned.Bar], Forecast, int]:
    now, guessed = time.time(), guesses(plan.brain)
    told, course = likely(plan.brain, Sight(plan.budgets), now, MOST)
    rows = {task: (job.spec.row, job.name) for task, job in plan.jobs.items()}
    labels = {budget.device.key: budget.device.label for budget in plan.budgets}
    return planned.bars(course, now, rows, labels) if course is not None else [], told, guessed


def _now(plan: Plan) -> dict[str, Any]:
    """What would start now, and why the next ones would wait."""
    jobs, brain = plan.jobs, plan.brain
    starts = [
        {"row": jobs[one.task].spec.row, "name": jobs[one.task].name, "promised": dict(one.promise)}
        for one in plan.decision.placements
        if one.task in jobs
    ]
    waits = [explain.why(refusal) for refusal in plan.decision.refusals]
    facts = {"format": 1, "file": plan.what, "tasks": len(brain.roll), "batches": brain.roll.batches}
    return {**facts, "starts": starts, "waits": waits}


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 100
