"""`scheduler simulate` as users type it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scheduler.core.placement.policies import names
from tests.support.killing import Home

TRACE = """job_id,arrival_s,duration_s,peak_mem_mib,gpus,priority,util,epochs,config
a,0,600,4000,1,1,0.5,20,small.py
b,0,600,4000,1,2,0.5,20,small.py
c,60,1200,20000,1,1,1.0,20,large.py
d,90,300,8000,2,3,0.8,20,wide.py
"""
SAID = (
    "policy", "makespan", "lower_bound", "ratio", "mean_completion", "p95_completion", "waits", "ooms", "memory_use",
    "load_use", "energy_wh",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "trace.csv").write_text(TRACE)
    yield made
    made.end()


def simulate(home: Home, *arguments: str, code: int = 0) -> str:
    """Return the output of a simulation; where it is refused, its one line on standard error."""
    done = subprocess.run(
        [*home.command, "simulate", *arguments],
        cwd=home.root,
        env=home.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stderr.count("\n") == 1
    return done.stdout if not code else done.stderr


def told(home: Home, *arguments: str) -> Any:
    return json.loads(simulate(home, *arguments, "--json"))


def test_trace_is_simulated(home: Home) -> None:
    lines = simulate(home, "trace.csv", "--devices", "2x24GiB").splitlines()
    assert lines[0].split()[:3] == ["policy", "makespan", "/bound"]
    assert lines[1].split()[0] == "packed"
    assert any(line.startswith("lower bound 21m00s: the longest task by itself, which arrives") for line in lines)
    assert any(line.startswith("GPU 1  |") for line in lines)


def test_result_is_printed_as_json(home: Home) -> None:
    one = told(home, "trace.csv", "--devices", "2x24GiB")
    assert set(SAID) <= one.keys()
    assert (one["policy"], one["states"], one["lower_bound"]) == ("packed", {"succeeded": 4}, 1260.0)
    assert one["ratio"] == pytest.approx(one["makespan"] / one["lower_bound"], abs=1e-4)
    assert set(one["waits"]) == {"1", "2", "3"}


def test_several_policies_are_a_json_list(home: Home) -> None:
    assert [one["policy"] for one in told(home, "trace.csv", "--devices", "2x24GiB", "--compare")] == names()
    some = told(home, "trace.csv", "--devices", "2x24GiB", "--compare", "one-per-gpu")
    assert [one["policy"] for one in some] == ["one-per-gpu"]


def test_one_seed_gives_equal_output(home: Home) -> None:
    first, again = (simulate(home, "trace.csv", "--devices", "2x24GiB", "--seed", "5") for _ in range(2))
    assert first == again


def test_arrivals_at_once_and_over_time_differ(home: Home) -> None:
    assert told(home, "trace.csv", "--devices", "2x24GiB", "--all-at-once")["lower_bound"] == 1200.0
    assert told(home, "trace.csv", "--devices", "2x24GiB", "--arrive-over", "10h")["lower_bound"] > 3600.0


def test_knowledge_and_model_change_the_result(home: Home) -> None:
    flags = ("trace.csv", "--devices", "1x24GiB", "--no-deviation", "--all-at-once")
    (home.root / "trace.csv").write_text("duration_s,peak_mem_mib,util,config\n" + "600,4000,0.5,a.py\n" * 4)
    assert told(home, *flags, "--known", "times,peaks", "--interference", "none")["makespan"] == 600.0
    assert told(home, *flags, "--known", "times,peaks", "--interference", "prop")["makespan"] == 1200.0
    assert told(home, *flags, "--interference", "none")["makespan"] > 600.0
    half = ("--known", "times,peaks", "--interference", "prop", "--loading", "0.5")
    assert told(home, *flags, *half)["makespan"] == 900.0  # they share the GPU for the second half of their work


def test_chart_is_written_as_svg(home: Home) -> None:
    simulate(home, "trace.csv", "--devices", "2x24GiB", "--compare", "-o", "chart.svg")
    text = (home.root / "chart.svg").read_text()
    ElementTree.fromstring(text)
    assert all(f"{name}: " in text for name in names())


def test_cost_of_not_knowing_the_peaks_is_told(home: Home) -> None:
    (home.root / "made.csv").write_text(simulate(home, "--generate", "distinct", "--tasks", "12"))
    words = ("made.csv", "--devices", "1x24GiB", "--learning")
    found = json.loads(simulate(home, *words, "--json"))
    assert min(found["makespan"], found["makespan_peaks_known"]) > found["lower_bound"]
    cost = found["makespan"] / found["makespan_peaks_known"] - 1
    more = f"{abs(cost):.1%} {'more' if cost >= 0 else 'less'}"
    assert f"with known peaks; without knowing them it took {more} time" in simulate(home, *words)
    assert "leave peaks out of --known" in simulate(home, *words, "--known", "peaks", code=2)


def test_generated_trace_can_be_simulated(home: Home) -> None:
    (home.root / "made.csv").write_text(simulate(home, "--generate", "sweep", "--tasks", "30", "--seed", "4"))
    one = told(home, "made.csv", "--devices", "2x24GiB")
    assert one["states"] == {"succeeded": 30}


class TestLists:
    """Lists as `run` takes them, simulated."""

    def write(self, home: Home, header: str, *rows: str) -> None:
        (home.root / "train.py").write_text("print('trained')\n")
        (home.root / "jobs.csv").write_text("\n".join([header, *rows]) + "\n")

    FIVE = "Directory,Executable,Filename,Epochs,Priority"

    def test_columns_of_the_list_give_the_needs(self, home: Home) -> None:
        self.write(home, f"{self.FIVE},duration_s,Peak_mem_MiB", ".,-1,train.py --n 1,5,1,100,4000")
        one = told(home, "jobs.csv", "--devices", "host:24GiB", "--cores", "2", "--no-deviation")
        assert (one["makespan"], one["states"]) == (100.0, {"succeeded": 1})

    def test_needs_are_assumed_by_the_flag(self, home: Home) -> None:
        self.write(home, self.FIVE, ".,-1,train.py --n 1,5,1", ".,-1,train.py --n 2,5,1")
        one = told(home, "jobs.csv", "--devices", "2x24GiB", "--assume", "10min,20GiB", "--no-deviation")
        assert (one["makespan"], one["tasks"]) == (600.0, 2)

    def test_needs_come_from_the_profiles_of_earlier_runs(self, home: Home) -> None:
        self.write(home, self.FIVE, ".,-1,train.py --n 1,5,1")
        home.call("run", "jobs.csv")
        one = told(home, "jobs.csv", "--devices", "host:24GiB", "--cores", "2", "--no-deviation")
        assert 0 < one["makespan"] < 600

    def test_needs_of_an_edited_script_come_from_its_earlier_version(self, home: Home) -> None:
        self.write(home, self.FIVE, ".,-1,train.py --n 1,5,1")
        home.call("run", "jobs.csv")
        script = home.root / "train.py"
        script.write_text(f"# edited\n{script.read_text()}")
        one = told(home, "jobs.csv", "--devices", "host:24GiB", "--cores", "2", "--no-deviation")
        assert 0 < one["makespan"] < 600

    def test_rows_begin_at_their_time_or_that_of_the_flag_and_held_ones_are_left_out(self, home: Home) -> None:
        rows = ("a,true,+2h,,,100,400", "b,true,,,,100,400", "c,true,,yes,,100,400", "d,true,,,c,100,400")
        self.write(home, "Name,Command,Begin,Hold,After,duration_s,peak_mem_mib", *rows)
        on = ("jobs.csv", "--devices", "host:24GiB", "--cores", "2", "--no-deviation")
        one, later = told(home, *on), told(home, *on, "--begin", "+1h")
        assert (one["tasks"], later["tasks"]) == (2, 2)
        assert [found["makespan"] for found in (one, later)] == pytest.approx([7300.0] * 2, abs=60.0)
        assert one["mean_completion"] + 1750.0 < later["mean_completion"]

    def test_a_list_of_commands_is_ranked_over_all_its_rows_as_run_ranks_it(self, home: Home) -> None:
        on = ("jobs.csv", "--devices", "host:2GiB", "--cores", "1", "--no-deviation")
        forms = [("Command", "true"), ("Directory,Executable,Filename,Epochs", ".,-1,train.py,1")]
        waits = []
        for columns, cells in forms:
            rows = [f"{cells},{priority},100,400" for priority in (*[5] * 20, -1)]
            self.write(home, f"{columns},Priority,duration_s,peak_mem_mib", *rows)
            waits.append(told(home, *on)["waits"]["-1"]["max"])
        assert waits[0] == 0.0 < waits[1], "five columns are ranked batch by batch"

    def test_a_window_that_opens_later_delays_the_list(self, home: Home) -> None:
        self.write(home, "Command,duration_s,peak_mem_mib", "true,100,400")
        opens = datetime.now().astimezone() + timedelta(hours=2)
        window = f"{opens:%H:%M}-{opens + timedelta(hours=1):%H:%M}"
        one = told(home, "jobs.csv", "--devices", "host:24GiB", "--cores", "2", "--no-deviation", "--window", window)
        assert 7000.0 < one["makespan"] <= 7300.0

    def test_missing_needs_are_named(self, home: Home) -> None:
        self.write(home, f"{self.FIVE},duration_s", ".,-1,train.py --n 1,5,1,100", ".,-1,train.py --n 2,5,1,")
        said = simulate(home, "jobs.csv", "--devices", "8x24GiB", code=2)
        assert said.startswith("scheduler: jobs.csv, row 2: the memory is unknown, because train --n 1 has no profile")
        assert "peak_mem_mib" in said
        assert "--assume 10min,4GiB" in said

    def test_list_that_run_refuses_is_refused(self, home: Home) -> None:
        self.write(home, self.FIVE, ".,-1,nothing.py,5,1")
        assert "row 2" in simulate(home, "jobs.csv", "--devices", "8x24GiB", "--assume", "1h,1GiB", code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a list or a trace"),
        (("trace.csv",), "give the machine: --devices 8x24GiB"),
        (("none.csv", "--devices", "8x24GiB"), "none.csv: it cannot be read: no such file or directory"),
        (("trace.csv", "--devices", "8x24"), "'24' has no unit"),
        (
            ("trace.csv", "--devices", "8x24GiB", "--known", "all"),
            "--known all: 'all' is not one of times, peaks, oracle",
        ),
        (("trace.csv", "--devices", "8x24GiB", "--policy", "best"), "there is no policy 'best'"),
        (("trace.csv", "--devices", "8x24GiB", "--compare", "packed,best"), "there is no policy 'best'"),
        (("trace.csv", "--devices", "8x24GiB", "-o", "chart.png"), "charts are SVG files: give a name that ends"),
        (("trace.csv", "--devices", "8x24GiB", "-o", "no/chart.svg"), "no/chart.svg: no such file or directory"),
        (("trace.csv", "--devices", "8x24GiB", "--loading", "1"), "--loading 1: give a share from 0 to below 1"),
        (("trace.csv", "--devices", "8x24GiB", "--seed", "x"), "--seed x: give a whole number"),
        (
            ("trace.csv", "--devices", "8x24GiB", "--assume", "4"),
            "--assume 4: '4' is neither a time (10min) nor a size",
        ),
        (("trace.csv", "--devices", "8x24GiB", "--arrive-over", "5"), "--arrive-over: '5' has no unit"),
        (("trace.csv", "--devices", "host:8GiB", "--cores", "0"), "--cores 0: give a number above 0"),
        (("trace.csv", "--devices", "8x24GiB", "--tasks", "5"), "--tasks has an effect only with --generate"),
        (("trace.csv", "--generate", "sweep"), "leave trace.csv out"),
        (("trace.csv", "--devices", "8x24GiB", "--begin", "+2h"), "--begin is for the rows of a list"),
        (("--generate", "huge"), "not one of sweep, heavy, gangs"),
        (("--generate", "sweep", "--devices", "8x24GiB"), "--devices has no effect with --generate"),
        (("--generate", "sweep", "-o", "chart.svg"), "--output has no effect with --generate"),
        (("--generate", "sweep", "--tasks", "0"), "--tasks 0: give a whole number from 1 to"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(home: Home, arguments: tuple[str, ...], said: str) -> None:
    assert said in simulate(home, *arguments, code=1 if "no/chart.svg" in arguments else 2)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("1x24GiB", "trace.csv, row 5, column gpus: needs 2 GPUs; the simulated machine has 1: --devices 2x24GiB"),
        ("host:24GiB", "trace.csv, row 2, column gpus: needs 1 GPU; the simulated machine has none"),
    ],
)
def test_machine_with_too_few_gpus_is_refused(home: Home, devices: str, said: str) -> None:
    assert said in simulate(home, "trace.csv", "--devices", devices, code=2)


def test_machine_without_a_host_is_refused_for_host_tasks(home: Home) -> None:
    (home.root / "trace.csv").write_text("duration_s,peak_mem_mib,gpus\n60,100,0\n")
    assert "row 2: runs on the host" in simulate(home, "trace.csv", "--devices", "2x24GiB", code=2)


def test_trace_without_rows_is_refused(home: Home) -> None:
    (home.root / "trace.csv").write_text("duration_s,peak_mem_mib\n")
    assert "it has a header and no rows" in simulate(home, "trace.csv", "--devices", "8x24GiB", code=2)


def test_closed_output_pipe_gives_no_traceback(home: Home) -> None:
    shell = f"{sys.executable} -m scheduler simulate --generate sweep --tasks 20000 | head -1"
    done = subprocess.run(["sh", "-c", shell], cwd=home.root, env=home.env, capture_output=True, text=True, check=True)
    assert (done.stdout.split(",")[0], done.stderr) == ("job_id", "")


def test_short_run_reports_no_wait_of_decades(home: Home) -> None:
    said = home.call("run", home.commands("true"), "--devices", "host", code=0).stdout
    assert "1 succeeded" in said
    assert re.search(r"\d+d\d\dh", said) is None
