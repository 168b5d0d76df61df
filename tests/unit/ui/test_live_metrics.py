"""Metrics of running tasks in the live view: the last value, a sparkline, and names that keep what tells them apart."""

from __future__ import annotations

import pytest

from scheduler.core.metrics.curve import Curve
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.model import State
from scheduler.core.reporting.live_status import LiveTask
from scheduler.ui.live import task_page, task_table
from scheduler.ui.live.ports import TaskDetails, TaskWords
from scheduler.ui.live.run_screen import with_news
from scheduler.ui.live.task_list import TaskRow, live_row
from scheduler.ui.terminal import panels
from scheduler.ui.text import columns, fit_middle


def living(name: str, **metrics: list[float | None]) -> LiveTask:
    return LiveTask(3, 1, name, ("GPU 0",), False, "", 2.0, 4.0, 10, 5, 6, 7, 8.0, metrics)


def shown(width: int, *tasks: LiveTask) -> list[str]:
    table = task_table.make(list(map(live_row, tasks)), (), width, "", down=False)
    lines = [table.header(width), *(table.line(at, width, selected=False) for at in range(len(tasks)))]
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_wide_view_has_the_last_value_and_the_shape() -> None:
    header, first = shown(120, living("train lr=1", lr=[1.0], val_acc=[0.0, 0.5, 1.0], loss=[4.0, 2.0, None]))
    assert header.split()[-3:] == ["val_acc", "loss", "lr"]
    assert first.split()[-5:-1] == ["1", "▁▅█", "nan", "█▁×"]


def test_narrow_view_has_the_last_value_alone() -> None:
    header, first = shown(80, living("train lr=1", val_acc=[0.0, 0.5, 0.25], loss=[4.0]))
    assert header.split()[-1] == "val_acc"
    assert first.split()[-1] == "0.25"
    assert max(map(len, (header, first))) <= 80


def test_view_without_metrics_has_no_column_for_them() -> None:
    assert shown(120, living("train"))[0].split()[-1] == "left"


@pytest.mark.parametrize(("values", "line"), [
    ([], ""), ([1.0], "▄"), ([1.0, 1.0], "▄▄"), ([0.0, 1.0], "▁█"), ([None], "×"),
    (list(map(float, range(20))), "▁▂▃▄▅▆▇█"),
])  # fmt: skip
def test_sparkline_spans_the_last_values(values: list[float | None], line: str) -> None:
    assert panels.sparkline(values, 8) == line


@pytest.mark.parametrize("width", [1, 8, 20, 33, 60])
def test_name_keeps_its_ends_and_its_width(width: int) -> None:
    name = "train lr=0.03 data=a_very_long_name_of_a_dataset bs=128"
    cut = fit_middle(name, width)
    assert columns(cut) == width
    assert width < 33 or ("lr=0.03" in cut and "bs=128" in cut)
    assert (cut.rstrip() == name) == (width >= len(name))


@pytest.mark.parametrize(("width", "shown"), [
    (33, "train lr=0.0001 bs=512 width=1024"), (31, "tra… lr=0.0001 bs=512 wid…=1024"),
    (27, "t… lr=0.0001 bs=512 w…=1024"), (25, "t… lr=…001 bs=512 w…=1024"),
])  # fmt: skip
def test_names_of_parameters_are_cut_before_their_values(width: int, shown: str) -> None:
    assert fit_middle("train lr=0.0001 bs=512 width=1024", width, pad=False) == shown


def test_course_that_is_too_wide_is_thinned_to_its_whole_length() -> None:
    values = [0.0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]
    row = TaskRow(1, State.RUNNING, TaskWords("fit", "fit", {}), 0, None, None, {"loss": values})
    for width, course in ((90, "▁▂▃▄▅▆▇██▇▆▅▄▃▂▁▁▁"), (58, "▃▆█▅▂▁")):
        line = task_table.make([row], (), width, "", down=False).line(0, width, selected=False)
        assert course in [text.strip() for text, _ in line]


def test_page_of_a_task_has_the_ends_of_its_curves() -> None:
    curve = Curve()
    for step in range(1, 8):
        curve.add(1 / step, float(step))
    record = MetricRecord()
    record.curves["loss"] = curve
    row = TaskRow(1, State.SUCCEEDED, TaskWords("fit", "fit", {}), 0, None, None, {})
    shown = [
        "".join(text for text, _ in line) for line in task_page.lines(row, TaskDetails(1, metrics=record), 50, 24, 0)
    ]
    ends = next(line for line in shown if "└" in line)
    assert ends.split() == ["└", "1", "7"]
    assert "loss 0.1429   lowest 0.1429 at 7" in "\n".join(shown)


def test_row_that_is_narrower_than_the_table_was_is_not_cut_beside_the_last_lines() -> None:
    chosen = (("   1  fit", "reverse"), (" " * 91, "reverse"))
    title, line = with_news([(("task", "bold"),), chosen], ["10:00:00 start"], 40, 100)
    assert "".join(text for text, _ in line) == f"{'   1  fit':<40}  │ 10:00:00 start"
    assert [text for text, style in line if style == "reverse"] == ["   1  fit", " " * 31]
    assert "…" not in "".join(text for text, _ in title)
