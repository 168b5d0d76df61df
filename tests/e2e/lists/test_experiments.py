"""`scheduler experiment`: simulated, on the host, and under MPS on stand-in GPUs."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import pytest

from tests.support.gpu_home import GpuHome, training
from tests.support.killing import ROOT, Home
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

ROWS = [".,-1,train.py,5,1", ".,-1,train.py,8,2", ".,-1,train.py --n 2,6,1", ".,-1,train.py --n 2,9,4"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    made.write("jobs.csv", "Directory,Executable,Filename,Epochs,Priority", *ROWS)
    yield made
    made.end()


def table(home: Home, folder: str) -> list[dict[str, str]]:
    with open(home.root / folder / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_simulated_mps_without_a_speed_changes_no_time_and_says_so(home: Home) -> None:
    said = home.call("experiment", "mps", "jobs.csv", "--simulate", "1x24GiB", "--percentages", "50", code=0)
    found = table(home, "experiment-mps-jobs")
    by_arm = {row["arm"]: row["makespan_s"] for row in found if row["repeat"] == "1"}
    assert by_arm["packed"] == by_arm["packed, MPS 50%"] != by_arm["one per GPU"]
    assert {row["world"] for row in found} == {"simulated, no gain of MPS assumed"}
    assert "can only be measured on real GPUs" in said.stdout
    assert json.loads((home.root / "experiment-mps-jobs/results.json").read_text())["machine"]["simulated"] is True


def test_simulated_mps_gains_the_assumed_speed(home: Home) -> None:
    flags = ("--simulate", "1x24GiB", "--percentages", "100", "--mps-speed", "2", "--repeats", "1")
    home.call("experiment", "mps", "jobs.csv", *flags, code=0)
    found = {row["arm"]: float(row["makespan_s"]) for row in table(home, "experiment-mps-jobs")}
    assert found["packed, MPS 100%"] < found["packed"]
    assert {row["world"] for row in table(home, "experiment-mps-jobs")} == {"simulated, --mps-speed 2 assumed"}


def test_repeated_command_keeps_measured_arms_and_measures_the_others(home: Home) -> None:
    flags = ("experiment", "priority", "jobs.csv", "--simulate", "1x24GiB", "--num", "1,4")
    home.call(*flags, "--repeats", "1", code=0)
    said = home.call(*flags, "--repeats", "2", code=0).stderr
    assert "3 of 6 arms were measured before" in said
    assert "4/6" in said
    assert "3/6" not in said
    assert len(table(home, "experiment-priority-jobs")) == 6
    assert (home.root / "experiment-priority-jobs/batches.csv").read_text().startswith("arm,repeat,batch,priority")


def test_experiment_with_other_terms_is_refused_in_the_same_folder(home: Home) -> None:
    flags = ("experiment", "priority", "jobs.csv", "--simulate", "1x24GiB", "-o", "here")
    home.call(*flags, "--num", "1", code=0)
    said = home.call(*flags, "--num", "2", code=2).stderr
    assert "holds an experiment with other terms (arms was --num 1, --order global" in said


def test_page_and_chart_of_an_experiment_are_self_contained(home: Home) -> None:
    home.call("experiment", "priority", "jobs.csv", "--simulate", "1x24GiB", "--repeats", "1", code=0)
    page = (home.root / "experiment-priority-jobs/report.html").read_text()
    assert not re.search(r'(?:src|href)="', page)
    assert "default-src 'none'" in page
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    said = json.loads(found[1])
    assert said["simulated"] is True
    assert any("--order global" in arm["name"] for arm in said["arms"])  # arms that are equal are one row
    assert all(len(arm["cells"]) == len(said["columns"]) for arm in said["arms"])
    chart = ElementTree.fromstring((home.root / "experiment-priority-jobs/report.svg").read_text())
    assert float(chart.attrib["width"]) > 1000
    assert {"#3b6fb6", "#222222"} <= {one.attrib["fill"] for one in chart.iter() if "fill" in one.attrib}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mps",), "give a list: scheduler experiment mps"),
        (("mps", "jobs.csv", "--devices", "host"), "MPS needs a GPU, and this machine has none"),
        (("mps", "jobs.csv", "--num", "5"), "--num has no effect in experiment mps"),
        (("mps", "jobs.csv", "--mps-speed", "2"), "add --simulate 4x24GiB"),
        (("mps", "jobs.csv", "--simulate", "host:8GiB"), "MPS needs a GPU, and there is none"),
        (("mps", "jobs.csv", "--copies", "1,2"), "--copies and a command after -- go together"),
        (("mps", "jobs.csv", "--percentages", "0"), "--percentages 0: '0' is not a percentage of a GPU's threads"),
        (("priority", "jobs.csv", "--num", "0"), "'0' is not a whole number from 1"),
        (("priority", "none.csv", "--simulate", "1x24GiB"), "none.csv: no such file"),
        (("priority", "jobs.csv", "--simulate", "many"), "--simulate many: 'many' is no device"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_folder(home: Home, arguments: list[str], words: str) -> None:
    before = sorted(path.name for path in home.root.iterdir())
    said = home.call("experiment", *arguments, code=2).stderr
    assert words in said
    assert said.count("\n") == 1
    assert [path.name for path in home.root.iterdir() if path.name.startswith("experiment-")] == []
    assert "jobs.csv" in before


@pytest.mark.slow
def test_priority_experiment_on_the_host_measures_every_batch_size(home: Home) -> None:
    flags = ("--devices", "host", "--num", "1,4", "--order", "batch", "--repeats", "1")
    said = home.call("experiment", "priority", "jobs.csv", *flags, code=0)
    found = table(home, "experiment-priority-jobs")
    assert [(row["arm"], row["succeeded"], row["world"]) for row in found] == [
        ("--num 1", "4", "real"),
        ("--num 4", "4", "real"),
    ]
    assert "wait_mean_s.1" in found[0]
    assert home.states(found[0]["run"]) == ["succeeded"] * 4
    assert "2/2" in said.stderr


TIMES = ("submitted", "started", "ended")


def check_against_runs(home: Home, folder: str) -> None:
    """Compare every row of the table, and every wait in batches.csv, with the results of the run that it names."""
    file = home.root / folder / "batches.csv"
    waits = list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []
    for row in table(home, folder):
        told = json.loads(home.call("results", f"r{row['run']}", "--json", code=0).stdout)["tasks"]
        done = [task for task in told if task["state"] == "succeeded"]
        assert (int(row["tasks"]), int(row["succeeded"])) == (len(told), len(done))
        assert int(row["ooms"]) == sum(task["ooms"] for task in told)
        assert float(row["task_mean_s"]) == pytest.approx(mean(task["ran_s"] for task in done), abs=0.002)
        submitted, started, ended = ([datetime.fromisoformat(task[name]) for task in done] for name in TIMES)
        seconds = float(row["makespan_s"])
        assert (max(ended) - min(started)).total_seconds() - 0.01 <= seconds
        assert seconds <= (max(ended) - min(submitted)).total_seconds() + 0.01
        mine = [one for one in waits if (one["arm"], one["repeat"]) == (row["arm"], row["repeat"])]
        assert sum(int(one["tasks"]) for one in mine) == (len(told) if waits else 0)
        for one in mine:
            where = (int(one["batch"]), int(one["priority"]))
            same = [task["waited_s"] for task in told if (task["batch"], task["priority"]) == where]
            assert float(one["wait_mean_s"]) == pytest.approx(mean(same), abs=0.002)
            assert float(one["wait_max_s"]) == pytest.approx(max(same), abs=0.002)


@pytest.mark.slow
def test_the_folder_of_a_priority_sweep_says_the_same_as_its_runs(home: Home) -> None:
    home.command = [str(ROOT / "scripts/priority_sweep")]
    home.call("jobs.csv", "--devices", "host", "--num", "1,4", "--repeats", "1", code=0)
    home.command = [sys.executable, "-m", "scheduler"]
    assert [row["arm"] for row in table(home, "experiment-priority-jobs")] == ["--num 1", "--num 4", "--order global"]
    check_against_runs(home, "experiment-priority-jobs")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
def test_the_folder_of_an_mps_experiment_says_the_same_as_its_runs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = GpuHome(tmp_path_factory.mktemp("m"), gpus=1)
    try:
        home.install_mps()
        home.jobs(*[training(peak="2GiB", Memory="3GiB", seconds=0.3, busy=0.1, epochs=2)] * 2)
        home.command = [str(ROOT / "scripts/mps_experiment")]
        home.call("jobs.csv", "--percentages", "50", "--repeats", "1", code=0)
        home.command = [sys.executable, "-m", "scheduler"]
        check_against_runs(home, "experiment-mps-jobs")
        for row in table(home, "experiment-mps-jobs"):
            told = json.loads(home.call("results", f"r{row['run']}", "--json", code=0).stdout)["tasks"]
            assert int(row["under_mps"]) == sum(bool(task["thread_percentage"]) for task in told)
            assert int(row["mps_clients"]) == sum(task["mps"] == "client" for task in told)
    finally:
        home.end()


WAITS = """
import os, time
open("here", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_interrupted_experiment_leaves_no_process_and_continues(home: Home) -> None:
    (home.root / "train.py").write_text(WAITS)
    flags = ("experiment", "priority", "jobs.csv", "--devices", "host", "--num", "4", "--order", "batch")
    with home.start(*flags, "--repeats", "1", stderr=subprocess.PIPE) as process:
        wait_until((home.root / "here").exists, 60)
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, "Traceback" in said, "file descriptor" in said) == (143, False, False), said
    wait_until(lambda: not home.living(), 5)  # an idle shim notices the end of its scheduler a moment later
    assert {"waiting", "running", "interrupted"}.isdisjoint(home.states())
    (home.root / "go").touch()
    home.call(*flags, "--repeats", "1", code=0)
    assert [row["succeeded"] for row in table(home, "experiment-priority-jobs")] == ["4"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
def test_mps_experiment_on_gpus_measures_every_arm_and_leaves_no_daemon(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = GpuHome(tmp_path_factory.mktemp("m"), gpus=1)
    try:
        home.install_mps()
        home.jobs(*[training(peak="2GiB", Memory="3GiB", seconds=0.5, busy=0.1, epochs=2)] * 3)
        home.call("experiment", "mps", "jobs.csv", "--percentages", "50", "--repeats", "1", code=0)
        found = table(home, "experiment-mps-jobs")
        assert [(row["arm"], row["succeeded"], row["residents_max"]) for row in found] == [
            ("one per GPU", "3", "1"),
            ("packed", "3", "3"),
            ("packed, MPS 50%", "3", "3"),
        ]
        assert found[2]["under_mps"] == "3"
        results = json.loads((home.root / "experiment-mps-jobs/results.json").read_text())
        arm = results["readings"][2]["machine_state"]
        assert arm["percentages_read_back"] == {"GPU 0": 100.0}
        assert arm["gpus_before"][0]["power_cap_mw"] == 300000
        assert results["machine"]["driver"]
        assert sys.executable
        assert home.daemons() == []
    finally:
        home.end()
