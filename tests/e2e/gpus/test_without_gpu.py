"""Tasks that never touch a GPU, on a machine that has one: they run on the host beside it, and may touch it later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import HOST
from tests.support.gpu_home import GpuHome, Row, Try, training
from tests.support.standin.box import NO_COMPILER, TRAIN

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
Machine = Callable[..., GpuHome]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield a function that makes a machine with GPUs."""
    made: list[GpuHome] = []

    def make(**how: Any) -> GpuHome:
        made.append(GpuHome(tmp_path, **how))
        return made[-1]

    yield make
    for home in made:
        home.end()


def without(**said: object) -> Row:
    """Return a task that uses no GPU, whatever it sees."""
    return training(**{"seconds": 0.8, **said})


def homes(tries: list[Try]) -> list[str]:
    """Return where each attempt was placed."""
    return [f"GPU {one.gpus[0]}" if one.gpus else HOST for one in tries]


class TestMeasurement:
    def test_class_that_never_used_its_gpu_runs_on_the_host_from_its_second_attempt(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[without()] * 4)
        first = home.run("-j", "1")
        assert homes(first) == ["GPU 0", HOST, HOST, HOST]
        assert first[0].exited is not None
        assert first[0].exited.peak[home.box.uuids[0]] == 0
        home.run()
        assert {one.source for one in home.tries(2)} == {"profile"}
        assert homes(home.tries(2)) == [HOST] * 4
        tasks = json.loads(home.call("results", "--json").stdout)["tasks"]
        assert {(task["device"], task["source"]) for task in tasks} == {("host", "profile")}

    @pytest.mark.parametrize("fault", ["hidden", "host_pids", "memory_na"])
    def test_gpu_whose_processes_are_unknown_proves_no_absence(self, machine: Machine, fault: str) -> None:
        home = machine(gpus=1)
        home.box.set(0, **{fault: 1})
        home.jobs(*[training(peak="300MiB", profile="flat", seconds=0.8)] * 2)
        for run in (1, 2):
            home.run("-j", "1")
            assert homes(home.tries(run)) == ["GPU 0"] * 2

    def test_row_that_asks_for_a_gpu_gets_one_whatever_its_profile_says(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(without(), without(GPUs=1), without(Memory="1GiB"))
        home.run("-j", "1")
        home.run("-j", "1")
        assert homes(home.tries(2)) == [HOST, "GPU 0", "GPU 0"]

    def test_task_that_failed_before_it_could_use_a_gpu_is_not_known_to_need_none(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "wrong.py").write_text("import time; time.sleep(0.8); raise SystemExit(3)")
        home.jobs(*[training("wrong.py")] * 3)
        assert homes(home.run("-j", "1", code=1)) == ["GPU 0"] * 3


class TestLateUse:
    def test_task_on_the_host_that_uses_a_gpu_after_all_is_reserved_what_it_uses(self, machine: Machine) -> None:
        home = machine(gpus=2)
        row = training("sometimes.py", take="3GiB")
        (home.root / "sometimes.py").write_text(SOMETIMES)
        home.jobs(row)
        home.run()
        home.run()
        assert homes([*home.tries(1), *home.tries(2)]) == ["GPU 0", HOST]
        (home.root / "touch").touch()
        home.run()
        (late,) = home.tries(3)
        assert (homes([late]), late.outcome, late.causes) == ([HOST], "succeeded", ["seen"])
        assert late.reservation["0"] > 3 * GIB
        home.run()
        (known,) = home.tries(4)
        assert (homes([known]), known.source) == (["GPU 0"], "profile")
        assert known.first["0"] > 3 * GIB


SOMETIMES = f"""
import os, sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
from train import options, size
time.sleep(0.5)
if os.path.exists("touch"):
    client.Cuda().allocate(0, size(options(sys.argv[1:])["take"]))
time.sleep(0.8)
"""
"""A script that takes memory of its GPU only if a file `touch` exists."""
