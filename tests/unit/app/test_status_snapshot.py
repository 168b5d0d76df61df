"""The status of a run from its snapshot, without its events, for as long as that is recent enough."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.app.observe.run_facts import forecast_with
from scheduler.app.observe.status_snapshot import MANY, StatusRecorder, pause_of, recorded_status
from scheduler.core.events import Limited
from scheduler.core.reporting.forecast import IDLE, Forecast, TimeSpan
from scheduler.core.reporting.run_history import RunHistory
from scheduler.runtime import clock
from scheduler.runtime.paths import RunPaths
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal import Journal
from tests.support.builders import asked, brain, placed, tasks, tell


class Run:
    """A run whose scheduler lives, with a number of ended tasks."""

    def __init__(self, folder: Path, ended: int) -> None:
        self.meta = {"accepted": "5.0"}
        self.brain = brain(tasks(2, "1GiB"))
        self.history = RunHistory()
        self.history.ended = ended
        self.journal = Journal.create(folder / "journal.db")
        self.store = SimpleNamespace(journal=self.journal)
        self.places = RunPaths(folder, 1)
        self.standing = StatusRecorder(self)  # type: ignore[arg-type] # as much of a session as it looks at

    def starts(self, task: int) -> None:
        tell(self.brain, placed(task))
        self.journal.record([placed(task)], 6.0)

    def recorded_status(self, *, alive: bool = True) -> Any:
        said = recorded_status(RunInfo(1, self.places, {**self.meta, **self.journal.meta()}, alive=alive), self.journal)
        return None if said is None else said["states"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, MANY + 1)
    yield made
    made.journal.close()


def test_a_snapshot_is_used_for_a_moment_while_the_run_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.standing.draw()
    run.starts(1)
    assert (run.recorded_status(), run.recorded_status(alive=False)) == ({"waiting": 2}, None)
    later = clock.since_boot() + 2
    monkeypatch.setattr("time.clock_gettime", lambda _: later)
    assert run.recorded_status() is None


def test_a_snapshot_is_written_again_after_a_change(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.standing.draw()
    run.starts(1)
    run.standing.draw()
    assert run.recorded_status() == {"waiting": 2}
    later = clock.since_boot() + 1
    monkeypatch.setattr("time.clock_gettime", lambda _: later)
    run.standing.draw()
    assert run.recorded_status() == run.recorded_status(alive=False) == {"running": 1, "waiting": 1}


def test_no_snapshot_is_written_before_the_journal_has_its_events(run: Run) -> None:
    run.journal.record([placed(1)], 6.0, later=True)
    run.standing.draw()
    assert run.recorded_status() is None
    run.journal.record([], 6.0)
    run.standing.draw()
    assert run.recorded_status() is not None


def test_a_short_run_has_no_snapshot(tmp_path: Path) -> None:
    run = Run(tmp_path, MANY)
    run.standing.draw()
    assert run.recorded_status() is None
    run.journal.close()


def test_a_run_is_paused_by_pause_until_its_time_or_by_jobs_0() -> None:
    b, soon = brain(tasks(2, "1GiB")), time.time() + 3600
    never, on = {"paused": False, "paused_until": None}, {"paused": True, "paused_until": None}
    assert pause_of(b) == never
    for limits, expected in (
        (Limited(paused=True), on),
        (Limited(jobs=0), on),
        (Limited(paused=True, until=soon), {"paused": True, "paused_until": soon}),
        (Limited(paused=True, until=1.0), never),
        (Limited(jobs=2), never),
    ):
        tell(b, limits)
        assert pause_of(b) == expected


def test_the_forecast_of_a_run_whose_tasks_have_all_ended_since_is_not_shown(run: Run) -> None:
    soon = Forecast(5.0, TimeSpan(10.0, 9.0, 11.0))
    run.places.forecast.write_text(json.dumps(soon.to_dict()))
    info = RunInfo(1, run.places, run.meta, alive=True)
    assert forecast_with(info, run.brain) == soon
    for task in (1, 2):
        run.brain.apply(asked("cancel", task))
    assert forecast_with(info, run.brain) == Forecast(5.0, None, IDLE)
