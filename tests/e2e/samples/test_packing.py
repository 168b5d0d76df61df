"""The sample list on a machine with a GPU: its tasks share the GPU with torch, and the host without it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_home import GpuHome
from tests.support.standin.box import HERE, NO_COMPILER

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

SAMPLES = Path(__file__).parents[3] / "scheduler_files"
TIMES = re.compile(r"in all, ([\d.]+) at once")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=1)
    shutil.copytree(SAMPLES, made.root / "scheduler_files", ignore=shutil.ignore_patterns("__pycache__"))
    yield made
    made.end()


@pytest.mark.long
def test_sample_list_shares_a_gpu_with_torch(home: GpuHome) -> None:
    (home.root / "modules").mkdir()
    shutil.copy(HERE / "shape_torch.py", home.root / "modules/torch.py")
    home.env |= {
        "PYTHONPATH": f"{home.root / 'modules'}:{home.env['PYTHONPATH']}",
        "STANDIN_CLIENT": str(HERE / "client.py"),
    }
    with home.start("run", "scheduler_files/commands.csv") as process:
        assert process.wait(600) == 0
    tries = home.tries()
    assert len(tries) == 40
    assert {one.gpus for one in tries} == {(0,)}
    assert all(one.seen["0"] > 300 << 20 for one in tries)
    (times,) = TIMES.findall(home.log())
    assert float(times) >= 1.6
