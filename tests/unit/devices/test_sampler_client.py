"""A host's sampler that is stopped, hangs, dies or gets very long orders: the scheduler never waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler.core.model import HOST
from scheduler.core.ports import Watched
from scheduler.devices.host import sampler_client as watching
from scheduler.devices.host.sampler_client import LONGEST, WELL, HostWatcher, Restarts
from scheduler.devices.sampler_child import SamplerChild
from scheduler.runtime.paths import PACKAGE
from tests.support.faults import fault
from tests.support.waiting import wait_until

MANY = 3000
AT_ONCE = 5.0
"""Seconds within which each call must return, whatever the child does."""
PARENT = """
import os, sys, time
from pathlib import Path
from scheduler.core.ports import Watched
from scheduler.devices.host.sampler_client import HostWatcher
watcher = HostWatcher(Path(sys.argv[1]))
watcher.watch({(1, 1): Watched(os.getpid())}, {})
while not watcher.collect():
    time.sleep(0.01)
print(watcher._child.pid, flush=True)
time.sleep(600)
"""


class Watching:
    """A watcher, and the time of its longest call."""

    def __init__(self) -> None:
        self.watcher = HostWatcher(PACKAGE.parent)
        self.tree = subprocess.Popen(["sleep", "600"])
        self.longest = 0.0
        self.said: list[str] = []

    def call(self, work: Callable[[], object]) -> object:
        began = time.monotonic()
        result = work()
        self.longest = max(self.longest, time.monotonic() - began)
        return result

    def watch(self, tasks: int, first: int = 1) -> None:
        shim = Watched(self.tree.pid, files=("/nowhere/" + "x" * 100, "", "", "", ""))
        living = {(task, 1): shim for task in range(first, first + tasks)}
        self.call(lambda: self.watcher.watch(living, {}))

    def collect(self) -> list[int]:
        """Take in what there is: the tasks of the newest answer."""
        samples: list[int] = []
        self.call(lambda: samples.extend(sample.task for sample in self.watcher.collect()))
        self.said += self.watcher.troubles()
        return samples

    def until_seen(self, tasks: int, last: int = 0) -> None:
        """Collect until an answer has this many tasks, `last` among them."""

        def seen() -> bool:
            samples = self.collect()
            return len(samples) == tasks and (not last or last in samples)

        wait_until(seen, 60)

    @property
    def child(self) -> SamplerChild:
        assert self.watcher._child is not None
        return self.watcher._child


@pytest.fixture
def looking() -> Iterator[Watching]:
    made = Watching()
    yield made
    made.watcher.close()
    made.tree.kill()
    made.tree.wait()
    assert made.longest < AT_ONCE


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PATIENCE", 0.3)


def stop(child: SamplerChild) -> None:
    """Stop the child for good."""
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(child.is_stopped)


@fault(85)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_stopped_sampler_is_killed_and_started_again_with_one_sentence(looking: Watching) -> None:
    looking.watch(2)
    looking.until_seen(2)
    stopped = looking.child
    stop(stopped)
    looking.watch(3)
    looking.until_seen(3)
    assert looking.child.pid != stopped.pid
    assert wait_until(stopped.code) == -signal.SIGKILL
    assert len(looking.said) == 1
    assert "did not answer for 0.3 s (a signal had stopped it): it was killed and is started again" in looking.said[0]


@fault(85)
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_stopped_sampler_is_noticed_while_no_task_starts_or_ends(looking: Watching) -> None:
    looking.watch(1)
    looking.until_seen(1)
    stopped = looking.child.pid
    stop(looking.child)
    wait_until(lambda: looking.collect() and looking.child.pid != stopped)


@fault(85)
def test_orders_to_a_stopped_sampler_neither_block_nor_accumulate(
    looking: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PAUSE", 0.0)
    looking.watch(1)
    looking.until_seen(1)
    stop(looking.child)
    for first in range(1, 21):
        looking.watch(MANY, first)
    child = looking.child
    assert len(child._unsent) + len(child._order) < 3 * len(child._order)
    os.kill(child.pid, signal.SIGCONT)
    looking.until_seen(MANY, last=20 + MANY - 1)  # the newest order, whatever was sent of earlier ones


@fault(86)
@pytest.mark.slow
def test_orders_and_answers_longer_than_a_pipe_cross_without_a_deadlock(
    looking: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PAUSE", 0.0)
    looking.watch(MANY)
    looking.until_seen(MANY)
    for first in range(2, 6):
        pending = looking.child._heard
        wait_until(lambda: looking.child.call() is None)  # it writes its answer, which fills its pipe
        looking.watch(MANY, first)
        wait_until(lambda before=pending: looking.collect() or looking.child._heard > before)  # type: ignore[misc]
    looking.until_seen(MANY, last=5 + MANY - 1)


@pytest.mark.slow
def test_sampler_that_is_killed_repeatedly_is_restarted_after_longer_pauses(looking: Watching) -> None:
    looking.watch(1)
    looking.until_seen(1)
    for row in range(1, 4):
        os.kill(looking.child.pid, signal.SIGKILL)
        wait_until(lambda row=row: looking.collect() == [] and looking.watcher._restarts.in_a_row == row)  # type: ignore[misc]
        looking.until_seen(1)
    assert len(looking.said) == 1
    assert "has failed 3 times in a row (it ended by itself)" in looking.said[0]


def test_restarts_wait_twice_as_long_each_time_up_to_a_limit() -> None:
    restarts, now, waits = Restarts(), 1000.0, []
    for _ in range(9):
        restarts.begun(now)
        restarts.failed(now + 1, "ended by itself", silent=False)
        waits.append(restarts.at - now - 1)
        now = restarts.at
    assert waits == [0, 1, 2, 4, 8, 16, LONGEST, LONGEST, LONGEST]


def test_restarts_report_that_a_sampler_answers_again_and_begin_anew() -> None:
    restarts = Restarts()
    for now in (1.0, 2.0, 3.0):
        restarts.begun(now)
        restarts.failed(now + 0.5, "did not answer for 3 s", silent=True)
    silent, often = restarts.news()
    assert "is started again" in silent
    assert "no reservation is lowered" in often
    restarts.begun(10.0)
    restarts.well(11.0)
    assert restarts.news() == []
    restarts.well(11.0 + WELL)
    assert restarts.news() == ["the sampler of the host's memory answers again"]
    restarts.failed(12.0 + WELL, "ended by itself", silent=False)
    assert restarts.at == 12.0 + WELL


@pytest.mark.slow
def test_last_samples_of_a_failed_sampler_count_until_the_next_look(looking: Watching) -> None:
    """Otherwise memory that a task still uses would count as free."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as tree:
        try:
            looking.call(lambda: looking.watcher.watch({(1, 1): Watched(tree.pid)}, {}))
            wait_until(lambda: looking.collect() and looking.watcher._held.get("1.1"))
            seen = looking.watcher.free(1 << 60)
            os.kill(looking.child.pid, signal.SIGKILL)
            before = looking.child
            wait_until(lambda: looking.collect() == [] and looking.watcher._child is not before)
            assert looking.watcher.free(1 << 60) == seen
        finally:
            os.killpg(tree.pid, signal.SIGKILL)


@fault(85)
@pytest.mark.slow
def test_stopped_sampler_ends_with_its_killed_scheduler() -> None:
    argv = [sys.executable, "-c", PARENT, str(PACKAGE.parent)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=PACKAGE.parent) as parent:
        assert parent.stdout is not None
        sampler = int(parent.stdout.readline())
        os.kill(sampler, signal.SIGSTOP)
        parent.kill()
    try:
        wait_until(lambda: not Path(f"/proc/{sampler}/stat").exists() or " Z " in _stat(sampler), 10)
    finally:
        with suppress(ProcessLookupError):
            os.kill(sampler, signal.SIGKILL)


def _stat(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text()
    return " Z "


def test_sampler_that_waits_for_a_processor_is_not_silent(looking: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a thousand busy tasks its start alone may take longer than the patience."""
    looking.watch(1)
    looking.until_seen(1)
    child = looking.child
    stop(child)
    child.order({"trees": {}, "others": []})
    now = time.monotonic()
    monkeypatch.setattr("scheduler.devices.sampler_child._state", lambda pid: (b"R", ()))
    assert [child.silence(now + second) for second in range(10)] == [0.0] * 10
    monkeypatch.setattr("scheduler.devices.sampler_child._state", lambda pid: (b"D", ()))
    assert child.silence(now + 20) <= child.silence(now + 21) < child.silence(now + 22)
    os.kill(child.pid, signal.SIGCONT)


def test_time_in_which_the_scheduler_was_stopped_does_not_count_as_silence(looking: Watching) -> None:
    looking.watch(1)
    looking.until_seen(1)
    child = looking.child
    stop(child)
    child.order({"trees": {}, "others": []})
    now = time.monotonic()
    child.silence(now)
    assert child.silence(now + 3600) <= 1.0
    os.kill(child.pid, signal.SIGCONT)


def test_sampler_is_not_started_while_there_is_no_task(looking: Watching) -> None:
    looking.watch(0)
    assert looking.collect() == []
    assert looking.watcher.fileno() == -1
    assert looking.watcher.used_by(1)[HOST] == 0
