"""Several schedulers on the same stand-in GPUs: the processes of one are known to all others as those of its tasks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.gpu_home import PATIENCE, GpuHome, holding
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    yield made
    made.end()


def first_places(home: GpuHome, run: int, number: int) -> list[float]:
    """Return when the tasks of a run were placed, as soon as this many were."""
    return wait_until(lambda: (found := [one.placed for one in home.tries(run)])[number - 1 :] and found, PATIENCE)


def test_four_schedulers_that_start_one_second_apart_do_not_wait_for_each_others_processes(home: GpuHome) -> None:
    home.jobs(holding("3GiB", Memory="4GiB"), holding("3GiB", Memory="4GiB"))
    with ExitStack() as schedulers:
        runs = []
        for number in range(1, 5):
            began = time.time()
            shutil.copy(home.root / "jobs.csv", home.root / f"{number}.csv")
            runs.append(schedulers.enter_context(home.start("run", f"{number}.csv")))
            home.wait_for_use(0, 3 * GIB * number)
            home.wait_for_use(1, 3 * GIB * number)
            assert len(first_places(home, number, 2)) == 2
            time.sleep(max(0.0, began + 1 - time.time()))
        home.go()
        assert [run.wait(2 * PATIENCE) for run in runs] == [0] * 4
    logs = [home.log(run) for run in range(1, 5)]
    assert not [line for log in logs for line in log.splitlines() if "unmanaged" in line]
    assert not [line for log in logs for line in log.splitlines() if " wait " in line]
