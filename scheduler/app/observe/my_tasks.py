"""This user's unfinished and recently ended tasks on this machine, by run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scheduler.app.observe import run_facts
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.observe.status_snapshot import pause_of
from scheduler.core.brain import Brain
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.metrics.ranking import known_column, metrics_of, sorted_by
from scheduler.core.model import LIVING, UNFINISHED, State
from scheduler.core.queue.start_gate import StartGate
from scheduler.core.reporting.forecast import Forecast
from scheduler.errors import SchedulerError
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.run.requests import pending
from scheduler.ui.verbs.eta import of_pause, with_expected
from scheduler.units import ranges
from scheduler.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of a listing: which tasks of each run are listed, and how many."""

    states: frozenset[State] | None = None
    since: float = 0.0
    """The time before which ended tasks are left out."""
    limit: int | None = None
    secrets: bool = False
    brief: bool = False
    """True for rows without commands and keys, which take the most time to make."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """The listed tasks of one run."""

    info: RunInfo
    facts: Mapping[str, Any]
    forecast: Forecast | None
    rows: Sequence[Mapping[str, Any]]
    left_out: int
    """The number of tasks that match and are beyond the limit."""
    dead: bool
    """True if the run has unfinished tasks on this machine but no scheduler."""
    varies: Sequence[str] = ()
    """The columns of the parameters that vary in the run's list."""
    metrics: Sequence[str] = ()
    """The metrics of the listed tasks, the most important ones first."""
    pause: str = ""
    """A phrase that says that the run's scheduler is running but starts nothing, and until when; empty if tasks may
    start."""
    recorded: Sequence[str] = ()
    """The requests that the run's next scheduler will carry out, such as `retry 17`."""


def my_runs(settings: Settings, options: ListOptions) -> Iterator[ListedRun]:
    """Yield the runs that have tasks to list, newest first; a run that cannot be read is left out."""
    catalog = RunCatalog(run_facts.places(settings))
    for number in reversed(catalog.numbers()):
        with contextlib.suppress(SchedulerError):
            listed = _listed_if_recent(catalog, number, options)
            if listed is not None and listed.rows:
                yield listed


def _listed_if_recent(catalog: RunCatalog, number: int, options: ListOptions) -> ListedRun | None:
    """Return the tasks of one run; None if the run was over before `options.since`."""
    info, journal = catalog.look(number)
    with contextlib.closing(journal) if journal is not None else contextlib.nullcontext():
        facts = run_facts.facts_in(info, journal)
        if facts["over"] and facts["ended"] < options.since and not recorded_requests(info):
            return None
        return listed_run(info, options, journal)


def listed_run(info: RunInfo, options: ListOptions, journal: JournalReader | None = None) -> ListedRun:
    """Return the tasks of one run, from `journal`, its open journal, if that is given. Raise StateError if the journal
    cannot be read.
    """
    reader = RunReader(info, journal)
    try:
        forecast = run_facts.forecast_with(info, reader.brain)
        found, left_out = _listed_tasks(reader, options)
        shown = reader.rows_of(found, secrets=options.secrets, brief=options.brief)
        rows: Sequence[Mapping[str, Any]] = list(with_expected(shown, forecast))
        metrics = metrics_of(rows, reader.metric_names)
        facts, dead, varies = reader.run_facts(), reader.dead, reader.varies
        pause = _pause(reader.brain) if info.alive else ""
        recorded = () if info.alive else recorded_requests(info)
        return ListedRun(info, facts, forecast, rows, left_out, dead, varies, metrics, pause, recorded)
    finally:
        reader.close()


def _pause(brain: Brain) -> str:
    """Return a phrase that says that a paused run, or one outside of its window, starts nothing, and until when."""
    now = time.time()
    if paused := of_pause(pause_of(brain), now):
        return paused
    shut = StartGate().look(brain.rules, now).refusal
    return f"starts nothing before {shut.text} (window {brain.rules.window})" if shut else ""


def recorded_requests(info: RunInfo) -> Sequence[str]:
    """Return the requests that wait for the next scheduler of a run, in words."""
    return [
        " ".join(one.said) if one.what == RunRequest.LIMIT else f"{one.what} {ranges(one.tasks) or f'r{info.number}'}"
        for one in pending(info.places)
    ]


def sorted_runs(runs: Sequence[ListedRun], column: str, *, down: bool, limit: int | None) -> list[ListedRun]:
    """Return the runs, each with its first `limit` tasks in the order of a column; raise UsageError if no task has that
    column.
    """
    name = known_column(column, (row for run in runs for row in run.rows))
    found = []
    for run in runs:
        rows = sorted_by(run.rows, name, down=down) if any(name in row for row in run.rows) else run.rows
        found.append(replace(run, rows=rows[:limit], left_out=len(rows) - len(rows[:limit])))
    return found


def _listed_tasks(reader: RunReader, options: ListOptions) -> tuple[list[int], int]:
    """Return the tasks that are listed, by id, and how many more match.

    If there are too many, list running tasks first, then waiting ones, then those that ended last. Only states and
    times of tasks are examined, not their rows, because a queue may have 100,000 tasks.
    """
    table, states = reader.brain.task_table, frozenset(State) if options.states is None else options.states
    tasks = [*table.in_state(*(states & LIVING)), *table.in_state(*(states & UNFINISHED - LIVING))]
    ended = {task: reader.ended_at(task) for task in table.in_state(*(states - UNFINISHED))}
    recent = [task for task, at in ended.items() if at is None or at >= options.since]
    tasks += sorted(recent, key=lambda task: -(ended[task] or 0.0))
    shown = tasks if options.limit is None else tasks[: options.limit]
    return sorted(shown), len(tasks) - len(shown)
