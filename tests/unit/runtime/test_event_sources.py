"""The real world wakes the loop at once for ends and requests, and for a start alone a moment later."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from scheduler.core.events import Exited, Started
from scheduler.core.model import Outcome
from scheduler.core.ports import Happening
from scheduler.runtime.event_sources import PeriodicCheck, SystemWorld

START = Started(1, 1, 10, 100, 9)
END = Exited(1, 1, Outcome.SUCCEEDED)


class Source:
    """A source that returns one event at each look, and is readable as long as there is more."""

    def __init__(self, *told: Happening) -> None:
        self._told = list(told)
        self._fd = os.eventfd(len(told), os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def collect(self) -> Sequence[Happening]:
        if not self._told:
            return ()
        os.eventfd_read(self._fd)
        return [self._told.pop(0)]

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(START, END)
    yield made
    made.close()


def test_the_end_of_a_short_task_arrives_together_with_its_start(source: Source) -> None:
    assert SystemWorld([source]).wait(5.0) == [START, END]


def test_a_start_without_an_end_arrives_by_itself() -> None:
    alone = Source(START)
    world = SystemWorld([alone])
    assert world.wait(5.0) == [START]
    assert world.wait(0.0) == []
    alone.close()


class Quiet(Source):
    """A source without events that counts the looks."""

    looks = 0

    def collect(self) -> Sequence[Happening]:
        self.looks += 1
        return super().collect()


def test_a_source_that_is_not_readable_is_not_read_each_time() -> None:
    quiet, many = Quiet(), Source(*[END] * 500)
    world = SystemWorld([quiet, many])
    assert sum(len(world.wait(5.0)) for _ in range(500)) == 500
    assert 1 <= quiet.looks < 400
    quiet.close()
    many.close()


def test_every_source_is_read_when_no_event_arrives() -> None:
    quiet = Quiet()
    world = SystemWorld([quiet])
    world.wait(0.0)
    world.wait(0.2)
    assert quiet.looks == 2
    quiet.close()


def test_periodic_check_runs_once_in_its_interval() -> None:
    checks: list[int] = []
    check = PeriodicCheck(lambda: checks.append(1), every=60.0)
    assert [list(check.collect()) for _ in range(3)] == [[], [], []]
    assert len(checks) == 1
    assert check.fileno() == -1
