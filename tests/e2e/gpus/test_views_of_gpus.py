"""Views of the GPUs while a scheduler lives: they show what it measured, without a sampler of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_home import GpuHome, holding, training
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
NO_DRIVER = {"LD_LIBRARY_PATH": "", "STANDIN_GPUS": ""}
"""Variables with which a command finds no NVIDIA library: it can only know what a scheduler has published."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    yield made
    made.end()


def status(home: GpuHome, **env: str) -> dict[str, Any]:
    """Return `status --json`."""
    said: dict[str, Any] = json.loads(home.call("status", "--json", code=0, env={**home.env, **env}).stdout)
    return said


def test_status_and_top_show_what_the_living_scheduler_measured(home: GpuHome) -> None:
    home.jobs(holding("5GiB", Memory="6GiB", Prefer="1"))
    with home.going():
        gpus = wait_until(lambda: [gpu for gpu in status(home, **NO_DRIVER)["gpus"] if gpu["free"] < 19 * GIB], 30)
        assert [(gpu["device"], gpu["reserved"], gpu["tasks"]) for gpu in gpus] == [("GPU 1", 6 * GIB, 1)]
        (lease,) = status(home, **NO_DRIVER)["leases"]
        assert lease["used"]["GPU 1"] >= 5 * GIB
        shown = home.call("top", "--plain", code=0, env={**home.env, **NO_DRIVER}).stdout
        assert "GPU 0" in shown
        assert "5.0G/6.0G" in shown
        home.go()
    assert status(home, **NO_DRIVER)["gpus"] == []


def test_status_looks_itself_where_no_scheduler_lives(home: GpuHome) -> None:
    assert [gpu["device"] for gpu in status(home)["gpus"]] == ["GPU 0", "GPU 1"]
    assert status(home, **NO_DRIVER)["gpus"] == []


def test_results_have_the_energy_of_tasks(home: GpuHome) -> None:
    home.jobs(training(peak="1GiB", seconds=3, busy=0.8), training(seconds=0.1, GPUs=0))
    home.run()
    on_gpu, on_host = json.loads(home.call("results", "r1", "--json", code=0).stdout)["tasks"]
    watts = 40 + 260 * 0.8  # as the stand-in reports it
    assert 0.3 * watts * 3 / 3600 < on_gpu["energy_wh"] < 1.5 * watts * 3 / 3600
    assert on_host["energy_wh"] is None
