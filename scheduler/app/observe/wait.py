"""Waiting for tasks and runs, and following the output of tasks (`wait`, `logs`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from scheduler.app.control.targets import Target
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.model import GOOD_ENDS, LIVING, UNFINISHED, State
from scheduler.core.reporting.run_history import RunHistory
from scheduler.runtime.paths import open_plain
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run.catalog import RunInfo
from scheduler.units import ranges
from scheduler.values import dataclass

PAUSE = 0.1
"""Seconds between two reads, because a write by another process sends no notification."""
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The states of the tasks once the wait is over."""

    info: RunInfo
    states: Mapping[int, State]
    exit_code: int
    """The exit code of a single task; for several tasks, 0 if all succeeded, otherwise 1."""
    left: int = 0
    """The number of tasks that have not ended and whose run has no scheduler."""


def wait_for(target: Target, say: Callable[[str], None]) -> WaitResult:
    """Wait until these tasks have ended (all tasks of the run if the target names none), or until their scheduler has
    ended.

    The scheduler of a queue keeps running when all tasks of the queue have ended, unless it was stopped. If only held
    tasks are left, `say` gets one hint about them.
    """
    is_queue = not target.tasks and _is_queue(target.info)
    with closing(RunReader(target.info)) as reader:
        while True:
            alive = is_locked(target.info.places.root)
            reader.catch_up()
            states = {task: reader.brain.state(task) for task in target.tasks or reader.brain.task_table}
            left = [task for task, state in states.items() if state in UNFINISHED]
            goes_on = not target.tasks and (not is_queue or reader.brain.draining)
            if not alive or not (left or goes_on):
                return WaitResult(target.info, states, _exit_code(states, reader.history), len(left))
            if left and all(states[task] is State.HELD for task in left):
                say(f"only held tasks are left: scheduler release {ranges(left)}")
                say = _no_word
            time.sleep(PAUSE)


def _is_queue(info: RunInfo) -> bool:
    from scheduler.app.run.task_list import QUEUE  # tasks alone, and `logs`, need no lists

    return info.meta.get("door") == QUEUE


def _no_word(text: str) -> None:
    """Ignore a hint that was given before."""


def _exit_code(states: Mapping[int, State], history: RunHistory) -> int:
    if GOOD_ENDS.issuperset(states.values()):
        return 0
    task_history = history.tasks.get(next(iter(states))) if len(states) == 1 else None
    last = task_history.attempts[-1] if task_history is not None and task_history.attempts else None
    if last is None or last.ended is None:
        return 1
    return (128 + last.signal if last.signal else last.code) or 1


def logs_of(target: Target, *, failed: bool) -> Iterator[tuple[TaskLogReader, str, State]]:
    """Yield the log of each task, with the task's name and state. If the target names no tasks, yield the logs of all
    tasks of the run. Leave out tasks without a log.

    With `failed`, yield only logs of tasks that failed, or ran out of memory or time.
    """
    with closing(RunReader(target.info, only_states=True)) as reader:
        for task in target.tasks or sorted(reader.brain.task_table):
            state = reader.brain.state(task)
            if failed and state not in (State.FAILED, State.OOM, State.TIMEOUT):
                continue
            log = TaskLogReader(target.info, task)
            if log.has_output():
                yield log, reader.name(task), state


class TaskLogReader:
    """The reader of a task's output: the log of its last attempt, then the logs of later attempts."""

    def __init__(self, info: RunInfo, task: int) -> None:
        self.info = info
        self.task = task
        self.attempt = self._newest()
        self._read = 0

    def _newest(self) -> int:
        """Return the number of the latest attempt with a log; 0 if there is none."""
        try:
            names = os.listdir(self.info.places.task(self.task))
        except OSError:
            return 0
        numbers = (name.removesuffix(".log") for name in names if name.endswith(".log"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    @property
    def path(self) -> str:
        """The path of the log; empty if there is none."""
        return str(self.info.places.task_log(self.task, self.attempt)) if self.attempt else ""

    def has_output(self) -> bool:
        """Tell whether the log has any content."""
        try:
            return bool(self.attempt) and os.path.getsize(self.path) > 0
        except OSError:
            return False

    def news(self) -> Iterator[bytes]:
        """Yield the output since the last call. If the log became shorter, its middle was removed: continue at its new
        end.
        """
        if not self.attempt:
            return
        try:
            with open_plain(self.info.places.task_log(self.task, self.attempt)) as file:
                self._read = min(self._read, os.fstat(file.fileno()).st_size)
                file.seek(self._read)
                while chunk := file.read(CHUNK):
                    self._read += len(chunk)
                    yield chunk
        except FileNotFoundError:
            return

    def last_lines(self, most: int) -> bytes:
        """Return the last lines of the output so far; read the log backwards from its end."""
        if not self.attempt:
            return b""
        try:
            with open_plain(self.info.places.task_log(self.task, self.attempt)) as file:
                end, length, text = file.seek(0, os.SEEK_END), CHUNK, b""
                while len(text) < end and text.count(b"\n") <= most:
                    file.seek(-min(end, length), os.SEEK_END)
                    text = file.read()
                    length *= 2
        except FileNotFoundError:
            return b""
        return b"\n".join(text.split(b"\n")[-most - text.endswith(b"\n") :])

    def follow(self, begins: Callable[[int], None]) -> Iterator[bytes]:
        """Yield the output of all attempts until the task or its scheduler has ended.

        `begins` is called with the number of each attempt after the first.
        """
        with closing(RunReader(self.info, only_states=True)) as reader:
            going_on = True
            while going_on:
                going_on = self._goes_on(reader)
                yield from self.news()
                if self._turn_to(self._newest(), begins):
                    going_on = True
                elif going_on:
                    time.sleep(PAUSE)

    def _turn_to(self, newest: int, begins: Callable[[int], None]) -> bool:
        """Switch to the log of a newer attempt, if there is one."""
        if newest == self.attempt:
            return False
        if self.attempt:
            begins(newest)
        self.attempt, self._read = newest, 0
        return True

    def _goes_on(self, reader: RunReader) -> bool:
        """Tell whether more output may come. Call this before reading the log to its end."""
        reader.catch_up()
        state = reader.brain.state(self.task)
        if is_locked(self.info.places.root):
            return state in UNFINISHED
        return state in LIVING and bool(self.attempt) and self._runs_alone()

    def _runs_alone(self) -> bool:
        """Tell whether the task's shim is alive without a scheduler."""
        from scheduler.runtime.shim import ClaimState, claim_path, claim_state

        folder = self.info.places.task(self.task)
        return claim_state(claim_path(folder, self.attempt)) is ClaimState.LOCKED


def state_of(info: RunInfo, task: int) -> State:
    """Return the state of a task, from its journal."""
    with closing(RunReader(info, only_states=True)) as reader:
        return reader.brain.state(task)


def wait_all(targets: Sequence[Target], say: Callable[[str], None]) -> list[WaitResult]:
    """Wait for all targets, and return the result of each; `say` gets hints."""
    return [wait_for(target, say) for target in targets]
