"""The commands of the README work as it describes."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.killing import Home

README = Path(__file__).parents[2] / "README.md"


def first_result() -> list[str]:
    """Return the commands of the block under 'First result'."""
    block = re.search(r"## First result\n\n```console\n(.*?)```", README.read_text(), re.DOTALL)
    assert block
    return [line.removeprefix("$ ") for line in block.group(1).splitlines()]


@pytest.mark.slow
def test_the_commands_under_first_result_run_two_tasks_and_name_the_best_learning_rate(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write, run, results = first_result()
    subprocess.run(["sh", "-c", write], cwd=home.root, check=True)
    (home.root / "train.py").write_text("import sys; print('epoch 3/10 loss 0.41 val_loss', 1 - float(sys.argv[2]))\n")
    assert run.split()[0] == results.split()[0] == "scheduler"
    home.call(*run.split()[1:], code=0)
    printed = home.call(*results.split()[1:], "--csv", code=0).stdout
    assert [row["state"] for row in csv.DictReader(io.StringIO(printed))] == ["succeeded"] * 2
    best = home.call(*results.split()[1:], code=0).stdout.splitlines()[-1]
    assert best == "lowest val_loss 0.9 at step 3: train lr=0.1 (task 0)"


def test_the_readme_has_about_eighty_lines() -> None:
    assert 60 <= len(README.read_text().splitlines()) <= 90
