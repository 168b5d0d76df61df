"""`exec` as a run of its own: one task, whose output goes to this terminal.

`app/queue/exec_client` does the same for a task of the queue, with the functions at the end of this module.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.core.attempts.launch_spec import APART
from scheduler.core.model import LIVING, State
from scheduler.core.placement.refusal import Refusal
from scheduler.errors import SchedulerError
from scheduler.runtime.paths import RunPaths
from scheduler.runtime.settings import Settings
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.app.run.options import RunOptions
    from scheduler.app.run.session import RunSession
    from scheduler.app.run.task_list import TaskList
    from scheduler.core.ports import View

QUIT = 3
UNKNOWN_END = 1


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The facts about the end of the task that determine the exit code and the last line."""

    number: int
    task: int
    state: State
    code: int | None
    signal: int
    """The signal that ended the scheduler; 0 if none did."""
    began: float | None = None
    ended: float | None = None
    log: Path = Path()

    @property
    def exit_code(self) -> int:
        """The task's exit code, or 128 + signal number if a signal stopped the task or prevented its start."""
        if self.state is State.SUCCEEDED:
            return 0
        stopped = self.signal and self.state not in (State.FAILED, State.OOM, State.TIMEOUT)
        if stopped:
            return 128 + self.signal
        return self.code or UNKNOWN_END


def streams_differ() -> bool:
    """Tell whether standard output and standard error of this process go to different places."""
    try:
        out, err = os.fstat(1), os.fstat(2)
    except OSError:
        return False
    return (out.st_dev, out.st_ino, out.st_rdev) != (err.st_dev, err.st_ino, err.st_rdev)


def run(
    listing: TaskList,
    options: RunOptions,
    settings: Settings,
    view_for: Callable[[RunSession, int, View], View],
) -> ExecResult:
    """Accept a task and run it to its end; remove the run if the task never started."""
    from scheduler.app.run import run_loop, start  # a client of the queue does not need all of it

    session = start.begin(listing, options, settings)
    assert session is not None, "a list of one command has one task"
    (task,) = session.brain.task_table
    from scheduler.ui.terminal.sink import hint

    with contextlib.closing(session):
        for note in session.devices.notes:
            hint(note)
        ended = run_loop.run_to_end(session, wrap=lambda inner: view_for(session, task, inner))
        result = _result(session, task, ended.signal)
    if result.code is None and result.signal and result.signal != QUIT and result.state is State.WAITING:
        from scheduler.app.observe.run_facts import places
        from scheduler.store.run.removal import remove

        with contextlib.suppress(SchedulerError):  # then the run stays, and `scheduler runs` shows it
            remove(places(settings), result.number, lambda: None)
    return result


def _result(session: RunSession, task: int, signal: int) -> ExecResult:
    last = session.history.living.get(task) or session.history.ended_attempt  # of the only task
    state = session.brain.state(task)
    code = None
    if last is not None and state not in LIVING:
        code = last.code if last.signal is None else 128 + last.signal
    log = session.places.task_log(task, last.number if last else 1)
    began, ended = (last.started, last.ended) if last else (None, None)
    return ExecResult(session.number, task, state, code, signal, began, ended, log)


def exec_view(session: RunSession, task: int, inner: View) -> View:
    """Return the view of `exec` around another view."""
    from scheduler.ui.terminal.exec_view import ExecView

    return ExecView(inner, files(session, task), holders(session), session.brain.state)


def holders(session: RunSession) -> Callable[[Refusal], str]:
    """Return a function that says which leases hold the resources that the task waits for, and for about how long."""
    labels = {device.key: device.label for device in session.devices.discover()}
    return waits_for(session.settings, session.meta["token"], labels)


def files(session: RunSession, task: int) -> Callable[[int, int], dict[Path, int]]:
    """Return a function that maps an attempt's output files to the standard streams to copy them to."""
    spec = session.store.job(task).spec
    return output_files(session.places, spec.stdout, spec.stderr)


# ---- for a run of its own and for a task of the queue ----


def waits_for(settings: Settings, token: str, labels: Mapping[str, str]) -> Callable[[Refusal], str]:
    """Return a function that says which leases hold the resources that a task waits for, and for about how long.

    `token` is the token of the task's run, `labels` the names of the run's devices by their keys.
    """
    from scheduler.app.observe.lease_holders import others_before
    from scheduler.store.machine.lease_directory import find_directory
    from scheduler.store.machine.lease_records import living
    from scheduler.ui.verbs.lease_holders import waiting_words

    keys = {label: key for key, label in labels.items()}
    keys["host RAM"] = keys.get("host", "host")

    def words(refusal: Refusal) -> str:
        if not refusal.device:
            return ""
        key = keys.get(refusal.device, refusal.device)
        leases = living(find_directory(settings.leases or None))
        found = [lease for lease in leases if key in lease.reserved]
        return waiting_words(refusal.device, found, others_before(settings, token, key))

    return words


def output_files(places: RunPaths, stdout: str, stderr: str) -> Callable[[int, int], dict[Path, int]]:
    """Return a function that maps an attempt's output files to the standard streams to copy them to.

    Output that the fields Stdout and Stderr of the task send to files of its own is not copied.
    """
    out = {} if stdout else {places.task_log: 1}
    if stdout and not stderr:
        out = {places.task_log: 2}
    if stderr == APART:
        out[places.task_errors] = 2
    return lambda number, attempt: {path(number, attempt): fd for path, fd in out.items()}
