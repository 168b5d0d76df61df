"""A report in a real browser: read, clicked, sorted, filtered, saved, beside another, narrow and dark."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.app.observe import report as observe_report
from scheduler.ui.web.report import ReportedRun
from tests.support.chromium import NARROW, WIDE, Browser
from tests.support.reported import told
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TASKS = 270


@pytest.fixture(scope="module")
def packed() -> ReportedRun:
    """Simulate on GPUs that are nearly too small, so that some tasks run out of memory."""
    return told("tight", TASKS, "4x40GiB")


@pytest.fixture(scope="module")
def report(packed: ReportedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    observe_report.write([packed], str(path))
    return path


@pytest.fixture(scope="module")
def both(packed: ReportedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "both.html"
    observe_report.write([packed, told("tight", TASKS, "4x40GiB", number=2, policy="one-per-gpu")], str(path))
    return path


@pytest.fixture
def looked(chromium: Browser) -> Iterator[Browser]:
    """Start a browser; afterwards check that no page logged an error or asked another address."""
    chromium.news()
    yield chromium
    complaints, asked = chromium.news()
    assert complaints == []
    assert [address for address in asked if not address.startswith(("file:", "data:", "blob:", "about:"))] == []


def column(page: Browser, name: str) -> list[str]:
    return page.texts(f"#tasks tbody td[data-column={name}]")


def test_report_shows_the_figures_of_a_run(looked: Browser, report: Path, packed: ReportedRun) -> None:
    looked.open(report.as_uri())
    said = dict(zip(looked.texts("#figures dt"), looked.texts("#figures dd"), strict=True))
    assert sum(int(word) for word in said["Tasks"].split() if word.isdigit()) == TASKS
    assert said["Out of memory"] == str(packed.totals.ooms) != "0"
    assert int(said["Retries"]) >= packed.totals.ooms
    assert said["Tasks at once"] == f"{packed.totals.at_once:.1f}"
    assert "Task time" in said
    assert ("Time in probes" in said) is (packed.totals.probing > 0)  # what did not happen takes no room
    assert "0" not in said.values()
    assert looked.texts(".wait > span:not(.says)") == [
        f"priority {number} ({sum(row['priority'] == number for row in packed.rows)})" for number in (1, 2, 3)
    ]


def test_report_draws_an_arrow_from_the_end_of_a_task_to_one_that_depends_on_it(
    looked: Browser, packed: ReportedRun, tmp_path: Path
) -> None:
    first = min(packed.tracks, key=lambda track: track.attempt.ended or 0.0)
    last = max(packed.tracks, key=lambda track: track.attempt.placed)
    drawn = []
    for arrows in ((), ((first.task, last.task),)):
        path = tmp_path / f"{len(arrows)}.html"
        observe_report.write([replace(packed, arrows=arrows)], str(path))
        looked.open(path.as_uri())
        drawn.append(looked.until("document.querySelector('.charts canvas').toDataURL()"))
        assert ("arrows: from the end" in "".join(looked.texts(".charts .legend"))) == bool(arrows)
    assert drawn[0] != drawn[1]


def test_report_sorts_filters_and_pages_tasks(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    assert looked.texts("#shown") == [f"1–100 of {TASKS}"]
    looked.click("[data-sort=ran_s]")
    looked.click("[data-sort=ran_s]")
    assert looked.texts("th[aria-sort=descending]") == ["ran↓"]
    looked.click("#next")
    assert looked.texts("#shown") == [f"101–200 of {TASKS}"]
    looked.find("#find").send_keys("tight_7.py")
    found = column(looked, "command")
    assert found
    assert all("tight_7.py" in command for command in found)
    looked.find("#find").clear()
    looked.find("#find").send_keys("#12")
    assert column(looked, "id") == ["12"]


def heads(page: Browser) -> list[str]:
    """Return the columns in their order, as they are told apart."""
    found: list[str] = page.tells("[...document.querySelectorAll('#tasks th')].map(e => e.dataset.column)")
    return found


def drag(page: Browser, head: str, target: str) -> None:
    """Drag the head of a column to the left half of another one."""
    from selenium.webdriver import ActionChains

    page.driver.execute_script("document.querySelector('#tasks').scrollIntoView()")
    width = page.find(f"#tasks th[data-column={target}]").size["width"]
    mouse = ActionChains(page.driver, duration=50)
    mouse.click_and_hold(page.find(f"#tasks th[data-column={head}]"))
    mouse.move_to_element_with_offset(page.find(f"#tasks th[data-column={target}]"), -width // 4, 0).release().perform()


def test_columns_are_hidden_shown_and_put_back(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    usual = heads(looked)
    assert "waited_s" not in usual
    looked.click(".menu summary")
    looked.until("!!document.querySelector('[data-choose]')")
    looked.until("!!document.querySelector('[data-choose=state]')")
    looked.click("[data-choose=state]")
    looked.click("[data-choose=waited_s]")
    assert {*heads(looked)} == {*usual} - {"state"} | {"waited_s"}
    assert not looked.find("[data-choose=id]").is_enabled()
    looked.driver.refresh()
    assert "state" not in heads(looked)
    looked.click(".menu summary")
    looked.until("!!document.querySelector('[data-choose]')")
    looked.click("[data-all]")
    assert heads(looked) == usual
    looked.press("\ue00c")  # Escape
    assert looked.tells("!document.querySelector('.menu').open")


def test_columns_move_by_mouse_and_by_keyboard_and_rows_follow(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    usual = heads(looked)
    states = column(looked, "state")
    drag(looked, "state", "ended")
    assert heads(looked).index("state") == heads(looked).index("ended") - 1
    assert heads(looked) != usual
    assert column(looked, "state") == states
    assert looked.texts("th[aria-sort=ascending]") == []
    looked.driver.execute_script("document.querySelector('#tasks [data-sort=ended]').focus()")
    keys = {"key": "ArrowLeft", "altKey": True, "bubbles": True}
    looked.driver.execute_script(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', arguments[0]))", keys
    )
    assert heads(looked).index("ended") == heads(looked).index("state") - 1
    assert looked.tells("document.activeElement.dataset.sort") == "ended"
    looked.click(".menu summary")
    looked.until("!!document.querySelector('[data-choose]')")
    looked.click("[data-all]")
    assert heads(looked) == usual


def test_rows_are_one_line_high_and_the_head_stays(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    heights = looked.tells("[...document.querySelectorAll('#tasks tr.row')].map(e => e.getBoundingClientRect().height)")
    assert max(heights) < 40
    looked.driver.execute_script("document.querySelector('.scroll.table').scrollTop = 900")
    assert looked.tells(
        "Math.abs(document.querySelector('#tasks th').getBoundingClientRect().y - "
        "document.querySelector('.scroll.table').getBoundingClientRect().y) < 3"
    )


@pytest.mark.parametrize("width", [700, 900, 1280])
def test_columns_give_way_until_the_table_fits_the_page(looked: Browser, report: Path, width: int) -> None:
    looked.driver.execute_script("try { localStorage.clear() } catch { /* another page */ }")
    looked.open(report.as_uri(), (width, 900))
    assert looked.tells(
        "document.querySelector('#tasks').offsetWidth <= document.querySelector('.table').clientWidth + 1"
    )
    shown = set(looked.tells("[...document.querySelectorAll('#tasks th')].map(e => e.dataset.column)"))
    assert {"id", "state", "memory"} <= shown
    assert ("device" in shown) is (width == 1280)
    looked.click(".menu summary")
    looked.until("!!document.querySelector('[data-choose]')")
    if not looked.tells("document.querySelector('[data-choose=device]').checked"):
        looked.click("[data-choose=device]")
    assert looked.tells("!!document.querySelector('#tasks th[data-column=device]')")
    looked.click("[data-all]")


def test_task_opens_in_place_by_mouse_and_by_keyboard(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.click("#tasks tr.row td:nth-child(3)")
    assert (
        looked.tells("document.querySelector('tr.open').previousSibling.cells[0].innerText") == column(looked, "id")[0]
    )
    facts = dict(zip(looked.texts("tr.open dt"), looked.texts("tr.open dd"), strict=True))
    assert facts["ended"] == column(looked, "ended")[0]
    assert looked.texts("tr.open .card.wide tbody tr")
    looked.until("document.querySelectorAll('tr.open .uplot').length === 1")
    looked.driver.execute_script("document.querySelector('#tasks button.opens').focus()")
    looked.press("\ue015")  # Down
    looked.press("\ue007")  # Enter
    assert looked.tells("document.querySelectorAll('tr.open').length") == 2
    looked.press("\ue00c")  # Escape
    assert looked.tells("document.querySelectorAll('tr.open').length") == 1
    assert looked.faults() == []


def test_key_finds_tasks_by_words(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.press("/")
    assert looked.tells("document.activeElement.id") == "find"
    looked.press("tight_7 #12")
    assert looked.texts("#shown") == ["no matching tasks"]
    assert looked.texts("#tasks tbody") == ["no matching tasks"]


BAR = """(() => {
    const r = RUNS[0], {d, top, lane} = r.layout[1], b = d.bars[20], box = r.timeline.getBoundingClientRect();
    return [CHARTS.xAt((b[3] + b[4]) / 2, box.width), top + (b[2] + .5) * lane, b[0], box.width, box.height];
})()"""
"""A script that returns place and task of a bar of the second device, and the size of the timeline."""


def test_bar_shows_its_figures_and_leads_to_its_task(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    x, y, task, width, height = looked.tells(BAR)
    from selenium.webdriver import ActionChains

    canvas = looked.find("#charts canvas")
    looked.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    mouse = ActionChains(looked.driver, duration=20)
    mouse.move_to_element_with_offset(canvas, round(x - width / 2), round(y - height / 2)).perform()
    assert looked.texts("#tip")[0].startswith(f"task {task} tight_")
    assert "reserved" in looked.texts("#tip")[0]
    mouse.click().perform()
    assert column(looked, "id") == [str(task)]
    assert looked.texts("tr.open .detail-head strong")[0].startswith(f"task {task} ")
    looked.click("#controls button")
    assert looked.tells("Math.round(CHARTS.longest / CHARTS.span)") == 2


def test_charts_are_drawn_by_outcome_and_by_priority(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    colours = "new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    assert looked.tells("document.querySelectorAll('#charts canvas').length") == 5
    assert looked.tells(f"[...document.querySelectorAll('#charts canvas')].every(c => {colours} > 8)")
    assert sorted(looked.texts("#charts .legend")[0].split()) == ["oom", "succeeded"]
    looked.find("#colour").send_keys("priority")
    looked.until("document.querySelector('#charts .legend').innerText.includes('priority 3')")


def test_report_saves_csv_json_and_png(looked: Browser, report: Path, packed: ReportedRun, tmp_path: Path) -> None:
    looked.open(report.as_uri())
    how = {"behavior": "allow", "downloadPath": str(tmp_path)}
    looked.driver.execute_cdp_cmd("Browser.setDownloadBehavior", how)
    looked.find("#find").send_keys("tight_7.py")
    looked.click("#csv")
    looked.click("#json")
    looked.click("#controls button:last-child")
    names = ("run-1.csv", "report.json", "run-1.png")
    wait_until(lambda: all((tmp_path / name).exists() for name in names), 60, 0.05)
    with open(tmp_path / names[0], newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(column(looked, "id"))
    assert len(json.loads((tmp_path / names[1]).read_bytes())["runs"][0]["tasks"]) == len(packed.rows)
    assert (tmp_path / names[2]).read_bytes().startswith(b"\x89PNG")


def test_report_compares_two_runs(looked: Browser, both: Path) -> None:
    looked.open(both.as_uri())
    assert looked.texts("#numbers thead th") == [
        "run 1 tight-packed", "run 2 tight-one-per-gpu", "run 2 tight-one-per-gpu / run 1 tight-packed",
    ]  # fmt: skip
    places = looked.tells("[...document.querySelectorAll('.charts')].map(e => e.getBoundingClientRect().y)")
    assert places[0] == places[1]
    tops = looked.tells("RUNS.map(r => r.devices.map(d => Math.round(d.canvas.getBoundingClientRect().y)))")
    assert tops[0] == tops[1]
    assert looked.texts("#numbers td.worse")


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (NARROW, True)])
def test_report_has_no_serious_accessibility_fault(
    looked: Browser, both: Path, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    """Check for faults with axe and for overflow, in both colour schemes and widths."""
    looked.open(both.as_uri(), size, dark=dark)
    looked.shot(tmp_path / "report.png")
    looked.find("#find").send_keys("tight_7.py")
    assert looked.tells("document.documentElement.scrollWidth") <= size[0]
    assert looked.faults() == []
