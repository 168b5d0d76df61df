"""Journals and profiles of each release, in tests/data/kept, which every later version reads.

A folder has the dumps of both databases of a run of that release, logs and metrics of its tasks, and what it printed.
Nothing in it is ever changed; a new format gets a new folder.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import Home

KEPT = Path(__file__).parents[2] / "data" / "kept"
PLACES = {"log"}
"""The columns that name the directory of the state."""

pytestmark = pytest.mark.slow


@pytest.fixture(params=sorted(path.name for path in KEPT.iterdir()))
def release(request: pytest.FixtureRequest) -> Path:
    """Return the folder of a release."""
    return KEPT / str(request.param)


@pytest.fixture
def home(tmp_path: Path, release: Path) -> Iterator[Home]:
    """Yield a home with the state that the release left."""
    made = Home(tmp_path)
    for path in sorted((release / "tasks").glob("*/*")):
        task = made.state / "runs/1/tasks" / path.parent.name
        task.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, task / (f".{path.name}" if path.suffix != ".txt" else f"{path.stem}.log"))
    for name, path in (("journal", "runs/1/journal.db"), ("profiles", "profiles.db")):
        with contextlib.closing(sqlite3.connect(made.state / path)) as database:
            database.executescript((release / f"{name}.sql").read_text(encoding="utf-8"))
    made.env["TZ"] = "UTC"
    yield made
    made.end()


def same(now: list[dict[str, Any]], then: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of now with the columns that there were then."""
    return [{name: row[name] for name in before} for row, before in zip(now, then, strict=True)]


def without_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in PLACES} for row in rows]


def test_results_of_a_run_of_an_earlier_release_are_as_it_printed_them(home: Home, release: Path) -> None:
    then = without_places(json.loads((release / "results.json").read_text())["tasks"])
    assert without_places(same(home.tasks("1"), then)) == then
    listed = json.loads(home.call("list", "r1", "--json", code=0).stdout)["tasks"]
    assert [row["state"] for row in listed] == [row["state"] for row in then]


def test_profiles_of_an_earlier_release_are_as_it_printed_them(home: Home, release: Path) -> None:
    then = json.loads((release / "profiles.json").read_text())["profiles"]
    now = json.loads(home.call("profiles", "show", "--all", "--json", code=0).stdout)["profiles"]
    assert same(now, then) == then


def test_failed_task_of_an_earlier_release_is_retried_by_this_one(home: Home) -> None:
    assert "task 2: queued again (was failed)" in home.call("retry", "r1", code=0).stdout
