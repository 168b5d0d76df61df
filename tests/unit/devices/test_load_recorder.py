"""The recorder of the load of GPUs: while tasks run, into a file that later schedulers of the run continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scheduler.core.model import Device, DeviceBudget
from scheduler.devices import load_recorder
from scheduler.devices.load_recorder import LoadRecorder, read_history

GPU, RAM = Device("GPU-1", "GPU 0", 1000, 1.0, 0), Device("host", "host", 1000, 8.0)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that lets time pass."""
    now = [100.0]
    monkeypatch.setattr(load_recorder.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(load_recorder.clock, "now", lambda: 5000.0 + now[0])

    def go(seconds: float) -> None:
        now[0] += seconds

    return go


def look(busy: float | None = 0.5, age: float = 0.0) -> Callable[[], Sequence[DeviceBudget]]:
    return lambda: (DeviceBudget(GPU, 400, busy=busy, age=age), DeviceBudget(RAM, 900))


def loads(recorder: LoadRecorder) -> int:
    return len(recorder.history.points.get("GPU-1", ()))


def test_load_is_recorded_every_two_seconds_while_a_task_lives(tmp_path: Path, later: Callable[[float], None]) -> None:
    active = [True]
    recorder = LoadRecorder(look(), lambda: active[0], tmp_path / "devices.json")
    for _ in range(4):
        assert 0 < recorder.draw() <= 2
        later(1.0)
    assert loads(recorder) == 2
    active[0] = False
    recorder.draw()
    assert loads(recorder) == 2


def test_measurement_that_is_old_is_not_recorded(tmp_path: Path, later: Callable[[float], None]) -> None:
    recorder = LoadRecorder(look(age=60.0), lambda: True, tmp_path / "devices.json")
    recorder.draw()
    assert loads(recorder) == 0


def test_file_is_written_now_and_then_at_the_end_and_continued(tmp_path: Path, later: Callable[[float], None]) -> None:
    path = tmp_path / "devices.json"
    recorder = LoadRecorder(look(), lambda: True, path)
    recorder.draw()
    assert not path.exists()
    later(load_recorder.WRITES)
    recorder.draw()
    assert len(read_history(path).points["GPU-1"]) == 2
    later(3.0)
    recorder.draw()
    recorder.close()
    assert loads(LoadRecorder(look(), lambda: True, path)) == 3


def test_host_alone_has_no_file_and_is_looked_at_seldom(tmp_path: Path) -> None:
    recorder = LoadRecorder(lambda: (DeviceBudget(RAM, 900),), lambda: True, tmp_path / "devices.json")
    assert recorder.draw() == load_recorder.WRITES
    recorder.close()
    assert not (tmp_path / "devices.json").exists()


@pytest.mark.parametrize("said", [b"", b"[]", b"{", b'{"format":1,"every":"x","devices":{}}', b"\xff", b'"text"'])
def test_damaged_file_is_an_empty_history(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "devices.json").write_bytes(said)
    assert read_history(tmp_path / "devices.json").points == {}


def test_disk_that_is_full_does_not_stop_the_run(tmp_path: Path, later: Callable[[float], None]) -> None:
    recorder = LoadRecorder(look(), lambda: True, tmp_path / "gone" / "devices.json")
    recorder.draw()
    recorder.close()
    assert loads(recorder) == 1
