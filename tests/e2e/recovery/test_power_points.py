"""Power cuts at writes of a run: what is left on the disk is what was synced, and the run is resumed from it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.power import RUN, Disk, Entry, Recorder, Verdict, judge_queue, prepare, queue_commands, try_points
from tests.support.standin import box

CODES = [0, 3, 0]
POINTS = 5
"""The number of points of each kind of disk; `scripts/bench/power_cuts.py` tries all."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason=box.NO_COMPILER)
@fault(6)
def test_run_is_resumed_from_what_was_synced_at_random_points(tmp_path: Path) -> None:
    recorder, verdict, dice = Recorder(tmp_path), Verdict(), random.Random(26)
    prepare(recorder, CODES)
    recorder.record(RUN)
    for names in ("synced", "all"):
        number = sum(1 for _ in recorder.points(names))
        assert number > 20  # else nothing was recorded
        try_points(recorder, CODES, names, dice.sample(range(number), POINTS), verdict)
    assert verdict.good, verdict
    assert verdict.points == 2 * POINTS


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason=box.NO_COMPILER)
@fault(6)
def test_queue_goes_on_from_what_was_synced_at_random_points(tmp_path: Path) -> None:
    recorder, verdict, dice = Recorder(tmp_path), Verdict(), random.Random(21)
    recorder.home.env["SCHEDULER_QUEUE_IDLE"] = "1s"
    recorder.record(*queue_commands(recorder, CODES))
    for names in ("synced", "all"):
        number = sum(1 for _ in recorder.points(names))
        assert number > 20
        try_points(recorder, CODES, names, dice.sample(range(number), 2), verdict, judge_queue)
    assert verdict.good, verdict


def entry(op: str, path: str = "/a", second: str = "", offset: int = 0, data: bytes = b"") -> Entry:
    return Entry(op, path, second, 1, offset, data)


def test_data_that_was_not_synced_is_not_on_the_disk_after_a_power_cut() -> None:
    disk = Disk()
    for one in (entry("n"), entry("w", data=b"old"), entry("s"), entry("w", data=b"new")):
        disk.apply(one)
    assert disk.left("all") == ({"/a": b"old"}, set())


def test_rename_after_the_last_sync_is_kept_by_a_disk_with_all_names_only() -> None:
    disk = Disk()
    for one in (entry("n"), entry("w", data=b"old"), entry("s"), entry("m", second="/b")):
        disk.apply(one)
    assert disk.left("synced") == ({"/a": b"old"}, set())
    assert disk.left("all") == ({"/b": b"old"}, set())
