"""The planned timeline of `--dry-run`: the bars of the tasks, and the text without a forecast."""

from __future__ import annotations

from scheduler.core.model import Job
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.reporting.forecast import ExpectedTask, Forecast, TimeSpan
from scheduler.ui.terminal.opening import waits_by_row
from scheduler.ui.verbs.dry_run import bars, facts, lines
from tests.support.builders import spec

NAMES = {1: (2, "train lr=0.1"), 2: (3, "train lr=0.2"), 3: (4, "wide"), 4: (5, "eval")}


def planned(start: float, end: float, *devices: str) -> ExpectedTask:
    return ExpectedTask(TimeSpan(start, start, start), TimeSpan(end, end, end), devices)


LABELS = {"GPU-0": "GPU 0", "GPU-1": "GPU 1", "host": "host"}
TASKS = {
    1: planned(100.0, 700.0, "GPU-0", "host"),
    2: planned(100.0, 400.0, "GPU-1"),
    3: planned(700.0, 1300.0, "GPU-0", "GPU-1"),
    4: planned(1300.0, 1900.0, "host"),
}
FORECAST = Forecast(100.0, TimeSpan(1900.0, 1630.0, 2170.0), "", TASKS)


def test_timeline_has_a_row_of_bars_for_each_device() -> None:
    shown = lines(FORECAST, bars(FORECAST, NAMES, LABELS), 4, 0, 80)
    assert shown == [
        "timeline         ends in about 30m (26m to 34m)",
        "",
        "        |now       |5m         |10m        |15m        |20m        |25m        |",
        "host                                                    5━━━━━━━━━━━━━━━━━━━━━━",
        "GPU 0   2━━━━━━━━━━━━━━━━━━━━━━ 4━━━━━━━━━━━━━━━━━━━━━━",
        "GPU 1   3━━━━━━━━━━             4━━━━━━━━━━━━━━━━━━━━━━",
        "",
        "row  device  starts  ends  name",
        "  2  GPU 0      now   10m  train lr=0.1",
        "  3  GPU 1      now    5m  train lr=0.2",
        "  4  GPU 0      10m   20m  wide",
        "  4  GPU 1      10m   20m  wide",
        "  5  host       20m   30m  eval",
    ]


def test_timeline_counts_tasks_with_an_estimated_duration() -> None:
    shown = lines(FORECAST, bars(FORECAST, NAMES, LABELS), 4, 3, 80)
    assert shown[0].endswith("; durations of 3 of 4 tasks are estimated from similar tasks")


def test_timeline_of_a_long_list_shows_the_first_tasks() -> None:
    shown = lines(FORECAST, bars(FORECAST, NAMES, LABELS), 5000, 0, 80)
    assert "                 the first 4 of 5,000 tasks are shown" in shown


def test_timeline_counts_bars_beyond_the_lanes_of_a_device() -> None:
    many = Forecast(0.0, TimeSpan(60.0, 60.0, 60.0), "", dict.fromkeys(range(20), planned(0.0, 60.0, "host")))
    shown = lines(FORECAST, bars(many, {}, {}), 20, 0, 80)
    assert "        and up to 14 more at the same time" in shown


def test_timeline_without_a_forecast_names_simulate() -> None:
    (line,) = lines(Forecast(0.0, None, "unknown until a similar task has finished"), [], 4, 4, 80)
    assert line == (
        "timeline         unknown until a similar task has finished; "
        "scheduler simulate FILE --assume 10min,4GiB shows one for assumed durations"
    )


def test_facts_have_seconds_from_now() -> None:
    plan = facts(FORECAST, bars(FORECAST, NAMES, LABELS))
    assert plan["over_in_s"] == {"likely": 1800.0, "early": 1530.0, "late": 2070.0}
    assert plan["timeline"][0] == {
        "row": 2, "name": "train lr=0.1", "device": "GPU 0", "start_s": 0.0, "end_s": 600.0,
    }  # fmt: skip


def test_waiting_tasks_of_a_plan_are_named_by_their_rows() -> None:
    """A plan gives its tasks ids from 1, which are not the ids that the tasks get."""
    jobs = {number: Job(spec(row=row), "a", "a") for number, row in ((1, 4), (2, 7), (3, 9))}
    refusals = [
        Refusal(2, Reason.PROBING, wanted=1),
        Refusal(3, Reason.KEPT, "GPU 0", text="task 2 of this run"),
        Refusal(3, Reason.KEPT, "GPU 1", text="task 2 of run 5 of eva"),
        Refusal(4000, Reason.PROBING, wanted=1),
    ]
    assert [(job.spec.row, why) for job, why in waits_by_row(refusals, jobs)] == [
        (7, "waits for the probe of row 4, which is of the same class"),
        (9, "waits behind row 7, which was bypassed too often: GPU 0 is kept for it"),
        (9, "waits behind task 2 of run 5 of eva, which was bypassed too often: GPU 1 is kept for it"),
    ]
