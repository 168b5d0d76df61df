"""Metrics of running tasks in the live view: the last value, a sparkline, and names that keep what tells them apart."""

from __future__ import annotations

import pytest

from scheduler.core.reporting.live_status import LiveTask
from scheduler.ui.terminal import panels
from scheduler.ui.text import columns, fit_middle


def living(name: str, **metrics: list[float | None]) -> LiveTask:
    return LiveTask(3, 1, name, ("GPU 0",), False, "", 2.0, 4.0, 10, 5, 6, 7, 8.0, metrics)


def shown(width: int, *tasks: LiveTask) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in panels._running(tasks, width, 20)]


def test_wide_view_has_the_last_value_and_the_shape() -> None:
    header, first = shown(120, living("train lr=1", lr=[1.0], val_acc=[0.0, 0.5, 1.0], loss=[4.0, 2.0, None]))
    assert header.split()[-2:] == ["val_acc", "loss"]
    assert first.split()[-4:] == ["1", "▁▅█", "nan", "█▁×"]


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
