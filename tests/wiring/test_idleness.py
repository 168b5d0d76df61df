"""Who holds memory and does nothing: by what looks before have seen of the processes' time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.shim import start_time
from scheduler.wiring.idleness import Held, Looks, idle_for

HOURS = 2 * 3600.0


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def idle(path: Path, pid: int) -> float:
    """For how long it is known to have done nothing."""
    ((_, seconds),) = idle_for(path, [Held((pid,))])
    return seconds


def pretend(path: Path, ago: float, spent: float) -> None:
    """The last look was so long ago, and so much time has been used since."""
    looks = {key: [since - ago, had - spent] for key, (since, had) in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(looks))


def test_nothing_is_known_at_the_first_look(tmp_path: Path, sleeper: int) -> None:
    assert idle(tmp_path / "looks", sleeper) == 0.0


@pytest.mark.parametrize(("spent", "is_idle"), [(0.0, True), (30.0, True), (40.0, False)])
def test_less_than_a_hundredth_of_a_core_is_nothing(tmp_path: Path, sleeper: int, spent: float, is_idle: bool) -> None:
    path = tmp_path / "looks"
    idle(path, sleeper)
    pretend(path, 3600.0, spent)
    assert (idle(path, sleeper) >= 3600.0) is is_idle
    assert (idle(path, sleeper) >= 3600.0) is is_idle, "what a look found is remembered"


def test_a_number_that_is_given_away_again_is_somebody_else(tmp_path: Path, sleeper: int) -> None:
    idle(tmp_path / "looks", sleeper)
    (key,) = json.loads((tmp_path / "looks").read_text())
    assert key.split(".")[1:3] == [str(sleeper), str(start_time(sleeper))]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 3}', '{"x": ["a", "b"]}'])
def test_looks_that_cannot_be_read_are_none(tmp_path: Path, sleeper: int, text: str) -> None:
    path = tmp_path / "looks"
    path.write_text(text)
    assert idle(path, sleeper) == 0.0
    assert len(json.loads(path.read_text())) == 1


def test_what_cannot_be_remembered_is_told_all_the_same(tmp_path: Path, sleeper: int) -> None:
    assert idle(tmp_path / "nowhere" / "looks", sleeper) == 0.0
    assert os.listdir(tmp_path) == []


def test_a_scheduler_looks_once_a_minute() -> None:
    seen = list[int]()
    looks = Looks(lambda: seen.append(1))
    for _ in range(3):
        assert looks.collect() == ()
    assert len(seen) == 1


def test_an_attempt_has_not_idled_for_as_long_as_the_one_before_it_under_the_same_shim(tmp_path: Path) -> None:
    looks = tmp_path / "looks.json"
    first, second = (Held((os.getpid(),), since=since) for since in (1e9, 1e9 + HOURS))
    idle_for(looks, [first])
    ((key, (since, had)),) = json.loads(looks.read_text()).items()
    looks.write_text(json.dumps({key: [since - HOURS, had]}))
    assert [idle >= HOURS for _, idle in idle_for(looks, [first])] == [True]
    assert [idle for _, idle in idle_for(looks, [second])] == [0.0]
