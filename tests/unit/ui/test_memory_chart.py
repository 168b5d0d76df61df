"""The stacked bars of a simulated run's memory."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import Device
from scheduler.ui.charts import memory_chart
from scheduler.ui.charts.memory_chart import Schedule, ScheduleBar, held_over_time, stacked
from scheduler.ui.charts.svg import svg
from tests.support.faults import fault

CARD = Device("GPU-0", "GPU 0", 100, 1.0, 0)


def bar(begin: float, end: float, bytes_: int, name: str = "a") -> ScheduleBar:
    return ScheduleBar("GPU-0", begin, end, bytes_, "#3b6fb6", name)


def schedule(*bars: ScheduleBar) -> Schedule:
    return Schedule("packed", [CARD], bars, {"priority 1": "#3b6fb6"})


def test_stacked_bars_lie_as_low_as_possible() -> None:
    lying = stacked([bar(0, 10, 40), bar(0, 5, 30), bar(5, 20, 20), bar(10, 20, 10)])
    assert [one.floor for one in lying] == [0, 40, 40, 0]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(1, 50)), max_size=12))
def test_stacked_bars_do_not_overlap(said: list[tuple[int, int, int]]) -> None:
    lying = stacked(sorted((bar(at, at + long, high) for at, long, high in said), key=lambda one: one.begin))
    for number, one in enumerate(lying):
        for other in lying[:number]:
            apart = one.begin >= other.end or other.begin >= one.end
            assert apart or one.floor >= other.floor + other.bytes or other.floor >= one.floor + one.bytes


def test_held_over_time_is_the_share_of_each_slice() -> None:
    assert held_over_time([bar(0, 10, 50), bar(5, 10, 50)], CARD, 2, 10) == pytest.approx([0.5, 1.0])
    assert held_over_time([bar(0, 2.5, 100)], CARD, 2, 10) == pytest.approx([0.5, 0.0])


def test_text_bars_have_a_line_for_each_device() -> None:
    lines = memory_chart.text_bars(schedule(bar(0, 10, 100)), io.StringIO())
    assert lines[2] == "GPU 0  |" + "@" * memory_chart.SLICES + "|"
    assert lines[-1].endswith("10s")


def test_text_bars_without_a_bar_are_empty() -> None:
    assert memory_chart.text_bars(schedule(), io.StringIO()) == []


@fault(66)
def test_svg_has_a_bar_for_each_attempt_and_escapes_names() -> None:
    drawn = memory_chart.draw([schedule(bar(0, 10, 50, "<&\x1b[31m>: 0MiB"), bar(0, 5, 50))])
    root = ElementTree.fromstring(svg(drawn))
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["<&>: 0MiB", "a"]


def test_chart_of_a_reported_run_has_a_bar_and_a_colour_for_each_outcome() -> None:
    columns = [
        "task",
        "attempt",
        "lane",
        "begin",
        "end",
        "outcome",
        "purpose",
        "reserved_bytes",
        "peak_bytes",
        "source",
    ]
    rows = [
        [1, 1, 0, 0.0, 5.0, "oom", "run", 1 << 30, 1 << 29, "declared"],
        [1, 2, 0, 5.0, 9.0, "succeeded", "run", 2 << 30, 1 << 30, "declared"],
        [2, 1, 1, 0.0, 3.0, "succeeded", "probe", 1 << 30, 1 << 29, "probe"],
    ]
    device = {"key": "GPU-0", "label": "GPU 0", "capacity": 4 << 30, "bar_columns": columns, "bars": rows}
    made = memory_chart.reported_schedule({"number": 7, "file": "jobs.csv", "tasks": [[1, "a"]], "devices": [device]})
    assert (made.title, made.ended, [*made.legend]) == (
        "run 7 jobs.csv: 3 attempts",
        9.0,
        ["oom", "succeeded", "probe"],
    )
    assert [(one.title, one.bytes) for one in made.bars] == [
        ("task 2 : 1.0GiB, 0.0s to 3.0s, probe", 1 << 30),
        ("task 1 a: 1.0GiB, 0.0s to 5.0s, oom", 1 << 30),
        ("task 1 a: 2.0GiB, 5.0s to 9.0s, succeeded", 2 << 30),
    ]
    assert len({one.colour for one in made.bars}) == 3
