"""The report of an experiment in a real browser: its table and charts, narrow and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import NARROW, WIDE, Browser
from tests.support.killing import Home

pytestmark = pytest.mark.slow

ARMS = ["--num 1", "--num 4", "--order global"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Measure an experiment on a simulated machine, with a list whose name looks like markup."""
    home = Home(tmp_path_factory.mktemp("experiment"))
    rows = [[f"true --lr {number}", number % 2] for number in range(8)]
    home.write("<b>jobs.csv", "Command,Priority", *rows)
    flags = ("--simulate", "1x24GiB", "--num", "1,4", "--repeats", "2", "-o", "out")
    home.call("experiment", "priority", "<b>jobs.csv", *flags, code=0)
    yield home.root / "out/report.html"
    home.end()


@pytest.fixture
def looked(chromium: Browser) -> Iterator[Browser]:
    """Start a browser; afterwards check that no page logged an error or asked another address."""
    chromium.news()
    yield chromium
    complaints, asked = chromium.news()
    assert complaints == []
    assert [address for address in asked if not address.startswith(("file:", "data:", "about:"))] == []


def test_page_of_an_experiment_has_its_result_its_arms_and_charts(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    assert looked.texts("#title") == ["Batches and priorities: <b>jobs.csv"]
    assert looked.texts("#words") == ["simulated"]
    assert looked.texts("#verdict")[0].startswith("In the simulation, ")
    assert sorted(looked.texts("#arms td[data-column=arm]")) == ARMS
    assert looked.texts("#charts h3")[0] == "Makespan, less is better"
    assert dict(zip(looked.texts("#machine dt"), looked.texts("#machine dd"), strict=True)) == {
        "tasks that share a GPU": "fit: as measured with 1,388 pairs of training jobs on one GPU",
        "seed of the simulation": "1",
        "GPU 0": "24.0GiB",
    }
    widths = looked.tells("[...document.querySelectorAll('#charts .bar')].map(e => e.getBoundingClientRect().width)")
    assert max(widths) > 50
    looked.until("document.querySelectorAll('#charts .uplot').length > 0")


def test_waits_of_batches_with_one_task_are_drawn(looked: Browser, report: Path) -> None:
    """Each priority has a value in some batches only; a line between two of them would need neighbours."""
    looked.open(report.as_uri())
    looked.until("document.querySelectorAll('#charts .uplot').length === 3")
    drawn = """[...document.querySelectorAll('#charts .uplot canvas')].map(canvas => {
      const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, p = COLOURS.p0;
      const wanted = [1, 3, 5].map(at => parseInt(p.slice(at, at + 2), 16)); let found = 0;
      for (let i = 0; i < all.length; i += 4) if (wanted.every((c, k) => Math.abs(all[i + k] - c) < 24)) found++;
      return found; })"""
    looked.until(f"Math.min(...{drawn}) > 20")


def test_arms_are_sorted_by_a_number(looked: Browser, report: Path) -> None:
    looked.open(report.as_uri())
    looked.click("[data-sort='metric.priority 0 waits']")
    assert looked.texts("#arms td[data-column=arm]")[0] == "--order global"


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (NARROW, True)])
def test_page_of_an_experiment_has_no_serious_accessibility_fault(
    looked: Browser, report: Path, size: tuple[int, int], dark: bool
) -> None:
    looked.open(report.as_uri(), size, dark=dark)
    assert looked.tells("document.documentElement.scrollWidth") <= size[0]
    assert looked.faults() == []
