"""Metrics of real tasks, from their output and their result files to every view."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import Home

pytestmark = pytest.mark.slow

SCRIPT = """\
import json, os, sys, time
said = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
lr, bs = float(said["lr"]), int(said["bs"])
for epoch in range(1, 5):
    loss = (lr - 0.03) ** 2 * 100 + bs / 1000 + 1 / epoch
    if "pause" in said:
        time.sleep(float(said["pause"]))
    print(f"epoch {epoch}/4 loss {loss:.4f} val_acc {1 - loss / 4:.4f} throughput={bs}", flush=True)
"""
TABLE = "lr,bs\n0.01,64\n0.03,64\n0.1,64\n0.03,128\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Yield a home in which a sweep over two parameters has ended."""
    made = Home(tmp_path_factory.mktemp("swept"))
    (made.root / "train.py").write_text(SCRIPT)
    (made.root / "sweep.csv").write_text(TABLE)
    made.call("run", "sweep.csv", "--", sys.executable, "-u", "train.py", "--lr={lr}", "--bs={bs}", code=0)
    yield made
    made.end()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (made.root / "train.py").write_text(SCRIPT)
    yield made
    made.end()


def rows(home: Home, *more: str) -> list[dict[str, Any]]:
    """Return the tasks of the latest run, as `results --json` has them."""
    found: list[dict[str, Any]] = json.loads(home.call("results", "--json", *more, code=0).stdout)["tasks"]
    return found


def test_numbers_of_epoch_lines_are_columns_of_results(swept: Home) -> None:
    first = rows(swept)[0]
    assert first["result.loss"] == 0.354
    assert first["result.val_acc"] == 0.9115
    assert "result.throughput" not in first


def test_named_metrics_are_read_in_place_of_the_usual_ones(home: Home) -> None:
    (home.root / "one.csv").write_text("lr,bs\n0.1,32\n")
    words = [sys.executable, "train.py", "lr={lr}", "bs={bs}"]
    home.call("run", "one.csv", "--metrics", "throughput", "--", *words, code=0)
    assert {name: value for name, value in rows(home)[0].items() if name.startswith("result.")} == {
        "result.throughput": 32.0
    }


def test_lines_of_a_result_file_are_a_curve_of_which_the_last_one_is_the_result(home: Home) -> None:
    lines = r"""printf '{"id": 3, "x": 1}\n{"id": 4, "x": NaN}\n{"id": 5, "note": "<b>"}\n' >"$SCHEDULER_RESULT" """
    (home.root / "one.csv").write_text("note\nx\n")
    home.call("run", "one.csv", "--", "sh", "-c", lines.replace("{", "{{").replace("}", "}}"), code=0)
    first = rows(home)[0]
    assert (first["id"], first["result.id"], first["result.x"], first["result.note"]) == (0, 5, None, "<b>")
