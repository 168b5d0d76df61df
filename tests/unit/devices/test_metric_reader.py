"""The reader of metrics meets every kind of file, reads a bounded part of it, and loses nothing between two looks."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from scheduler.core.metrics.record import MetricRecord
from scheduler.devices.metric_reader import FAR, LARGEST_RESULT, PART, MetricReader


class Attempt:
    """The files of an attempt, and a reader of them."""

    def __init__(self, folder: Path) -> None:
        self.log, self.progress, self.result = folder / "1.log", folder / ".progress.1", folder / ".result.1"
        self.kept = folder / ".metrics.1"
        self.reader = self.anew()

    def anew(self) -> MetricReader:
        """Return another reader, as after a restart of the sampler."""
        return MetricReader(*map(str, (self.log, self.progress, self.result, self.kept)))

    def append(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(text)

    def values(self, name: str) -> list[float]:
        curve = self.reader.record.curves.get(name)
        return [value for _, value in curve.steps()] if curve else []


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_output_is_read_on_from_look_to_look(attempt: Attempt) -> None:
    assert not attempt.reader.look()
    attempt.append("epoch 1/3 loss 3\nepoch 2/3 lo")
    attempt.reader.look()
    assert attempt.values("loss") == [3.0]
    assert attempt.reader.record.progress == (1.0, 3.0)
    attempt.append("ss 2\n")
    attempt.reader.look()
    attempt.reader.look()
    assert attempt.values("loss") == [3.0, 2.0]
    assert attempt.reader.record.progress == (2.0, 3.0)


def test_reader_after_a_restart_goes_on_where_the_last_one_was(attempt: Attempt) -> None:
    attempt.append("loss 3\nloss 2\n")
    attempt.reader.look()
    attempt.reader.save()
    attempt.append("loss 1\n")
    attempt.reader = attempt.anew()
    attempt.reader.look()
    assert attempt.values("loss") == [3.0, 2.0, 1.0]


def test_reader_of_a_view_writes_nothing(attempt: Attempt) -> None:
    attempt.append("loss 3\n")
    view = MetricReader(str(attempt.log), kept=str(attempt.kept), writes=False)
    view.look()
    view.save()
    assert view.record.curves.keys() == {"loss"}
    assert not attempt.kept.exists()


def test_record_of_an_ended_attempt_is_not_read_again(attempt: Attempt) -> None:
    attempt.append("loss 3\n")
    attempt.reader.look()
    attempt.reader.finish()
    attempt.append("loss 2\n")
    attempt.reader = attempt.anew()
    attempt.reader.look()
    assert attempt.values("loss") == [3.0]


def test_progress_file_counts_more_than_the_output(attempt: Attempt) -> None:
    attempt.append("epoch 1/3\n")
    attempt.progress.write_text("7/9")
    attempt.reader.look()
    assert attempt.reader.record.progress == (7.0, 9.0)


def test_object_that_is_rewritten_becomes_a_curve(attempt: Attempt) -> None:
    for number in range(4):
        attempt.result.write_text(json.dumps({"loss": number, "step": 10 * number}))
        os.utime(attempt.result, ns=(number, number))
        attempt.reader.look()
        attempt.reader.look()
    curve = attempt.reader.record.curves["loss"]
    assert curve.steps() == [(0.0, 0.0), (10.0, 1.0), (20.0, 2.0), (30.0, 3.0)]


def test_lines_that_are_appended_become_a_curve_without_a_line_twice(attempt: Attempt) -> None:
    for number in range(5):
        with attempt.result.open("a") as file:
            file.write(json.dumps({"loss": number}) + "\n")
        attempt.reader.look()
        attempt.reader.look()
    assert attempt.values("loss") == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_lines_that_were_all_there_at_the_first_look_are_read_once(attempt: Attempt) -> None:
    attempt.result.write_text('{"loss": 1}\n{"loss": 2}\nnonsense\n[3]\n{"loss": 4}\n{"loss"')
    attempt.reader.look()
    attempt.reader.look()
    assert attempt.values("loss") == [1.0, 2.0, 4.0]


def test_half_an_object_is_read_when_it_is_complete(attempt: Attempt) -> None:
    text = json.dumps({"loss": 1.5, "acc": 0.5}, indent=1)
    for end in range(len(text)):
        attempt.result.write_text(text[:end])
        attempt.reader.look()
        assert attempt.reader.record.curves == {}
    attempt.result.write_text(text)
    attempt.reader.look()
    assert attempt.values("loss") == [1.5]


def test_result_of_ten_gigabytes_costs_one_part(attempt: Attempt) -> None:
    with attempt.result.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"loss": 3}\n')
    began = time.process_time()
    attempt.reader.look()
    assert time.process_time() - began < 1.0
    assert attempt.values("loss") == [3.0]


def test_output_that_grows_faster_than_it_is_read_is_read_at_its_end(attempt: Attempt) -> None:
    attempt.append("loss 9\n" + "x" * 100 + "\n")
    attempt.reader.look()
    with attempt.log.open("ab") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nepoch 5 loss 1\n")
    attempt.reader.look()
    assert attempt.values("loss") == [9.0, 1.0]
    assert attempt.reader.record.log_at == attempt.log.stat().st_size


def test_backlog_is_read_part_by_part(attempt: Attempt) -> None:
    line = "loss 0.125 " + "y" * 100 + "\n"
    attempt.append(line * (FAR // len(line)))
    looks = 1
    while attempt.reader.look():
        looks += 1
    assert looks >= FAR // PART - 1
    assert attempt.reader.record.curves["loss"].readings == FAR // len(line)


def test_output_without_a_line_end_is_no_obstacle(attempt: Attempt) -> None:
    attempt.append("z" * (3 * PART) + "\nloss 4\n")
    for _ in range(5):
        attempt.reader.look()
    assert attempt.values("loss") == [4.0]


def test_output_whose_middle_was_dropped_is_read_at_its_end(attempt: Attempt) -> None:
    attempt.append("w" * 5000 + "\nloss 4\n")
    attempt.reader.look()
    attempt.log.write_text("short\nloss 3\n")
    attempt.reader.look()
    assert attempt.values("loss") == [4.0, 3.0]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_pipe_folder_or_link_in_place_of_a_file_is_not_read(attempt: Attempt, make) -> None:  # type: ignore[no-untyped-def]
    for path in (attempt.log, attempt.result, attempt.progress, attempt.kept):
        make(path)
    attempt.reader = attempt.anew()
    assert not attempt.reader.look()
    assert attempt.reader.record.curves == {}


def test_result_that_is_rewritten_all_the_time_is_never_half_a_value(attempt: Attempt) -> None:
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            attempt.result.write_text(json.dumps({"loss": 1.0, "id": 2, "note": "n" * 200}, indent=1))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            attempt.reader.look()
    finally:
        over.set()
        writer.join()
    attempt.reader.look()
    assert attempt.reader.record.curves.keys() == {"loss", "id"}
    assert set(attempt.values("loss")) == {1.0}


def test_object_that_is_too_large_is_not_read(attempt: Attempt) -> None:
    attempt.result.write_text(json.dumps({"loss": 1, "note": "n" * LARGEST_RESULT}))
    attempt.reader.look()
    assert attempt.reader.record.curves == {}


def test_record_that_cannot_be_written_leaves_the_old_one(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.append("loss 3\n")
    attempt.reader.look()
    attempt.reader.save()
    before = attempt.kept.read_bytes()
    attempt.append("loss 2\n")
    attempt.reader.look()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        attempt.reader.save()
    assert attempt.kept.read_bytes() == before
    assert sorted(path.name for path in attempt.kept.parent.iterdir()) == [".metrics.1", "1.log"]
    attempt.reader.save()
    again = MetricRecord.load(attempt.kept.read_bytes())
    assert again is not None
    assert again.curves["loss"].last == 2.0
