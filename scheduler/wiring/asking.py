"""Joins what is needed to ask something of a run: of its scheduler where one lives, of the next one where none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import field

from scheduler.core.ports import Answer, Request
from scheduler.errors import Elsewhere, StateError
from scheduler.store import requests
from scheduler.store.locks import is_locked
from scheduler.store.runs import RunInfo
from scheduler.values import dataclass
from scheduler.wiring.addressing import Target
from scheduler.wiring.reading import Telling

PATIENCE = 5.0
"""Seconds in which a living scheduler has to answer."""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of what was asked of one run."""

    info: RunInfo
    answers: Sequence[Answer] = field(default_factory=tuple)
    recorded: bool = False
    """Whether the run has no scheduler, so that it is done when it is resumed."""

    @property
    def done(self) -> bool:
        """Whether all of it was, or will be."""
        return bool(self.answers) and all(answer.done for answer in self.answers)


def ask(target: Target, what: str, said: Mapping[str, str] | None = None) -> Told:
    """Ask for something and wait until it is durable; raises StateError, Elsewhere."""
    info, request = target.info, Request(what, target.tasks, said or {})
    if info.elsewhere:
        raise Elsewhere(f"run {info.number} belongs to {info.elsewhere}: ask for it there; nothing was changed")
    if not is_locked(info.places.lock):
        return _record(info, request)
    answers = requests.ask(info.places, request, PATIENCE)
    if answers is not None:
        return Told(info, answers)
    if is_locked(info.places.lock):
        raise StateError(
            f"the scheduler of run {info.number} has not answered for {PATIENCE:g} s: it does what was asked once it "
            f"goes on, or scheduler resume {info.number} does where it has ended"
        )
    return Told(info, _foreseen(info, request, requests.pending(info.places)[:-1]), recorded=True)


def _record(info: RunInfo, request: Request) -> Told:
    """Leave it to the next scheduler of the run, where there is anything to do."""
    answers = _foreseen(info, request, requests.pending(info.places))
    if any(answer.done for answer in answers):
        requests.leave(info.places, request)
    return Told(info, answers, recorded=True)


def _foreseen(info: RunInfo, request: Request, before: Sequence[Request]) -> Sequence[Answer]:
    """What the next scheduler will answer, as far as the journal tells."""
    with closing(Telling(info, only_states=True)) as telling:
        telling.asked_meanwhile(before)
        return telling.grant(request).answers
