"""Metrics in a report, in a real browser: the best task, curves, a parameter against the best values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.app.observe import report as observe_report
from scheduler.core.metrics.record import MetricRecord
from scheduler.ui.web import report as web_report
from scheduler.ui.web.report import ReportedRun
from tests.support.chromium import NARROW, Browser
from tests.support.reported import told

pytestmark = pytest.mark.slow

TASKS = 60
HOSTILE = '<img src=x onerror="alert(1)">\x1b[31m'


def record(task: int, points: int) -> MetricRecord:
    made = MetricRecord()
    for step in range(1, points + 1):
        made.take([("val_acc", 1 - 1 / (step + task % 7), step), ("loss", task / 100 + 1 / step, step)])
    made.take([(HOSTILE, math.nan, None), ("id", 3.0, None)])
    return made


@pytest.fixture(scope="module")
def swept() -> ReportedRun:
    run = told("tight", TASKS, "4x40GiB")
    rows = [
        {**row, "lr": str(10.0 ** -(row["id"] % 5)), HOSTILE: HOSTILE, "name": f"train lr=1 {HOSTILE}={HOSTILE}"}
        for row in run.rows
    ]
    metrics = {row["id"]: record(row["id"], 300) for row in rows}
    return replace(run, rows=rows, varies=("lr", HOSTILE), metrics=metrics)


@pytest.fixture(scope="module")
def report(swept: ReportedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    observe_report.write([swept], str(path))
    return path


@pytest.fixture
def looked(chromium: Browser) -> Iterator[Browser]:
    """Start a browser; afterwards check that no page logged an error."""
    chromium.news()
    yield chromium
    complaints, _ = chromium.news()
    assert complaints == []


def test_report_names_the_best_task_and_the_ten_best(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    assert looked.texts("#answer")[0].startswith("The highest val_acc is 0.99673, at step 300 of task 6: ")
    assert looked.texts("#h-best") == [f"Best 10 of {TASKS}"]
    assert looked.texts("#best tbody td:first-child")[:3] == ["6", "13", "20"]


def test_another_metric_has_its_own_direction_which_can_be_changed(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.find("#metric").send_keys("loss")
    assert looked.tells("document.getElementById('goal').value") == "min"
    assert "lowest loss is 0.013333" in looked.texts("#answer")[0]
    looked.find("#goal").send_keys("highest")
    assert "highest loss is 1.6, at step 1 of task 60" in looked.texts("#answer")[0]


def test_curves_and_points_are_drawn_in_one_colour_per_value(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    assert looked.texts("#curve-legend button") == ["0.0001", "0.001", "0.01", "0.1", "1.0"]
    colours = """(() => { const c = document.querySelector(arguments[0]); const d = c.getContext("2d")
      .getImageData(0, 0, c.width, c.height).data; const s = new Set();
      for (let i = 0; i < d.length; i += 4) s.add(d[i] + "," + d[i + 1] + "," + d[i + 2]); return s.size; })()"""
    for canvas in ("#curves .uplot > canvas, #curves .u-wrap > canvas", "#scatter"):
        assert looked.tells(colours.replace("arguments[0]", f"'{canvas}'")) > 6
    assert looked.texts("#h-scatter") == ["Best val_acc against lr (logarithmic)"]


def test_value_of_a_legend_chooses_tasks_for_all_charts(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.click("#curve-legend [data-value='0.1']")
    assert looked.tells("document.activeElement.dataset.value") == "0.1"
    assert looked.texts("#best tbody td:nth-child(2)") == ["0.1"] * 10
    assert "of the 12 chosen tasks" in looked.texts("#answer")[0]
    looked.click("#clear")
    assert looked.texts("#h-best") == [f"Best 10 of {TASKS}"]


def test_map_of_two_parameters_has_a_cell_for_each_pair_and_chooses_it(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.find("#metric").send_keys("loss")
    assert looked.tells("document.querySelectorAll('#heat rect').length") == 5
    assert looked.tells("document.querySelectorAll('#heat rect.best').length") == 1
    looked.click("#heat rect")
    assert {*looked.texts("#best tbody td:nth-child(2)")} == {"0.0001"}
    assert looked.tells("document.querySelectorAll('#heat rect.dim').length") == 4


def test_part_of_an_axis_chooses_tasks(looked: Browser, report: Path) -> None:
    from selenium.webdriver import ActionChains

    looked.open(report.as_uri())
    canvas = looked.find("#parallel")
    looked.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    left, top, bottom = looked.tells("[METRICS.axes[0].x, METRICS.axes[0].top, METRICS.axes[0].bottom]")
    middle_x, middle_y = canvas.size["width"] / 2, canvas.size["height"] / 2
    mouse = ActionChains(looked.driver, duration=50)
    mouse.move_to_element_with_offset(canvas, round(left - middle_x), round(top - middle_y)).click_and_hold()
    mouse.move_by_offset(0, round((bottom - top) * 0.1)).release().perform()
    assert {*looked.texts("#best tbody td:nth-child(2)")} == {"1.0"}
    mouse = ActionChains(looked.driver, duration=50)
    mouse.move_to_element_with_offset(canvas, round(left - middle_x), 0).click().perform()
    assert looked.texts("#h-best") == [f"Best 10 of {TASKS}"]


def test_best_task_is_found_by_sorting_its_column(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.click("[data-sort='best.val_acc']")
    assert looked.texts("#tasks tbody td[data-column=id]")[:3] == ["6", "13", "20"]
    looked.find("#find").send_keys("lr=0.1")
    assert {*looked.texts("#tasks tbody td[data-column='parameter.lr']")} == {"0.1"}


def test_task_of_the_ten_best_opens_with_its_curve(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.click("#best tbody button")
    assert looked.texts("#tasks tbody td[data-column=id]") == ["6"]
    looked.until("document.querySelectorAll('tr.open .card .uplot').length === 2")
    assert "best 0.99673 at step 300" in " ".join(looked.texts("tr.open .card p"))


def test_hostile_names_are_texts(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    assert looked.tells("document.querySelectorAll('#metrics img').length") == 0
    assert "onerror" in looked.tells("document.getElementById('parameter').innerText")
    assert "\x1b" not in report.read_text()


def test_metrics_of_a_report_fit_a_phone_and_are_accessible(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri(), NARROW)
    assert looked.tells("document.documentElement.scrollWidth <= innerWidth")
    assert looked.faults() == []


def test_report_without_metrics_has_no_such_section(looked: Browser, tmp_path: Path) -> None:
    observe_report.write([told("tight", 10, "4x40GiB")], str(tmp_path / "plain.html"))
    looked.open((tmp_path / "plain.html").as_uri())
    assert looked.tells("document.getElementById('metrics').hidden")


def test_report_of_ten_thousand_tasks_with_curves_stays_small(swept: ReportedRun) -> None:
    one = record(1, 500)
    rows = [{**swept.rows[0], "id": task} for task in range(10_000)]
    made = web_report.data([replace(swept, rows=rows, metrics=dict.fromkeys(range(10_000), one), tracks=[])])
    curves = made["runs"][0]["metrics"][0]["curves"]
    assert len(curves) == 10_000
    assert all(len(curve[-2]) <= 8 for curve in curves)
