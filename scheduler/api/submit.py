"""`submit` adds tasks to a standing queue. The object that it returns can wait for the tasks and cancel them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scheduler.api.run import defaults_by_column, task_list
from scheduler.app.control import run_requests
from scheduler.app.control.targets import Target
from scheduler.app.control.targets import tasks as find_tasks
from scheduler.app.observe.run_facts import find_run, places
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.queue import submit as queue_client
from scheduler.app.queue.background_start import start_apart
from scheduler.app.run.options import chosen_python
from scheduler.core.control.request_kinds import Verb
from scheduler.core.model import GOOD_ENDS, UNFINISHED
from scheduler.errors import InputError, StateError, UsageError
from scheduler.inputs import python_tasks
from scheduler.inputs.python_tasks import Task
from scheduler.runtime.settings import read_settings
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.queue.queue_link import USUAL, checked_name
from scheduler.ui.terminal.sink import hint
from scheduler.units import ranges

PAUSES = (0.02, 0.5)
"""The shortest and the longest pause, in seconds, between two reads of the journal."""


class SubmittedTasks:
    """Tasks of a standing queue. It can be pickled; methods may be called in any thread."""

    def __init__(self, run: int, ids: Iterable[int], queue: str = USUAL, state: str = "") -> None:
        """Refer to tasks by their ids; `state` is the directory of all runs, or empty for the usual directory."""
        self.run = run
        self.ids = tuple(ids)
        self.queue = queue
        self.state = state
        self._readers: dict[bool, tuple[int, RunReader]] = {}
        """The readers of the journal (True: of states alone, False: of everything), each with the id of the thread that
        may use it.
        """

    @classmethod
    def find(cls, ids: Iterable[int], state: str = "") -> SubmittedTasks:
        """Return tasks that were submitted earlier, by their ids. Raise NoSuchRun for an id that does not exist, and
        UsageError if the tasks do not belong to one queue.
        """
        wanted = sorted(ids)
        found = find_tasks(read_settings({"state": state or None}), [str(task) for task in wanted])
        if len(found) != 1:
            raise UsageError(f"{ranges(wanted)}: the tasks belong to {len(found)} runs; name those of one run")
        return cls(found[0].info.number, wanted, found[0].info.meta.get("name") or USUAL, state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(run={self.run}, ids={self.ids})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def states(self) -> dict[int, str]:
        """Return the state of each task by its id."""
        if not self.ids:
            return {}
        reader = self._reader()
        return {task: str(reader.brain.state(task)) for task in self.ids}

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """A dictionary for each task, with the columns of `scheduler results`."""
        if not self.ids:
            return []
        with contextlib.closing(RunReader(find_run(self._settings(), f"r{self.run}"))) as reader:
            return list(reader.rows_of(self.ids))

    def curves(self) -> dict[int, dict[str, list[tuple[float, float]]]]:
        """Return the curves of all metrics that each task has reported so far: steps and values, by name.

        They are read from the output and the results of running tasks too, as the live view does.
        """
        if not self.ids:
            return {}
        reader, found = self._reader(only_states=False), {}
        for task in self.ids:
            record = reader.metrics.of_task(task, reader.history.tasks.get(task))
            found[task] = {name: curve.steps() for name, curve in record.curves.items()} if record else {}
        return found

    @property
    def succeeded(self) -> bool:
        """True if every task succeeded, apart from skipped and pruned ones."""
        return GOOD_ENDS.issuperset(self.states().values())

    def wait(self, timeout: float | None = None) -> dict[int, str]:
        """Wait until all tasks have ended, and return their states; after `timeout` seconds raise TimeoutError.

        If the queue's scheduler was killed, it is started again. Raise StateError if the queue was stopped.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = PAUSES[0]
        while left := self._unfinished():
            self.keep_alive()
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{len(left)} of {len(self.ids)} tasks have not ended after {timeout:g} s")
            time.sleep(pause)
            pause = min(1.5 * pause, PAUSES[1])
        return self.states()

    def keep_alive(self) -> None:
        """Start the queue's scheduler again if it was killed and tasks are unfinished; `wait` does this by itself.

        Raise StateError if the queue was stopped.
        """
        settings = self._settings()
        if not self.ids or is_locked(places(settings).run(self.run).root) or not (left := len(self._unfinished())):
            return
        if self._reader().brain.draining:
            raise StateError(
                f"the queue was stopped while {left} of {len(self.ids)} tasks were unfinished: scheduler resume "
                f"r{self.run} continues it"
            )
        start_apart(places(settings), self.queue, settings)

    def directory(self, task: int) -> Path:
        """Return the directory of a task's own files; the task finds its path in SCHEDULER_TASK_DIR."""
        return Path(places(self._settings()).run(self.run).task(task))

    def cancel(self, *ids: int) -> None:
        """Cancel tasks (without ids, all of them): running ones are stopped, waiting ones never start.

        Tasks that have ended stay as they are. Raise StateError if the scheduler does not answer.
        """
        wanted = self._unfinished()
        chosen = tuple(task for task in ids or self.ids if task in wanted)
        if chosen:
            run_requests.ask(Target(find_run(self._settings(), f"r{self.run}"), chosen), Verb.CANCEL)

    def _settings(self) -> Any:
        return read_settings({"state": self.state or None})

    def _reader(self, *, only_states: bool = True) -> RunReader:
        """Return a reader that has read all events recorded so far; each thread has a reader of its own."""
        here = threading.get_ident()
        known = self._readers.get(only_states)
        if known is not None and known[0] == here:
            known[1].catch_up()
            return known[1]
        reader = RunReader(find_run(self._settings(), f"r{self.run}"), only_states=only_states)
        self._readers[only_states] = (here, reader)
        return reader

    def _unfinished(self) -> set[int]:
        return {task for task, state in self.states().items() if state in UNFINISHED}


def submit(
    tasks: Task | Iterable[Task],
    *,
    queue: str = USUAL,
    defaults: Mapping[str, str] | None = None,
    state: str | None = None,
    launcher_args: bool = True,
    on: str = "",
) -> SubmittedTasks:
    """Add tasks to a standing queue, as `scheduler submit` does, and return once they are on the disk.

    They start with the directory and environment that this process has at the time of the call, and they continue after
    this process has ended. The first submission starts the queue. `defaults` has strings by column, for tasks without a
    value there. Without `launcher_args`, commands of accelerate and deepspeed stay as they are. `on` names the machines
    of a queue that this submission starts ("ssh:a,b", as `scheduler submit --on`). Raise InputError, with nothing
    accepted, if a task is invalid.
    """
    settings = read_settings({"state": state, "launcher_args": None if launcher_args else "no", "on": on or None})
    python = chosen_python(settings)
    chosen = [tasks] if isinstance(tasks, Task) else task_list(tasks)
    form, rows = python_tasks.rows(chosen, defaults_by_column(defaults or {}), python.path)
    try:
        accepted = queue_client.submit(form, rows, python, settings, checked_name(queue), start_apart)
    except InputError as exc:
        raise InputError("tasks", exc.message, exc.row, exc.column) from exc
    for sentence in accepted.hints:
        hint(sentence)
    return SubmittedTasks(accepted.run, accepted.tasks, queue, os.path.abspath(state) if state else "")
