"""`scheduler report`: a page, a chart, rows and data of a real run."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scheduler.app.live.details import TaskReader
from scheduler.core.model import State
from scheduler.runtime.paths import StatePaths
from scheduler.store.run.catalog import RunCatalog
from tests.support.killing import Home

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.commands("sh -c 'echo </script>; exit 3'", "env HF_TOKEN=abcdef true --api-key=sesame")
    made.call("run", "jobs.csv", "--keep-going", code=1)
    yield made
    made.end()


def test_report_page_holds_its_data_and_loads_nothing(home: Home) -> None:
    home.call("report", "-o", "r.html", code=0)
    page = (home.root / "r.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    (run,) = json.loads(found[1])["runs"]
    assert len(run["tasks"]) == 2
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert re.search(r"default-src 'none'; style-src 'sha256-[^']+'; script-src 'sha256-[^']+'; img-src data:", page)
    assert "abcdef" not in page
    assert "sesame" not in page


def test_report_page_has_the_end_of_each_log_and_links_to_trackers(home: Home) -> None:
    says = "wandb: View run at https://wandb.ai/me/my-project/runs/a1b2c3d4"
    home.write("more.sh", f"echo {says}; echo api_key=sesame; exit 1")
    home.commands("sh more.sh")
    home.call("run", "jobs.csv", "--keep-going", code=1)
    home.call("report", "-o", "r.html", code=0)
    page = (home.root / "r.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    (run,) = json.loads(found[1])["runs"]
    assert [*run["logs"].values()] == [f"{says}\napi_key=***\n"]
    assert [*run["links"].values()] == [["https://wandb.ai/me/my-project/runs/a1b2c3d4"]]
    assert "logs" not in json.loads(home.call("report", "--json").stdout)["runs"][0]


def test_report_and_task_page_link_runs_that_were_printed_long_ago_or_are_named_by_variables(home: Home) -> None:
    address = "https://wandb.ai/me/p/runs/first"
    home.write("long.sh", f"echo {address}; seq 20000")
    home.env |= {"WANDB_ENTITY": "me", "WANDB_PROJECT": "p"}
    home.write("jobs.csv", "Command,Env", "sh long.sh,", "true,WANDB_RUN_ID=second", "true,")
    home.call("run", "jobs.csv", code=0)
    home.call("report", "-o", "r.html", code=0)
    found = re.search(r'id="data">(.*?)</script>', (home.root / "r.html").read_text(), re.DOTALL)
    assert found is not None
    (run,) = json.loads(found[1])["runs"]
    assert [*run["links"].values()] == [[address], ["https://wandb.ai/me/p/runs/second"]]
    reader = TaskReader(RunCatalog(StatePaths(home.state)).find(f"r{run['number']}"), lambda _: State.SUCCEEDED)
    assert [[*reader.read(int(task)).links] for task in run["links"]] == [*run["links"].values()]


def test_report_writes_timeline_rows_and_data_by_the_ending_of_the_name(home: Home) -> None:
    home.call("report", "r1", "-o", "t.svg", "-o", "a.csv", "-o", "d.json", code=0)
    drawn = ElementTree.fromstring((home.root / "t.svg").read_text())
    words = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert any("2 attempts" in text for text in words)
    assert {"failed", "succeeded"} <= {*words}
    with open(home.root / "a.csv", newline="") as file:
        assert [row["outcome"] for row in csv.DictReader(file)] == ["failed", "succeeded"]
    assert json.loads((home.root / "d.json").read_text())["runs"][0]["summary"]["tasks"] == 2


def test_report_that_cannot_be_written_is_refused_in_one_sentence(home: Home) -> None:
    assert "ends with .html, .svg (the timeline), .csv or .json" in home.call("report", "-o", "r.png", code=2).stderr
    assert "cannot be written" in home.call("report", "-o", "nowhere/r.html", code=1).stderr
