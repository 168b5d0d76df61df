"""`run --dry-run`: shows which tasks of a list would start now, which would wait, and when they would start."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from scheduler.app.observe.run_facts import places
from scheduler.app.queue.parent_runs import ParentRuns
from scheduler.app.run.admission import Check, Screen, check_sequential, checker, launcher_screen
from scheduler.app.run.devices import check_slots, find_run_devices, limit_memory
from scheduler.app.run.options import RunOptions, ranked, rules
from scheduler.app.run.previous_runs import PreviousRuns, RerunOptions
from scheduler.app.run.shell_context import shell_of_new_run
from scheduler.app.run.start import class_finder, previous_runs_of, profile_index
from scheduler.app.run.task_list import TaskList, batches
from scheduler.core.brain import Brain
from scheduler.core.control.start_clock import later_sentences
from scheduler.core.events import Observed, Submitted
from scheduler.core.model import UNFINISHED, Decision, DeviceBudget, Job, Machine, Spec, State, Terms
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.queue.start_gate import StartGate
from scheduler.core.reporting.eta import forecast
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.reporting.schedule import MachineSnapshot
from scheduler.core.tasks import command
from scheduler.core.tasks.after import whole_run
from scheduler.core.tasks.list_dependencies import ListDependencies
from scheduler.errors import SameList
from scheduler.runtime import clock
from scheduler.runtime.settings import YES, Settings
from scheduler.ui.terminal import opening
from scheduler.ui.verbs import dry_run
from scheduler.units import count
from scheduler.values import dataclass, replace

if TYPE_CHECKING:
    from scheduler.app.run.devices import RunDevices

MOST_TASKS, MOST_TRIES = 1000, 20_000
"""The most tasks that are planned one by one, and the most times that placing a task is tried; both take under a
second."""
MOST_JOBS = 1000
"""The most tasks of a plan whose class is determined."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A list as `run` would see it, and its first decision."""

    what: str
    brain: Brain
    decision: Decision
    jobs: Mapping[int, Job]
    """The first tasks by id."""
    budgets: Sequence[DeviceBudget]


def plan(
    listing: TaskList,
    options: RunOptions,
    settings: Settings,
    rerun: RerunOptions,
    out: TextIO,
    *,
    as_json: bool,
) -> int:
    """Check a whole list, and show which tasks would start now and when the others would; accept and start nothing."""
    settings = ranked(settings, listing.form.known)
    check_slots(options)
    check_sequential(options, settings)
    previous = previous_runs_of(listing, options, settings, rerun)
    previous.look_back()
    pool, mps = _find_devices(options, settings)
    budgets = pool.snapshot()
    pool.close()
    home, programs = places(settings), shell_of_new_run(settings).programs
    finder = (
        class_finder(home, programs, os.getcwd(), pool) if home.profiles.exists() else None
    )  # a plan creates no state directory
    known = finder.profiles.known() if finder is not None else {}
    brain = Brain(rules(options, settings, mps=mps), knowledge=profile_index(known, settings))
    check = checker(listing.what, budgets, brain.rules, listing.form)
    listing.form.adapts = settings.launcher_args == YES
    screen = launcher_screen(listing.what, pool.usual, budgets)
    jobs = _submit(listing, brain, settings.num, previous, check, screen, ParentRuns(settings))
    for event in previous.events(1):
        brain.apply(event)
    due = brain.dependencies.due(clock.wall())
    for moved in due:
        brain.apply(moved)
    for task, job in jobs.items():
        brain.assign(task, finder.of(job) if finder is not None else TaskClass(f"row {task}", job.name, probes=False))
    made = Plan(listing.what, brain, _first_decision(brain, Machine(clock.now(), budgets)), jobs, budgets)
    times = later_sentences(due, brain.dependencies.begins, clock.wall())
    held = brain.task_table.counts[State.HELD]
    stays = [f"{count(held, 'task')} would be held until scheduler release"] if held else []
    hints = [f"hint:   {hint}" for hint in (*listing.warnings(), *previous.words(), *times, *stays)]
    _show(made, [*hints, *opening.priority_hints(brain), *_would_refuse(previous)], out, as_json=as_json)
    return 0


def _first_decision(brain: Brain, machine: Machine) -> Decision:
    """Return the decision about what would start now; outside of the window of the run, nothing starts."""
    shut = StartGate().look(brain.rules, clock.wall()).refusal
    first = brain.wait_queue.walk().front()
    if shut is None or first is None:
        return brain.decide(machine)
    return Decision(refusals=(replace(shut, task=first),))


def _find_devices(options: RunOptions, settings: Settings) -> tuple[RunDevices, bool]:
    """Return the devices, and whether tasks on them would run under MPS."""
    from scheduler.app.run.mps_setup import could_share
    from scheduler.devices.pool import DevicePool

    pool = find_run_devices(options, settings)
    if not isinstance(pool, DevicePool):
        return pool, False
    try:
        limit_memory(pool, options)
        return pool, could_share(pool, options, settings)
    except BaseException:
        pool.close()
        raise


def _submit(
    listing: TaskList, brain: Brain, num: int, previous: PreviousRuns, check: Check, screen: Screen, others: ParentRuns
) -> dict[int, Job]:
    """Check all rows and apply them to the Brain; return the first MOST_JOBS tasks by id."""
    found, first, numbers = dict[int, tuple[Spec, int]](), 1, dict[Terms, int]()
    dependencies = ListDependencies(listing.form)
    split = dependencies.noting(previous.noting(screen(listing.form, batches(listing.rows, num)), listing.form))
    for batch, rows in enumerate(split, 1):
        numbered = []
        for offset, (row, cells, terms, nth) in enumerate(rows):
            if terms not in numbers:
                check(terms, row)
                numbers[terms] = len(brain.terms)
                brain.terms.append(terms)
            numbered.append(numbers[terms])
            if first + offset <= MOST_JOBS:
                found[first + offset] = listing.form.spec(cells, row), nth
        brain.apply(Submitted(batch, first, numbered))
        first += len(numbered)
    _depend(dependencies, listing.what, brain, others)
    varies, append = command.varying_of(spec for spec, _ in found.values()), listing.form.append
    return {
        task: Job(spec, command.name(spec, varies=varies), command.key(spec, nth), append)
        for task, (spec, nth) in found.items()
    }


def _depend(dependencies: ListDependencies, what: str, brain: Brain, others: ParentRuns) -> None:
    """Block the tasks that depend on others.

    The ids of a plan begin with 1, so a task id from another run could be mistaken for an id of the plan. A parent in
    another run is therefore replaced by its whole run; if it has ended, it is left out.
    """
    dependencies.resolve(others, what)
    known = dependencies.known()
    unfinished = {parent for seen in others.seen(known) if seen.state in UNFINISHED for parent in seen.parents}
    shown = {parent: whole_run(others.run_of(parent)) for parent in unfinished}
    brain.apply(Observed(tuple(shown.values()), State.WAITING))
    for event in dependencies.events(1):
        after, ended = (
            tuple({shown.get(parent, parent): None for parent in parents if parent in shown or parent not in known})
            for parents in (event.after, event.ended)
        )
        if after or ended:
            brain.apply(replace(event, after=after, ended=ended))


def _would_refuse(previous: PreviousRuns) -> list[str]:
    """Return a line that says why the list could not start now; an empty list if it could."""
    try:
        previous.refuse()
    except SameList as exc:
        return [f"would be refused: {exc}"]
    return []


def _show(plan: Plan, hints: Sequence[str], out: TextIO, *, as_json: bool) -> None:
    """Write the plan as text or JSON."""
    bars, told, guessed = _timeline(plan)
    number = plan.brain.waiting
    if as_json:
        facts = {**_now(plan), **dry_run.facts(told, bars), "guessed": guessed, "hints": list(hints)}
        out.write(json.dumps(facts, indent=1) + "\n")
        return
    lines = opening.plan_lines(plan.what, plan.brain, plan.decision, plan.jobs, plan.budgets)
    width = min(120, _columns(out))
    out.writelines(line + "\n" for line in [*lines, *dry_run.lines(told, bars, number, guessed, width), *hints])


def _timeline(plan: Plan) -> tuple[list[dry_run.PlannedBar], Forecast, int]:
    now, guessed = time.time(), _count_guessed(plan.brain)
    told = forecast(plan.brain, MachineSnapshot(plan.budgets), now, MOST_TASKS, MOST_TRIES)
    rows = {task: (job.spec.row, job.name) for task, job in plan.jobs.items()}
    labels = {budget.device.key: budget.device.label for budget in plan.budgets}
    return dry_run.bars(told, rows, labels), told, guessed


def _now(plan: Plan) -> dict[str, Any]:
    """Return which tasks would start now, and why the next ones would wait."""
    jobs, brain = plan.jobs, plan.brain
    starts = [
        {
            "row": jobs[one.task].spec.row,
            "name": jobs[one.task].name,
            "reserved": dict(one.reservation),
            "source": one.source,
        }
        for one in plan.decision.placements
        if one.task in jobs
    ]
    waits = [
        {"row": job.spec.row, "name": job.name, "why": why}
        for job, why in opening.waits_by_row(plan.decision.refusals, jobs)
    ]
    facts = {"format": 1, "file": plan.what, "tasks": len(brain.task_table), "batches": brain.task_table.batches}
    return {**facts, "starts": starts, "waits": waits}


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 100


def _count_guessed(brain: Brain) -> int:
    """Return the number of waiting tasks whose duration is estimated from other task classes."""
    return sum(
        len(group)
        for (terms, number, _), group in brain.wait_queue.grouped()
        if not brain.profiles.expected(number, brain.terms[terms].epochs)
    )
