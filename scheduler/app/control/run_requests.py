"""Requests to a run, which its scheduler answers, or which are recorded for its next scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from scheduler.app.control.targets import Target
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.ports import Answer, Request
from scheduler.errors import Elsewhere, StateError
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import requests
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.verbs.answers import RequestResult

PATIENCE = 5.0
"""Seconds to wait for the answer of a running scheduler."""


def ask(target: Target, what: str, said: Mapping[str, str] | None = None) -> RequestResult:
    """Send a request and wait until it is durable; raise StateError if the scheduler does not answer, Elsewhere for a
    run of another machine.
    """
    info, request = target.info, Request(what, target.tasks, said or {})
    if info.elsewhere:
        raise Elsewhere(f"run {info.number} belongs to {info.elsewhere}: ask for it there; nothing was changed")
    if not is_locked(info.places.root):
        return _record(info, request)
    answers = requests.ask(info.places, request, PATIENCE)
    if answers is not None:
        return RequestResult(info.number, info.what, answers)
    if is_locked(info.places.root):
        raise StateError(
            f"the scheduler of run {info.number} has not answered for {PATIENCE:g} s: it carries out the "
            f"request when it continues; if it has ended, scheduler resume r{info.number} carries it out"
        )
    answers = _foreseen(info, request, requests.pending(info.places)[:-1])
    return RequestResult(info.number, info.what, answers, recorded=True)


def _record(info: RunInfo, request: Request) -> RequestResult:
    """Record a request for the next scheduler of the run, if the request would change anything."""
    answers = _foreseen(info, request, requests.pending(info.places))
    if any(answer.done for answer in answers):
        requests.leave(info.places, request)
    return RequestResult(info.number, info.what, answers, recorded=True)


def _foreseen(info: RunInfo, request: Request, before: Sequence[Request]) -> Sequence[Answer]:
    """Return the answers that the next scheduler will probably give, according to the journal."""
    with closing(RunReader(info, only_states=True)) as reader:
        reader.asked_meanwhile(before)
        return reader.grant(request).answers
