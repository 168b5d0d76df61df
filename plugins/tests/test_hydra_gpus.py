"""A Hydra sweep on two stand-in GPUs: its jobs share them, and their memory is learned by their overrides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.tests.plugin_home import write_metadata
from tests.support.gpu_home import GpuHome
from tests.support.killing import ROOT
from tests.support.standin.box import NO_COMPILER, TRAIN, build

pytest.importorskip("hydra")
pytestmark = [pytest.mark.long, pytest.mark.skipif(build() is None, reason=NO_COMPILER)]

APP = f"""\
import sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import hydra, train

@hydra.main(version_base=None, config_path=None)
def app(cfg):
    if train.main(["--peak", f"{{cfg.width / 64}}GiB", "--seconds", "2", "--epochs", "4"]):
        raise RuntimeError("out of memory")
    return abs(cfg.lr - 0.03) + 1 / cfg.width

if __name__ == "__main__":
    app()
"""
"""A training that needs 1 GiB for each 64 units of its width, whatever its learning rate is."""
WIDTHS, RATES = "+width=128,256,384,512", "+lr=0.3,0.1,0.03,0.01,0.003,0.001"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    paths = [ROOT, ROOT / "plugins/src", write_metadata(tmp_path / "site")]
    made.env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SCHEDULER_QUEUE_IDLE": "1h"}
    (tmp_path / "app.py").write_text(APP)
    yield made
    made.end()


def sweep(home: GpuHome, *overrides: str) -> None:
    words = [sys.executable, "app.py", "--multirun", "hydra/launcher=gsched", *overrides]
    done = subprocess.run(words, cwd=home.root, env=home.env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sweep_of_24_packs_two_gpus_and_learns_what_changes_the_memory(home: GpuHome) -> None:
    sweep(home, RATES, WIDTHS)
    first = home.tasks("1")
    assert Counter(task["state"] for task in first) == {"succeeded": 24}
    assert {task["device"] for task in first} == {"GPU 0", "GPU 1"}
    assert max(task["neighbours_max"] for task in first) >= 1
    assert "learned  app: +lr does not change the memory" in home.log()
    assert {task["source"] for task in first[-8:]} <= {"similar", "interpolated", "profile"}
    assert sum(task["ooms"] for task in first) == 0
    sweep(home, "+lr=0.3,0.5", WIDTHS)
    again = home.tasks("1")[24:]
    assert [task["source"] for task in again] == ["profile"] * 4 + ["similar"] * 4
    tight = [task["reserved_bytes"] / task["peak_bytes"] for task in again]
    assert max(tight) < 1.3, tight
