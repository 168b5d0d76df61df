"""The planned timeline: bars that stand where and when tasks run, and what is said while nobody knows."""

from __future__ import annotations

from scheduler.core.forecast import Course, Forecast, Span
from scheduler.view.planned import bars, facts, lines

NAMES = {1: (2, "train lr=0.1"), 2: (3, "train lr=0.2"), 3: (4, "wide"), 4: (5, "eval")}
COURSE = Course(
    {1: 100.0, 2: 100.0, 3: 700.0, 4: 1300.0},
    {1: 700.0, 2: 400.0, 3: 1300.0, 4: 1900.0},
    1900.0,
    {1: ("GPU-0", "host"), 2: ("GPU-1",), 3: ("GPU-0", "GPU-1"), 4: ("host",)},
)
LABELS = {"GPU-0": "GPU 0", "GPU-1": "GPU 1", "host": "host"}
TOLD = Forecast(100.0, Span(1900.0, 1630.0, 2170.0))


def test_each_device_has_the_bars_of_its_tasks() -> None:
    shown = lines(TOLD, bars(COURSE, 100.0, NAMES, LABELS), 4, 0, 80)
    assert shown == [
        "timeline         over in about 30m (26m to 34m)",
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


def test_guessed_times_are_counted() -> None:
    shown = lines(TOLD, bars(COURSE, 100.0, NAMES, LABELS), 4, 3, 80)
    assert shown[0].endswith("; 3 of 4 have not run before in the same way: as long as others like them")


def test_of_a_long_list_the_first_tasks_are_shown() -> None:
    shown = lines(TOLD, bars(COURSE, 100.0, NAMES, LABELS), 5000, 0, 80)
    assert "                 the first 4 of 5,000 tasks are shown" in shown


def test_many_at_a_time_leave_lines_for_other_devices() -> None:
    many = Course(
        dict.fromkeys(range(20), 0.0), dict.fromkeys(range(20), 60.0), 60.0, dict.fromkeys(range(20), ("host",))
    )
    shown = lines(TOLD, bars(many, 0.0, {}, {}), 20, 0, 80)
    assert "        and 14 more at a time" in shown


def test_while_nobody_knows_it_says_so_and_how_to_see_one() -> None:
    (said,) = lines(Forecast(0.0, None, "unknown yet: nothing like these tasks has run to its end"), [], 4, 4, 80)
    assert said == (
        "timeline         unknown yet: nothing like these tasks has run to its end; "
        "scheduler simulate --assume 10min,4GiB shows one for times that you say"
    )


def test_as_data() -> None:
    told = facts(TOLD, bars(COURSE, 100.0, NAMES, LABELS))
    assert told["over_in_s"] == {"likely": 1800.0, "early": 1530.0, "late": 2070.0}
    assert told["timeline"][0] == {
        "row": 2, "name": "train lr=0.1", "device": "GPU 0", "start_s": 0.0, "end_s": 600.0,
    }  # fmt: skip
