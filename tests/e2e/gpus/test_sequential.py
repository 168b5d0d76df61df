"""`--profile sequential`, the older tool's own procedure, with real processes, on host RAM and on stand-in GPUs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.units import GIB, MIB
from tests.e2e.gpus.test_learning import HEADER, HOLD, hold, tasks
from tests.e2e.older_tools.contracts import contract
from tests.support.gpu_home import GpuHome, training
from tests.support.killing import ROOT, Home
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "hold.py").write_text(HOLD)
    yield made
    made.end()


def order(home: Home) -> list[tuple[str, int]]:
    """Return the starts in the run's log: `probe` or `start`, with the task's id."""
    words = [line.split() for line in home.log().splitlines()]
    return [(word[at], int(word[at + 1])) for word in words for at in (1, 2) if _is_start(word, at)]


def _is_start(words: list[str], at: int) -> bool:
    return len(words) > at + 1 and words[at] in ("probe", "start") and words[at + 1].isdecimal()


def trained(task: dict[str, Any]) -> list[str]:
    """Return the epochs that the task's command has counted, in all attempts that had its id."""
    return (Path(task["log"]).parent / f"trained.{task['id']}").read_text().split()


class TestOnTheHost:
    @contract("S3-20", "S3-21", "S3-22")
    def test_each_task_of_a_batch_is_profiled_for_two_epochs_before_the_batch_runs(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, *(hold(home, 40, epochs=epochs) for epochs in (5, 7, 5)))
        home.call("run", "jobs.csv", "--profile", "sequential", "--num", "2", code=0)
        first, second, third = (task["id"] for task in tasks(home))
        probes = [("probe", first), ("probe", second), ("start", first), ("start", second)]
        assert "each task of a batch is profiled first, one after the other (2 epochs)" in home.log()
        assert order(home) == [*probes, ("probe", third), ("start", third)]
        assert [len(trained(task)) for task in tasks(home)] == [2 + 5, 2 + 7, 2 + 5], "under its own id, as it was"

    def test_tasks_are_reserved_their_own_peaks_without_a_margin(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 200), hold(home, 60))
        home.call("run", "jobs.csv", "--profile", "sequential", code=0)
        for task, mib in zip(tasks(home), (200, 60), strict=True):
            assert task["source"] == "probe"
            assert mib * MIB < task["reserved_bytes"] < (mib + 60 + 64) * MIB

    def test_known_needs_are_profiled_all_the_same_and_their_profiles_are_kept(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 50))
        for _ in range(2):
            home.call("run", "jobs.csv", "--profile", "sequential", code=0)
        assert home.log(2).count(" probe  ") == 1
        home.call("run", "jobs.csv", code=0)
        assert tasks(home)[0]["source"] == "profile"

    def test_a_killed_run_goes_on_where_it_was(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, *[hold(home, 40, rest=0.2)] * 2)
        with home.start("run", "jobs.csv", "--profile", "sequential") as run:
            wait_until(lambda: " start " in home.log(), 60)
            run.kill()
        home.call("resume", code=0)
        assert sorted(one for one in order(home) if one[0] == "probe") == [
            ("probe", task["id"]) for task in tasks(home)
        ]
        assert [task["state"] for task in tasks(home)] == ["succeeded"] * 2

    @contract("S3-20")
    def test_scheduler_py_takes_it(self, home: Home) -> None:
        home.command = [sys.executable, str(ROOT / "scheduler.py")]
        home.write("jobs.csv", HEADER, hold(home, 40))
        home.call("--csv", "jobs.csv", "--profile", "sequential", code=0)
        assert [word for word, _ in order(home)] == ["probe", "start"]
        assert "sequential" in home.call("--help").stdout


@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
class TestOnGpus:
    @pytest.fixture
    def box(self, tmp_path: Path) -> Iterator[GpuHome]:
        made = GpuHome(tmp_path, gpus=2, total="8GiB")
        yield made
        made.end()

    @contract("S3-22")
    def test_a_batch_is_packed_on_the_first_gpu_by_peaks_and_buffer(self, box: GpuHome) -> None:
        rows = [training(peak=peak, seconds=0.8, epochs="{epochs}", Epochs=4) for peak in ("3GiB", "4GiB", "1GiB")]
        box.jobs(*rows)
        tries = box.run("--profile", "sequential")
        probes, runs = tries[:3], tries[3:]
        assert all(one.gpus == (0,) for one in tries)
        assert [one.first["0"] for one in runs] == pytest.approx([3 * GIB, 4 * GIB, GIB], rel=0.02)
        for before, after in zip(probes, tries[1:], strict=False):
            assert after.placed >= before.ended, "one after the other"
        assert runs[1].placed < runs[0].ended, "3 + 4 GiB and the buffer fit into 8 GiB"
        assert runs[2].placed >= min(runs[0].ended, runs[1].ended), "1 GiB more does not"


class TestWhatDoesNotGoWithIt:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (("--slots", "2"), "--slots does not go with --profile sequential"),
            (("--devices", "slots:0"), "--devices slots:0 does not go with --profile sequential"),
            (("--order", "global"), "--order does not go with --profile sequential"),
            (("--max-gpu-load", "1.5"), "--max-gpu-load does not go with --profile sequential"),
            (("--margin", "20%"), "--margin does not go with --profile sequential"),
            (("--profile-id", "own"), "--profile-id does not go with --profile sequential"),
        ],
    )
    def test_a_flag_without_an_effect_is_refused(self, home: Home, flags: tuple[str, ...], said: str) -> None:
        home.write("jobs.csv", HEADER, hold(home, 40))
        done = home.call("run", "jobs.csv", "--profile", "sequential", *flags, code=2)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_row_without_epochs_is_refused(self, home: Home) -> None:
        home.write("jobs.csv", "Directory,Command", [home.root, "true"])
        done = home.call("run", "jobs.csv", "--profile", "sequential", code=2)
        assert "jobs.csv, row 2, column Epochs: --profile sequential trains each task for 2 epochs first" in done.stderr

    def test_profiles_learn_refuses_it(self, home: Home) -> None:
        home.write("jobs.csv", HEADER, hold(home, 40))
        assert (
            "leave --profile sequential out"
            in home.call("profiles", "learn", "jobs.csv", "--profile", "sequential", code=2).stderr
        )


def test_sequential_profiling_can_be_planned_and_simulated(home: Home) -> None:
    home.write("jobs.csv", HEADER, *[hold(home, 40)] * 2)
    plan = home.call("run", "jobs.csv", "--profile", "sequential", "--dry-run", code=0).stdout
    assert plan.count("would start now") == 1
    words = ("jobs.csv", "--devices", "1x24GiB", "--assume", "10min,4GiB", "--no-deviation", "--json")
    found = json.loads(home.call("simulate", *words, "--profile", "sequential", code=0).stdout)
    same = json.loads(home.call("simulate", *words, "--policy", "batches", code=0).stdout)
    assert found == same
    assert found["policy"] == "batches"
    refused = home.call("simulate", *words, "--profile", "sequential", "--policy", "one-per-gpu", code=2)
    assert "--profile sequential is the policy batches" in refused.stderr
