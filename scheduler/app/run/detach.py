"""Runs in the background: starting or resuming them in a process without a terminal, and the lines about them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from scheduler.app.observe import run_facts
from scheduler.app.run.options import ResumeOptions
from scheduler.app.run.resume import take_over
from scheduler.app.run.run_loop import run_to_end
from scheduler.errors import SchedulerError, describe_os_error
from scheduler.runtime.processes import leave_terminal, start_copy, wait_for
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.requests import pending
from scheduler.ui.terminal import detached
from scheduler.ui.terminal.detached import DetachedStart
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession


def detach(begin: Callable[[], tuple[RunSession | None, Sequence[str]]]) -> DetachedStart:
    """Begin a run in a new process that outlives this terminal; return when the run is durable.

    Until then, Ctrl-C or a closed terminal ends the run, as at any other start. Raise SchedulerError if the run cannot
    start.
    """
    pid, tells = start_copy(lambda fd: _lead(fd, begin))
    with os.fdopen(tells, encoding="utf-8") as pipe:
        text = pipe.read()
    if text:
        return DetachedStart.from_dict(json.loads(text))
    code = wait_for(pid)
    return DetachedStart(
        pid, trouble=f"the new scheduler ended before it had accepted anything (exit {code})", exit_code=1
    )


def resume(info: RunInfo, settings: Settings, how: ResumeOptions) -> DetachedStart:
    """Take over a run in a process of its own without a terminal."""

    def begin() -> tuple[RunSession | None, Sequence[str]]:
        session = take_over(info, settings, how)
        return session, session.notes

    return detach(begin)


def resume_all(settings: Settings, how: ResumeOptions) -> Iterator[DetachedStart]:
    """Resume every unfinished run of this machine, oldest first; `trouble` says why one was not resumed."""
    for info in reversed(run_facts.all_runs(settings)):
        if run_facts.facts_of_run(info)["over"] and not pending(info.places):
            continue
        why_not = f"belongs to {info.elsewhere}" if info.elsewhere else "is alive" if info.alive else ""
        start = DetachedStart(0, trouble=f"{why_not}: not resumed") if why_not else resume(info, settings, how)
        yield replace(start, number=info.number, what=info.what)


def _lead(fd: int, begin: Callable[[], tuple[RunSession | None, Sequence[str]]]) -> int:
    """Do the work of the new process, from the first row to the last task, and return its exit code."""
    try:
        session, hints = begin()
    except (SchedulerError, OSError) as exc:
        trouble = describe_os_error(exc) if isinstance(exc, OSError) else str(exc)
        start = DetachedStart(os.getpid(), trouble=trouble, exit_code=getattr(exc, "exit_code", 1))
        session = None
    except KeyboardInterrupt:
        return 130
    else:
        start = _started(session, hints)
    if session is None:
        _tell(fd, start)
        return start.exit_code
    leave_terminal(session.places.log)
    _tell(fd, start)
    session.detached = True
    with contextlib.closing(session):
        return run_to_end(session).exit_code


def _tell(fd: int, start: DetachedStart) -> None:
    """Tell the starter how the run began; if the starter was killed, the accepted run continues without it."""
    with contextlib.suppress(OSError), os.fdopen(fd, "w", encoding="utf-8") as starter:
        starter.write(json.dumps(start.to_dict()))


def _started(session: RunSession | None, hints: Sequence[str]) -> DetachedStart:
    if session is None:
        return DetachedStart(os.getpid(), hints=hints)
    roll = session.brain.task_table
    log = str(session.places.log)
    first = min(roll, default=0)
    return DetachedStart(
        os.getpid(), session.number, session.meta["file"], len(roll), first, log, [*hints, *logging_out()]
    )


def logging_out() -> list[str]:
    """Return a hint if logging out would end a background run, with a way to prevent it; otherwise nothing."""
    from scheduler.devices.host.host_environment import login
    from scheduler.runtime.users import user_name

    user = user_name(os.getuid())
    place = login(user)
    if not place.ends_us:
        return []
    return [detached.logging_out_hint(place.unit, place.source, user, session=place.is_session)]


def as_error(start: DetachedStart) -> SchedulerError:
    """Return the error that kept a run from starting."""
    error = SchedulerError(start.trouble)
    error.exit_code = start.exit_code
    return error


def show(start: DetachedStart, *, as_json: bool) -> int:
    """Print what was started, how to watch it and how to stop it. Raise the error if the run could not start."""
    if start.trouble:
        raise as_error(start)
    detached.hints(start.hints)
    if as_json:
        facts = {"format": 1, "run": start.number, "pid": start.pid, "tasks": start.tasks, "log": start.log}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in detached.lines(start))
    return 0
