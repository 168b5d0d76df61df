"""Scripts that were edited since their profiles were learned, on stand-in GPUs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_home import GpuHome, Row, training
from tests.support.standin.box import NO_COMPILER, TRAIN

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

FIT = f"""\
import sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import train
from sizes import BATCH
sys.exit(train.main([*sys.argv[1:], "--per", "batch=2GiB", "--batch", str(BATCH)]))
"""
LISTED = [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    (tmp_path / "fit.py").write_text(FIT)
    (tmp_path / "sizes.py").write_text("BATCH = 1\n")
    made.jobs(*[row(peak) for peak in LISTED])
    yield made
    made.end()


def row(peak: float) -> Row:
    return training("fit.py", peak=f"{peak}GiB", seconds=3, rise=0.3)


def learned(home: GpuHome) -> None:
    """Run the list once, so that every row is known."""
    home.run("--settle", "1s")


def again(home: GpuHome, *flags: str, run: int = 2) -> list[Any]:
    home.run("--settle", "1s", *flags)
    return home.tries(run)


def test_every_row_is_known_from_the_earlier_version_after_a_comment_was_edited(home: GpuHome) -> None:
    learned(home)
    (home.root / "fit.py").write_text(f"# a comment\n{FIT}")
    plan = json.loads(home.call("run", "jobs.csv", "--dry-run", "--json", code=0).stdout)
    tries = again(home)
    assert {one["source"] for one in plan["starts"]} == {"earlier version"}
    assert {one.source for one in tries} == {"earlier version"}
    assert {(one.number, one.outcome) for one in tries} == {(1, "succeeded")}
    (task, *_) = json.loads(home.call("results", "r2", "--json", code=0).stdout)["tasks"]
    assert task["source"] == "earlier version"
    assert home.call("list", "r2", code=0).stdout.count("earlier version") == len(LISTED)


def test_a_copy_of_the_project_is_the_same_script(home: GpuHome) -> None:
    learned(home)
    copy = home.root / "other" / "checkout"
    copy.mkdir(parents=True)
    for name in ("fit.py", "sizes.py", "jobs.csv"):
        (copy / name).write_text((home.root / name).read_text())
    home.call("run", "jobs.csv", "--settle", "1s", cwd=copy, code=0)
    assert {one.source for one in home.tries(2)} == {"profile"}


def test_a_batch_size_that_was_doubled_in_a_module_beside_the_script_costs_no_neighbour(home: GpuHome) -> None:
    learned(home)
    (home.root / "sizes.py").write_text("BATCH = 2  # twice as many\n")
    tries = again(home)
    assert {one.source for one in tries} <= {"earlier version", "similar", "interpolated"}
    assert {(one.number, one.outcome) for one in tries} == {(1, "succeeded")}


def test_exported_profiles_make_the_tasks_known_on_another_machine_with_another_home(
    home: GpuHome, tmp_path: Path
) -> None:
    learned(home)
    home.call("profiles", "export", "-o", "known.json", code=0)
    (tmp_path / "there").mkdir()
    there = GpuHome(tmp_path / "there", gpus=2, name="NVIDIA Other 24GB")
    try:
        for name in ("fit.py", "sizes.py", "jobs.csv", "known.json"):
            (there.root / name).write_text((home.root / name).read_text())
        assert "8 profiles imported" in there.call("profiles", "import", "known.json", code=0).stdout
        assert {one.source for one in there.run("--settle", "1s")} == {"earlier version"}
        again = there.call("profiles", "import", "known.json", code=0).stdout
        assert again == "0 profiles imported; 8 known here already, left as they are\n"
    finally:
        there.end()
