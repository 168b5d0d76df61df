"""The source of a standing queue: it is open until nothing was left to do for the idle time."""

from __future__ import annotations

import pytest

from scheduler.app.queue import queue_source
from scheduler.app.queue.queue_source import FIRST, QueueSource


class ClockStub:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ClockStub:
    made = ClockStub()
    monkeypatch.setattr(queue_source, "since_boot", made)
    return made


def is_open_after(source: QueueSource, clock: ClockStub, seconds: float) -> bool:
    """Tell whether the source is open when no task has been left for some seconds."""
    source.appended(last=True)
    clock.now += seconds
    source.appended(last=True)
    return source.more


def test_a_queue_ends_once_it_was_idle_for_its_time(clock: ClockStub) -> None:
    for seconds, is_open in ((9.0, True), (11.0, False)):
        source = QueueSource(10.0)
        source.accepted()
        assert is_open_after(source, clock, seconds) is is_open


def test_a_submission_begins_the_idle_time_anew(clock: ClockStub) -> None:
    source = QueueSource(10.0)
    source.accepted()
    assert is_open_after(source, clock, 9.0)
    source.accepted()
    assert is_open_after(source, clock, 9.0)


def test_a_queue_that_has_accepted_nothing_waits_for_the_submission_that_started_it(clock: ClockStub) -> None:
    assert is_open_after(QueueSource(0.01), clock, FIRST - 1)
    assert not is_open_after(QueueSource(0.01), clock, FIRST + 1)
