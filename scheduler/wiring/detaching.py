"""Joins what makes a run go on without a terminal, and what is said of it to whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING

from scheduler.errors import SchedulerError, of_the_system
from scheduler.processes import leave_terminal, start_copy, wait_for
from scheduler.settings import Settings
from scheduler.store.requests import pending
from scheduler.store.runs import RunInfo
from scheduler.values import dataclass
from scheduler.wiring import reading
from scheduler.wiring.choices import Resuming
from scheduler.wiring.starting import take_over

if TYPE_CHECKING:
    from scheduler.wiring.running import Session


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a start without a terminal, as far as its starter waits for it."""

    pid: int
    number: int = 0
    """Of the run; 0: there is none, and `trouble` says why, or the list was empty."""
    what: str = ""
    tasks: int = 0
    first: int = 0
    """The id of the first of them."""
    log: str = ""
    hints: Sequence[str] = field(default_factory=tuple)
    trouble: str = ""
    exit_code: int = 0


def detach(
    begin: Callable[[], tuple[Session | None, Sequence[str]]], words: Callable[[Session], Sequence[str]]
) -> Told:
    """Begin a run in a process of its own, which goes on without this terminal; returns once the run is durable.

    Until then Ctrl-C and a closed terminal end it like any other start. Raises SchedulerError where it cannot start.
    """
    pid, tells = start_copy(lambda fd: _lead(fd, begin, words))
    with os.fdopen(tells, encoding="utf-8") as told:
        said = told.read()
    if said:
        return Told(**json.loads(said))
    code = wait_for(pid)
    return Told(pid, trouble=f"the new scheduler ended before it had accepted anything (exit {code})", exit_code=1)


def resume(info: RunInfo, settings: Settings, how: Resuming) -> Told:
    """Take a run over in a process of its own that has no terminal."""

    def begin() -> tuple[Session | None, Sequence[str]]:
        session = take_over(info, settings, how)
        return session, session.notes()

    return detach(begin, lambda session: session.resuming_words())


def resume_all(settings: Settings, how: Resuming) -> Iterator[Told]:
    """Do that with every unfinished run of this machine, oldest first; `trouble` says why one was left as it is."""
    for info in reversed(reading.all_runs(settings)):
        if reading.telling_facts(info)["over"] and not pending(info.places):
            continue
        left = f"belongs to {info.elsewhere}" if info.elsewhere else "is alive" if info.alive else ""
        told = Told(0, trouble=f"{left}: left as it is") if left else resume(info, settings, how)
        yield replace(told, number=info.number, what=info.what)


def _lead(
    fd: int, begin: Callable[[], tuple[Session | None, Sequence[str]]], words: Callable[[Session], Sequence[str]]
) -> int:
    """What the new process does, from the first row to the last task; its exit code."""
    with os.fdopen(fd, "w", encoding="utf-8") as starter:
        try:
            session, hints = begin()
        except (SchedulerError, OSError) as exc:
            trouble = of_the_system(exc) if isinstance(exc, OSError) else str(exc)
            told = Told(os.getpid(), trouble=trouble, exit_code=getattr(exc, "exit_code", 1))
            session = None
        except KeyboardInterrupt:
            return 130
        else:
            told = _told(session, hints)
        if session is not None:
            leave_terminal(session.places.log)
        with contextlib.suppress(OSError):  # the starter was killed: what is accepted runs all the same
            starter.write(json.dumps(asdict(told)))
            starter.flush()
    return told.exit_code if session is None else _go(session, words)


def _told(session: Session | None, hints: Sequence[str]) -> Told:
    if session is None:
        return Told(os.getpid(), hints=hints)
    roll = session.brain.roll
    log = str(session.places.log)
    first = min(roll, default=0)
    return Told(os.getpid(), session.number, session.meta["file"], len(roll), first, log, [*hints, *logging_out()])


def _go(session: Session, words: Callable[[Session], Sequence[str]]) -> int:
    session.detached = True
    try:
        return session.go(None, words(session)).exit_code
    finally:
        session.close()


def logging_out() -> list[str]:
    """A sentence where logging out ends what is started here, with its cure."""
    from scheduler.devices.surroundings import login
    from scheduler.people import user_name
    from scheduler.view.detached import logging_out_hint

    user = user_name(os.getuid())
    place = login(user)
    return [logging_out_hint(place.unit, place.source, user, session=place.is_session)] if place.ends_us else []


def as_error(told: Told) -> SchedulerError:
    """What kept it from starting, as if it had happened in this process."""
    error = SchedulerError(told.trouble)
    error.exit_code = told.exit_code
    return error


def show(told: Told, *, as_json: bool) -> int:
    """Say what was started, how to watch and how to stop it; the exit code. Raises what kept it from starting."""
    from scheduler.view import detached

    if told.trouble:
        raise as_error(told)
    detached.hints(told.hints)
    if as_json:
        facts = {"format": 1, "run": told.number, "pid": told.pid, "tasks": told.tasks, "log": told.log}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in detached.lines(told))
    return 0
