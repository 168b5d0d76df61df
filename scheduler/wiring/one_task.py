"""Joins what makes one job go: accepted like any list, seen as if it had been started here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.core.model import LIVING, Refusal, State
from scheduler.core.orders import APART
from scheduler.errors import SchedulerError
from scheduler.settings import Settings
from scheduler.values import dataclass
from scheduler.wiring import starting
from scheduler.wiring.choices import Choices
from scheduler.wiring.listing import Listing

if TYPE_CHECKING:
    from scheduler.core.ports import View
    from scheduler.wiring.running import Session

QUIT = 3
UNKNOWN_END = 1


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a job: enough for an exit code and a last word."""

    number: int
    task: int
    state: State
    code: int | None
    signal: int
    """That ended its scheduler; 0: none."""
    began: float | None = None
    ended: float | None = None
    log: Path = Path()

    @property
    def exit_code(self) -> int:
        """The task's own; 128 and the signal's number where that stopped it, or kept it from starting."""
        if self.state is State.SUCCEEDED:
            return 0
        stopped = self.signal and self.state not in (State.FAILED, State.OOM, State.TIMEOUT)
        if stopped:
            return 128 + self.signal
        return self.code or UNKNOWN_END


def streams_differ() -> bool:
    """Whether what goes to standard output and to standard error here goes to two places."""
    try:
        out, err = os.fstat(1), os.fstat(2)
    except OSError:
        return False
    return (out.st_dev, out.st_ino, out.st_rdev) != (err.st_dev, err.st_ino, err.st_rdev)


def run(
    listing: Listing,
    choices: Choices,
    settings: Settings,
    python: str,
    dress: Callable[[Session, int], Callable[[View], View]],
) -> Done:
    """Accept a job and run it to its end; nothing is left of one that never started."""
    session = starting.begin(listing, choices, settings, python)
    assert session is not None, "a listing of one row has one"
    (task,) = session.brain.roll
    try:
        for note in session.devices.notes:
            hint(note)
        ended = session.go(None, session.first_words(), dress(session, task))
        done = _done(session, task, ended.signal)
    finally:
        session.close()
    if done.code is None and done.signal and done.signal != QUIT and done.state is State.WAITING:
        from scheduler.store.removing import remove
        from scheduler.wiring.reading import places

        with contextlib.suppress(SchedulerError):  # then it stays, and `scheduler runs` shows it
            remove(places(settings), done.number, lambda: None)
    return done


def _done(session: Session, task: int, signal: int) -> Done:
    story = session.fold.stories.get(task)
    last = story.attempts[-1] if story and story.attempts else None
    state = session.brain.state(task)
    code = None
    if last is not None and state not in LIVING:
        code = last.code if last.signal is None else 128 + last.signal
    log = session.places.task_log(task, last.number if last else 1)
    began, ended = (last.started, last.ended) if last else (None, None)
    return Done(session.number, task, state, code, signal, began, ended, log)


def hint(text: str) -> None:
    """On standard error."""
    from scheduler.view.sink import hint as shown

    shown(text)


def waits_for(session: Session) -> Callable[[Refusal], str]:
    """Who holds what a job waits for, and for about how long."""
    from scheduler.view.holders import waiting_words
    from scheduler.wiring.holders import holders, others_before

    keys = {device.label: device.key for device in session.devices.discover()}
    keys["host RAM"] = keys.get("host", "host")

    def words(refusal: Refusal) -> str:
        if not refusal.device:
            return ""
        key = keys.get(refusal.device, refusal.device)
        found = [holder for holder in holders(session.settings) if key in holder.promised]
        before = others_before(session.settings, session.meta["token"], key)
        return waiting_words(refusal.device, found, before)

    return words


def plain_dress(session: Session, task: int) -> Callable[[View], View]:
    """The view of `exec`."""
    from scheduler.view.one_task import OneTaskView

    return lambda inner: OneTaskView(inner, files(session, task), waits_for(session), session.brain.state)


def files(session: Session, task: int) -> Callable[[int, int], dict[Path, int]]:
    """Where an attempt's output and errors lie, each with the stream here that it goes to; what a file takes: none."""
    spec = session.book.job(task).spec
    out = {} if spec.stdout else {session.places.task_log: 1}
    if spec.stdout and not spec.stderr:
        out = {session.places.task_log: 2}
    if spec.stderr == APART:
        out[session.places.task_errors] = 2
    return lambda number, attempt: {path(number, attempt): fd for path, fd in out.items()}
