"""Starting the scheduler of a standing queue in the background, by the first submission that finds no scheduler."""

from __future__ import annotations

import os
from collections.abc import Sequence

from scheduler.app.observe import run_facts
from scheduler.app.queue.queue_source import QueueSource
from scheduler.app.run import detach, start
from scheduler.app.run.options import ResumeOptions, RunOptions
from scheduler.app.run.resume import take_over
from scheduler.app.run.session import RunSession
from scheduler.app.run.shell_context import is_allocated
from scheduler.app.run.task_list import QUEUE, TaskList
from scheduler.runtime.paths import RunPaths, StatePaths
from scheduler.runtime.settings import Settings
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.queue.queue_link import find_queue, set_queue, start_lock
from scheduler.store.queue.visible_devices import VISIBLE
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.ui.terminal.detached import DetachedStart
from scheduler.values import replace

DIRECTORY_WAIT = 600.0
"""The default number of seconds for which a task of a queue waits for its directory before it fails."""


def ensure_started(home: StatePaths, name: str, settings: Settings) -> Sequence[str]:
    """Start the queue's scheduler unless it is running, and return hints about the start; of several simultaneous
    callers, only one starts it.

    Raise SchedulerError if it cannot be started.
    """
    with start_lock(home, name) as lock:
        queue = find_queue(home, name)
        if queue is not None and is_locked(queue.root):
            return ()
        info = _unfinished(home, queue)
        started = _resume(info, settings, lock) if info is not None else _begin(name, settings, lock)
        if started.trouble:
            raise detach.as_error(started)
        set_queue(home, name, started.number)
        return started.hints


def _unfinished(home: StatePaths, queue: RunPaths | None) -> RunInfo | None:
    """Return the queue's last run if some of its tasks have not ended."""
    if queue is None:
        return None
    info = RunCatalog(home).info(queue.number)
    return None if run_facts.facts_of_run(info)["over"] and not info.lost else info


def _begin(name: str, settings: Settings, lock: int) -> DetachedStart:
    """Start a new run as the queue."""
    chosen = settings.source.get("directory_wait", "default") != "default"
    wait = settings.directory_wait if chosen else DIRECTORY_WAIT
    settings = replace(settings, order="global", directory_wait=wait)

    def begin() -> tuple[RunSession | None, Sequence[str]]:
        _become_background(lock, settings)
        source = QueueSource(settings.queue_idle)
        listing = TaskList(name, source.form, iter(()), source=source, door=QUEUE)
        options = RunOptions(devices="auto", keep_going=True, name=name)
        session = start.begin(listing, options, settings)
        return session, ()

    return detach.detach(begin)


def _resume(info: RunInfo, settings: Settings, lock: int) -> DetachedStart:
    """Take the queue's last run over."""

    def begin() -> tuple[RunSession | None, Sequence[str]]:
        _become_background(lock, settings)
        session = take_over(info, settings, ResumeOptions())
        return session, session.notes

    return detach.detach(begin)


def _become_background(lock: int, settings: Settings) -> None:
    """Close the copy of the lock, which would keep it locked, and leave the caller's directory, which may be removed.

    The queue has all GPUs of the machine or of the allocation; CUDA_VISIBLE_DEVICES of a shell applies only to tasks
    from that shell.
    """
    os.close(lock)
    if not is_allocated(os.environ):
        os.environ.pop(VISIBLE, None)
    home = run_facts.places(settings)
    os.chdir(home.root)
