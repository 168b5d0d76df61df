"""Giving up a run for good, in one step, with or without a running scheduler."""

from __future__ import annotations

from scheduler.app.control import run_requests
from scheduler.app.control.targets import Target
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.control.request_kinds import RunRequest, Verb
from scheduler.core.model import LIVING
from scheduler.core.ports import Request
from scheduler.errors import StateError
from scheduler.runtime.settings import Settings
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import requests
from scheduler.store.run.catalog import RunInfo


def abandon(info: RunInfo, settings: Settings) -> tuple[int, int]:
    """Cancel all tasks of a run; return the number of running tasks, which are being stopped, and the number of the
    other cancelled tasks.

    If the run has no scheduler, one is started that cancels the tasks and ends. Raise StateError if the run's scheduler
    does not answer, Elsewhere for a run of another machine.
    """
    stopped = _living(info)
    result = run_requests.ask(Target(info), Verb.CANCEL)
    cancelled = sum(len(answer.tasks) for answer in result.answers if answer.done)
    if result.recorded:
        if cancelled:
            _take_over(info, settings)
    elif requests.ask(info.places, Request(RunRequest.DRAIN)) is None and is_locked(info.places.root):
        raise StateError(f"the scheduler of run {info.number} has not answered: scheduler list r{info.number} shows it")
    return min(stopped, cancelled), max(0, cancelled - stopped)


def _living(info: RunInfo) -> int:
    """Return the number of running tasks according to the journal."""
    reader = RunReader(info, only_states=True)
    try:
        return sum(reader.brain.state_counts[state] for state in LIVING)
    finally:
        reader.close()


def _take_over(info: RunInfo, settings: Settings) -> None:
    """Start a scheduler in the background, which carries out the recorded requests and starts nothing."""
    from scheduler.app.run import detach
    from scheduler.app.run.options import ResumeOptions

    started = detach.resume(info, settings, ResumeOptions(drain=True))
    if started.trouble:
        raise detach.as_error(started)
