"""Calls that may never return, each with a time limit."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from scheduler.runtime import threads
from scheduler.runtime.threads import BoundedCalls, StartedThread
from tests.support.waiting import wait_until

AT_ONCE = 5.0


class Hanging:
    """Work that returns once it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self) -> str:
        self.go.wait()
        return "late"


@pytest.fixture
def hangs() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go.set()


@pytest.fixture
def calls() -> Iterator[BoundedCalls]:
    made = BoundedCalls(patience=0.05, most_late=2)
    yield made
    made.close()


class Watched(StartedThread):
    """A thread that `running` counts."""

    made: ClassVar[list[StartedThread]] = []

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(work)
        self.made.append(self)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "StartedThread", Watched)


def running() -> set[StartedThread]:
    return {thread for thread in Watched.made if thread.is_alive()}


def is_refused(calls: BoundedCalls, key: str, work: Callable[[], str]) -> bool:
    try:
        calls.call(key, work)
    except TimeoutError:
        return True
    return False


def test_call_returns_what_its_work_returns(calls: BoundedCalls) -> None:
    assert [calls.call("a", lambda n=n: n * n) for n in range(3)] == [0, 1, 4]  # type: ignore[misc]


def test_call_raises_what_its_work_raises(calls: BoundedCalls) -> None:
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 // 0)
    assert calls.call("a", lambda: "next") == "next"


def test_calls_that_are_in_time_share_one_thread(calls: BoundedCalls) -> None:
    before = running()
    for _ in range(20):
        calls.call("a", str)
    assert len(running() - before) == 1


def test_late_call_raises_and_keeps_its_key_busy_until_it_returns(calls: BoundedCalls, hangs: Hanging) -> None:
    assert is_refused(calls, "a", hangs)
    began = time.monotonic()
    assert all(is_refused(calls, "a", str) for _ in range(200))
    assert time.monotonic() - began < AT_ONCE
    assert calls.is_late("a")
    hangs.go.set()
    wait_until(lambda: not calls.is_late("a"))
    assert calls.call("a", lambda: "new") == "new"


def test_other_keys_go_on_beside_a_late_call_until_too_many_are_late(calls: BoundedCalls, hangs: Hanging) -> None:
    assert is_refused(calls, "a", hangs)
    assert calls.call("b", lambda: "well") == "well"
    assert is_refused(calls, "b", hangs)
    assert is_refused(calls, "c", str)


def test_dead_mount_costs_one_thread(calls: BoundedCalls, hangs: Hanging) -> None:
    before = running()
    for _ in range(50):
        is_refused(calls, "a", hangs)
    assert len(running() - before) == 1


def test_closed_calls_leave_no_thread_behind(hangs: Hanging) -> None:
    before, calls = running(), BoundedCalls(patience=0.05)
    calls.call("a", str)
    is_refused(calls, "b", hangs)
    calls.close()
    hangs.go.set()
    wait_until(lambda: not running() - before)


def test_work_is_done_without_a_limit_where_no_thread_can_be_had(
    monkeypatch: pytest.MonkeyPatch, calls: BoundedCalls
) -> None:
    monkeypatch.setattr(threads, "start_thread", lambda *_: None)
    assert calls.call("a", lambda: threading.current_thread() is threading.main_thread())


def test_thread_that_dies_before_its_first_step_keeps_its_caller_no_longer_than_a_call(
    calls: BoundedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`threading.Thread.start` waited for ever where the memory for that step was missing, with all signals blocked."""
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 0)
    began = time.monotonic()
    assert is_refused(calls, "a", lambda: "never")
    assert time.monotonic() - began < AT_ONCE
