"""A disk that is nearly full: the sentence, how often it is printed, and what starts meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler.runtime.settings import READERS
from scheduler.store.disks import DiskGuard
from scheduler.units import GIB, MIB
from tests.support.builders import Simulation, jobs


class Disk:
    """A disk whose free bytes a test sets, with a clock that the test moves."""

    def __init__(self, total: int, share: float = 0.02, least: int = GIB) -> None:
        self.total = self.free = total
        self.now = 0.0
        self.looks = 0
        self.ask = DiskGuard(
            [Path("/state"), Path("/logs")], share, least, statvfs=self._statvfs, clock=lambda: self.now
        )

    def _statvfs(self, place: Path) -> SimpleNamespace:
        self.looks += 1
        return SimpleNamespace(f_bavail=self.free // MIB, f_blocks=self.total // MIB, f_frsize=MIB)

    def with_free(self, free: int) -> str:
        self.now += 2.0
        self.free = free
        return self.ask()


def test_a_disk_with_enough_space_gives_no_sentence() -> None:
    assert Disk(10 * GIB).ask() == ""


@pytest.mark.parametrize(
    ("total", "free", "least"), [(10 * GIB, GIB - MIB, "1.0GiB"), (1000 * GIB, 19 * GIB, "20.0GiB")]
)
def test_a_disk_is_full_below_the_least_bytes_or_share(total: int, free: int, least: str) -> None:
    said = Disk(total).with_free(free)
    assert f"free, less than the {least} to be kept: nothing starts" in said


def test_a_full_disk_gives_one_sentence_until_there_is_space_again() -> None:
    disk = Disk(10 * GIB)
    first = disk.with_free(500 * MIB)
    assert first
    assert disk.with_free(300 * MIB) == first
    assert disk.with_free(2 * GIB) == ""
    assert disk.with_free(300 * MIB) not in ("", first)


def test_a_disk_is_checked_once_a_second() -> None:
    disk = Disk(10 * GIB)
    for _ in range(100):
        disk.ask()
    assert disk.looks == 2  # one for each place


@pytest.mark.parametrize(
    ("text", "value"), [("1GiB,2%", (0.02, GIB)), ("5%", (0.05, 0)), ("100MiB", (0.0, 100 * MIB)), ("off", (0.0, 0))]
)
def test_disk_min_is_read_as_bytes_and_share(text: str, value: tuple[float, int]) -> None:
    assert READERS["disk_min"](text) == value


@pytest.mark.parametrize("text", ["100%", "-1%", "x%", "1"])
def test_disk_min_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match=r"share|number|unit"):
        READERS["disk_min"](text)


def test_no_task_starts_while_the_disk_is_full_and_all_start_afterwards() -> None:
    run = Simulation(jobs(4, seconds=10, memory="1GiB"))
    answers: Iterator[str] = iter(["it is full"] * 5)
    run.loop.ports = replace(run.loop.ports, full=lambda: next(answers, ""))
    run.run()
    assert run.states == {"succeeded": 4}
    assert run.view.sentences == ["it is full", "there is space on the disk again: tasks are started again"]
    assert run.makespan >= 10


def test_running_tasks_go_on_while_the_disk_is_full() -> None:
    run = Simulation(jobs(2, seconds=10, memory="20GiB"))
    full = iter([""] + ["it is full"] * 40)
    run.loop.ports = replace(run.loop.ports, full=lambda: next(full, ""))
    run.run()
    assert run.states == {"succeeded": 2}
