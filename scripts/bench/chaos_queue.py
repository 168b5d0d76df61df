"""A round of chaos.py with a standing queue: four terminals submit tasks that wait for one another.

A submission whose id was printed is there once, with that id; a refused one is not there; of one that was killed or had
no answer there is at most one task. The scheduler of the queue lives in the background and is killed like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scheduler.store.machine.locked_files import LockHolders, is_locked
from scripts.bench.chaos_links import ENDED
from tests.support.killing import Started, is_alive, kill

TERMINALS = 4
IDLE = "2s"
"""The time after which the scheduler of an idle queue ends."""
PATIENCE = 90.0
"""Seconds until all are gone: one that begins waits up to 15 s for each sampler that was stopped for good."""
SETTINGS = {
    "SCHEDULER_QUEUE_IDLE": IDLE,
    "SCHEDULER_SETTLE": "1s",
    "SCHEDULER_MAX_LOAD": "1000",
    "SCHEDULER_UNMANAGED": "ignore",
    "SCHEDULER_PREEMPT_AFTER": "0.3s",
}
ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"
NO_ANSWER = "has not answered for"
LEGITIMATE = (
    "no task has the name", "scheduler retry", "ended before it had accepted anything",
    "the sampler of the GPUs ended before it could read any",
)  # fmt: skip
"""Words of refusals without a full disk: a parent failed, its run of the queue is over, or the start or the sampler in
it was killed."""


class Living(Protocol):
    """A scheduler to be killed or stopped."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def send_signal(self, number: int, /) -> None: ...


@dataclass(slots=True)
class Background:
    """The scheduler of a queue, which is a child of no process here."""

    pid: int
    done: Counter[str]

    def poll(self) -> int | None:
        return None if is_alive(self.pid) else 0

    def kill(self) -> None:
        self.done["schedulers of queues"] += kill(self.pid)

    def send_signal(self, number: int, /) -> None:
        kill(self.pid, number)


@dataclass(slots=True)
class Sent:
    """One submission, and its answer."""

    name: str
    job: Any
    answer: str = UNKNOWN
    task: int = -1
    said: str = ""
    began: float = 0.0
    ended: float = 0.0


class Terminals:
    """Four terminals that submit to one queue at the same time."""

    def __init__(
        self, start: Callable[..., Started], queue: str, told: str, dice: random.Random, make: Callable[..., Any]
    ) -> None:
        self._start, self._queue, self._told, self._make = start, queue, told, make
        self._dice = [random.Random(dice.random()) for _ in range(TERMINALS)]
        self.sent: list[Sent] = []
        self.killed = 0
        self._lock = threading.Lock()

    def play(self) -> None:
        """Submit from all of them, to their end."""
        threads = [threading.Thread(target=self._submit_some, args=(n,), daemon=True) for n in range(TERMINALS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _submit_some(self, terminal: int) -> None:
        dice = self._dice[terminal]
        for number in range(dice.randrange(3, 9)):
            sent = Sent(f"s{terminal}-{number}", self._make(dice))
            words = self._words(sent, dice)
            with self._lock:
                self.sent.append(sent)
            self._submit(sent, words, dice)
            time.sleep(dice.uniform(0, 0.8))

    def _words(self, sent: Sent, dice: random.Random) -> list[str]:
        """Return the command line of a submission that waits for at most two of the accepted ones."""
        with self._lock:
            there = [one for one in self.sent if one.answer == ACCEPTED]
        parents = dice.sample(there, min(len(there), dice.choice((0, 1, 1, 2))))
        lenient = [one for one in parents if dice.random() < 0.4]
        names = {one.name: dice.choice((str(one.task), one.name)) for one in parents}
        after = [f"{ENDED if one in lenient else ''}{names[one.name]}" for one in parents]
        sent.job = sent.job.linked(
            sent.name,
            [one.name for one in parents if one not in lenient],
            [one.name for one in lenient],
        )
        job = sent.job
        fields = ["--name", sent.name, "--grace", "1s", "--gpus", str(job.gpus), *job.flags]
        fields += ["--memory", job.memory] if job.memory else []
        fields += ["--after", ",".join(after)] if after else []
        command = ["sh", "task.sh", self._told, job.kind, str(job.code), *job.work.split()]
        return ["submit", "--json", "--queue", self._queue, *fields, "--", *command]

    def _submit(self, sent: Sent, words: Sequence[str], dice: random.Random) -> None:
        sent.began = time.monotonic()
        with self._start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            if dice.random() < 0.15:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(dice.uniform(0.05, 0.6))
                process.kill()
            try:
                out, err = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        sent.ended = time.monotonic()
        killed = process.returncode == -signal.SIGKILL
        self.killed += killed
        sent.said = err.strip()
        if out.strip():
            sent.task = json.loads(out)["tasks"][0]
            sent.answer = ACCEPTED
        elif not killed and NO_ANSWER not in err:
            sent.answer = REFUSED


def scheduler_of(state: Path) -> int:
    """Return the process that holds one of the runs; 0 if there is none."""
    for run in state.glob("runs/[0-9]*"):
        with contextlib.suppress(OSError):
            # Without a lock none holds it: the kernel's list may name a file of this inode number elsewhere.
            pids = LockHolders().of(os.stat(run)) if is_locked(run) else []
            if pids:
                return pids[0]
    return 0


def faults(
    sent: Sequence[Sent], tasks: Sequence[dict[str, Any]], was_full: Callable[[float, float], bool]
) -> list[tuple[str, str]]:
    """Compare what was answered with what is there; `was_full` tells whether the disk was full between two moments."""
    found = []
    there: dict[str, list[int]] = {}
    for task in tasks:
        there.setdefault(task["name"], []).append(task["id"])
    for one in sent:
        ids = there.pop(one.name, [])
        if len(ids) > 1:
            found.append(("duplicated", f"{one.name} was submitted once and is there as {ids}: {one}"))
        if one.answer == ACCEPTED and one.task not in ids:
            found.append(("lost", f"{one.name} was accepted as {one.task} and is there as {ids}"))
        if one.answer == REFUSED and ids:
            found.append(("duplicated", f"{one.name} was refused ({one.said}) and is there as {ids}"))
        legitimate = was_full(one.began, one.ended) or any(word in one.said for word in LEGITIMATE)
        if one.answer == REFUSED and not legitimate:
            found.append(("disagreements", f"{one.name} was refused: {one.said}"))
        if "Traceback" in one.said:
            found.append(("disagreements", one.said))
    return [*found, *(("lost", f"a task of no submission: {name} {ids}") for name, ids in there.items())]
