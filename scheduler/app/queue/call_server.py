"""The scheduler of an executor's calls: a separate process, which ends with the Python program."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Mapping
from typing import Any

from scheduler.app.observe.run_facts import places
from scheduler.app.queue.call_source import CallEnd, CallSource, LinePipe
from scheduler.app.run import run_loop, start
from scheduler.app.run.options import ResumeOptions, RunOptions
from scheduler.app.run.resume import take_over
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import CALLS, TaskList
from scheduler.core.events import Asked, Depended, Event, Exited, Refused, Skipped, Started, Submitted
from scheduler.core.model import UNFINISHED, State
from scheduler.core.ports import View
from scheduler.errors import SchedulerError, describe_os_error
from scheduler.runtime.paths import RunPaths, make_private
from scheduler.runtime.settings import read_settings
from scheduler.store.run.catalog import RunCatalog
from scheduler.ui.terminal.plain_view import ending


class CallView(View):
    """A view that reports the course of its calls to the program."""

    def __init__(self, inner: View, session: RunSession, source: CallSource, pipe: LinePipe) -> None:
        super().__init__(inner)
        self._session = session
        self._source = source
        self._pipe = pipe
        self._last: dict[int, Exited] = {}
        """The end of the last attempt of each unfinished task."""
        self._whys: dict[int, str] = {}

    def show(self, event: Event, at: float) -> None:
        """Show an event, and tell the program if it concerns one of its calls."""
        super().show(event, at)
        if isinstance(event, Submitted):
            self._accepted(event)
        elif isinstance(event, Started):
            self._pipe.send({"started": event.task, "attempt": event.attempt})
        elif isinstance(event, Exited):
            self._last[event.task] = event
            self._look(event.task)
        elif isinstance(event, Refused):
            self._whys[event.task] = event.reason
            self._look(event.task)
        elif isinstance(event, Asked | Skipped | Depended):
            for task in event.tasks or sorted(self._source.living):
                self._look(task)

    def _accepted(self, batch: Submitted) -> None:
        tasks = range(batch.first, batch.first + len(batch.terms))
        self._source.living.update(tasks)
        row = self._session.store.journal.row
        self._pipe.send({"accepted": [[task, row(task).row] for task in tasks]})

    def _look(self, task: int) -> None:
        """Tell the program the end of a task, once that task has ended."""
        state = self._session.brain.state(task)
        if state in UNFINISHED or task not in self._source.living:
            return
        self._source.living.discard(task)
        end = _end(task, state, self._last.pop(task, None), self._whys.pop(task, ""))
        self._pipe.send({"ended": end.to_dict()})


def _end(task: int, state: State, last: Exited | None, why: str = "") -> CallEnd:
    if last is None:
        return CallEnd(task, state, why=why)
    return CallEnd(task, state, last.attempt, why or ending(last), last.peak)


def main() -> int:
    """Serve the program that started this process, over its standard input and output."""
    pipe = LinePipe(os.dup(0), os.dup(1))
    _leave_streams()
    try:
        said = _first_line(pipe)
        if said is None:
            return 0
        source = CallSource(pipe, said["owner"])
        session = _resume(said, source, pipe) if said["resume"] else _begin(said, source)
    except (SchedulerError, OSError) as exc:
        _tell_trouble(pipe, exc)
        return 1
    try:
        run = session.places
        pipe.send({"run": run.number, "root": str(run.root), "elsewhere": "nodes" in session.meta})
        run_loop.run_to_end(session, wrap=lambda view: CallView(view, session, source, pipe))
        pipe.send({"over": True})
    except (SchedulerError, OSError) as exc:
        _tell_trouble(pipe, exc)
    finally:
        session.close()
        if source.abandoned:
            _remove_values(session.places)
    _flush(pipe)
    return 0


def _remove_values(run: RunPaths) -> None:
    """Remove the files with the arguments and the return values of the calls: nothing reads these files any more."""
    shutil.rmtree(run.given, ignore_errors=True)
    for path in run.tasks.glob("*/.*.value"):
        path.unlink(missing_ok=True)


def _tell_trouble(pipe: LinePipe, exc: SchedulerError | OSError) -> None:
    pipe.send({"trouble": describe_os_error(exc) if isinstance(exc, OSError) else str(exc)})


def _leave_streams() -> None:
    """Redirect standard input and output to /dev/null, so that output of libraries does not reach the pipes."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)


def _first_line(pipe: LinePipe) -> Mapping[str, Any] | None:
    """Return the program's first line; None if the program ended before it sent one."""
    while True:
        select.select([pipe.read], [], [])
        try:
            if lines := pipe.lines():
                start: Mapping[str, Any] = lines[0]["start"]
                return start
        except EOFError:
            return None


def _begin(said: Mapping[str, Any], source: CallSource) -> RunSession:
    settings = read_settings(said["settings"])
    options = RunOptions.from_dict(said["options"])
    listing = TaskList(
        said["what"],
        source.form,
        iter(()),
        source=source,
        door=CALLS,
        prepare=lambda run: make_private(run.given),
    )
    session = start.begin(listing, options, settings)
    assert session is not None  # a list with a source is never empty
    source.check = session.store.check
    return session


def _resume(said: Mapping[str, Any], source: CallSource, pipe: LinePipe) -> RunSession:
    """Take over the run whose scheduler was killed, and send the program the state of the calls that it waits for."""
    settings = read_settings(said["settings"])
    session = take_over(RunCatalog(places(settings)).info(said["resume"]), settings, ResumeOptions())
    session.store.source = source
    source.check = session.store.check
    journal, brain, wanted = session.store.journal, session.brain, {*said["open"]}
    accepted = [[task, row] for task in brain.task_table if (row := journal.row(task).row) in wanted]
    pipe.send({"accepted": accepted})
    for living in brain.living():
        pipe.send({"started": living.id, "attempt": living.attempts})
    last = {one.event.task: one.event for one in journal.events() if isinstance(one.event, Exited)}
    for task, _ in accepted:
        state = brain.state(task)
        if state in UNFINISHED:
            source.living.add(task)
        else:
            pipe.send({"ended": _end(task, state, last.get(task)).to_dict()})
    return session


def _flush(pipe: LinePipe) -> None:
    """Send the last lines; a program that no longer reads has ended, or is about to end."""
    poll = select.poll()
    poll.register(pipe.write, select.POLLOUT)
    while pipe.unsent and poll.poll(5000):
        pipe.flush()
