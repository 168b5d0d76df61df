"""The stacked bars of a simulated run's memory."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import Device, Outcome
from scheduler.ui.charts import memory_chart
from scheduler.ui.charts.memory_chart import ScheduleBar, held_over_time, stacked
from scheduler.ui.charts.svg import svg
from tests.support.faults import fault

CARD = Device("GPU-0", "GPU 0", 100, 1.0, 0)


def bar(begin: float, end: float, bytes_: int, name: str = "a") -> ScheduleBar:
    return ScheduleBar("GPU-0", name, 1, begin, end, bytes_, Outcome.SUCCEEDED)


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
    lines = memory_chart.text_bars("packed", [bar(0, 10, 100)], [CARD], io.StringIO())
    assert lines[2] == "GPU 0  |" + "@" * memory_chart.SLICES + "|"
    assert lines[-1].endswith("10s")


def test_text_bars_without_a_bar_are_empty() -> None:
    assert memory_chart.text_bars("packed", [], [CARD], io.StringIO()) == []


@fault(66)
def test_svg_has_a_bar_for_each_attempt_and_escapes_names() -> None:
    drawn = memory_chart.draw({"packed": [bar(0, 10, 50, "<&\x1b[31m>"), bar(0, 5, 50)]}, [CARD])
    root = ElementTree.fromstring(svg(drawn))
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["<&>: 0MiB, 0.0s to 10s, succeeded", "a: 0MiB, 0.0s to 5.0s, succeeded"]
