"""docs/performance.md is generated from measured figures alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "scripts/bench/suite.py"


def suite(*words: str) -> None:
    done = subprocess.run([sys.executable, SUITE, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: a figure is not what it is to be
    assert "Traceback" not in done.stderr


def test_performance_page_is_generated_from_the_measurements(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs/performance.json", tmp_path)
    suite("--page", "--out", str(tmp_path))
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path: (ROOT / "docs" / path).read_text() for path in made}
    assert made == kept, "run python scripts/bench/suite.py --page"
    assert {path.name for path in (ROOT / "docs/performance").iterdir()} == {
        path.name for path in made if path.suffix == ".svg"
    }


def test_measuring_one_part_keeps_the_figures_of_the_others(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs/performance.json", tmp_path)
    before = json.loads((tmp_path / "performance.json").read_text())["parts"]
    suite("--quick", "--only", "live", "--out", str(tmp_path))
    after = json.loads((tmp_path / "performance.json").read_text())["parts"]
    assert {part for part in after if after[part] != before.get(part)} == {"live"}
    assert "A refresh of the live view" in (tmp_path / "performance.md").read_text()
