"""The sample sweep answers its question in two commands: which learning rate is the best one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def test_sample_and_the_best_of_its_results_name_a_learning_rate(home: Home) -> None:
    began = time.monotonic()
    home.call("run", "--sample", code=0)
    said = home.call("results", "--best", "val_loss", code=0).stdout.splitlines()
    assert time.monotonic() - began < 60
    assert re.fullmatch(r"lowest val_loss 0\.\d+ at step \d: train_mlp lr=0\.\d+ width=\d+ \(task \d\)", said[-1])
    tasks = json.loads(home.call("results", "--json", code=0).stdout)["tasks"]
    assert len(tasks) == 10
    assert max(task["neighbours_max"] for task in tasks) >= 1
