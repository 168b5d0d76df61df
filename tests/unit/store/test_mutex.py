"""The mutex of the lease directory: who waits for it waits in the kernel's queue."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.store.machine.mutex import Mutex
from tests.support.faults import fault


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@fault(102)
def test_a_mutex_that_every_look_finds_locked_is_taken_in_the_kernels_queue(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes pass the lock among themselves: at every moment at which a process looks, it is locked."""
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if how & fcntl.LOCK_NB:
            raise BlockingIOError
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert Mutex(folder).take(5.0)


def test_a_mutex_is_not_taken_while_another_descriptor_holds_it(folder: int, tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    mutex = Mutex(folder)
    assert not mutex.take(0.1)
    fcntl.flock(other, fcntl.LOCK_UN)
    assert mutex.take(5.0)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@fault(90)
def test_busy_mutex_is_taken_once_it_is_free_where_no_thread_can_be_started(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on processes (`ulimit -u`) ended the run with a traceback."""
    monkeypatch.setattr("scheduler.store.machine.mutex.start_thread", lambda _: None)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    mutex = Mutex(folder)
    assert not mutex.take(0.1)
    os.close(other)
    assert mutex.take(5.0)
